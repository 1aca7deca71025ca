"""What `help` and editors show: each public name's arguments, with meaning, type and default.

Editors are asked through the language server of pyright, as they do it themselves.
"""

from __future__ import annotations

import inspect
import pydoc
import re

import pytest
from torch.utils.data import DataLoader as TorchLoader

import lit_loader
from lit_loader.config.loader_config import LoaderConfig
from tests.project.readmes import documented

TORCHS = {"get_worker_info", "default_convert"}
POINTS_ELSEWHERE = {"LoaderConfig"}
"""Its fields are the loader's arguments, and are explained there."""


@pytest.mark.parametrize("name", sorted({*lit_loader.__all__} - {"__version__"} - TORCHS))
def test_every_argument_is_explained(name: str) -> None:
    thing = getattr(lit_loader, name)
    assert inspect.getdoc(thing)
    if isinstance(thing, type) and issubclass(thing, Exception):
        return
    taken = inspect.signature(thing).parameters.values()
    assert not [each for each in taken if each.kind is each.VAR_POSITIONAL]
    if name not in POINTS_ELSEWHERE:
        assert [*documented(thing)] == [each.name for each in taken]


def test_help_has_the_loader_s_arguments_with_defaults() -> None:
    text = pydoc.plain(pydoc.render_doc(lit_loader.DataLoader))
    shown = inspect.signature(lit_loader.DataLoader).parameters
    assert [*shown] == ["dataset", *LoaderConfig.__dataclass_fields__]
    for name, said in documented(lit_loader.DataLoader).items():
        default = shown[name].default
        assert f"{name}: {said[:20]}" in text
        assert name == "dataset" or re.search(rf"\b{name}: .* = {re.escape(repr(default))}", text)
        torchs = inspect.signature(TorchLoader).parameters.get(name)
        assert torchs is None or torchs.default == default
