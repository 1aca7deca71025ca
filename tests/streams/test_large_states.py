"""Streams whose state is large: taken seldom, and resumed to the byte all the same.

A state that takes a millisecond is taken before one batch in many; the batches since then are made
once more on a resume. That streams of each kind are resumed from everywhere is in
tests/exactness/test_exactness.py ("large").
"""

import copy
import itertools
import os
import random
import signal
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset

import lit_loader
from lit_loader import DataLoader
from tests.support.exact import digests, loaded, taken
from tests.support.samples import Cursor, share, worker_pids

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

LENGTH, SIZE = 480, 4
BALLAST = list(range(40_000))  # close to a millisecond to write down


def item(number: int) -> torch.Tensor:
    drawn = [random.random(), float(np.random.random()), float(torch.rand(()))]
    return torch.tensor([number, *drawn], dtype=torch.float64)


class Shuffling(Cursor):
    """A shuffle buffer, and its generator: the iterator has the state of both."""

    def __init__(self, numbers: list[int], rng: random.Random) -> None:
        super().__init__(item, numbers)
        self.rng, self.buffer, self.taken = rng, list[int](), 0

    def __next__(self) -> torch.Tensor:
        while len(self.buffer) < 30 and self.position < len(self.numbers):
            self.buffer.append(self.numbers[self.position])
            self.position += 1
        if not self.buffer:
            raise StopIteration
        return item(self.buffer.pop(self.rng.randrange(len(self.buffer))))

    def state_dict(self) -> dict[str, Any]:
        self.taken += 1
        # The very objects that it goes on with, as most programs write it.
        here = {"buffer": self.buffer, "position": self.position, "rng": self.rng.getstate()}
        return {**here, "taken": self.taken, "documents": BALLAST}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.buffer, self.position, self.taken = state["buffer"], state["position"], state["taken"]
        self.rng.setstate(state["rng"])


class ShuffleBuffer(IterableDataset[torch.Tensor]):
    def __init__(self) -> None:
        self.rng = random.Random(3)

    def __iter__(self) -> Iterator[torch.Tensor]:
        return Shuffling(share(range(LENGTH)), self.rng)


class Nested(IterableDataset[torch.Tensor]):
    """Around a dataset whose iterator has the state, which it passes on."""

    def __init__(self) -> None:
        self.inner, self.state = ShuffleBuffer(), None

    def __iter__(self) -> Iterator[torch.Tensor]:
        self.iterator: Any = iter(self.inner)
        if self.state is not None:
            self.iterator.load_state_dict(self.state)
            self.state = None
        for sample in self.iterator:
            yield sample + random.random()

    def state_dict(self) -> dict[str, Any]:
        return {"inner": self.iterator.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state["inner"]


class Growing(IterableDataset[torch.Tensor]):
    """Remembers all that it has given, in a list."""

    def __init__(self) -> None:
        self.given: list[int] = []
        self.resumed = False

    def __iter__(self) -> Iterator[torch.Tensor]:
        if not self.resumed:
            self.given = [*BALLAST]
        self.resumed = False
        numbers = share(range(LENGTH))
        for number in numbers[len(self.given) - len(BALLAST) :]:
            self.given.append(number)
            yield item(number)

    def state_dict(self) -> dict[str, Any]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.given, self.resumed = state["given"], True


class Weights(Cursor):
    """Draws by weights that change with each draw, in a large array."""

    def __init__(self) -> None:
        super().__init__(item, share(range(LENGTH)))
        self.weights = np.zeros(2_000_000)

    def __next__(self) -> torch.Tensor:
        sample: torch.Tensor = super().__next__()
        self.weights[:9] += np.random.random(9)
        return sample + float(self.weights[:9].sum())

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "weights": self.weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.weights = state["weights"]


class Weighted(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return Weights()


KINDS: dict[str, Callable[[], Any]] = {
    "shuffle buffer": ShuffleBuffer,
    "nested": Nested,
    "growing list": Growing,
    "array": Weighted,
}
READERS = [(0, None), (2, None), (0, 4), (2, 4)]


def loader(kind: str, workers: int, shards: int | None, **options: Any) -> DataLoader[Any]:
    options = {"batch_size": SIZE, "seed": 5, **options}
    return DataLoader(KINDS[kind](), num_workers=workers, num_shards=shards, **options)


def whole(kind: str, workers: int, shards: int | None) -> list[str]:
    with loader(kind, 0 if shards else workers, shards) as clean:
        return digests(clean)


def behind(state: dict[str, Any]) -> list[int]:
    """How many batches each reader gave since its state was taken."""
    parts = state.get("workers") or [part[1:] for part in state["readers"]]
    return [part[3] if part[3:] else 0 for part in parts]


@pytest.mark.parametrize(("workers", "shards"), READERS)
@pytest.mark.parametrize("kind", KINDS)
def test_stopped_and_resumed_twice(kind: str, workers: int, shards: int | None) -> None:
    expected = whole(kind, workers, shards)
    others = 1 if shards else workers  # with num_shards any number goes on
    with loader(kind, workers, shards) as first:
        got, iterator = taken(first, 60)
        most = 0  # the last state may have been taken just before
        for _ in range(20):
            got += digests(itertools.islice(iterator, 1))
            state = copy.deepcopy(first.state_dict())
            most = max(most, *behind(state))
        got += digests(itertools.islice(iterator, 3))  # a state that was given out stays as it is
        assert got == expected[:83]
    assert most > 6
    with loaded(loader(kind, others, shards), state) as second:
        got, _ = taken(second, 9)
        assert got == expected[80:89]
        state = second.state_dict()
    with loaded(loader(kind, workers, shards), state) as third:
        assert digests(third) == expected[89:]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_state_is_taken_as_often_as_it_can_be_afforded(workers: int) -> None:
    with loader("shuffle buffer", workers, None) as large:
        taken(large, 110)
        (part,) = large.state_dict()["workers"]
        # Where the machine was busy with other things, some more.
        assert 2 <= part[1]["iterator"]["taken"] <= 40


class Small(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return Cursor(item, share(range(LENGTH)))


@pytest.mark.parametrize(("workers", "shards"), READERS)
def test_a_small_state_is_taken_before_each_batch(workers: int, shards: int | None) -> None:
    """So that a resume makes two batches again, as quick as batches are."""
    with DataLoader(Small(), 1, num_workers=workers, num_shards=shards) as small:
        taken(small, 200)
        assert set(behind(small.state_dict())) == {2}


@pytest.mark.filterwarnings("ignore::lit_loader.WorkerRestartWarning")
@pytest.mark.parametrize("shards", [None, 4])
def test_a_worker_is_killed(shards: int | None) -> None:
    expected, found = whole("shuffle buffer", 2, shards), []
    with loader("shuffle buffer", 2, shards) as killed:
        for number, batch in enumerate(iterator := iter(killed)):
            found += digests([batch])
            if number in (30, 70):
                os.kill(worker_pids(iterator)[number % 4 // 2], signal.SIGKILL)
    assert found == expected


def test_readers_move_to_other_workers() -> None:
    expected, found = whole("nested", 0, 4), []
    with loader("nested", 1, 4) as resized:
        for number, batch in enumerate(resized):
            found += digests([batch])
            if number in (20, 50, 90):
                resized.resize({20: 3, 50: 2, 90: 4}[number])
    assert found == expected


@pytest.mark.parametrize(("workers", "shards"), READERS)
def test_what_was_committed(workers: int, shards: int | None) -> None:
    expected = whole("growing list", workers, shards)
    with loader("growing list", workers, shards) as first:
        _, iterator = taken(first, 60)
        first.commit()
        digests(itertools.islice(iterator, 7))
        state = first.state_dict()
    with loaded(loader("growing list", workers, shards), state) as resumed:
        assert digests(resumed) == expected[60:]


class Unsaved(ShuffleBuffer):
    """Has a state that cannot be pickled, for a loader without workers."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return _Unsaved(share(range(40)), self.rng)


class _Unsaved(Shuffling):
    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "key": lambda: None}


def test_a_state_that_cannot_be_pickled() -> None:
    expected = digests(DataLoader(Unsaved(), 4, seed=1))
    first = DataLoader(Unsaved(), 4, seed=1)
    taken(first, 5)
    resumed = loaded(DataLoader(Unsaved(), 4, seed=1), first.state_dict())
    assert digests(resumed) == expected[5:]


# A position that there is not --------------------------------------------------------------------


class Rows(IterableDataset[int]):
    """So many rows, of which each reader has a share; with a state, or without."""

    def __init__(self, length: int, stateful: bool) -> None:
        self.length, self.stateful = length, stateful

    def __iter__(self) -> Iterator[int]:
        numbers = share(range(self.length))
        return Cursor(int, numbers) if self.stateful else iter(numbers)


@pytest.mark.filterwarnings("ignore:.* has no state_dict")
@pytest.mark.parametrize("stateful", [True, False])
@pytest.mark.parametrize(("workers", "shards"), READERS)
def test_a_stream_shorter_than_its_position(
    stateful: bool, workers: int, shards: int | None
) -> None:
    readers = shards or workers or 1
    options: dict[str, Any] = {"num_workers": workers, "num_shards": shards, "seed": 1}
    with DataLoader(Rows(20 * readers, stateful), 2, **options) as long:
        taken(long, 7 * readers)
        state = long.state_dict()
    with loaded(DataLoader(Rows(5 * readers, stateful), 2, **options), state) as short:
        text = "Rows: the position that was resumed is beyond the stream's end: batch 7 of 3 of a"
        with pytest.warns(UserWarning, match=text) as said:
            assert not [*short]
        assert len(said) == 1
        assert len([*short]) == 3 * readers  # the next epoch is a whole one


@pytest.mark.filterwarnings("ignore:.* has no state_dict")
@pytest.mark.parametrize("stateful", [True, False])
def test_a_position_at_the_end_is_none_beyond(stateful: bool) -> None:
    one = DataLoader(Rows(6, stateful), 2, seed=1)
    taken(one, 3)
    resumed = loaded(DataLoader(Rows(6, stateful), 2, seed=1), one.state_dict())
    assert [*resumed] == [] and len([*resumed]) == 3


# Fewer batches than a length says ----------------------------------------------------------------


class Sized(Rows):
    def __len__(self) -> int:
        return self.length


def test_each_worker_drops_its_last_batch() -> None:
    """As with torch's loader, where nobody is told; Lightning then does not validate."""
    with DataLoader(Sized(22, False), 4, num_workers=2, drop_last=True) as one:
        assert len(one) == 5
        text = r"len\(loader\) is 5, and the epoch has ended after 4: .* each of the 2 workers"
        with pytest.warns(UserWarning, match=text) as said:
            assert sum(1 for _ in one) == 4
            assert sum(1 for _ in one) == 4
        assert len(said) == 1


class HalfBad(Sized):
    def __iter__(self) -> Iterator[int]:
        return Cursor(self.sample, share(range(self.length)))

    def sample(self, number: int) -> int:
        if number % 2:
            raise ValueError(number)
        return number


def test_fewer_batches_for_other_reasons() -> None:
    for dataset, options in (
        (Sized(22, False), {"num_workers": 1, "drop_last": True}),
        (Sized(24, False), {"num_workers": 2, "drop_last": True}),
        (HalfBad(22, True), {"num_workers": 2, "drop_last": True, "on_sample_error": "skip"}),
        (Sized(22, False), {"num_workers": 2, "drop_last": True, "num_shards": 2}),
    ):
        with DataLoader(dataset, 4, **options) as one:  # type: ignore[arg-type]
            if "num_shards" not in options:
                len(one)
            assert list(one)
    with DataLoader(Sized(22, False), 4, num_workers=2, drop_last=True) as left:
        len(left)
        next(iter(left))
        assert lit_loader.get_epoch() == 0
