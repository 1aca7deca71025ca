"""Programs with worker threads: where processes cannot be had, and what interrupts them."""

import gc
import multiprocessing
import os
import signal
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader as TorchLoader

import lit_loader
from lit_loader import DataLoader
from tests.support.programs import run_program, start_program
from tests.support.remote_threads import ThreadWorkers
from tests.support.samples import Call, Rows

THREADS: dict[str, Any] = {"num_workers": 2, "worker_method": "thread"}

NOTEBOOK = """
import multiprocessing
import threading

from torch.utils.data import DataLoader as TorchLoader, Dataset

from lit_loader import DataLoader

multiprocessing.set_start_method("spawn")
scale = (number for number in [2])


def make():
    factor = next(scale)

    class Local(Dataset):
        def __init__(self):
            self.lock, self.numbers = threading.Lock(), iter(range(100))
            self.times = lambda index: factor * index

        def __len__(self):
            return 20

        def __getitem__(self, index):
            with self.lock:
                return self.times(index)

    return Local()


data = make()
for options in ({"worker_method": "thread", "num_workers": 2}, {}):
    print([batch.tolist() for batch in DataLoader(data, 10, **options)])
try:
    next(iter(TorchLoader(data, 10, num_workers=2)))
except Exception as error:
    print(type(error).__name__)
"""


def test_no_guard_and_nothing_that_can_be_pickled(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(NOTEBOOK)
    lines = run_program(tmp_path / "program.py").splitlines()
    assert lines[0] == lines[1] == str([[*range(0, 20, 2)], [*range(20, 40, 2)]])
    assert "Error" in lines[2]


def in_a_daemon(pipe: Any) -> None:
    found = [[batch.tolist() for batch in DataLoader(range(8), 4, **THREADS)]]
    for kind in (DataLoader, TorchLoader):
        try:
            next(iter(kind(range(8), 4, num_workers=2)))  # type: ignore[operator]
        except Exception as error:
            found.append([str(error)])
    pipe.send(found)


def test_a_daemonic_process() -> None:
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("fork")
    process = context.Process(target=in_a_daemon, args=(theirs,), daemon=True)
    process.start()
    found, [by_processes], [by_torch] = ours.recv()
    process.join()
    assert found == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert "use worker_method='thread' or num_workers=0 there" in by_processes
    assert "daemonic processes are not allowed" in by_torch


# --- interruptions ---

INTERRUPTED = """
import signal
import sys
import threading

from torch.utils.data import Dataset

from lit_loader import DataLoader


class Slow(Dataset):
    def __len__(self):
        return 100

    def __getitem__(self, index):
        if index == 7:
            print("at 7", flush=True)
            threading.Event().wait()
        return index


def leave(*_):
    sys.exit(7)


if sys.argv[1] == "handled":
    signal.signal(signal.SIGTERM, leave)
for batch in DataLoader(Slow(), 4, num_workers=2, worker_method="thread"):
    pass
"""


@pytest.mark.parametrize(
    ("number", "how", "code"),
    [
        (signal.SIGINT, "plain", -signal.SIGINT),
        (signal.SIGTERM, "plain", -signal.SIGTERM),
        (signal.SIGTERM, "handled", 7),
    ],
)
def test_a_signal_during_a_sample_ends_the_program(
    number: signal.Signals, how: str, code: int, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(INTERRUPTED)
    with start_program(tmp_path / "program.py", how) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "at 7\n"
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert ("KeyboardInterrupt" in err) == (number == signal.SIGINT)
    assert "Fatal" not in err


class Interrupted(Exception):
    pass


@pytest.fixture
def interrupts() -> Iterator[None]:
    def interrupt(*_: Any) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, interrupt)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.usefixtures("interrupts")
def test_a_handler_s_exception_while_the_program_waits_loses_nothing() -> None:
    gate, main = threading.Event(), threading.main_thread().ident
    assert main is not None

    def sample(index: int) -> int:
        if index == 5 and not gate.is_set():
            signal.pthread_kill(main, signal.SIGUSR1)
            gate.wait()
        return index

    batches = iter(DataLoader(Call(sample), 4, **THREADS))
    found = []
    try:
        with pytest.raises(Interrupted):
            while True:
                found.append(next(batches).tolist())
    finally:
        gate.set()
    found += [batch.tolist() for batch in batches]
    assert found == [[n, n + 1, n + 2, n + 3] for n in range(0, 16, 4)]


def test_an_iterator_that_is_dropped_during_a_sample_harms_no_other() -> None:
    gate, reached = threading.Event(), threading.Event()

    def sample(index: int) -> int:
        if index == 5 and not reached.is_set():
            reached.set()
            gate.wait()
        return index

    loader = DataLoader(Call(sample), 4, **THREADS)
    try:
        batches = iter(loader)
        assert next(batches).tolist() == [0, 1, 2, 3]
        assert reached.wait(60)
        del batches
        gc.collect()
        assert [batch.tolist()[0] for batch in loader] == [0, 4, 8, 12]
    finally:
        gate.set()


# --- beside others ---


def test_an_iterator_that_is_dropped_is_freed_at_once() -> None:
    """Else it is there until garbage is collected, and the next one counts as beside it."""

    def sample(index: int) -> int:
        time.sleep(0.005)  # it is waited for
        return index

    loader = DataLoader(Call(sample, 8), num_workers=1, worker_method="thread")
    gc.disable()
    try:
        iterator = iter(loader)
        next(iterator), next(iterator)
        alive = weakref.ref(iterator)
        del iterator
        assert alive() is None
    finally:
        gc.enable()


def test_remote_workers_of_another_loader(tmp_path: Path) -> None:
    remote: dict[str, Any] = {"num_remote_workers": 1, "remote": ThreadWorkers(str(tmp_path))}
    data = Rows(32)
    with DataLoader(data, 4, shuffle=True, seed=1, num_workers=1, **remote) as one:
        other = DataLoader(data, 4, shuffle=True, seed=1, **THREADS)
        for ours, theirs in zip(other, one, strict=True):
            assert ours.tolist() == theirs.tolist()


def test_loaders_of_all_kinds_at_the_same_time() -> None:
    """A training loader by threads, another one within its loop, and one within its samples."""

    def sample(index: int) -> Any:
        within = sum(batch.sum().item() for batch in DataLoader(range(4), 2, seed=0))
        return np.array([index, within, lit_loader.get_rng().integers(1000)])

    def all_of(**options: Any) -> Any:
        found = []
        for batch in DataLoader(Call(sample), 4, seed=1, shuffle=True, **options):
            found.append(batch.tolist())
            found += [each.tolist() for each in DataLoader(Call(sample, 6), 3, seed=2, **options)]
        return found

    assert all_of(**THREADS) == all_of(num_workers=2)


def test_a_fork_of_the_program_s_own_ends_while_threads_run() -> None:
    for number, batch in enumerate(DataLoader(Rows(), 4, **THREADS)):
        assert batch[0, 0] == 4 * number
        if number % 5 == 0:
            pid = os.fork()
            if pid == 0:
                os._exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
