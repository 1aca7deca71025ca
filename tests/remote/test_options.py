"""The options of remote workers: what is refused, in one line, and what is not imported."""

import errno
import importlib.util
import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import lit_loader
from lit_loader.core.options.loader_config import LoaderConfig
from lit_loader.errors import OptionError
from lit_loader.remote import starter
from tests.support.exact import Unshared
from tests.support.remote_threads import ThreadWorkers
from tests.support.tools import refused

DATA = TensorDataset(torch.arange(8))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"remote": {"address": "ray://head:10001"}}, "remote.address must be that of a cluster"),
        ({"remote": {"adress": "auto"}}, "unknown option 'remote.adress': did you mean 'address'?"),
        ({"remote": {"colour": 1}}, "unknown option 'remote.colour': options are address, cpus"),
        ({"remote": {"address": "head"}}, "remote.address must be 'auto', 'local' or host:port"),
        ({"remote": {"address": ""}}, "remote.address must be 'auto', 'local' or host:port"),
        ({"remote": {"in_flight": 0}}, "remote.in_flight must be a whole number of at least 1"),
        ({"remote": {"patience": 0}}, "remote.patience must be more than 0"),
        ({"remote": {"cpus_per_worker": -1}}, "remote.cpus_per_worker must be a finite number"),
        ({"remote": {"resources": 3}}, "remote.resources must be a mapping, got"),
        ({"remote": 4}, "remote must be a lit_loader.RayWorkers, or a mapping of its options"),
        ({"remote": lit_loader.RayWorkers}, "remote must be a lit_loader.RayWorkers, or"),
        ({"num_remote_workers": -1}, "num_remote_workers must be a whole number of at least 0"),
        (
            {"num_remote_workers": 2, "seeding": "worker"},
            "num_remote_workers needs batches that do not",
        ),
    ],
    ids=range(13),
)
def test_a_mistake_is_refused_in_one_line(options: dict[str, Any], message: str) -> None:
    assert message in refused(lambda: LoaderConfig(**options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "num_remote_workers does not apply to an IterableDataset without num_shards"),
        (
            {"num_shards": 2},
            "num_remote_workers make no batches of an IterableDataset, whose readers",
        ),
    ],
)
def test_an_iterable_dataset_is_refused_where_it_must_be(
    options: dict[str, Any], message: str, tmp_path: Any
) -> None:
    options |= {"num_remote_workers": 1, "remote": ThreadWorkers(str(tmp_path))}
    assert message in refused(lambda: lit_loader.DataLoader(Unshared(8), **options))


def test_options_may_be_a_mapping() -> None:
    config = LoaderConfig(num_remote_workers=2, remote={"address": "head:6379", "in_flight": 3})
    assert config.remote == lit_loader.RayWorkers(address="head:6379", in_flight=3)
    assert LoaderConfig(num_remote_workers=2).remote == lit_loader.RayWorkers()
    assert LoaderConfig().remote is None


def test_the_share_of_batches_to_be_compared_has_no_effect_any_more() -> None:
    with pytest.warns(DeprecationWarning, match="remote.verify has no effect any more: check_det"):
        LoaderConfig(num_remote_workers=2, remote={"verify": 0.01})


def test_remote_workers_cannot_be_changed_once_the_loader_is_built() -> None:
    loader = lit_loader.DataLoader(DATA)
    with pytest.raises(OptionError, match="num_remote_workers cannot be changed once"):
        loader.num_remote_workers = 2


def test_a_loader_without_workers_here_may_have_their_options(tmp_path: Any) -> None:
    remote = ThreadWorkers(str(tmp_path))
    loader = lit_loader.DataLoader(
        DATA, num_remote_workers=2, remote=remote, persistent_workers=True, prefetch_factor=4
    )
    assert "num_remote_workers=2" in repr(loader)


def test_no_file_is_left_where_there_is_no_room_for_the_dataset(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(starter, "write_all", refuse)
    remote = ThreadWorkers(str(tmp_path))
    with lit_loader.DataLoader(list(range(8)), num_remote_workers=1, remote=remote) as loader:
        with pytest.raises(OSError, match="No space left"):
            next(iter(loader))
        links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
        there = [os.readlink(link) for link in links if os.path.islink(link)]
        assert not [link for link in there if "lit_loader dataset" in link]


def test_without_ray_using_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "ray" else find_spec(name)
    )
    with pytest.raises(
        OptionError,
        match=r"^lit_loader: num_remote_workers needs ray: pip install ray, or set ",
    ):
        lit_loader.DataLoader(DATA, num_remote_workers=1)


def test_without_remote_workers_nothing_of_it_is_imported() -> None:
    code = (
        "import sys, torch, lit_loader\n"
        "from torch.utils.data import TensorDataset\n"
        "lit_loader.RayWorkers()\n"
        "loader = lit_loader.DataLoader(TensorDataset(torch.arange(8)), num_workers=0)\n"
        "assert len(list(loader)) == 8\n"
        "found = {'ray', 'cloudpickle', 'lit_loader.remote.ray_engine'} & set(sys.modules)\n"
        "assert not found, found\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=200)
