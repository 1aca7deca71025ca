"""Workers of a loader that nobody iterates leave while another one is; no byte is another."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from lit_loader import DataLoader
from lit_loader.accelerator import pin_memory as pinning
from lit_loader.errors import WorkerRestartWarning
from lit_loader.tuning import giving_way, turns
from tests.iteration.test_resizing import until
from tests.parity.tools import Gate, wait_gone
from tests.support.faults import Noisy, outcomes
from tests.support.samples import Call, Counting, Noted, ints
from tests.support.shard_data import KINDS

pytestmark = pytest.mark.timeout(120)

WORKERS = 3


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some batches of another loader are enough, however little time has passed."""
    for module in (turns, giving_way):
        monkeypatch.setattr(module, "FORKED", 0)
    monkeypatch.setattr(giving_way, "STARTED", 0)


@pytest.fixture
def pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend there is an accelerator; a copy stands for pinning."""
    monkeypatch.setattr(pinning, "find_accelerator", lambda device="": 0)
    monkeypatch.setattr(pinning, "pin_tensor", torch.Tensor.clone)
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda device: None)


def made(
    length: int = 60, num_workers: Any = "auto", stream: str = "", **options: Any
) -> DataLoader[Any]:
    dataset: Any = Noisy(length)
    if stream:
        dataset = KINDS[stream](length)
        options = {**options, "num_shards": 4}
    loader: DataLoader[Any] = DataLoader(
        dataset, batch_size=2, shuffle=not stream, seed=7, num_workers=num_workers, **options
    )
    if num_workers == "auto":
        assert loader._core.auto is not None
        loader._core.auto.begin_with(WORKERS)
    return loader


def pids(loader: DataLoader[Any]) -> list[int]:
    return [pid for pool in loader._core.pools() for pid in pool.pids]


def is_held(lock: Any) -> bool:
    """Whether another thread holds a lock."""
    if lock.acquire(blocking=False):
        lock.release()
        return False
    return True


def validated(loader: DataLoader[Any], other: DataLoader[Any]) -> list[Any]:
    """Iterate the other loader until this one's workers, but one, have left; returns its epochs."""
    before, found = pids(loader), []
    turn = loader._core.turn
    while not turn.parked:
        found.append(outcomes(other))
    while not turn.settle():  # spawned ones take seconds to end
        os.sched_yield()
    assert pids(loader) == before[:1]
    wait_gone(before[1:])
    assert loader.num_workers == WORKERS
    told = loader.statistics()
    assert (told.num_workers, told.why_so_many) == (1, "another loader is iterated")
    return found


def trained(loader: DataLoader[Any], other: DataLoader[Any], every: int) -> list[list[Any]]:
    """Two epochs, the other loader's every so many batches and after each; returns both's."""
    found: list[list[Any]] = [[], []]
    for _ in range(2):
        for number, batch in enumerate(loader, 1):
            found[0] += outcomes([batch])
            if number % every == 0:
                found[1] += validated(loader, other)
                assert loader._core.turn.parked
    return found


def expected(found: list[list[Any]], length: int, stream: str = "") -> list[list[Any]]:
    single, other = made(num_workers=0, stream=stream), made(length, 0)
    return [outcomes(single) + outcomes(single), [outcomes(other) for _ in found[1]]]


WAYS = [
    (method, persistent, pin)
    for method in ("fork", "spawn", "forkserver")
    for persistent in (False, True)
    for pin in (False, True)
]


@pytest.mark.parametrize(
    ("method", "persistent", "pin"),
    [pytest.param(*way, marks=() if way[0] == "fork" else pytest.mark.slow) for way in WAYS],
)
def test_bytes(method: str, persistent: bool, pin: bool, pinned: None) -> None:
    options: dict[str, Any] = {
        "persistent_workers": persistent, "pin_memory": pin, "multiprocessing_context": method
    }  # fmt: skip
    every = 10 if method == "fork" else 20
    with made(**options) as loader, made(24, **options) as other:
        found = trained(loader, other, every)
        assert found == expected(found, 24)


@pytest.mark.parametrize("persistent", [False, True], ids=["", "persistent"])
@pytest.mark.parametrize("kind", ["iterator", "dataset", "both"])
def test_streams(kind: str, persistent: bool) -> None:
    """Readers that have a state move to the worker that stays, and back."""
    options: dict[str, Any] = {"stream": kind, "persistent_workers": persistent}
    with made(**options) as loader, made(24) as other:
        found = trained(loader, other, 10)
        assert found == expected(found, 24, kind)


def test_they_come_back() -> None:
    with made(10_000, persistent_workers=True) as loader, made(24) as other:
        iterator = iter(loader)
        next(iterator)
        until(lambda: next(iterator) is not None and len(pids(loader)) == WORKERS)
        for _ in range(2):
            validated(loader, other)
            next(iterator)
            assert not loader._core.turn.parked
            assert loader.statistics().num_workers == WORKERS
            until(lambda: next(iterator) is not None and len(pids(loader)) == WORKERS)


def test_an_epoch_begun_ahead_is_adopted(tmp_path: Path) -> None:
    """What was made of the next epoch is kept, and the first of it is there at once."""

    dataset = Noted(tmp_path / "read", 12)
    with (
        DataLoader(dataset, num_workers="auto", persistent_workers=True) as loader,
        made(24) as other,
    ):
        assert loader._core.auto is not None
        loader._core.auto.begin_with(WORKERS)
        for epoch in range(1, 4):
            assert ints(loader) == list(range(12))
            validated(loader, other)
            until(lambda epoch=epoch: dataset.times() == epoch * 12 + 2 * WORKERS)
            pool = loader._core.pool
            assert pool is not None
            (first,) = pool.pids
        iterator = iter(loader)
        assert int(next(iterator)) == 0
        assert pids(loader) == [first] and pool.num_workers == WORKERS  # no fork came before it
        assert ints(iterator) == list(range(1, 12)) and len(pids(loader)) > 1


def test_numbers_that_were_asked_for_stay() -> None:
    """Only those with "auto" give way, to any; and no stream whose readers have no state."""
    with (
        DataLoader(Counting(4000), num_workers="auto", num_shards=2) as loader,
        made(24, 1, persistent_workers=True) as other,
    ):
        iterator = iter(loader)
        next(iterator)
        for _ in range(4):
            outcomes(other)
        assert not loader._core.turn.parked
    with made(num_workers=2) as loader, made(24, 1, persistent_workers=True) as other:
        iterator = iter(loader)
        next(iterator)
        before = pids(loader)
        for _ in range(4):
            outcomes(other)
        assert pids(loader) == before and not loader._core.turn.parked
    with made() as loader, made(24, 2) as other:
        found = trained(loader, other, 15)
        assert found == expected(found, 24)


def test_a_user_resizes_one_that_is_parked() -> None:
    with made() as loader, made(24) as other:
        iterator = iter(loader)
        found = outcomes([next(iterator)])
        validated(loader, other)
        loader.resize(2)
        assert loader.statistics().num_workers == 2
        found += outcomes([next(iterator)])
        until(lambda: found.extend(outcomes([next(iterator)])) or len(pids(loader)) == 2)
        outcomes(other)
        assert len(pids(loader)) == 2 and not loader._core.turn.parked
        assert found + outcomes(iterator) == outcomes(made(num_workers=0))


def test_a_number_is_set_while_it_is_parked() -> None:
    with made() as loader, made(24) as other:
        iterator = iter(loader)
        found = outcomes([next(iterator)])
        validated(loader, other)
        loader.num_workers = 2  # from the next iterator on: this one's come back
        found += outcomes(iterator)
        assert found == outcomes(made(num_workers=0))
        assert len(outcomes(loader)) == len(found)


def test_closed_while_it_is_parked() -> None:
    with made(24) as other:
        for _ in range(2):
            loader = made(persistent_workers=True)
            iterator = iter(loader)
            next(iterator)
            validated(loader, other)
            left = pids(loader)
            loader.close()
            wait_gone(left)
            outcomes(other)
            single = made(num_workers=0)
            single.set_epoch(1)
            assert outcomes(loader) == outcomes(single)
            loader.close()


@pytest.mark.parametrize("persistent", [False, True], ids=["", "persistent"])
def test_the_one_that_stays_dies(persistent: bool) -> None:
    """It is missed when its work is, and nothing is lost."""
    with made(persistent_workers=persistent) as loader, made(24) as other:
        iterator = iter(loader)
        found = outcomes([next(iterator) for _ in range(3)])
        validated(loader, other)
        (last,) = pids(loader)
        os.kill(last, signal.SIGKILL)
        wait_gone([last])
        outcomes(other)
        with pytest.warns(WorkerRestartWarning):
            found += outcomes(iterator)
        assert found == outcomes(made(num_workers=0))


@pytest.mark.usefixtures("by_fork")  # its gate is a pipe
def test_workers_die_while_they_leave(gate: Gate, tmp_path: Path) -> None:
    """Some are at a sample when they are to leave, and are killed there."""
    closed = tmp_path / "closed"  # from the sample on that is written there

    def wait(index: int) -> int:
        if closed.exists() and index >= int(closed.read_text()):
            gate.wait()
        return index

    with DataLoader(Call(wait, 4000), num_workers="auto") as loader, made(24) as other:
        assert loader._core.auto is not None
        loader._core.auto.begin_with(WORKERS)
        iterator = iter(loader)
        found: list[int] = []
        until(lambda: found.append(int(next(iterator))) or len(pids(loader)) == WORKERS)
        (tmp_path / "written").write_text(str(len(found) + 2))
        (tmp_path / "written").rename(closed)
        found += [int(next(iterator)), int(next(iterator))]
        while not loader._core.turn.parked:
            outcomes(other)
        leaving = pids(loader)[1:]
        for pid in leaving:
            os.kill(pid, signal.SIGKILL)
        wait_gone(leaving)
        outcomes(other)
        gate.open()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", WorkerRestartWarning)
            found += ints(iterator)
        assert found == list(range(4000))


def test_one_that_another_thread_waits_in(gate: Gate) -> None:
    """A thread is in ``next()``: the loader is not idle, however many batches another one has."""

    def wait(index: int) -> int:
        if index == 1:
            assert gate.wait()
        return index

    with DataLoader(Call(wait, 4), num_workers="auto") as loader, made(24) as other:
        iterator, found = iter(loader), []
        found.append(int(next(iterator)))
        thread = threading.Thread(target=lambda: found.extend(ints(iterator)))
        thread.start()
        until(lambda: is_held(loader._core.lock))
        for _ in range(4):
            outcomes(other)
            assert not loader._core.turn.parked
        gate.open()
        thread.join()
        assert found == [0, 1, 2, 3]


@pytest.fixture
def gate() -> Iterator[Gate]:
    opened = Gate()
    yield opened
    opened.close()
