"""Workers that are done with an epoch begin the next one; no byte is another for it."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import SequentialSampler

import lit_loader
from lit_loader import DataLoader
from tests.support.samples import Call, ints

pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures("by_fork")]  # for pipes and gates


class Log:
    """What workers have fetched, in the order in which they did."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._reading, False)

    def sample(self, index: int) -> torch.Tensor:
        os.write(self._writing, struct.pack("qq", lit_loader.get_epoch() or 0, index))
        return torch.tensor([index, torch.randint(10**9, ()).item()])

    def read(self) -> list[tuple[int, int]]:
        try:
            data = os.read(self._reading, 65536)
        except BlockingIOError:
            return []
        return list(struct.iter_unpack("qq", data))  # type: ignore[arg-type]

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


def plain(batches: Any) -> list[list[Any]]:
    return [batch.tolist() for batch in batches]


def single(length: int, **options: Any) -> DataLoader[Any]:
    """The reference: everything in this process."""
    return DataLoader(Call(drawn, length), seed=3, **options)


def many(length: int, **options: Any) -> DataLoader[Any]:
    options = {"num_workers": 2, "persistent_workers": True, **options}
    return DataLoader(Call(drawn, length), seed=3, **options)


def begun(loader: Any) -> set[int]:
    """Epochs that workers were asked for and nobody has taken over."""
    kept = loader._core.begun
    return set() if kept is None else {number >> 40 for number in kept.tasks}


@pytest.mark.parametrize("pin", [False, True], ids=["", "pin"])
@pytest.mark.parametrize("prefetch", [1, 2, 8])
@pytest.mark.parametrize("length", [1, 2, 3, 7, 40])
def test_epochs_are_what_they_are(length: int, prefetch: int, pin: bool, pinned: None) -> None:
    reference = single(length, shuffle=True)
    with many(length, shuffle=True, prefetch_factor=prefetch, pin_memory=pin) as loader:
        for _ in range(5):
            assert plain(loader) == plain(reference)
        assert begun(loader)
        assert min(begun(loader)) == 5


def test_unordered() -> None:
    reference = single(5, shuffle=True)
    with many(5, shuffle=True, prefetch_factor=4, in_order=False) as loader:
        for _ in range(20):
            assert sorted(plain(loader)) == sorted(plain(reference))


def test_they_are_made_before_anybody_asks(log: Log) -> None:
    with DataLoader(Call(log.sample, 6), num_workers=2, persistent_workers=True, seed=1) as loader:
        list(loader)
        fetched: list[tuple[int, int]] = []
        ahead = [(1, 0), (1, 1), (1, 2), (1, 3)]  # the depth is 2 x 2 batches
        while not set(ahead) <= set(fetched):
            fetched += log.read()
        assert sorted(fetched)[6:] == ahead


def test_a_consumer_that_does_not_ask_for_the_end() -> None:
    """As Lightning's: it knows the number of batches, and begins the next epoch after the last."""
    reference = single(5, shuffle=True)
    with many(5, shuffle=True) as loader:
        before = None
        for _ in range(4):
            iterator = iter(loader)
            assert plain(next(iterator) for _ in range(5)) == plain(reference)
            pids = loader._core.pool.pids
            assert before in (None, pids)
            before = pids


def test_an_iterator_whose_rest_was_taken_over_is_at_its_end() -> None:
    with many(4) as loader:
        old = iter(loader)
        for _ in range(4):
            next(old)
        new = iter(loader)
        first = next(new)
        with pytest.raises(StopIteration):
            next(old)
        assert plain([first, *new]) == plain(list(epoch(single(4), 1)))


def epoch(loader: DataLoader[Any], number: int) -> DataLoader[Any]:
    loader.set_epoch(number)
    return loader


def _set_epoch(loader: Any) -> None:
    loader.set_epoch(7)


def _same_epoch_again(loader: Any) -> None:
    loader.set_epoch(0)


def _resume(loader: Any) -> None:
    other = single(9, shuffle=True)
    iterator = iter(other)
    for _ in range(4):
        next(iterator)
    loader.load_state_dict(other.state_dict())


def _resume_at_the_next(loader: Any) -> None:
    loader.load_state_dict({**loader.state_dict()})


def _grow(loader: Any) -> None:
    loader.dataset.length += 3


@pytest.mark.parametrize(
    "change", [_set_epoch, _same_epoch_again, _resume, _resume_at_the_next, _grow]
)
def test_what_does_not_come_next_is_dropped(change: Callable[[Any], None]) -> None:
    reference = single(9, shuffle=True)
    with many(9, shuffle=True, prefetch_factor=3) as loader:
        assert plain(loader) == plain(reference)
        assert begun(loader) == {1}
        change(reference)
        change(loader)
        for _ in range(3):
            assert plain(loader) == plain(reference)


@pytest.mark.parametrize("taken", range(1, 5))
def test_after_a_break(taken: int) -> None:
    """Where an epoch is left, the next one begins at its own begin."""
    reference = single(4, shuffle=True)
    with many(4, shuffle=True, prefetch_factor=4) as loader:
        for _ in range(3):
            expected = plain(reference)
            found = [batch for _, batch in zip(range(taken), loader, strict=False)]
            assert plain(found) == expected[:taken]
        assert plain(loader) == plain(reference)


@pytest.mark.parametrize(
    "options",
    [
        {"sampler": SequentialSampler(range(5))},
        {"batch_sampler": [[0, 1], [2], [3, 4]]},
        {"seeding": "worker"},
        {"prefetch_next_epoch": False},
    ],
    ids=lambda options: next(iter(options)),
)
def test_where_it_is_not_done(options: dict[str, Any]) -> None:
    """An order that is not the loader's own changes when it is drawn from."""
    with many(5, **options) as loader:
        found = plain(loader)
        assert sum(len(batch) for batch in found) == 5
        assert not begun(loader)


def test_an_error_comes_in_its_own_epoch() -> None:
    def sample(index: int) -> int:
        if lit_loader.get_epoch() == 1 and index == 1:
            raise ValueError("bad")
        return index

    with DataLoader(
        Call(sample, 4), num_workers=2, persistent_workers=True, prefetch_factor=4
    ) as loader:
        assert ints(loader) == [0, 1, 2, 3]
        iterator = iter(loader)
        assert int(next(iterator)) == 0
        with pytest.raises(ValueError, match="bad"):
            next(iterator)
        assert ints(iterator) == [2, 3]
        assert ints(loader) == [0, 1, 2, 3]


def test_while_one_batch_is_awaited_the_others_begin() -> None:
    """A slow last batch does not let the other workers idle."""
    seen = os.pipe()

    def sample(index: int) -> int:
        if lit_loader.get_epoch() == 0 and index == 3:
            os.read(seen[0], 1)  # until the next epoch is begun
        elif lit_loader.get_epoch() == 1:
            os.write(seen[1], b"!")
        return index

    with DataLoader(Call(sample, 4), num_workers=2, persistent_workers=True) as loader:
        assert ints(loader) == [0, 1, 2, 3]
    for end in seen:
        os.close(end)
