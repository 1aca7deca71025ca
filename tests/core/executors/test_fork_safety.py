"""Workers are forked while threads do what threads do.

A fork copies the locks that other threads hold, and nobody in the copy will ever release them. Here
a thread holds one lock at the fork for certain: each that a worker needs before the user's code
begins. Threads that never rest, at many things: ``tests/faults/test_soak.py``.
"""

import contextlib
import io
import logging
import os
import random
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import IO, Any

import numpy as np
import pytest
import torch

from lit_loader import DataLoader
from lit_loader.core.executors import launcher
from lit_loader.core.executors import worker_setup as making
from lit_loader.core.executors.launcher import Launcher
from lit_loader.core.seeding import seeds
from lit_loader.errors import LoaderError, WorkerTimeoutError
from tests.support.faults import told
from tests.support.samples import Call, Rows, ints

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

log = logging.getLogger("lit_loader.tests.fork_safety")
log.propagate = False
log.setLevel(logging.INFO)

LOCK = "_initialization_lock"  # of torch.cuda and its like
ACCELERATORS = [m for m in (torch.cuda, torch.xpu, torch.mtia) if hasattr(m, LOCK)]


class Drawing(Rows):
    """Draws from all global generators, and from some of its own."""

    def __init__(self, length: int = 6) -> None:
        super().__init__(length)
        self.bits = np.random.default_rng(3)
        self.legacy = np.random.RandomState(4)
        self.torch = torch.Generator().manual_seed(5)

    def __getitem__(self, index: int) -> torch.Tensor:
        numbers = [random.random(), np.random.rand(), self.bits.random(), self.legacy.rand()]
        drawn = [torch.rand(1), torch.rand(1, generator=self.torch)]
        return torch.cat([torch.tensor([index, *numbers]), *drawn])


def batches(dataset: Any, **options: Any) -> list[list[float]]:
    options = {"num_workers": 2, "multiprocessing_context": "fork", "seed": 7, **options}
    with DataLoader(dataset, **options) as loader:
        return [batch.flatten().tolist() for batch in loader]


@pytest.fixture(params=[True, False], ids=["launched", "direct"])
def launched(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether workers come from a launcher, or each from this process itself."""
    monkeypatch.setattr(launcher, "_has_pidfds", lambda: request.param)
    return bool(request.param)


# What another thread holds at the fork ---------------------------------------------------------


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
def drawing(seconds: float) -> Iterator[None]:
    """Another thread is at one draw from torch's global generator, and will be for a while."""
    numbers = torch.empty(2_000_000, dtype=torch.uint8)
    begun = time.perf_counter()
    numbers.geometric_(0.5)
    rate = len(numbers) / (time.perf_counter() - begun)
    numbers = torch.empty(int(rate * seconds), dtype=torch.uint8)
    thread = threading.Thread(target=lambda: numbers.geometric_(0.5))
    spent = time.process_time()
    thread.start()
    while time.process_time() - spent < seconds / 20:
        pass  # it draws in this time, without the interpreter's lock
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


class Reading(io.RawIOBase):
    """Nothing comes, until the end of what stands behind it."""

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._fd = fd
        self.begun = threading.Event()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self.begun.set()
        return len(os.read(self._fd, 1))


@contextlib.contextmanager
def reading_input(read: str) -> Iterator[None]:
    """Another thread waits for standard input."""
    reading, writing = os.pipe()
    raw = Reading(reading)
    stream = io.TextIOWrapper(io.BufferedReader(raw))
    thread = threading.Thread(target=getattr(stream, read))
    thread.start()
    raw.begun.wait()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", stream)
        yield
    os.close(writing)
    thread.join()
    os.close(reading)


HELD: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "numpy.random": lambda: holding(np.random.get_bit_generator().lock),
    "accelerators": seeding_accelerators,
    "torch's generator": lambda: drawing(0.5),  # the fork waits for the end of the draw
    "a log": writing_a_log,
    "input, a line": lambda: reading_input("readline"),
    "input, all": lambda: reading_input("read"),
}


def init(worker: int) -> None:
    """Take the locks in a worker."""
    for stream in WITHOUT_ROOM:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), stream.fileno())
    log.info("worker %d", worker)
    torch.manual_seed(worker)
    for module in ACCELERATORS:
        with getattr(module, LOCK):
            pass


@pytest.mark.usefixtures("launched")
@pytest.mark.parametrize("name", HELD)
def test_a_lock_that_workers_have_anew(name: str) -> None:
    expected = batches(Drawing())
    with HELD[name](), told() as texts:
        assert batches(Drawing(), max_worker_restarts=0, worker_init_fn=init) == expected
    assert torch.cuda in ACCELERATORS
    assert not texts


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who stands still is taken to be stuck soon."""
    monkeypatch.setattr(launcher, "DEADLINE", 2.0)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("name", ["bits", "legacy"])
def test_a_lock_that_is_free_at_the_second_fork(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher is stuck, and not its workers."""
    expected, dataset = batches(Drawing()), Drawing()
    generator, forks, fork = getattr(dataset, name), [], Launcher._fork
    lock = getattr(generator, "bit_generator", getattr(generator, "_bit_generator", None)).lock

    def counted(self: Launcher) -> None:
        forks.append(self)
        if len(forks) == 2:
            release()
        fork(self)

    monkeypatch.setattr(Launcher, "_fork", counted)
    with holding(lock) as release, told() as texts:
        assert batches(dataset, max_worker_restarts=0) == expected
    assert len(forks) == 2
    assert len(texts) == 1
    assert "got stuck, most likely at a lock" in texts[0]


@pytest.mark.usefixtures("hasty")
def test_a_lock_that_stays_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """After two more attempts it is an error, which says where the lock is and what to do."""
    lock = threading.Lock()

    def seed_worker(seed: int) -> None:
        with lock:
            seeds.seed_worker(seed)

    for module in (making, launcher):
        monkeypatch.setattr(module, "seed_worker", seed_worker)
    with holding(lock), told() as texts, pytest.raises(LoaderError) as caught:
        batches(Drawing(), num_workers=1)
    text = str(caught.value)
    assert "got stuck, most likely at a lock" in text
    assert "in seed_worker" in text, text
    assert "multiprocessing_context='forkserver'" in text
    assert not texts  # the error has it all


@pytest.mark.usefixtures("launched")
def test_a_lock_of_the_datasets_own() -> None:
    """No copy of it is ever free: the error shows where."""
    lock = threading.Lock()

    def sample_with_lock(index: int) -> int:
        with lock:
            return index

    options: dict[str, Any] = {"multiprocessing_context": "fork", "max_worker_restarts": 0}
    with (
        holding(lock),
        DataLoader(Call(sample_with_lock, 4), num_workers=1, timeout=0.5, **options) as loader,
        pytest.raises(WorkerTimeoutError, match="in sample_with_lock"),
    ):
        ints(loader)


# Healed from another origin --------------------------------------------------------------------

LIBRARY = threading.Lock()
"""Held by a library's thread now and then: while an image is decoded, say."""


def decode(index: int) -> int:
    with LIBRARY:
        return index


class Images(Rows):
    """Reads its samples by a library with a lock."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(decode(index))


def unpicklable(_: int) -> None:
    """A ``worker_init_fn`` that no fork server can be sent, once it has such an attribute."""


@pytest.mark.usefixtures("by_fork")
@pytest.mark.parametrize("num_workers", [1, 3])
def test_a_lock_that_is_free_by_the_time_workers_are_replaced(num_workers: int) -> None:
    """It was held for a moment, while the loader started: new workers are forked from now.

    All of the first ones hang, which costs one restart.
    """
    options: dict[str, Any] = {"timeout": 1, "max_worker_restarts": 1, "seed": 3}
    with holding(LIBRARY) as release, told() as texts:
        loader = DataLoader(Images(12, 1), 2, num_workers=num_workers, **options)
        iterator = iter(loader)
        # Its workers are forked by the first next(), and released before they are replaced.
        timer = threading.Timer(0.5, release)
        timer.start()
        found = ints(torch.cat([*iterator]))
        timer.join()
        loader.close()
    assert found == list(range(12))
    assert len(texts) == num_workers
    for text in texts:
        assert "in decode" in text
        assert "It had made no batch: it may wait for a lock that another thread held" in text
        assert "a worker from this program as it is now, and nothing is lost (restart 1 of" in text


@pytest.mark.usefixtures("by_fork")
def test_a_lock_that_is_held_for_good() -> None:
    """Forks of now hang, too: workers come from Python's fork server."""
    with holding(LIBRARY), told() as texts:
        loader = DataLoader(Images(12, 1), 2, num_workers=1, timeout=5, seed=3)
        assert ints(torch.cat([*loader])) == list(range(12))
        loader.close()
    assert [text.count("by a worker from Python's fork server") for text in texts] == [0, 1]


@pytest.mark.usefixtures("by_fork")
@pytest.mark.parametrize("why", ["chosen", "not to be pickled"])
def test_a_program_that_needs_forks_is_given_no_fork_server(why: str) -> None:
    dataset, options = Images(4, 1), {}
    if why == "chosen":
        options["multiprocessing_context"] = "fork"
    else:
        dataset.lock = LIBRARY  # type: ignore[attr-defined]
    options |= {"timeout": 0.5, "max_worker_restarts": 2}
    with holding(LIBRARY), told() as texts, pytest.raises(WorkerTimeoutError) as caught:
        ints(DataLoader(dataset, num_workers=1, **options))
    assert "in decode" in str(caught.value)
    assert "when it was forked: set multiprocessing_context='forkserver'" in str(caught.value)
    assert "from this program as it is now" in texts[0]
    assert "fork server" not in "".join(texts)
