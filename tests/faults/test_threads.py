"""Loaders iterated in several threads of one process: exact, and its own generators left alone.

The global generators are one resource of the process, which one batch at a time may borrow.
"""

import logging
import multiprocessing
import os
import random
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

import lit_loader
from lit_loader import DataLoader
from lit_loader.core.seeding import generator_lock
from tests.exactness.test_exactness import CASES as EXACT
from tests.support.exact import Augmented, EveryOther, digests, noisy_collate
from tests.support.samples import Call, own_generators

TABLE = TensorDataset(torch.arange(52.0).reshape(26, 2))


class Flaky(Augmented):
    """Every fifth sample fails once in each epoch, after it has drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.failed: set[tuple[int, int]] = set()

    def __getitem__(self, index: int) -> Tensor:
        sample = super().__getitem__(index)
        attempt = lit_loader.get_epoch(), index
        if index % 5 == 0 and attempt not in self.failed:
            self.failed.add(attempt)
            raise OSError("not now")
        return sample


FEW = (
    *("shuffle, noisy", "shuffle, by sample", "custom", "custom batches", "random", "mixture"),
    *("get_rng", "get_rng, mixture", "bad samples", "reads, many", "shards, both"),
    *("cached, a stream", "drawing, shuffled buffer, own torch, dataset"),
)
CASES: dict[str, Callable[[int], DataLoader[Any]]] = {
    **{name: lambda seed, name=name: EXACT[name].loader(seed=seed) for name in FEW},
    "worker": lambda seed: DataLoader(
        Call(lambda i: [i, random.gauss(0, 1), np.random.randn(), float(torch.randn(()))], 26),
        3, seed=seed, seeding="worker",
    ),
    "table": lambda seed: DataLoader(TABLE, 3, sampler=EveryOther(26), seed=seed),
    "table in place": lambda seed: DataLoader(
        TABLE, 3, sampler=EveryOther(26), num_workers=1, seed=seed
    ),
    "retries": lambda seed: DataLoader(
        Flaky(), 3, seed=seed, sample_retries={"times": 1, "backoff": 0}, collate_fn=noisy_collate
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _threads_take_turns_often() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(2e-5)
    yield
    sys.setswitchinterval(interval)


@pytest.fixture(autouse=True)
def _in_reserve(generators_kept: None) -> None:
    """Begin in the midst of the streams, with deviates in reserve."""
    random.gauss(0, 1)
    np.random.randn()
    torch.randn(1)


def epochs(case: str, seed: int, count: int) -> list[str]:
    """The bytes of so many epochs of a new loader."""
    with CASES[case](seed) as loader:
        return [name for _ in range(count) for name in digests(loader)]


def together(jobs: list[Callable[[], Any]]) -> list[Any]:
    """What functions return that begin at the same time, a thread each."""
    start = threading.Barrier(len(jobs))

    def run(job: Callable[[], Any]) -> Any:
        start.wait()
        return job()

    with ThreadPoolExecutor(len(jobs)) as pool:
        return list(pool.map(run, jobs))


def lock_is_free() -> bool:
    return not generator_lock.lock._is_owned()


# --- exact, whatever other threads do ---


def test_four_threads_with_loaders_of_all_kinds() -> None:
    compare_four_threads(1)


@pytest.mark.slow
def test_four_threads_for_thousands_of_batches() -> None:
    compare_four_threads(25)


def compare_four_threads(times: int) -> None:
    plans = [random.Random(number).sample(list(CASES), len(CASES)) for number in range(4)]

    def run(number: int) -> list[list[str]]:
        return [epochs(case, number, times) for case in plans[number]]

    expected = [run(number) for number in range(4)]
    before = own_generators()
    found = together([lambda n=number: run(n) for number in range(4)])
    assert found == expected
    assert own_generators() == before


def test_a_thread_of_the_users_that_draws_meanwhile() -> None:
    """What it draws is its own affair; nothing fails, and who does not share is not disturbed."""

    def loader() -> DataLoader[Any]:
        dataset = Augmented()
        return DataLoader(
            Call(lambda i: [i, dataset.numpy_rng.random(), dataset.python_rng.gauss(0, 1)], 26),
            3, seed=5,
        )  # fmt: skip

    expected, stop = [digests(loader())] * 20, threading.Event()

    def draw() -> int:
        times = 0
        while not stop.is_set():
            times += 1
            assert 0 <= random.random() < 1
            assert np.isfinite(np.random.randn(3)).all()
            assert np.random.normal(size=2000).std() > 0.5
            assert torch.isfinite(torch.randn(3)).all()
            np.random.get_state()
        return times

    def load() -> list[list[str]]:
        try:
            return [digests(loader()) for _ in range(20)]
        finally:
            stop.set()

    drawn, found = together([draw, load])
    assert drawn
    assert found == expected


def around(inner: DataLoader[Any]) -> Call:
    """Sample ``i`` is made of numbers that are drawn around a batch of another loader."""

    def sample(index: int) -> Tensor:
        first = random.gauss(0, 1), np.random.randn(), float(torch.rand(()))
        epoch = lit_loader.get_epoch()
        read = next(iter(inner)).sum()
        assert lit_loader.get_epoch() == epoch  # the inner loader is in one of its own
        then = random.gauss(0, 1), np.random.randn(), float(torch.rand(()))
        return torch.tensor([index, *first, float(read), *then], dtype=torch.float64)

    return Call(sample, 6)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_within_the_dataset_of_another_one(workers: int) -> None:
    """One that has a seed draws nothing of what the outer one draws."""
    with DataLoader(around(DataLoader(Augmented(), 3, seed=1)), 2, seed=2) as loader:
        expected = [torch.cat(list(loader)) for _ in range(2)]
    constant = DataLoader(Call(lambda i: torch.ones(1), 6), 3, seed=3)
    with DataLoader(around(constant), 2, seed=2, num_workers=workers) as loader:
        found = [torch.cat(list(loader)) for _ in range(2)]
    columns = [0, 1, 2, 3, 5, 6, 7]
    for one, other in zip(expected, found, strict=True):
        assert torch.equal(one[:, columns], other[:, columns])


# --- waiting ---


def test_a_loader_iterated_in_a_thread_and_by_a_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own lock is taken after the one for the generators, in both."""
    inner = DataLoader(Augmented(), 3, seed=1)
    expected = digests(DataLoader(Augmented(), 3, seed=1))
    waits, take = threading.Event(), generator_lock.GeneratorLock.take

    def taken(turn: generator_lock.GeneratorLock) -> None:
        if "count=0" not in repr(generator_lock.lock):  # it begins to wait for the lock
            waits.set()
        take(turn)

    monkeypatch.setattr(generator_lock.GeneratorLock, "take", taken)
    with ThreadPoolExecutor(1) as pool:
        asked: list[Any] = []

        def read(index: int) -> Tensor:
            if not index:
                asked.append(pool.submit(lambda: digests(inner)))
                assert waits.wait(60)
            return next(iter(inner)).sum()

        outer = DataLoader(Call(read, 4))
        assert len(list(outer)) == 4
        assert len(asked[0].result(60)) == len(expected)


def test_who_waits_for_long_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As where a dataset waits for a thread that iterates a loader: they wait for each other."""
    monkeypatch.setattr(generator_lock, "WARN_AFTER", 0.1)
    caplog.set_level(logging.WARNING, logger="lit_loader")
    told = threading.Event()
    handler = logging.Handler()
    handler.emit = lambda record: told.set()  # type: ignore[method-assign]
    log = logging.getLogger("lit_loader.generator_lock")
    log.addHandler(handler)
    inner = DataLoader(Call(lambda i: torch.rand(()), 4), seed=1)

    def read(index: int) -> int:
        nonlocal asked
        asked = pool.submit(lambda: next(iter(inner)))
        assert told.wait(60)
        return index

    asked: Any = None
    before = own_generators()
    try:
        with ThreadPoolExecutor(1, "reader") as pool:
            assert len(list(DataLoader(Call(read, 1), seed=1))) == 1
            assert asked.result(60).shape == (1,)
    finally:
        log.removeHandler(handler)
    (text,) = caplog.messages
    assert re.match(
        r"lit_loader: thread 'reader_0' waits for thread 'MainThread', which has been making a "
        r"batch for \d+ s: batches of loaders with num_workers=0 are made one at a time, because "
        r".* give that"
        r" loader workers, or iterate it in the thread that waits",
        text,
    )
    assert own_generators() == before
    assert lock_is_free()


# --- forks and signals ---


def _iterate() -> None:
    os._exit(0 if len(epochs("random", 1, 1)) == 7 else 1)


def test_a_process_forked_while_a_batch_is_made_in_another_thread() -> None:
    inside, done = threading.Event(), threading.Event()

    def read(index: int) -> int:
        inside.set()
        assert done.wait(60)
        return index

    with ThreadPoolExecutor(1) as pool:
        batches = pool.submit(lambda: list(DataLoader(Call(read, 1))))
        assert inside.wait(60)
        child = multiprocessing.get_context("fork").Process(target=_iterate)
        child.start()
        child.join(60)
        done.set()
        assert child.exitcode == 0
        assert len(batches.result()) == 1
    child.close()


def test_a_dataset_that_forks_while_its_batch_is_made() -> None:
    before = own_generators()

    def read(index: int) -> int:
        child = os.fork()
        if not child:
            _iterate()
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert [int(batch) for batch in DataLoader(Call(read, 3), seed=1)] == [0, 0, 0]
    assert own_generators() == before
    assert lock_is_free()


def test_a_signal_handler_that_iterates_a_loader() -> None:
    found: list[list[str]] = []

    class Signals(Augmented):
        def __getitem__(self, index: int) -> Tensor:
            if index == 7:
                signal.raise_signal(signal.SIGALRM)
            return super().__getitem__(index)

    def batches(handler: Any) -> list[str]:
        before = signal.signal(signal.SIGALRM, handler)
        try:
            return digests(DataLoader(Signals(), 3, collate_fn=noisy_collate, seed=1))
        finally:
            signal.signal(signal.SIGALRM, before)

    expected = batches(signal.SIG_IGN)
    assert batches(lambda *_: found.append(epochs("custom", 2, 1))) == expected
    assert found == [epochs("custom", 2, 1)]
