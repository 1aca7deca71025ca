"""The options of remote workers: what is refused, in one line, and what is not imported."""

import importlib.util
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import lit_loader
from lit_loader.core.options.loader_config import LoaderConfig
from lit_loader.errors import OptionError
from tests.support.exact import Unshared
from tests.support.remote_threads import ThreadWorkers

DATA = TensorDataset(torch.arange(8))


@pytest.mark.parametrize(
    ("remote", "part"),
    [
        ({"address": "ray://head:10001"}, "ray://"),
        ({"adress": "auto"}, "address"),
        ({"address": "head"}, "remote.address"),
        ({"in_flight": 0}, "remote.in_flight"),
        ({"patience": 0}, "remote.patience"),
        ({"cpus_per_worker": -1}, "remote.cpus_per_worker"),
        ({"resources": 3}, "remote.resources"),
        (4, "lit_loader.RayWorkers"),
        (lit_loader.RayWorkers, "lit_loader.RayWorkers"),
    ],
    ids=range(9),
)
def test_a_mistake_is_refused_in_one_line(remote: Any, part: str) -> None:
    with pytest.raises(OptionError) as caught:
        LoaderConfig(remote=remote)
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_options_may_be_a_mapping() -> None:
    config = LoaderConfig(remote={"num_workers": 2, "address": "head:6379", "in_flight": 3})
    assert config.remote == lit_loader.RayWorkers(2, "head:6379", in_flight=3)
    assert config.remote.num_workers == 2


def test_a_stream_is_refused(tmp_path: Any) -> None:
    with pytest.raises(OptionError, match="IterableDataset"):
        lit_loader.DataLoader(Unshared(8), num_shards=2, remote=ThreadWorkers(str(tmp_path)))


def test_remote_workers_cannot_be_changed_once_the_loader_is_built() -> None:
    loader = lit_loader.DataLoader(DATA)
    with pytest.raises(OptionError, match="remote cannot be changed once"):
        loader.remote = lit_loader.RayWorkers(2)


def test_without_ray_using_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "ray" else find_spec(name)
    )
    with pytest.raises(OptionError, match="remote workers need ray. Run pip install ray"):
        lit_loader.DataLoader(DATA, remote={})
