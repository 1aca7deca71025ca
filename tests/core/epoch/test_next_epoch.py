"""Persistent workers that are done with an epoch begin the next one, where its seed is known.

No byte is another for it.
"""

import contextlib
import os
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DistributedSampler

import lit_loader
from lit_loader import DataLoader
from tests.support.exact import state_behind
from tests.support.samples import Call, Counting, ints
from tests.support.tools import lists

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("by_fork")]  # for pipes


class Log:
    """What workers have read, in the order in which they did: pairs of epoch and number."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._reading, False)
        self._read: list[tuple[int, int]] = []

    def sample(self, index: int) -> int:
        os.write(self._writing, struct.pack("qq", lit_loader.get_epoch() or 0, index))
        return index

    def read(self) -> list[tuple[int, int]]:
        with contextlib.suppress(BlockingIOError):
            self._read += struct.iter_unpack("qq", os.read(self._reading, 65536))  # type: ignore[arg-type]
        return self._read

    def until(self, condition: Callable[[list[tuple[int, int]]], Any]) -> None:
        while not condition(self.read()):  # the test's timeout ends it
            os.sched_yield()

    def close(self) -> None:
        os.close(self._reading)
        os.close(self._writing)


@pytest.fixture
def log() -> Iterator[Log]:
    made = Log()
    yield made
    made.close()


def drawn(index: int) -> torch.Tensor:
    """A sample that depends on everything that a batch is a function of."""
    noise = torch.randint(10**9, ()).item()
    return torch.tensor([index, lit_loader.get_epoch() or 0, noise])


def single(length: int, **options: Any) -> DataLoader[Any]:
    """The reference: everything in this process."""
    return DataLoader(Call(drawn, length), seed=3, **options)


def many(length: int, **options: Any) -> DataLoader[Any]:
    options = {"num_workers": 2, "persistent_workers": True, **options}
    return DataLoader(Call(drawn, length), seed=3, **options)


def test_they_are_made_before_anybody_asks(log: Log) -> None:
    with DataLoader(Call(log.sample, 6), num_workers=2, persistent_workers=True, seed=1) as loader:
        list(loader)
        ahead = {(1, 0), (1, 1), (1, 2), (1, 3)}  # the depth is 2 x 2 batches
        log.until(lambda read: ahead <= {*read})
        assert {*sorted(log.read())[6:]} == ahead


@pytest.mark.parametrize("options", [{"seed": None}, {"seed": 1, "sampler": list(range(6))}])
def test_where_nobody_can_know_what_comes_next_nothing_is_begun(options: Any, log: Log) -> None:
    """Without ``seed=`` the next pass draws its seed; another sampler may change."""
    # One worker: of two, an idle one may read what the other is slow to make.
    with DataLoader(
        Call(log.sample, 6), num_workers=1, persistent_workers=True, **options
    ) as loader:
        for epoch in range(2):
            assert ints(loader) == [*range(6)]
            assert [*Counter(log.read()).values()] == [1] * 6 * (epoch + 1)


@pytest.mark.parametrize("kind", ["shuffle", "sampler"])
def test_an_epoch_that_is_asked_for_and_was_expected(kind: str) -> None:
    def passes(loader: DataLoader[Any]) -> list[Any]:
        found = []
        for epoch in range(4):
            (loader if kind == "shuffle" else loader.sampler).set_epoch(epoch)  # type: ignore[attr-defined]
            found += [lists(loader), loader.state_dict()["epoch"]]
        return found

    def options() -> dict[str, Any]:
        shuffled = kind == "shuffle"
        return {"shuffle": True} if shuffled else {"sampler": DistributedSampler(range(5), 1, 0)}

    with many(5, prefetch_factor=8, **options()) as loader:
        assert passes(loader) == passes(single(5, **options()))


def test_an_iterator_whose_rest_was_taken_over_is_at_its_end() -> None:
    def passes(loader: DataLoader[Any]) -> list[Any]:
        old = iter(loader)
        given = [next(old) for _ in range(4)]  # all there are; a loop that counts asks no more
        new = iter(loader)
        first = next(new)
        with pytest.raises(StopIteration):
            next(old)
        return [lists(given), lists([first, *new]), lists([*loader])]

    with many(4) as loader:
        assert passes(loader) == passes(single(4))


def _resume(loader: Any) -> None:
    loader.load_state_dict(state_behind(single(9, shuffle=True), 4))


def _grow(loader: Any) -> None:
    loader.dataset.length += 3


@pytest.mark.parametrize(
    "change",
    [
        lambda loader: loader.set_epoch(7),
        lambda loader: loader.set_epoch(0),
        lambda loader: loader.load_state_dict({**loader.state_dict()}),
        _resume,
        _grow,
    ],
    ids=["another epoch", "the same epoch again", "next", "resume", "grow"],
)
def test_what_does_not_come_next_is_dropped(change: Callable[[Any], None]) -> None:
    reference = single(9, shuffle=True)
    with many(9, shuffle=True, prefetch_factor=3) as loader:
        assert lists(loader) == lists(reference)
        change(reference)
        change(loader)
        for _ in range(3):
            assert lists(loader) == lists(reference)


@pytest.mark.parametrize(("before", "after"), [(4, 5), (8, 30), (23, 30), (9, 5)])
def test_a_dataset_that_grows_or_shrinks_between_epochs(before: int, after: int) -> None:
    """In its own order what was begun of an epoch is right; and it may have more batches now."""
    dataset = Call(int, before)
    with DataLoader(dataset, 4, num_workers=2, persistent_workers=True, seed=1) as loader:
        assert ints(loader) == list(range(before))
        dataset.length = after
        iterator = iter(loader)
        assert ints(next(iterator) for _ in range(len(loader))) == list(range(after))
        assert next(iterator, None) is None
        assert ints(loader) == list(range(after))


def test_a_stream_keeps_its_readers_and_reads_nothing_twice(log: Log) -> None:
    order = [0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15]
    data = Counting(16, log.sample)
    options: Any = {"num_workers": 2, "persistent_workers": True, "num_shards": 4, "seed": 3}
    with DataLoader(data, 2, **options) as loader:
        for workers in (1, 3, 2):
            assert ints(loader) == order
            loader.resize(workers)
        assert ints(loader) == order
    times = Counter(log.read())
    assert {times[epoch, number] for epoch in range(4) for number in range(16)} == {1}
