"""The samplers of users' programs: told epochs, left early, seeded anew, cut anywhere, and resumed.

What a resume cannot bring back (a counter, an epoch that the program does not tell again) is said.
"""

import itertools
import math
import random
import warnings
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data import DataLoader as TorchLoader

from lit_loader import DataLoader, StateError, merge_states
from tests.parity.tools import lists
from tests.support.exact import EveryOther, StatefulSampler, loaded, state_behind, through_file
from tests.support.samples import Call

LENGTH, SIZE, EPOCHS = 14, 4, 3
BATCHES = -(-LENGTH // SIZE)
DATA = Call(int, LENGTH)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def order_of(epoch: int) -> Any:
    return torch.randperm(LENGTH, generator=seeded(7 + epoch)).tolist()


class Own:
    """A sampler whose order a subclass makes, epoch by epoch."""

    def __len__(self) -> int:
        return LENGTH

    def __iter__(self) -> Iterator[int]:
        yield from self.order()

    def order(self) -> Any:
        raise NotImplementedError


# --- that are told the epoch ---


class SeededByEpoch(Own):
    """As torch's documentation of ``set_epoch`` suggests it; keeps the epoch for itself."""

    def __init__(self) -> None:
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def order(self) -> Any:
        return order_of(self._epoch)


class SeedsItsGenerator(Own):
    """Seeds in ``set_epoch`` what its constructor has seeded."""

    def __init__(self) -> None:
        self.generator = seeded(5)

    def set_epoch(self, epoch: int) -> None:
        self.generator.manual_seed(5 + epoch)

    def order(self) -> Any:
        return torch.randperm(LENGTH, generator=self.generator).tolist()


class Eager(SeededByEpoch):
    """Looks at its epoch as soon as it is iterated."""

    def __iter__(self) -> Iterator[int]:
        return iter(self.order())


class Prebuilt(SeededByEpoch):
    """A batch sampler whose batches are made when it is told the epoch."""

    def __init__(self) -> None:
        self.set_epoch(0)

    def __len__(self) -> int:
        return BATCHES

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        self.batches = [*BatchSampler(self.order(), SIZE, drop_last=False)]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)


class Untold(SeedsItsGenerator):
    """Has a generator, and a ``set_epoch`` that does nothing."""

    def set_epoch(self, epoch: int) -> None:
        pass


class RepeatedAugmentation(Own):
    """timm's ``RASampler``: each index three times, a share for a rank."""

    def __init__(self, rank: int = 1) -> None:
        self.num_replicas, self.rank, self.epoch, self.num_repeats = 2, rank, 0, 3
        self.num_selected = math.ceil(LENGTH / self.num_replicas)

    def __len__(self) -> int:
        return self.num_selected

    def order(self) -> Any:
        indices = torch.randperm(LENGTH, generator=seeded(self.epoch))
        indices = torch.repeat_interleave(indices, repeats=self.num_repeats, dim=0)
        return indices[self.rank :: self.num_replicas].tolist()[: self.num_selected]

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class Seedable(RandomSampler):
    """accelerate's ``SeedableRandomSampler``: has no generator until it is iterated."""

    def __init__(self) -> None:
        super().__init__(DATA)
        self.initial_seed, self.epoch = 3, 0

    def __iter__(self) -> Iterator[int]:
        if self.generator is None:
            self.generator = torch.Generator()
        self.generator.manual_seed(self.epoch + self.initial_seed)
        yield from super().__iter__()
        self.set_epoch(self.epoch + 1)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class ToldEpochs(Own):
    """Goes on with its generator, and is told the epoch."""

    def __init__(self) -> None:
        self.rng, self.epoch = random.Random(1), 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def order(self) -> Any:
        first = self.rng.randrange(LENGTH)
        return [(first + self.epoch + number) % LENGTH for number in range(LENGTH)]


# --- that go on with a generator, or have a state ---


class Generator(Own):
    """Goes on with a generator under some name, of some kind."""

    def __init__(self, rng: Any = None) -> None:
        self.rng = rng or seeded(3)

    def order(self) -> Any:
        if isinstance(self.rng, random.Random):
            self.rng.gauss(0, 1)  # another one in reserve
            return self.rng.sample(range(LENGTH), LENGTH)
        if isinstance(self.rng, torch.Generator):
            return torch.randperm(LENGTH, generator=self.rng).tolist()
        return self.rng.permutation(LENGTH).tolist()


class MadeOnFirstUse(Generator):
    def __init__(self) -> None:
        self.rng = None

    def order(self) -> Any:
        self.rng = self.rng or random.Random(5)
        return super().order()


class Both(Own):
    """Its own, and one of a sampler inside of it, in slots."""

    __slots__ = ("inner", "rng")

    def __init__(self) -> None:
        self.inner, self.rng = Generator(random.Random(1)), np.random.default_rng(2)

    def order(self) -> Any:
        first = int(self.rng.integers(LENGTH))
        return [(index + first) % LENGTH for index in self.inner.order()]


class InChunks(Own):
    """Draws five indices at a time, when they are needed."""

    def __init__(self) -> None:
        self.generator = seeded(6)

    def order(self) -> Any:
        for start in range(0, LENGTH, 5):
            number = min(5, LENGTH - start)
            yield from torch.randint(LENGTH, (number,), generator=self.generator).tolist()


class OneByOne(Own):
    """Draws index by index, and once more at its end."""

    def __init__(self) -> None:
        self.rng = seeded(3)

    def order(self) -> Any:
        for _ in range(LENGTH):
            yield int(torch.randint(LENGTH, (), generator=self.rng))
        torch.rand(1, generator=self.rng)


class Shuffles(Own):
    """By the global generator."""

    def order(self) -> Any:
        return random.sample(range(LENGTH), LENGTH)


class Counting(Own):
    """Counts its epochs by itself."""

    def __init__(self) -> None:
        self.count = 0

    def __iter__(self) -> Iterator[int]:
        self.count += 1
        return iter(order_of(self.count))


def in_a_closure() -> Any:
    count = 0

    class Closed(Own):
        def __iter__(self) -> Iterator[int]:
            nonlocal count
            count += 1
            return iter(order_of(count))

    return Closed()


class Batches:
    """A batch sampler that goes on with its generator, over a sampler that does, too."""

    def __init__(self) -> None:
        self.sampler, self.rng = RandomSampler(DATA, generator=seeded(2)), random.Random(1)

    def __len__(self) -> int:
        return BATCHES

    def __iter__(self) -> Iterator[list[int]]:
        indices, shift = list(self.sampler), self.rng.randrange(LENGTH)
        for start in range(0, LENGTH, SIZE):
            yield [(index + shift) % LENGTH for index in indices[start : start + SIZE]]


OWN: list[Any] = [SeededByEpoch, Eager, SeedsItsGenerator, Prebuilt]
TOLD: dict[str, Callable[[], Any]] = {
    "seeded by epoch": SeededByEpoch,
    "eager": Eager,
    "seeds its generator": SeedsItsGenerator,
    "prebuilt": Prebuilt,
    "repeated": RepeatedAugmentation,
    "accelerate": Seedable,
    "told and going on": ToldEpochs,
    "distributed": lambda: DistributedSampler(DATA, num_replicas=2, rank=1, seed=1),
}
GOING_ON: dict[str, Callable[[], Any]] = {
    "python": lambda: Generator(random.Random(1)),
    "numpy": lambda: Generator(np.random.default_rng(7)),
    "philox": lambda: Generator(np.random.Generator(np.random.Philox(7))),
    "legacy": lambda: Generator(np.random.RandomState(1)),
    "torch": Generator,
    "made on first use": MadeOnFirstUse,
    "both": Both,
    "in chunks": InChunks,
    "one by one": OneByOne,
    "in batches": Batches,
    "cut by torch": lambda: BatchSampler(Generator(), SIZE, False),  # type: ignore[arg-type]
    "permutation": lambda: RandomSampler(DATA, generator=seeded(8)),
    "draws": lambda: RandomSampler(DATA, True, LENGTH + 40, seeded(8)),
    "weighted": lambda: WeightedRandomSampler([1.0] * LENGTH, LENGTH, generator=seeded(8)),
    "subset": lambda: SubsetRandomSampler(range(LENGTH), generator=seeded(8)),
    "in torch's batches": lambda: BatchSampler(
        RandomSampler(DATA, generator=seeded(8)), SIZE, drop_last=False
    ),
}
KINDS = TOLD | GOING_ON | {"global": Shuffles, "with a state": lambda: StatefulSampler(LENGTH)}


def options_of(sampler: Any) -> dict[str, Any]:
    if isinstance(sampler, (Batches, Prebuilt, BatchSampler)):
        return {"batch_sampler": sampler}
    return {"sampler": sampler, "batch_size": SIZE}


def loader_of(sampler: Any, workers: int = 0, persistent: bool = False) -> DataLoader[Any]:
    options: Any = {"num_workers": workers, "persistent_workers": persistent, "seed": 1}
    return DataLoader(DATA, **options, **options_of(sampler))


def torchs(sampler: Any) -> Any:
    return TorchLoader(DATA, **options_of(sampler))


Cut = tuple[int, int | None]


def trained(
    make: Callable[[], Any],
    start: int = 0,
    state: Any = None,
    cuts: bool = False,
    told_first: bool = False,
) -> tuple[list[Any], dict[Cut, Any]]:
    """A training program: all batches, and the states behind each and between the epochs."""
    sampler, seen = make(), list[Any]()
    states: dict[Cut, Any] = {}
    with loader_of(sampler) as loader:
        if state is not None and not told_first:
            loader.load_state_dict(state)
            if not hasattr(sampler, "set_epoch"):
                assert loader.state_dict() == state
        for epoch in range(start, EPOCHS):
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
            if state is not None and told_first and epoch == start:
                loader.load_state_dict(state)
            for number, batch in enumerate(loader):
                seen.append((epoch, batch.tolist()))
                if cuts:
                    states[epoch, number] = loader.state_dict(), len(seen)
            if cuts:
                states[epoch, None] = loader.state_dict(), len(seen)
    return seen, states


@pytest.mark.parametrize(
    ("kind", "told_first"), [*((kind, False) for kind in KINDS), *((kind, True) for kind in TOLD)]
)
def test_cut_anywhere_and_resumed_it_is_the_same_training(kind: str, told_first: bool) -> None:
    whole, states = trained(KINDS[kind], cuts=True)
    assert len({str(batch) for _, batch in whole}) > LENGTH / SIZE + 1
    for (epoch, number), (state, given) in states.items():
        start = epoch + (number is None)
        got, _ = trained(KINDS[kind], start=start, state=state, told_first=told_first)
        assert got == whole[given:], (epoch, number)


# --- where a generator is, also in the same process ---


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", GOING_ON)
def test_an_epoch_left_early_leaves_a_sampler_where_torch_does(kind: str, workers: int) -> None:
    """With torch's loader without workers it has drawn what was given out, and no more."""

    def orders(loader: Any) -> Any:
        given = [lists(loader)]
        for stop in (1, 3, 2):
            given.append(lists(itertools.islice(loader, stop)))
        return [*given, lists(loader)]

    with loader_of(GOING_ON[kind](), workers) as ours:
        assert orders(ours) == orders(torchs(GOING_ON[kind]()))


class Interrupting:
    """Samples that Ctrl-C interrupts, while it is told to."""

    interrupts = False

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> int:
        if self.interrupts:
            raise KeyboardInterrupt
        return index


@pytest.mark.parametrize("kind", [*GOING_ON, "resumable"])
def test_a_resumed_epoch_whose_first_batch_is_interrupted(kind: str) -> None:
    """It is left where it was resumed: the sampler was drawn from again by then."""

    def fresh() -> DataLoader[Any]:
        own = {"resumable": Resumable(False), "resumable, goes on": Resumable(True)}
        sampler = own.get(kind) or GOING_ON[kind]()
        return DataLoader(Interrupting(), **options_of(sampler))

    loader = fresh()
    lists(itertools.islice(loader, 2))
    state = loader.state_dict()
    expected = [lists(loader), lists(loader)]
    resumed = loaded(fresh(), state)
    iterator: Any = iter(resumed)
    resumed.dataset.interrupts = True
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    resumed.dataset.interrupts = False
    del iterator
    assert [lists(resumed), lists(resumed)] == expected


class Resumable:
    """Has its place in an epoch as its state; goes on with one that was left, or begins anew."""

    def __init__(self, goes_on: bool) -> None:
        self.goes_on, self.epoch, self.place, self.next = goes_on, 0, 0, 0

    def __len__(self) -> int:
        return 40

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "place": self.place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.place = state["epoch"], state["place"]
        self.next = self.place

    def __iter__(self) -> Iterator[int]:
        order = np.random.default_rng(self.epoch).permutation(40)
        first = self.place if self.goes_on else self.next
        self.next, self.place = 0, first
        for self.place in range(first + 1, 41):
            yield int(order[self.place - 1])
        self.epoch, self.place = self.epoch + 1, 0


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize("left_after", [1, 5, 8])
def test_an_epoch_behind_one_that_was_left_is_resumed(
    goes_on: bool, left_after: int, workers: int
) -> None:
    def fresh(state: Any = None) -> DataLoader[Any]:
        loader = DataLoader(range(40), 4, sampler=Resumable(goes_on), num_workers=workers)
        return loader if state is None else loaded(loader, through_file(state))

    with fresh() as loader:
        list(itertools.islice(loader, left_after))
        states, expected = [], []
        for batch in loader:
            expected.append(batch.tolist())
            states.append(loader.state_dict())
    assert goes_on or len(expected) == 10
    for number, state in enumerate(states[:-1], 1):
        resumed = fresh(state)
        iterator = iter(resumed)
        assert next(iterator).tolist() == expected[number]
        if number + 1 < len(expected):  # and so is a state of the resumed one
            assert lists(fresh(resumed.state_dict())) == expected[number + 1 :]
        resumed.close()


@pytest.mark.parametrize("kind", ["torch", "one by one"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_is_loaded_where_it_was_taken(kind: str, workers: int) -> None:
    loader, reference = loader_of(KINDS[kind](), workers), loader_of(KINDS[kind]())
    expected = [lists(reference) for _ in range(3)]
    for epoch in range(2):
        iterator = iter(loader)
        first = lists(itertools.islice(iterator, 2))
        state = loader.state_dict()
        next(iterator)
        for _ in range(2):
            loader.load_state_dict(state)
            assert first + lists(loader) == expected[epoch]
    assert lists(loader) == expected[2]


@pytest.mark.parametrize("kind", ["torch", "one by one"])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("given_out", [1, 2, 4])
def test_a_generator_that_is_seeded_for_each_epoch(kind: str, workers: int, given_out: int) -> None:
    """As in ``generator.manual_seed(epoch)``; the epoch before is left early, or at its end."""
    sampler, theirs = KINDS[kind](), KINDS[kind]()
    loader = loader_of(sampler, workers)
    for epoch in range(3):
        sampler.rng.manual_seed(100 + epoch)
        theirs.rng.manual_seed(100 + epoch)
        expected = list(BatchSampler(theirs, SIZE, drop_last=False))[:given_out]
        iterator = iter(loader)
        assert lists(next(iterator) for _ in range(given_out)) == expected


@pytest.mark.parametrize("kind", ["torch", "one by one"])
@pytest.mark.parametrize("workers", [0, 2])
def test_so_it_is_behind_a_loaded_state(kind: str, workers: int) -> None:
    def seeded_epochs(start: int, state: Any = None) -> list[Any]:
        sampler, found = KINDS[kind](), []
        loader = loader_of(sampler, workers)
        if state is not None:
            loader.load_state_dict(state)
        for epoch in range(start, 3):
            sampler.rng.manual_seed(100 + epoch)
            found.append((lists(loader), loader.state_dict()))
        return found

    epochs = seeded_epochs(0)
    for epoch in range(2):
        assert seeded_epochs(epoch + 1, epochs[epoch][1]) == epochs[epoch + 1 :]


def test_a_loaded_position_does_not_depend_on_what_the_program_seeds_anew() -> None:
    loader = loader_of(OneByOne())
    lists(loader)
    iterator = iter(loader)
    next(iterator)
    state, expected = loader.state_dict(), lists(iterator)
    sampler = OneByOne()
    resumed = loaded(loader_of(sampler), state)
    sampler.rng.manual_seed(3)  # as it did when it was started first
    assert lists(resumed) == expected


# --- what a state has of a sampler ---


def test_the_state_is_of_primitives_and_small(tmp_path: Any) -> None:
    loader = loader_of(Both())
    lists(loader)
    torch.save(loader.state_dict(), tmp_path / "state")
    assert torch.load(tmp_path / "state", weights_only=True) == loader.state_dict()
    assert (tmp_path / "state").stat().st_size < 8000


def test_what_a_sampler_holds_of_the_dataset_is_not_its_own() -> None:
    class Over(Own):
        def __init__(self, data_source: Any) -> None:
            self.data_source = data_source

        def order(self) -> Any:
            return range(LENGTH)

    dataset: Any = Call(int, LENGTH)
    dataset.rng = random.Random(1)
    assert "sampler" not in DataLoader(dataset, sampler=Over(dataset)).state_dict()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda held: {"Both.inner.rng": 3}, "'generators'. must be a dict of lists"),
        (lambda held: {"Both.inner.rng": []}, "with a generator Both.inner.rng, whi"),
        (lambda held: {"Both.other": [held["Both.rng"][0]]}, "a generator Both.other"),
        (lambda held: {"Both.rng": [b"x"]}, "must be a random generator's packed"),
        (lambda held: {"Both.rng": [zlib.compress(b"[1]")]}, "state of a PCG64, got"),
        (lambda held: {"Both.rng": [zlib.compress(bytes(1 << 24))]}, "packed state"),
    ],
    ids=range(6),
)
def test_a_damaged_state_is_refused(change: Callable[[Any], dict[str, Any]], message: str) -> None:
    loader, resumed = loader_of(Both()), loader_of(Both())
    lists(loader)
    state = loader.state_dict()
    held = state["sampler"]["generators"]
    held |= change(held)
    with pytest.raises(StateError, match=message):
        resumed.load_state_dict(state)
        next(iter(resumed))


@pytest.mark.parametrize("kind", [SeededByEpoch, SeedsItsGenerator])
def test_one_that_is_told_another_epoch_than_the_states_says_so(kind: Any) -> None:
    sampler = kind()
    loader = loader_of(sampler)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        list(itertools.islice(loader, 2))
    sampler = kind()
    resumed = loaded(loader_of(sampler), loader.state_dict())
    sampler.set_epoch(2)
    with pytest.warns(UserWarning, match="gives other indices than before the state was taken"):
        list(resumed)


@pytest.mark.parametrize("batches", [1, None], ids=["in mid-epoch", "between epochs"])
def test_states_of_ranks_whose_sampler_takes_its_share_are_merged(batches: int | None) -> None:
    states = []
    for rank in range(2):
        sampler = RepeatedAugmentation(rank)
        loader = loader_of(sampler)
        for epoch in range(2):
            sampler.set_epoch(epoch)
            list(itertools.islice(loader, batches))
        states.append(loader.state_dict())
    merged = merge_states(states)
    assert (merged["epoch"], merged["batches"]) == ((1, 1) if batches else (2, 0))


# --- what they are told ---


@pytest.mark.parametrize(
    ("workers", "persistent"), [(0, False), (2, False), (2, True)], ids=["0", "2", "2 that stay"]
)
@pytest.mark.parametrize("kind", OWN)
def test_it_is_told_what_the_program_tells_and_no_more(
    kind: Any, workers: int, persistent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, theirs = kind(), kind()
    expected = torchs(theirs)
    told: dict[Any, list[int]] = {mine: [], theirs: []}
    set_epoch = kind.set_epoch

    def noted(sampler: Any, epoch: int) -> None:
        told[sampler].append(epoch)
        set_epoch(sampler, epoch)

    monkeypatch.setattr(kind, "set_epoch", noted)
    with loader_of(mine, workers, persistent) as loader:
        for _ in range(2):
            assert lists(loader) == lists(expected)
            next(iter(loader))
            next(iter(expected))
        assert told[mine] == []
        for epoch in (5, 6, 2, 2, 7):  # as after a resume, from 0 again, and the same twice
            mine.set_epoch(epoch)
            theirs.set_epoch(epoch)
            assert lists(loader) == lists(expected), epoch
        assert told[mine] == told[theirs]
        loader.set_epoch(4)  # the loader tells it, then
        theirs.set_epoch(4)
        for _ in range(2):
            assert lists(loader) == lists(expected)


@pytest.mark.parametrize("kind", OWN)
def test_one_that_is_not_told_again_says_so(kind: Any) -> None:
    sampler = kind()
    loader = loader_of(sampler)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        iterator = iter(loader)
        list(itertools.islice(iterator, 2 if epoch == 2 else None))
    state, rest = loader.state_dict(), lists(iterator)
    resumed = loaded(loader_of(kind()), state)
    if kind is SeedsItsGenerator:  # a generator is brought back
        assert lists(resumed) == rest
        return
    with pytest.warns(UserWarning, match=f"the sampler {kind.__name__} .*call its set_epoch"):
        list(resumed)


# --- that count by themselves ---

COUNTING = {"attribute": Counting, "closure": in_a_closure}


@pytest.mark.parametrize("make", COUNTING.values(), ids=COUNTING)
def test_a_counter_goes_on_as_with_torch(make: Any) -> None:
    loader = torchs(make())
    expected = [lists(loader), lists(itertools.islice(loader, 2)), lists(loader)]
    with loader_of(make()) as loader:
        assert [lists(loader), lists(itertools.islice(loader, 2)), lists(loader)] == expected


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("make", COUNTING.values(), ids=COUNTING)
def test_a_counter_that_is_not_brought_back_is_told(make: Any, workers: int) -> None:
    with loader_of(make(), workers) as loader:
        list(loader)
        list(itertools.islice(loader, 2))
        with pytest.warns(UserWarning, match="changes from epoch to epoch and is not part of"):
            state = loader.state_dict()
    with loader_of(make(), workers) as resumed:
        resumed.load_state_dict(state)
        with pytest.warns(UserWarning, match="gives other indices .* batch 2 of epoch 1"):
            assert len(list(resumed)) == BATCHES - 2


def test_draws_with_another_batch_size_are_told() -> None:
    state = state_behind(DataLoader(DATA, 2, sampler=EveryOther(LENGTH), seed=1), 3)
    resumed = loaded(DataLoader(DATA, 6, sampler=EveryOther(LENGTH), seed=1), state)
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
            epochs = [lists(each) for _ in range(3)]
            loader.sampler.set_epoch(0)  # as accelerate does, which counts from 0 after a resume
            epochs.append(lists(each))
            assert len(set(map(str, epochs))) == 4
            if each is rebuilt:
                expected = epochs
        assert epochs == expected


def reseeded(epoch: int) -> list[list[int]]:
    sampler = SeedsItsGenerator()
    sampler.set_epoch(epoch)
    return lists(torchs(sampler))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stop", [3, BATCHES], ids=["in mid-epoch", "at the end"])
def test_a_generator_that_was_seeded_for_another_epoch_stays(stop: int, workers: int) -> None:
    with loader_of(SeedsItsGenerator(), workers) as loader:
        loader.set_epoch(1)
        assert lists(itertools.islice(loader, stop)) == reseeded(1)[:stop]
        state = loader.state_dict()
    for epoch in (2, 4):
        with loader_of(SeedsItsGenerator(), workers) as resumed:
            resumed.load_state_dict(state)
            resumed.set_epoch(epoch)
            assert lists(resumed) == reseeded(epoch)


@pytest.mark.parametrize("kind", OWN)
@pytest.mark.parametrize("asked", [False, True])
def test_the_loader_is_told_after_a_resume_and_was_not_before(kind: Any, asked: bool) -> None:
    sampler = kind()
    sampler.set_epoch(3)
    loader = loader_of(sampler)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    state, rest = loader.state_dict(), lists(iterator)
    resumed = loaded(loader_of(kind()), state)
    resumed.set_epoch(3)
    if asked:
        state = resumed.state_dict()
        resumed = loaded(loader_of(kind()), state)
        resumed.set_epoch(3)
    assert lists(resumed) == rest
    other = loaded(loader_of(kind()), state)
    other.set_epoch(5)
    with pytest.warns(UserWarning, match=r"set_epoch\(5\) gives up the loaded position, batch 3"):
        assert len(lists(other)) == BATCHES


@pytest.mark.parametrize("kind", [Eager, SeedsItsGenerator, Untold])
def test_a_loop_that_sets_the_loaders_epoch_leaves_the_rest_of_one(kind: Any) -> None:
    """As Lightning does with ``limit_train_batches``: nothing is said, whatever was drawn."""
    state = None
    for epoch in range(3):
        loader = loader_of(kind())
        if state is not None:
            loader.load_state_dict(state)
            if epoch == 2:  # and again, from a state that was resumed
                if kind is Eager:  # it cannot be brought back
                    loader.set_epoch(1)
                next(iter(loader))
                state = loader.state_dict()
                loader = loaded(loader_of(kind()), state)
        loader.set_epoch(epoch)
        iterator = iter(loader)
        assert len(list(itertools.islice(iterator, 3))) == 3
        state = loader.state_dict()
        assert state["epoch"] == epoch and state["batches"] == 3
