"""An application that uses lit_loader's groups, and what those groups hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig
from torch.utils.data import Dataset

from lit_loader import OptionError

Compose = Callable[..., DictConfig]

ROOT = Path(__file__).parents[2]
CONF = ROOT / "conf" / "lit_loader"
GROUPS = {
    "loader": {
        *("debug", "default", "fragile_data", "inherit"),
        *("auto", "cluster", "reproducible", "throughput", "workers"),
    },
    "remote": {"ray"},
    "sampler": {"mixture", "token_budget", "weighted", "with_replacement"},
    "collate": {"list", "pad"},
    "callbacks": {"monitor", "state"},
}
PRESETS = sorted(GROUPS["loader"] - {"inherit", "cluster"})  # which needs Ray


class Numbers(Dataset[int]):
    """0, 1, 2, ..."""

    def __init__(self, length: int = 12) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return range(self.length)[index]


@contextmanager
def composing(directory: Path, val: int = 12) -> Iterator[Compose]:
    """An application whose configuration, written to a directory, is composed in this process.

    It knows nothing of where lit_loader keeps its files. The split train has 12 samples.
    """
    (directory / "app.yaml").write_text(f"""
defaults:
  - lit_loader/datamodule@data: default
  - _self_
data:
  datasets:
    train: {{_target_: {__name__}.Numbers, _partial_: true}}
    val: {{_target_: {__name__}.Numbers, length: {val}, _partial_: true}}
""")
    with initialize_config_dir(str(directory), version_base="1.3"):
        yield lambda *overrides: compose("app", overrides=list(overrides))


def refusal(node: Any) -> str:
    """Instantiates what must be refused; returns the one line that says why."""
    with pytest.raises((InstantiationException, OptionError)) as caught:
        instantiate(node)
    if isinstance(caught.value, OptionError):  # from Hydra 1.4 on
        return str(caught.value)
    (line,) = [line for line in str(caught.value).splitlines() if "OptionError" in line]
    assert line.startswith("OptionError(")
    return line
