"""A program's own samplers, beside torch's loader: told what the program tells them, and resumed.

What a resume cannot bring back (a counter, an epoch that the program does not tell again) is said.
"""

from __future__ import annotations

import itertools
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchLoader

from lit_loader import DataLoader
from tests.support.exact import Indices

LENGTH = 12
DATA = Indices(LENGTH)
WORKERS = pytest.mark.parametrize(
    ("workers", "persistent"), [(0, False), (2, False), (2, True)], ids=["0", "2", "2 that stay"]
)


def order_of(epoch: int) -> list[int]:
    return random.Random(epoch).sample(range(LENGTH), LENGTH)


class Own:
    """A sampler; ``set_epoch`` and where the epoch is kept are the subclass's."""

    def __init__(self) -> None:
        self.told: list[int] = []

    def __len__(self) -> int:
        return LENGTH

    def __iter__(self) -> Iterator[Any]:
        return iter(order_of(self.current()))

    def current(self) -> int:
        return 0

    def set_epoch(self, epoch: int) -> None:
        self.told.append(epoch)
        self.note(epoch)

    def note(self, epoch: int) -> None:
        raise NotImplementedError


class Private(Own):
    _epoch = 0

    def current(self) -> int:
        return self._epoch

    def note(self, epoch: int) -> None:
        self._epoch = epoch


class Reseeded(Own):
    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(0)

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(LENGTH, generator=self.generator).tolist())

    def note(self, epoch: int) -> None:
        self.generator.manual_seed(epoch)


class Prebuilt(Own):
    """A batch sampler whose batches are made when it is told the epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.note(0)

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches)

    def note(self, epoch: int) -> None:
        order = order_of(epoch)
        self.batches = [order[at : at + 2] for at in range(0, LENGTH, 2)]


class Lazy(Private):
    """Looks at its epoch when it is drawn from."""

    def __iter__(self) -> Iterator[int]:
        yield from order_of(self._epoch)


TOLD = [Private, Reseeded, Prebuilt, Lazy]


def options_of(sampler: Any) -> dict[str, Any]:
    batched = isinstance(sampler, Prebuilt)
    return {"batch_sampler": sampler} if batched else {"sampler": sampler, "batch_size": 2}


def torchs(sampler: Any) -> Any:
    return TorchLoader(DATA, **options_of(sampler))


def ours(sampler: Any, workers: int = 0, persistent: bool = False) -> Any:
    options = options_of(sampler)
    return DataLoader(DATA, num_workers=workers, persistent_workers=persistent, seed=1, **options)


def values(batches: Any) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


@WORKERS
@pytest.mark.parametrize("kind", TOLD)
def test_it_is_told_what_the_program_tells_it_and_else_nothing(
    kind: Any, workers: int, persistent: bool
) -> None:
    mine, theirs = kind(), kind()
    expected = torchs(theirs)
    with ours(mine, workers, persistent) as loader:
        for _ in range(2):
            assert values(loader) == values(expected)
            next(iter(loader))
            next(iter(expected))
        assert mine.told == []
        for epoch in (5, 6, 2, 2, 7):  # as after a resume, from 0 again, and the same twice
            mine.set_epoch(epoch)
            theirs.set_epoch(epoch)
            assert values(loader) == values(expected), epoch
    assert mine.told == theirs.told


@pytest.mark.parametrize("kind", TOLD)
@pytest.mark.parametrize("stop", [2, None], ids=["in mid-epoch", "between epochs"])
def test_one_that_is_not_told_again_says_so(kind: Any, stop: int | None) -> None:
    sampler = kind()
    loader = ours(sampler)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        iterator = iter(loader)
        list(itertools.islice(iterator, stop if epoch == 2 else None))
    state, rest = loader.state_dict(), values(iterator)
    resumed = ours(kind())
    resumed.load_state_dict(state)
    if kind is Reseeded:  # a generator is brought back
        assert not rest or values(resumed) == rest
        return
    with pytest.warns(UserWarning, match=f"the sampler {kind.__name__} .*call its set_epoch"):
        list(resumed)


# --- samplers that count by themselves ---


class Plain:
    def __init__(self) -> None:
        self.count = 0

    def __len__(self) -> int:
        return LENGTH

    def __iter__(self) -> Iterator[int]:
        self.count += 1
        return iter(order_of(self.count))


def in_a_closure() -> Any:
    count = 0

    class Closed(Plain):
        def __iter__(self) -> Iterator[int]:
            nonlocal count
            count += 1
            return iter(order_of(count))

    return Closed()


COUNTING: dict[str, Callable[[], Any]] = {
    "attribute": Plain,
    "closure": in_a_closure,
}


@pytest.mark.parametrize("make", COUNTING.values(), ids=COUNTING)
def test_a_counter_goes_on_as_with_torch(make: Any) -> None:
    loader = torchs(make())
    expected = [values(loader), values(itertools.islice(loader, 2)), values(loader)]
    with ours(make()) as loader:
        assert [values(loader), values(itertools.islice(loader, 2)), values(loader)] == expected


@pytest.mark.parametrize(
    ("workers", "stop", "text"),
    [
        (0, 2, "gives other indices than before .* batch 2 of epoch 1"),
        (2, 2, "gives other indices than before .* batch 2 of epoch 1"),
        (0, None, "begins epoch 2 with the order of its first epoch"),
    ],
)
@pytest.mark.parametrize("make", COUNTING.values(), ids=COUNTING)
def test_a_counter_that_is_not_brought_back_is_told(
    make: Any, workers: int, stop: int | None, text: str
) -> None:
    with ours(make(), workers) as loader:
        list(loader)
        given = list(itertools.islice(loader, stop))
        with pytest.warns(UserWarning, match="changes from epoch to epoch and is not part of"):
            state = loader.state_dict()
    with ours(make(), workers) as resumed:
        resumed.load_state_dict(state)
        with pytest.warns(UserWarning, match=text):
            assert len(list(resumed)) == LENGTH // 2 - len(given) % (LENGTH // 2)


def test_draws_with_another_batch_size_are_told() -> None:
    class Drawing(Plain):
        def __iter__(self) -> Iterator[int]:
            return (random.randrange(LENGTH) for _ in range(LENGTH))

    loader = DataLoader(DATA, 2, sampler=Drawing(), seed=1)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    resumed = DataLoader(DATA, 6, sampler=Drawing(), seed=1)
    resumed.load_state_dict(loader.state_dict())
    with pytest.warns(UserWarning, match="gives other indices than before"):
        list(resumed)


# --- a loader's samplers, in torch's loader ---


@pytest.mark.parametrize("shown", ["sampler", "batch_sampler"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loaders_sampler_shuffles_anew_in_torchs_loader(shown: str, workers: int) -> None:
    loader = DataLoader(DATA, 2, shuffle=True, seed=1)
    list(loader)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rebuilt = TorchLoader(DATA, num_workers=workers, **{shown: getattr(loader, shown)})
        plain = TorchLoader(DATA, 2 if shown != "sampler" else 1, shuffle=True, num_workers=workers)
        for each in (rebuilt, plain):
            torch.manual_seed(5)
            epochs = [values(each) for _ in range(3)]
            loader.sampler.set_epoch(0)  # as accelerate does, which counts from 0 after a resume
            epochs.append(values(each))
            assert len(set(map(str, epochs))) == 4
            if each is rebuilt:
                expected = epochs
        assert epochs == expected


# --- seeded in set_epoch, or told it in another way than before ---


class Untold(Reseeded):
    """Has a generator, and a ``set_epoch`` that does nothing."""

    def note(self, epoch: int) -> None:
        pass


def reseeded(epoch: int) -> list[list[int]]:
    sampler = Reseeded()
    sampler.set_epoch(epoch)
    return values(torchs(sampler))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stop", [3, LENGTH // 2], ids=["in mid-epoch", "at the end"])
def test_a_generator_that_was_seeded_for_another_epoch_stays(stop: int, workers: int) -> None:
    with ours(Reseeded(), workers) as loader:
        loader.set_epoch(1)
        assert values(itertools.islice(loader, stop)) == reseeded(1)[:stop]
        state = loader.state_dict()
    for epoch in (2, 4):
        with ours(Reseeded(), workers) as resumed:
            resumed.load_state_dict(state)
            resumed.set_epoch(epoch)
            assert values(resumed) == reseeded(epoch)


@pytest.mark.parametrize("kind", [Private, Reseeded, Prebuilt, Lazy])
@pytest.mark.parametrize("asked", [False, True])
def test_the_loader_is_told_after_a_resume_and_was_not_before(kind: Any, asked: bool) -> None:
    sampler = kind()
    sampler.set_epoch(3)
    loader = ours(sampler)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    state, rest = loader.state_dict(), values(iterator)
    resumed = ours(kind())
    resumed.load_state_dict(state)
    resumed.set_epoch(3)
    if asked:
        state = resumed.state_dict()
        resumed = ours(kind())
        resumed.load_state_dict(state)
        resumed.set_epoch(3)
    assert values(resumed) == rest
    other = ours(kind())
    other.load_state_dict(state)
    other.set_epoch(5)
    with pytest.warns(UserWarning, match=r"set_epoch\(5\) gives up the loaded position, batch 3"):
        assert len(values(other)) == LENGTH // 2


@pytest.mark.parametrize("kind", [Private, Reseeded, Untold])
def test_a_loop_that_sets_the_loaders_epoch_leaves_the_rest_of_one(kind: Any) -> None:
    """As Lightning does with ``limit_train_batches``: nothing is said, whatever was drawn."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        state = None
        for epoch in range(3):
            loader = ours(kind())
            if state is not None:
                loader.load_state_dict(state)
                if epoch == 2:  # and again, from a state that was resumed
                    if kind is Private:  # it cannot be brought back
                        loader.set_epoch(1)
                    next(iter(loader))
                    state = loader.state_dict()
                    loader = ours(kind())
                    loader.load_state_dict(state)
            loader.set_epoch(epoch)
            iterator = iter(loader)
            assert len(list(itertools.islice(iterator, 3))) == 3
            state = loader.state_dict()
            assert state["epoch"] == epoch and state["batches"] == 3
