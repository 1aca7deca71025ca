"""Generators in hiding: a batch has the same bytes, whatever its maker has made before.

Each kind of dataset keeps a generator in another place. What three workers give is compared with
what the consumer's own process gives, in another order.
"""

import argparse
import functools
import random
import sys
import threading
from collections import UserDict, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, Subset

from lit_loader import DataLoader
from lit_loader.core.seeding import find_generators
from lit_loader.core.seeding.find_generators import GeneratorWatch
from lit_loader.streams.late_generators import note_generators_made
from tests.support import held_elsewhere
from tests.support.samples import Call, OfLength, share

pytestmark = pytest.mark.usefixtures("by_fork")  # much of what may hold one cannot be pickled

LENGTH = 24
BATCH = 2


class Drawing(OfLength):
    """Item ``i`` is ``i`` and a number that a subclass draws."""

    length = LENGTH

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor([index, self.draw(index)], dtype=torch.float64)

    def draw(self, index: int) -> float:
        raise NotImplementedError


class Lazy(Drawing):
    rng: Any = None

    def draw(self, index: int) -> float:
        if self.rng is None:
            self.rng = np.random.default_rng(1)
        return float(self.rng.random())


class Cached(Drawing):
    @functools.cached_property
    def rng(self) -> random.Random:
        return random.Random(1)

    def draw(self, index: int) -> float:
        return self.rng.random()


class LazyOnTheClass(Drawing):
    rngs: ClassVar[dict[str, random.Random]] = {}

    def draw(self, index: int) -> float:
        return self.rngs.setdefault("rng", random.Random(1)).random()


class Holding(Drawing):
    """Holds something, which a function may change before it draws; and so with an epoch."""

    def __init__(
        self, held: Any, draw: Callable[[Any, int], Any], set_epoch: Any = lambda self, epoch: None
    ) -> None:
        self.held, self.drawing, self.told = held, draw, set_epoch

    def set_epoch(self, epoch: int) -> None:
        self.told(self, epoch)

    def draw(self, index: int) -> float:
        return float(self.drawing(self, index))


def put(holding: Any, rng: Any) -> Any:
    """Put a generator in another's place."""
    holding.held = rng
    return rng


def renewed_inside() -> Holding:
    """With the first sample of a worker."""

    def draw(self: Holding, index: int) -> float:
        if not hasattr(self, "fresh"):
            self.held, self.fresh = random.Random(1), True  # type: ignore[attr-defined]
        return float(self.held.random())

    return Holding(random.Random(0), draw)


class Config:
    rng = random.Random(1)


class Inside(Drawing):
    """Draws by a function that hides its generator."""

    def __init__(self, hide: Callable[[Any], Callable[[], float]]) -> None:
        self.get = hide(np.random.default_rng(1))

    def draw(self, index: int) -> float:
        return float(self.get())


class Draws:
    """Calls what it is given, by way of its attribute."""

    def __init__(self, held: Any, read: Callable[[Any], Any]) -> None:
        self.held, self.read = held, read

    def __call__(self) -> float:
        return float(self.read(self.held).random())


def in_local(rng: Any) -> Draws:
    local = threading.local()
    local.rng = rng
    return Draws(local, lambda held: held.rng)


def in_array(rng: Any) -> Draws:
    array = np.empty(2, dtype=object)
    array[1] = rng
    return Draws(array, lambda held: held[1])


def spawning(rng: Any) -> Draws:
    return Draws(rng, lambda held: held.spawn(1)[0])


class InSlots:
    __slots__ = ("__rng", "never")

    def __init__(self, rng: Any) -> None:
        self.__rng = rng

    def get(self) -> Any:
        return self.__rng


def drawn(held: list[Any]) -> float:
    return float(held[0].random())


def imported_late() -> float:
    from tests.support.held_elsewhere import GENERATOR

    return GENERATOR.random()


own = random.Random(1)


def seeds(rng: Any) -> Draws:
    sequence = np.random.SeedSequence(1)
    return Draws(sequence, lambda held: np.random.default_rng(held.spawn(1)[0]))


HIDDEN: dict[str, Callable[[Any], Callable[[], float]]] = {
    "UserDict": lambda rng: Draws(UserDict(rng=rng), lambda held: held["rng"]),
    "Namespace": lambda rng: Draws(argparse.Namespace(rng=rng), lambda held: held.rng),
    "vectorize": lambda rng: functools.partial(np.vectorize(lambda x: rng.random()), 0),
    "local": in_local,
    "array": in_array,
    "spawn": spawning,
    "SeedSequence": seeds,
    "deque": lambda rng: Draws(deque([0, (rng,)]), lambda held: held[1][0]),
    "set": lambda rng: Draws({rng}, lambda held: next(iter(held))),
    "any key": lambda rng: Draws({(1,): rng}, lambda held: held[1,]),
    "slots": lambda rng: Draws(InSlots(rng), InSlots.get),
    "closure": lambda rng: lambda: rng.random(),
    "default": lambda _: lambda rng=random.Random(1), *, other=None: rng.random(),  # noqa: B008
    "partial": lambda rng: functools.partial(drawn, held=[rng]),
    "global in a comprehension": lambda _: lambda: [own.random() for _ in range(2)][0],  # noqa: RUF015
    "imported late": lambda _: imported_late,
    "subset": lambda rng: Draws(Subset([rng, rng], [0]), lambda held: held[0]),  # type: ignore[list-item]
    "Philox": lambda _: np.random.Generator(np.random.Philox(1)).normal,
    "MT19937": lambda _: np.random.Generator(np.random.MT19937(1)).normal,
    "bits": lambda _: np.random.SFC64(1).random_raw,
    "RandomState": lambda _: np.random.RandomState(np.random.PCG64(1)).randn,
    "torch": lambda _: functools.partial(torch.randn, (), generator=torch.Generator()),
}
KINDS: dict[str, Callable[[], Drawing]] = {
    "lazy": Lazy,
    "cached": Cached,
    "lazy, elsewhere": lambda: Holding([Lazy()], lambda self, i: self.held[0].draw(i)),
    "lazy, on the class": LazyOnTheClass,
    "one of many": lambda: Holding(
        [Inside(lambda rng: rng.random) for _ in range(300)],
        lambda self, i: self.held[280 + i % 3].draw(i),
    ),
    # Another one takes its place: with an epoch, with its first sample, or with a worker's.
    "renewed": lambda: Holding(
        random.Random(0),
        lambda self, i: self.held.random(),
        lambda self, epoch: put(self, random.Random(epoch)),
    ),
    "renewed, lazily": lambda: Holding(
        None,
        lambda self, i: (self.held or put(self, random.Random(1))).random(),
        lambda self, epoch: put(self, None),
    ),
    "renewed, inside": renewed_inside,
    # One for each sample, a function of the index: the draws are what they would be alone.
    "fleeting": lambda: Holding(None, lambda self, i: put(self, np.random.default_rng(i)).random()),
    "a module's": lambda: Holding(None, lambda self, i: held_elsewhere.GENERATOR.random()),
    "a class's": lambda: Holding(None, lambda self, i: Config.rng.random()),
    **{name: functools.partial(Inside, hide) for name, hide in HIDDEN.items()},
}


def epoch(dataset: Drawing, workers: int, backwards: bool = False, **options: Any) -> list[Any]:
    """The batches of epoch 3, in the order of their numbers."""
    with DataLoader(dataset, BATCH, num_workers=workers, seed=5, **options) as loader:
        loader.set_epoch(3)
        if not backwards:
            return [batch.tolist() for batch in loader]
        state, batches = loader.state_dict() | {"epoch": 3}, []
        for number in reversed(range(LENGTH // BATCH)):
            loader.load_state_dict(state | {"batches": number, "samples": number * BATCH})
            batches.insert(0, next(iter(loader)).tolist())
        return batches


@pytest.mark.parametrize("seeding", ["batch", "sample"])
@pytest.mark.parametrize("kind", KINDS)
def test_batches_do_not_depend_on_who_made_what_before(kind: str, seeding: str) -> None:
    LazyOnTheClass.rngs.clear()
    expected = epoch(KINDS[kind](), 0, seeding=seeding)
    LazyOnTheClass.rngs.clear()
    assert epoch(KINDS[kind](), 0, backwards=True, seeding=seeding) == expected
    LazyOnTheClass.rngs.clear()
    assert epoch(KINDS[kind](), 3, seeding=seeding) == expected


def late(first: int, workers: int) -> Drawing:
    """Makes its generator in the second batch of each process, or later."""

    class Late(Drawing):
        rng: Any = None
        length = 16 * max(1, workers)

        def draw(self, index: int) -> float:
            if index >= first * max(1, workers):
                self.rng = self.rng or random.Random(1)
            return 0.0 if self.rng is None else self.rng.random()

    return Late()


@pytest.mark.parametrize(("first", "workers"), [(1, 1), (7, 1), (1, 2), (15, 2)])
def test_a_generator_that_was_made_late_is_told_in_the_next_epoch(first: int, workers: int) -> None:
    with DataLoader(
        late(first, workers), batch_size=1, num_workers=workers, persistent_workers=True
    ) as loader:
        list(loader)
        with pytest.warns(
            UserWarning, match=r"Late\.rng is a random generator that was made after"
        ):
            list(loader)
        list(loader)


def test_a_generator_that_was_made_late_is_seeded_from_the_next_epoch_on() -> None:
    """Without workers the program may have put it there, so nothing is told."""

    def third_epoch(epochs: int) -> list[Any]:
        dataset = late(7, 0)
        loader = DataLoader(dataset, batch_size=1, seed=1)
        for _ in range(epochs):
            list(loader)
        dataset.rng = dataset.rng or random.Random(2)  # type: ignore[attr-defined]
        loader.set_epoch(3)
        return [batch.tolist() for batch in loader]

    assert third_epoch(1) == third_epoch(0) == third_epoch(2)


def test_a_generator_of_the_program_is_left_alone_without_workers() -> None:
    """One that has the name of an attribute, beside a dataset in the same module."""
    state = shadow.getstate()
    list(DataLoader(Shadowing()))
    assert shadow.getstate() == state


shadow = random.Random(1)


class Shadowing(Drawing):
    def __init__(self) -> None:
        self.shadow = 1.0

    def draw(self, index: int) -> float:
        return self.shadow


@pytest.mark.parametrize("workers", [0, 2])
def test_what_the_search_has_left_out_is_told_once(workers: int) -> None:
    deep = Inside(lambda rng: functools.partial(float, 0))
    inner: Any = [random.Random(1)]
    for _ in range(20):
        inner = [inner]
    deep.inner = inner  # type: ignore[attr-defined]
    with (
        DataLoader(deep, batch_size=BATCH, num_workers=workers) as loader,
        pytest.warns(UserWarning, match="has not looked into Inside.inner") as caught,
    ):
        list(loader)
        list(loader)
    assert len(caught) == 1
    assert "or pass reseed_fn" in str(caught[0].message)
    with DataLoader(deep, batch_size=BATCH, reseed_fn=lambda dataset, seed: None) as loader:
        list(loader)


@pytest.mark.parametrize("items", [[Lazy() for _ in range(20_001)], list(range(100_000))])
def test_of_long_lists_only_those_that_hold_generators_are_told(items: list[Any]) -> None:
    for item in items:
        if isinstance(item, Lazy):
            item.rng = random.Random(1)
    watch = GeneratorWatch(argparse.Namespace(items=items))
    watch.search()
    assert len(watch.notes) == isinstance(items[0], Lazy)


@pytest.mark.parametrize("workers", [0, 2])
def test_system_randomness_is_told(workers: int) -> None:
    dataset = Inside(lambda rng: random.SystemRandom().random)
    with (
        DataLoader(dataset, batch_size=BATCH, num_workers=workers) as loader,
        pytest.warns(UserWarning, match=r"Inside\.get\.__self__ is a random\.SystemRandom"),
    ):
        list(loader)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_transform_that_is_put_in_place_between_two_epochs(workers: int) -> None:
    def epochs() -> list[Any]:
        dataset = Counting()
        with DataLoader(dataset, BATCH, num_workers=workers, seed=1) as loader:
            list(loader)
            dataset.transform = Lazy()
            return [batch.tolist() for _ in range(2) for batch in loader]

    assert epochs() == epochs()


class Step:
    """A transform; ``rng`` may be put in place later."""

    rng: Any = None


class Stepping(Drawing):
    """Draws from what it finds, beside many objects in which there is nothing."""

    rng: Any = None

    def __init__(self) -> None:
        self.step, self.steps = Step(), [Step() for _ in range(5)]
        self.annotations = [[Step() for _ in range(20)] for _ in range(20)]

    def draw(self, index: int) -> float:
        held = [self, self.step, *self.steps, Config]
        return sum(float(each.rng.random()) for each in held if each.rng is not None)


PUT: dict[str, Callable[[Any, Any], None]] = {
    "its own": lambda dataset, rng: setattr(dataset, "rng", rng),
    "a transform's": lambda dataset, rng: setattr(dataset.step, "rng", rng),
    "one's in a list": lambda dataset, rng: setattr(dataset.steps[3], "rng", rng),
    "another step": lambda dataset, rng: dataset.steps.__setitem__(1, put_in(Step(), rng)),
    "a class's": lambda dataset, rng: setattr(Config, "rng", rng),
}


def put_in(step: Step, rng: Any) -> Step:
    step.rng = rng
    return step


@pytest.mark.parametrize("anew", [False, True])
@pytest.mark.parametrize("place", PUT)
def test_a_generator_that_is_put_in_place_between_two_epochs(
    place: str, anew: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a process that has not looked before; also where another was there."""
    monkeypatch.setattr(Config, "rng", random.Random(1))
    dataset = Stepping()
    loader = DataLoader(dataset, BATCH, seed=1)
    for number in range(3):
        list(loader)
        PUT[place](dataset, np.random.default_rng(number))
        if anew:
            loader = DataLoader(dataset, BATCH, seed=1)
        loader.set_epoch(10 * number + 5)
        batches = [batch.tolist() for batch in loader]
        with DataLoader(dataset, BATCH, seed=1, num_workers=2) as fresh:
            fresh.set_epoch(10 * number + 5)
            assert [batch.tolist() for batch in fresh] == batches


class Counting(Drawing):
    """Keeps accounts of its samples, in attributes that change all the time."""

    transform: Any = None

    def __init__(self) -> None:
        self.count, self.last, self.seen = 0, torch.zeros(1), [(0, "x")]

    def draw(self, index: int) -> float:
        self.count += 1
        self.last, self.size = torch.tensor([index]), (index, [index])
        self.seen.append((index, "y"))
        return 0.0 if self.transform is None else float(self.transform.draw(index))


def test_samples_are_read_again_only_where_a_generator_was_made() -> None:
    dataset = Counting()
    list(DataLoader(dataset, batch_size=BATCH))
    assert dataset.count == LENGTH
    dataset.transform, dataset.count = Lazy(), 0
    list(DataLoader(dataset, batch_size=BATCH))
    assert dataset.count == LENGTH + BATCH


def test_a_failed_attempt_spawns_nothing() -> None:
    class Flaky(Drawing):
        def __init__(self, times: int) -> None:
            self.rng, self.times = np.random.default_rng(1), times

        def draw(self, index: int) -> float:
            value = self.rng.spawn(1)[0].random()
            if index == 3 and self.times:
                self.times -= 1
                raise OSError
            return float(value)

    def run(times: int) -> list[Any]:
        loader = DataLoader(Flaky(times), 4, seed=1, sample_retries={"times": 3, "backoff": 0})
        return [batch.tolist() for batch in loader]

    assert run(2) == run(0)


class ImportsOnUse(Drawing):
    def draw(self, index: int) -> float:
        import imported_on_use  # type: ignore[import-not-found]

        return float(imported_on_use.draw())


class ImportsAMemberOnUse(Drawing):
    def draw(self, index: int) -> float:
        from package_on_use import member  # type: ignore[import-not-found]

        return float(member.draw())


@pytest.mark.parametrize("kind", [ImportsOnUse, ImportsAMemberOnUse])
def test_generators_of_modules_that_are_imported_on_use(
    kind: type[Drawing], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import random\nrng = random.Random()\ndef draw():\n    return rng.random()\n"
    package = tmp_path / "package_on_use"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "member.py").write_text(code)
    (tmp_path / "imported_on_use.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)

    def run(workers: int, backwards: bool = False) -> list[Any]:
        for name in ("imported_on_use", "package_on_use", "package_on_use.member"):
            sys.modules.pop(name, None)
        if kind is ImportsAMemberOnUse:
            import package_on_use  # noqa: F401  and not yet its member
        return epoch(kind(), workers, backwards)

    expected = run(0)
    assert run(0) == expected
    assert run(2) == expected
    assert run(0, backwards=True) == expected


class Shuffling(IterableDataset[int]):
    """Shuffles by a generator of its own, and takes a share."""

    rng: Any = None

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make

    def __iter__(self) -> Iterator[int]:
        if self.rng is None:
            self.rng = self.make()
        order = list(range(LENGTH))
        self.rng.shuffle(order)
        yield from share(order)


def test_an_iterable_dataset_that_makes_its_generator_on_first_use() -> None:
    with DataLoader(
        Shuffling(random.Random), BATCH, num_workers=2, persistent_workers=True
    ) as loader:
        with pytest.warns(UserWarning, match=r"Shuffling\.rng is a random gen.*while .* iterated"):
            list(loader)
        for _ in range(2):
            assert sorted(torch.cat(list(loader)).tolist()) == list(range(LENGTH))


class Cuts(IterableDataset[int]):
    """Has a sampler that shuffles by a generator made with (seed, epoch), as lhotse's wrapper."""

    def __init__(self, seed: Any) -> None:
        self.seed, self.epoch = seed, 0
        self.sampler: Any = None

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        self.sampler = Holding(random.Random(self.seed and self.seed + self.epoch), put)
        order = share(list(range(LENGTH)))
        self.sampler.held.shuffle(order)
        return iter(order)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_stream_that_seeds_its_generator_as_it_is_iterated_is_not_warned_of(workers: int) -> None:
    with DataLoader(Cuts(7), BATCH, num_workers=workers) as loader:
        first = [batch.tolist() for batch in loader]
        loader.set_epoch(1)
        assert [batch.tolist() for batch in loader] != first
    with (
        DataLoader(Cuts(None), BATCH, num_workers=workers) as unseeded,
        pytest.warns(UserWarning, match=r"Cuts\.sampler\.held is a random generator"),
    ):
        list(unseeded)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_iterable_dataset_that_gives_its_generator_a_seed_is_not_warned_of(workers: int) -> None:
    dataset = Shuffling(functools.partial(np.random.default_rng, 1))
    with DataLoader(dataset, BATCH, num_workers=workers) as loader:
        assert sorted(torch.cat(list(loader)).tolist()) == list(range(LENGTH))


def test_what_a_dataset_replaces_as_it_is_iterated_is_not_warned_of() -> None:
    dataset = Shuffling(random.Random)
    dataset.rng = random.Random(1)
    watch = GeneratorWatch(dataset)
    watch.search()
    dataset.rng = random.Random(2)
    note_generators_made(watch)
    assert watch.notes == []


def test_long_containers_of_records_are_passed_by_after_the_first_batch() -> None:
    """Few of their items are looked into, and these are few objects: their length counts."""
    dataset = Call(float, 3)
    dataset.records = [{"a": [index, {"b": [index]}]} for index in range(300)]  # type: ignore[attr-defined]
    list(DataLoader(dataset, 1))
    passed = find_generators._recall(dataset)
    assert passed is not None
    assert passed.keys() == {id(dataset.records)}  # type: ignore[attr-defined]
