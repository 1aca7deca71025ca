"""Workers are forked while threads do what threads do.

A fork copies the locks that other threads hold, and nobody in the copy will ever release them. Here
a thread holds one lock at the fork for certain: each that a worker needs before the user's code
begins. Threads that never rest, at many things: ``test_many_starts.py``.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import random
import select
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from lit_loader import DataLoader
from lit_loader.errors import LoaderError, WorkerRestartWarning, WorkerTimeoutError
from lit_loader.seeding import seeds
from lit_loader.workers import launcher, making
from lit_loader.workers.launcher import Launcher
from tests.parity.tools import PROMPT
from tests.support.samples import Call, Rows, ints

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

LOCK = "_initialization_lock"  # of torch.cuda and its like
log = logging.getLogger("lit_loader.tests.fork_safety")
log.propagate = False
log.setLevel(logging.INFO)


@pytest.mark.parametrize("launched", [True, False], ids=["launched", "direct"])
def test_a_log_that_is_being_written_at_the_fork(
    monkeypatch: pytest.MonkeyPatch, launched: bool
) -> None:
    """The copy of its file is locked; workers log there all the same."""
    monkeypatch.setattr(launcher, "_has_pidfds", lambda: launched)
    reading, writing = os.pipe()
    with open(writing, "w") as stream:
        handler = logging.StreamHandler(stream)
        log.addHandler(handler)
        thread = threading.Thread(target=log.info, args=("x" * 300_000,))  # more than fits
        thread.start()
        select.select([reading], [], [])

        def sample(index: int) -> int:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())  # the pipe is full
            os.close(nowhere)
            log.info("sample %d", index)
            return index

        try:
            assert ints(
                DataLoader(
                    Call(sample, 2), num_workers=1, multiprocessing_context="fork",
                    timeout=PROMPT, max_worker_restarts=0,
                )
            ) == [0, 1]  # fmt: skip
        finally:
            log.removeHandler(handler)
            left = 300_001  # with the end of the line
            while left:
                left -= len(os.read(reading, left))
            thread.join()
    os.close(reading)


# What another thread holds at the fork ---------------------------------------------------------


@contextlib.contextmanager
def held(take: Callable[[], Any], give_back: Callable[[], Any]) -> Iterator[Callable[[], None]]:
    """Another thread holds a lock until the end, or until what is given is called."""
    taken, done = threading.Event(), threading.Event()

    def hold() -> None:
        take()
        taken.set()
        done.wait()
        give_back()

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


def holding(lock: Any) -> contextlib.AbstractContextManager[Callable[[], None]]:
    return held(lock.acquire, lock.release)


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


@contextlib.contextmanager
def warned() -> Iterator[list[str]]:
    """Gives the texts of what is told of starts and restarts meanwhile."""
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", WorkerRestartWarning)
        yield texts
    assert {warning.category for warning in caught} <= {WorkerRestartWarning}
    texts += [str(warning.message) for warning in caught]


@pytest.fixture(params=[True, False], ids=["launched", "direct"])
def launched(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether workers come from a launcher, or each from this process itself."""
    monkeypatch.setattr(launcher, "_has_pidfds", lambda: request.param)
    return bool(request.param)


@pytest.fixture
def seeding_lock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A lock that is taken to seed launchers and workers, if they are forked."""
    lock = threading.Lock()

    def seed_worker(seed: int) -> None:
        with lock:
            seeds.seed_worker(seed)

    for module in (making, launcher):
        monkeypatch.setattr(module, "seed_worker", seed_worker)
    return lock


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who stands still is taken to be stuck soon."""
    monkeypatch.setattr(launcher, "DEADLINE", 1.0)


def release_at_fork(
    number: int, release: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> list[int]:
    """Release a lock before the launcher is forked for the so manieth time; gives the times."""
    forks: list[int] = []
    fork = Launcher._fork

    def counted(self: Launcher) -> None:
        forks.append(len(forks) + 1)
        if len(forks) == number:
            release()
        fork(self)

    monkeypatch.setattr(Launcher, "_fork", counted)
    return forks


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


def lock_of(dataset: Drawing, name: str) -> Any:
    """The lock that a thread holds while it draws."""
    if name == "numpy":
        return np.random.get_bit_generator().lock
    generator = getattr(dataset, name)
    return getattr(generator, "bit_generator", getattr(generator, "_bit_generator", None)).lock


def test_numpys_generator_is_being_drawn_from_at_the_fork(launched: bool) -> None:
    expected = batches(Drawing())
    with holding(lock_of(Drawing(), "numpy")), warned() as texts:
        assert batches(Drawing(), max_worker_restarts=0) == expected
    assert not texts


def test_accelerators_are_being_seeded_at_the_fork(
    launched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread in ``torch.manual_seed`` has their locks; workers need them, the user's code too."""
    expected = batches(Drawing())
    device = torch.device("cuda")
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: device)
    names = [m for m in ("cuda", "xpu", "mtia") if hasattr(getattr(torch, m), LOCK)]

    def init(worker: int) -> None:
        torch.manual_seed(worker)
        for name in names:
            with getattr(getattr(torch, name), LOCK):
                pass

    with contextlib.ExitStack() as stack, warned() as texts:
        for name in names:
            stack.enter_context(holding(getattr(getattr(torch, name), LOCK)))
        assert batches(Drawing(), max_worker_restarts=0, worker_init_fn=init) == expected
    assert "cuda" in names
    assert not texts


def test_torchs_generator_is_being_drawn_from_at_the_fork(launched: bool) -> None:
    """The fork waits for the end of the draw."""
    expected = batches(Drawing())
    with drawing(0.5), warned() as texts:
        assert batches(Drawing(), max_worker_restarts=0) == expected
    assert not texts


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("name", ["bits", "legacy"])
def test_a_lock_that_is_free_at_the_second_fork(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher is stuck, and not its workers."""
    expected, dataset = batches(Drawing()), Drawing()
    with holding(lock_of(dataset, name)) as release:
        forks = release_at_fork(2, release, monkeypatch)
        with warned() as texts:
            assert batches(dataset, max_worker_restarts=0) == expected
    assert forks == [1, 2]
    assert len(texts) == 1
    assert "got stuck, most likely at a lock" in texts[0]


@pytest.mark.usefixtures("hasty")
def test_a_lock_that_stays_held(seeding_lock: Any) -> None:
    """After two more attempts it is an error, which says where the lock is and what to do."""
    with holding(seeding_lock), warned() as texts, pytest.raises(LoaderError) as caught:
        batches(Drawing(), num_workers=1)
    text = str(caught.value)
    assert "got stuck, most likely at a lock" in text
    assert "in seed_worker" in text, text
    assert "multiprocessing_context='forkserver'" in text
    assert not texts  # the error has it all


def test_a_lock_of_the_datasets_own(launched: bool) -> None:
    """No copy of it is ever free: the error shows where."""
    lock = threading.Lock()

    def sample_with_lock(index: int) -> int:
        with lock:
            return index

    with (
        holding(lock),
        DataLoader(
            Call(sample_with_lock, 4),
            num_workers=1,
            multiprocessing_context="fork",
            timeout=0.5,
            max_worker_restarts=0,
        ) as loader,
        pytest.raises(WorkerTimeoutError, match="in sample_with_lock"),
    ):
        ints(loader)


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


@pytest.mark.parametrize("read", ["readline", "read"])
def test_a_thread_that_reads_standard_input(
    read: str, launched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, writing = os.pipe()
    raw = Reading(reading)
    stream = io.TextIOWrapper(io.BufferedReader(raw))
    monkeypatch.setattr(sys, "stdin", stream)
    thread = threading.Thread(target=getattr(stream, read))
    thread.start()
    raw.begun.wait()
    try:
        with warned() as texts:
            assert batches(Rows(4), max_worker_restarts=0) == [[n] * 4 for n in range(4)]
    finally:
        os.close(writing)
        thread.join()
        os.close(reading)
    assert not texts
