"""How workers are started: as multiprocessing starts processes, and what may go wrong then.

A fork copies the locks that other threads hold, and nobody in the copy releases them. Here a thread
holds one lock at the fork for certain: each that a worker needs before the user's code begins.
"""

import contextlib
import gc
import logging
import multiprocessing
import os
import random
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from multiprocessing import forkserver
from pathlib import Path
from typing import IO, Any

import numpy as np
import psutil
import pytest
import torch

from lit_loader import DataLoader
from lit_loader.core.executors import main, worker_pool
from lit_loader.errors import LoaderError, WorkerDiedError
from tests.support.faults import told
from tests.support.programs import run_program
from tests.support.samples import Call, OfLength, Rows, ints, usage, worker_pids
from tests.support.tools import wait_gone

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
    pytest.mark.usefixtures("by_fork"),
]

# Forks of the program ----------------------------------------------------------------------------


class Levels(OfLength):
    """What a program sets, which its workers have as it was when they were started."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.level, self.table = 0, [0]

    def __getitem__(self, index: int) -> tuple[int, int, int]:
        return index, self.level, self.table[0]


@pytest.mark.parametrize("method", ["fork", "forkserver"])
@pytest.mark.parametrize("name", ["level", "table"])
def test_the_program_changes_the_dataset_and_a_worker_is_killed(name: str, method: str) -> None:
    """The new one has plain attributes as they were; of others that were replaced it is told."""
    dataset = Levels(8)
    with told(1) as texts, DataLoader(
        dataset, 1, num_workers=1, prefetch_factor=1, multiprocessing_context=method
    ) as loader:  # fmt: skip
        iterator = iter(loader)
        found = [next(iterator)]
        setattr(dataset, name, 1 if name == "level" else [1])
        os.kill(worker_pids(iterator)[0], signal.SIGKILL)
        found += iterator
    assert [int(index) for index, *_ in found] == [*range(8)]
    differs = (name, method) == ("table", "fork")
    assert [int(found[-1][1]), int(found[-1][2])] == [0, int(differs)]
    assert ("has another dataset.table than the workers before" in texts[0]) == differs


@pytest.mark.parametrize("passes", [30, pytest.param(1_000, marks=pytest.mark.slow)])
def test_any_number_of_short_passes(passes: int) -> None:
    loader = DataLoader(Rows(4), num_workers=2)
    before = None
    for number in range(passes):
        assert len([*loader]) == 4
        if number == 2:
            gc.collect()
            before = usage(), psutil.Process().memory_info().rss
    gc.collect()
    assert before is not None
    assert usage() == before[0]
    assert psutil.Process().memory_info().rss < before[1] + (8 << 20)


# What another thread holds at the fork -----------------------------------------------------------

log = logging.getLogger("lit_loader.tests.start")
log.propagate = False
log.setLevel(logging.INFO)

LOCK = "_initialization_lock"  # of torch.cuda and its like
ACCELERATORS = [m for m in (torch.cuda, torch.xpu, torch.mtia) if hasattr(m, LOCK)]


def drawn(index: int) -> torch.Tensor:
    numbers = [index, random.random(), np.random.rand(), float(torch.rand(1))]
    return torch.tensor(numbers, dtype=torch.float64)


@contextlib.contextmanager
def holding(lock: Any) -> Iterator[Callable[[], None]]:
    """Another thread holds a lock until the end, or until what is given is called."""
    taken, done = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            taken.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait()

    def release() -> None:
        done.set()
        thread.join()

    try:
        yield release
    finally:
        release()


@contextlib.contextmanager
def seeding_accelerators() -> Iterator[None]:
    """A thread in ``torch.manual_seed`` has their locks; workers need them, the user's code too."""
    device = torch.device("cuda")
    with contextlib.ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.accelerator, "current_accelerator", lambda: device)
        for module in ACCELERATORS:
            stack.enter_context(holding(getattr(module, LOCK)))
        yield


@contextlib.contextmanager
def drawing() -> Iterator[None]:
    """Another thread is at one draw from torch's global generator, and will be for a while."""
    numbers = torch.empty(2_000_000, dtype=torch.uint8)
    begun = time.perf_counter()
    numbers.geometric_(0.5)
    rate = len(numbers) / (time.perf_counter() - begun)
    numbers = torch.empty(int(rate / 2), dtype=torch.uint8)
    thread = threading.Thread(target=lambda: numbers.geometric_(0.5))
    spent = time.process_time()
    thread.start()
    while time.process_time() - spent < 0.025:
        pass  # it draws in this time, without the GIL
    yield
    thread.join()


WITHOUT_ROOM: list[IO[str]] = []
"""Files of logs."""


@contextlib.contextmanager
def writing_a_log() -> Iterator[None]:
    """Another thread is at writing a line, for which the file has no room."""
    reading, writing = os.pipe()
    with open(writing, "w") as stream:
        handler = logging.StreamHandler(stream)
        log.addHandler(handler)
        WITHOUT_ROOM.append(stream)
        thread = threading.Thread(target=log.info, args=("x" * 300_000,))
        thread.start()
        select.select([reading], [], [])
        try:
            yield
        finally:
            log.removeHandler(handler)
            WITHOUT_ROOM.clear()
            left = 300_001  # with the end of the line
            while left:
                left -= len(os.read(reading, left))
            thread.join()
    os.close(reading)


HELD: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "numpy.random": lambda: holding(np.random.get_bit_generator().lock),
    "accelerators": seeding_accelerators,
    "torch's generator": drawing,  # the fork waits for the end of the draw
    "a log": writing_a_log,
}


def init(worker: int) -> None:
    for stream in WITHOUT_ROOM:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), stream.fileno())
    log.info("worker %d", worker)
    torch.manual_seed(worker)
    for module in ACCELERATORS:
        with getattr(module, LOCK):
            pass


@pytest.mark.parametrize("name", HELD)
def test_a_lock_that_workers_have_anew(name: str) -> None:
    def batches(**options: Any) -> list[Any]:
        with DataLoader(Call(drawn, 6), num_workers=2, seed=7, **options) as loader:
            return [batch.tolist() for batch in loader]

    expected = batches()
    with HELD[name](), told(0):
        assert batches(max_worker_restarts=0, worker_init_fn=init) == expected
    assert torch.cuda in ACCELERATORS


LIBRARY = threading.Lock()
"""Held by a library's thread now and then: while an image is decoded, say."""


def decode(index: int) -> int:
    with LIBRARY:
        return index


@pytest.mark.parametrize("num_workers", [1, 3])
def test_a_lock_that_is_free_by_the_time_workers_are_replaced(num_workers: int) -> None:
    """It was held while the loader started: all first workers hang, which costs one restart."""
    options: dict[str, Any] = {"timeout": 1, "max_worker_restarts": 1}
    options["num_workers"] = num_workers
    with (
        holding(LIBRARY) as release,
        told(num_workers) as texts,
        DataLoader(Call(decode, 12), 2, **options) as loader,
    ):
        iterator = iter(loader)
        # Its workers are forked by the first next(), and released before they are replaced.
        timer = threading.Timer(0.5, release)
        timer.start()
        found = ints(iterator)
        timer.join()
    assert found == [*range(12)]
    for text in texts:
        assert "in decode" in text and "[LL011]" in text and "(restart 1 of" in text


@pytest.mark.parametrize("times", [1, 9], ids=["once", "always"])
def test_a_worker_that_does_not_come_up(
    times: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It waits for a lock that was copied while it was held: another one is forked."""
    run = main.worker_main

    def stuck(*links: Any) -> None:
        for turn in range(times):
            with contextlib.suppress(FileExistsError):
                (tmp_path / str(turn)).touch(exist_ok=False)
                lock = threading.Lock()
                lock.acquire()
                lock.acquire()
        run(*links)

    monkeypatch.setattr("lit_loader.core.executors.worker_process.worker_main", stuck)
    monkeypatch.setattr(worker_pool, "_STUCK", 1.0)
    with told(None) as texts, DataLoader(Rows(4, 1), num_workers=1) as loader:
        if times == 1:
            assert ints(loader) == [*range(4)]
        else:
            with pytest.raises(WorkerDiedError, match="did not start: it may wait for a lock"):
                list(loader)
    assert len(texts) == min(times, 3)
    assert "did not start: it may wait for a lock" in texts[0]


# Python's fork server ----------------------------------------------------------------------------


def test_a_fork_server_that_is_killed_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    server: Any = forkserver._forkserver  # type: ignore[attr-defined]
    ensure_running = server.ensure_running

    def killed() -> None:
        ensure_running()
        os.kill(server._forkserver_pid, signal.SIGKILL)
        wait_gone([server._forkserver_pid])

    monkeypatch.setattr(server, "ensure_running", killed)
    loader = DataLoader(Rows(4, 1), num_workers=1, multiprocessing_context="forkserver")
    with pytest.raises(LoaderError, match="LL018"):
        list(loader)
    monkeypatch.undo()
    assert ints(loader) == list(range(4))


UNGUARDED = """
from lit_loader import DataLoader

print(list(DataLoader(range(4), num_workers=1, multiprocessing_context="forkserver")))
"""


def test_a_script_that_a_fork_server_runs_again(tmp_path: Path) -> None:
    """The server itself ends of it in Python 3.14, and the worker in those before."""
    script = tmp_path / "script.py"
    script.write_text(UNGUARDED)
    printed = run_program(script, code=1, stderr=subprocess.STDOUT)
    last = printed.splitlines()[-1]
    assert last.startswith("lit_loader."), printed
    assert 'if __name__ == "__main__":' in last


def test_a_fork_server_in_a_process_that_was_forked() -> None:
    """By the user, from one that uses it: the server is not its child."""
    loader = DataLoader(Rows(4, 1), num_workers=1, multiprocessing_context="forkserver")
    assert ints(loader) == list(range(4))
    if (child := os.fork()) == 0:
        code = 1
        try:
            with pytest.raises(LoaderError, match="not a child of this process"):
                list(loader)
            loader = DataLoader(Rows(4, 1), num_workers=1, multiprocessing_context="fork")
            code = 0 if ints(loader) == list(range(4)) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert ints(loader) == list(range(4))


# Exceptions out of signal handlers --------------------------------------------------------------


@pytest.mark.parametrize(
    ("interrupt", "error"),
    [
        (lambda: [signal.raise_signal(signal.SIGINT) for _ in range(3)], KeyboardInterrupt),
        (lambda: 1 / 0, ZeroDivisionError),  # as if nothing had held it back
    ],
)
def test_an_exception_while_workers_start(interrupt: Any, error: type[BaseException]) -> None:
    interruptions = [interrupt]

    class Process(multiprocessing.context.ForkProcess):
        def start(self) -> None:
            super().start()
            if interruptions:
                interruptions.pop()()

    context: Any = multiprocessing.context.ForkContext()
    context.Process = Process
    iterator = iter(DataLoader(range(16), 4, num_workers=2, multiprocessing_context=context))
    with pytest.raises(error):
        next(iterator)
    assert not multiprocessing.active_children()
    assert torch.cat([*iterator]).tolist() == [*range(16)]
