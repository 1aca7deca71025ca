"""Streams with ``num_shards`` whose readers are served on other machines, too: the same bytes."""

from __future__ import annotations

import itertools
import random
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import lit_loader
from lit_loader.errors import WorkerRestartWarning
from tests.support.remote_threads import ThreadWorkers
from tests.support.shard_data import KINDS

pytestmark = [
    pytest.mark.timeout(200),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]

SHARDS, LENGTH = 4, 96


def stream(kind: str, keeps: bool, here: Any = 0, **options: Any) -> lit_loader.DataLoader[Any]:
    options = {"batch_size": 3, "num_shards": SHARDS, "seed": 7, **options}
    options["persistent_workers"] = bool(here)
    data = KINDS[kind](LENGTH, "torch", keeps)
    return lit_loader.DataLoader(data, num_workers=here, **options)


def epochs(kind: str, keeps: bool, **options: Any) -> Iterator[list[bytes]]:
    """What each epoch holds, read in this process."""
    loader = stream(kind, keeps, **options)
    while True:
        yield [batch.numpy().tobytes() for batch in loader]


def compare_until(
    happened: Callable[[], bool],
    loader: Any,
    kind: str,
    keeps: bool,
    chance: random.Random | None = None,
) -> None:
    """Compare epochs, until in one something has happened; with other numbers here, by chance."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WorkerRestartWarning)
        for expected in epochs(kind, keeps):
            found = []
            for batch in loader:
                found.append(batch.numpy().tobytes())
                if chance is not None and chance.random() < 0.1:
                    loader.resize(chance.randint(1, 3))
            assert found == expected
            if happened():
                break


def remote_of(fault: str, folder: Path) -> tuple[ThreadWorkers, Callable[[], bool]]:
    """Remote workers that suffer a fault, and what says that they have.

    It strikes once at each of some turns, some of every reader's: some are here all the time.
    """
    remote, places = ThreadWorkers(str(folder)), range(5, 32, 5)
    if fault == "dies":
        remote.dies_at = dict.fromkeys(places, 1)
    elif fault == "silent":
        remote.silent_at, remote.patience = tuple(places), 1.0
    elif fault == "relay":
        remote.kills_relay_at = tuple(places[:3])  # the fourth one has no remote workers
    name = {"dies": "died", "silent": "silent", "relay": "killed"}.get(fault)

    def happened() -> bool:
        struck = name is None or any(remote.count(f"{name} {place}") for place in places)
        return struck and (fault == "relay" or remote.count("made") > 8)

    return remote, happened


FAULTS = ("none", "dies", "silent", "relay")


def cells() -> Iterator[Any]:
    """Of every kind and fault, by turns with other numbers here and there."""
    numbers = itertools.cycle(((1, 2), (1, 1), (2, 3)))
    for kind, keeps, fault in itertools.product(KINDS, (True, False), FAULTS):
        default = (kind, keeps, fault) == ("iterator", True, "dies")
        numbers_of = (1, 2) if default else next(numbers)
        marks = () if default else pytest.mark.slow
        yield pytest.param(kind, keeps, *numbers_of, fault, marks=marks)


@pytest.mark.parametrize(("kind", "keeps", "here", "there", "fault"), [*cells()])
def test_bytes(kind: str, keeps: bool, here: int, there: int, fault: str, tmp_path: Path) -> None:
    remote, happened = remote_of(fault, tmp_path)
    with stream(kind, keeps, here, remote_workers=there, remote=remote) as loader:
        compare_until(happened, loader, kind, keeps, random.Random(f"{kind} {fault}"))
        assert fault == "relay" or loader.statistics().remote_batches > 0


@pytest.mark.slow
def test_a_state_says_nothing_of_remote_workers(tmp_path: Path) -> None:
    remote = ThreadWorkers(str(tmp_path))
    [expected] = itertools.islice(epochs("iterator", True), 1)
    alone, resumed = stream("iterator", True), stream("iterator", True)
    with stream("iterator", True, 1, remote_workers=2, remote=remote) as loader:
        compare_until(lambda: remote.count("made") > 0, loader, "iterator", True)
        loader.set_epoch(0)
        for stop in (1, 9):
            found = list(itertools.islice(loader, stop))
            state = loader.state_dict()
            list(itertools.islice(alone, stop))
            assert state == alone.state_dict()
            resumed.load_state_dict(state)
            rest = [batch.numpy().tobytes() for batch in resumed]
            assert len(found) == stop and rest == expected[stop:]
            loader.load_state_dict(state)
            assert [batch.numpy().tobytes() for batch in loader] == rest
            for each in (loader, alone):
                each.set_epoch(0)
