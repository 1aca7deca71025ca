"""``loader.resize(n)``: another number of workers while they are at work; no byte is another."""

import itertools
import os
import signal
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import get_worker_info

from lit_loader import DataLoader
from lit_loader.core.executors.worker_pool import MOST_WORKERS
from lit_loader.errors import OptionError, WorkerRestartWarning
from tests.support.faults import Faults, Noisy, Strike, outcomes
from tests.support.samples import Call, Counting, Rows, ints, until, worker_pids
from tests.support.tools import Gate, wait_gone

pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures("by_fork")]  # for pipes and gates

LENGTH = 60


def noisy(num_workers: int, **options: Any) -> DataLoader[Any]:
    return DataLoader(Noisy(LENGTH), 2, True, seed=7, num_workers=num_workers, **options)


# The bytes ---------------------------------------------------------------------------------------


# What comes about --------------------------------------------------------------------------------


def test_the_number_comes_about_and_is_given_back() -> None:
    with DataLoader(Rows(10_000), num_workers=2, persistent_workers=True) as loader:
        iterator = iter(loader)
        next(iterator)
        until(lambda: next(iterator) is not None and len(worker_pids(iterator)) == 2)
        first, files = worker_pids(iterator), len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            loader.resize(5)
            assert loader.num_workers == 5 and "num_workers=5" in repr(loader)
            until(lambda: next(iterator) is not None and len(worker_pids(iterator)) == 5)
            more = worker_pids(iterator)
            assert more[:2] == first
            loader.resize(2)
            until(lambda: next(iterator) is not None and len(worker_pids(iterator)) == 2)
            wait_gone(more[2:])
            assert worker_pids(iterator) == first
        assert len(os.listdir("/proc/self/fd")) == files


def test_who_leaves_finishes_what_it_has(gate: Gate, tmp_path: Path) -> None:
    def sample(index: int) -> int:
        mark = tmp_path / "begun"
        if get_worker_info().id == 0:  # which leaves a batch to the other one
            until(mark.exists)
        elif not mark.exists():
            mark.write_text(str(index))
            gate.wait()
        return index

    with DataLoader(Call(sample, 40), num_workers=2, in_order=False) as loader:
        iterator = iter(loader)
        found = [int(next(iterator))]
        pids = worker_pids(iterator)
        loader.resize(1)
        found += [int(next(iterator)) for _ in range(20)]
        assert worker_pids(iterator) == pids
        assert int((tmp_path / "begun").read_text()) not in found
        gate.open()
        wait_gone(pids[1:])
        assert sorted(found + ints(iterator)) == list(range(40))


def test_who_leaves_a_loader_of_an_executors_thread_is_no_death() -> None:
    """There Python joins the very thread when the process ends, and exits with 1."""

    def shrunk() -> tuple[list[int], int]:
        with DataLoader(range(40), num_workers=3, persistent_workers=True) as loader:
            iterator = iter(loader)
            found = [int(next(iterator))]
            pids = worker_pids(iterator)
            loader.resize(1)
            found += ints(iterator)
            wait_gone(pids[1:])
            found += ints(loader)
            return found, loader.statistics().worker_restarts

    with ThreadPoolExecutor(1) as pool:
        found, restarts = pool.submit(shrunk).result(60)
    assert found == [*range(40)] * 2
    assert restarts == 0


def test_while_another_thread_waits_for_a_batch(gate: Gate, tmp_path: Path) -> None:
    """The only worker waits for a second one, and so does the consumer."""

    def sample(index: int) -> int:
        if index == 0:
            (tmp_path / "waits").touch()
            assert gate.wait()
        elif index == 1:
            gate.open()
        return index

    with DataLoader(Call(sample, 8), num_workers=1) as loader:

        def resize() -> None:
            until((tmp_path / "waits").exists)
            loader.resize(2)

        thread = threading.Thread(target=resize)
        thread.start()
        assert ints(loader) == list(range(8))
        thread.join()


def test_a_signals_handler_resizes() -> None:
    """Wherever it breaks in: nothing is begun there, it comes about a little later."""
    numbers, expected = itertools.cycle([3, 1, 2]), outcomes(noisy(0))
    with noisy(2) as loader:
        before = signal.signal(signal.SIGALRM, lambda *_: loader.resize(next(numbers)))
        signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
        try:
            assert outcomes(loader) == expected
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


# What goes wrong ---------------------------------------------------------------------------------


def leaving(loader: DataLoader[Any], faults: Faults) -> list[Any]:
    """An epoch in which only one worker is wanted as soon as a fault has struck."""
    iterator = iter(loader)
    found = outcomes([next(iterator)])
    until(lambda: faults.struck)
    loader.resize(1)
    return found + outcomes(iterator)


@pytest.mark.parametrize("fault", ["SIGKILL", "loop"])
@pytest.mark.parametrize("point", ["fetching", "sending"])
def test_who_dies_or_hangs_while_it_leaves(fault: str, point: str, tmp_path: Path) -> None:
    expected = outcomes(noisy(0))
    for number in range(1, 4):  # of these batches worker 1 has one in hand when it is to leave
        folder = tmp_path / str(number)
        folder.mkdir()
        faults = Faults(folder, Strike(fault, point, number))
        with (
            warnings.catch_warnings(record=True) as told,
            noisy(2, worker_init_fn=faults, timeout=2.0 * (fault == "loop")) as loader,
        ):
            warnings.simplefilter("always")
            assert leaving(loader, faults) == expected
        assert faults.struck == 1
        assert [warning.category for warning in told] == [WorkerRestartWarning]


def test_a_worker_that_leaves_and_does_not_end(tmp_path: Path) -> None:
    """A thread of the dataset's keeps its process; it is ended, and nobody waits for it."""

    def begin(worker: int) -> None:
        if worker == 1:
            threading.Thread(target=threading.Event().wait).start()

    with DataLoader(Rows(10**9), num_workers=2, worker_init_fn=begin) as loader:
        iterator = iter(loader)
        until(lambda: next(iterator) is not None and len(worker_pids(iterator)) == 2)
        pids = worker_pids(iterator)
        loader.resize(1)
        until(lambda: next(iterator) is not None and worker_pids(iterator) == pids[:1])
        wait_gone(pids[1:])


# Without workers, and what is refused ------------------------------------------------------------


def test_from_none_and_to_none() -> None:
    with DataLoader(Call(int, 6), num_workers=0) as loader:
        loader.resize(2)
        assert (loader.num_workers, loader.prefetch_factor) == (2, 2)
        iterator = iter(loader)
        found = [int(next(iterator))]
        with pytest.raises(OptionError, match="resize"):
            loader.resize(0)
        assert loader.num_workers == 2
        assert found + ints(iterator) == list(range(6))
        loader.resize(0)
        assert loader.num_workers == 0
        assert ints(loader) == list(range(6))


def test_where_the_number_is_part_of_the_data() -> None:
    loader = DataLoader(Counting(8), num_workers=2)
    with pytest.raises(OptionError, match="resize"):
        loader.resize(3)
    assert loader.num_workers == 2


@pytest.mark.parametrize("value", [-1, 1.5, "auto", True, MOST_WORKERS + 1])
def test_what_is_no_number(value: Any) -> None:
    loader = DataLoader(Rows(8))
    with pytest.raises(OptionError):
        loader.resize(value)
    with pytest.raises(OptionError, match="prefetch_factor"):
        loader.resize(1, prefetch_factor=0)
    assert loader.num_workers == 0
