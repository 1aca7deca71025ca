"""Datasets that draw nothing are not seeded for each batch; what others get is not changed by that.

What is compared with: ``reseed_fn``, which has generators seeded for each batch.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, default_collate

from lit_loader import DataLoader, get_epoch
from lit_loader.core.batch.batch_builder import QUIET

SIZE = 4
BATCHES = 3 * QUIET
LATE = 2 * QUIET

DRAWS: dict[str, Callable[[], float]] = {
    "torch": lambda: float(torch.rand(())),
    "torch, one of two normal deviates": lambda: float(torch.randn((), dtype=torch.float64)),
    "numpy": lambda: np.random.rand(),
    "numpy, one of two normal deviates": lambda: np.random.randn(),
    "random": lambda: random.random(),
    "random, one of two normal deviates": lambda: random.gauss(0, 1),
}
BATCHES_THAT_DRAW: dict[str, Callable[[int], bool]] = {
    "all": lambda batch: True,
    "late ones": lambda batch: batch >= LATE,
    "some": lambda batch: batch % 7 == 6,
    "one": lambda batch: batch == LATE,
}


class Data(Dataset[tuple[int, float]]):
    """Draws for one sample of some batches."""

    def __init__(self, draw: str, when: str) -> None:
        self.draw, self.when = draw, when
        self.read: Counter[int] = Counter()

    def __len__(self) -> int:
        return SIZE * BATCHES

    def __getitem__(self, index: int) -> tuple[int, float]:
        self.read[index] += 1
        batch, place = divmod(index, SIZE)
        if place == 1 and BATCHES_THAT_DRAW[self.when](batch):
            return index, DRAWS[self.draw]()
        return index, 0.0


def leave(dataset: object, seed: int) -> None:
    """Seeds nothing of its own."""


def numbers(batch: Any) -> Any:
    if isinstance(batch, list):
        return [numbers(part) for part in batch]
    return batch.tolist() if isinstance(batch, torch.Tensor) else batch


def batches(dataset: Any, **options: Any) -> list[Any]:
    with DataLoader(dataset, SIZE, seed=1, **options) as loader:
        return [numbers(batch) for batch in loader]


@pytest.mark.parametrize(
    ("draw", "when", "num_workers"),
    [
        *((draw, when, 0) for draw in DRAWS for when in BATCHES_THAT_DRAW),
        *((draw, "late ones", 2) for draw in DRAWS),
        *(("random", when, 2) for when in BATCHES_THAT_DRAW),
    ],
)
def test_what_is_drawn_is_what_a_seed_before_each_batch_gives(
    draw: str, when: str, num_workers: int
) -> None:
    data, options = Data(draw, when), {"num_workers": num_workers}
    assert batches(data, **options) == batches(data, reseed_fn=leave, **options)


@pytest.mark.parametrize("when", BATCHES_THAT_DRAW)
def test_with_a_seed_for_each_sample(when: str) -> None:
    data, options = Data("numpy", when), {"num_workers": 0, "seeding": "sample"}
    assert batches(data, **options) == batches(data, reseed_fn=leave, **options)


def test_after_a_resume_in_mid_epoch() -> None:
    data = Data("torch", "some")
    expected = batches(data, num_workers=0, reseed_fn=leave)
    with DataLoader(data, SIZE, seed=1, num_workers=2) as loader:
        iterator = iter(loader)
        for _ in range(LATE):
            next(iterator)
        state = loader.state_dict()
    with DataLoader(data, SIZE, seed=1, num_workers=1) as loader:
        loader.load_state_dict(state)
        assert [numbers(batch) for batch in loader] == expected[LATE:]


# --- what is read, what is seeded ---


def test_a_dataset_that_draws_nothing_is_no_longer_seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []
    seed, data = random.seed, Data("torch", "none")
    monkeypatch.setitem(BATCHES_THAT_DRAW, "none", lambda batch: False)
    monkeypatch.setattr(random, "seed", lambda number: [seeds.append(number), seed(number)])
    batches(data, num_workers=0)
    assert 0 < len(seeds) <= QUIET + 3
    assert set(data.read.values()) == {1}


def test_batches_of_short_passes_count_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until they draw, in whichever pass."""
    seeds: list[int] = []
    seed, data = random.seed, Data("random", "late passes")
    monkeypatch.setattr(random, "seed", lambda number: [seeds.append(number), seed(number)])
    monkeypatch.setitem(BATCHES_THAT_DRAW, "late passes", lambda batch: len(counts) >= 12)
    monkeypatch.setattr(Data, "__len__", lambda self: SIZE * 4)
    loader, again = (DataLoader(data, SIZE, seed=1, reseed_fn=r) for r in (None, leave))
    counts: list[int] = []
    for _ in range(15):
        seeds.clear()
        found = [numbers(batch) for batch in loader]
        seeded = len(seeds)
        assert found == [numbers(batch) for batch in again]
        counts.append(seeded)
    assert counts == [4] * 4 + [0] * 8 + [4] * 3


@pytest.mark.parametrize("seeding", ["batch", "sample"])
@pytest.mark.parametrize("when", BATCHES_THAT_DRAW)
def test_only_the_batch_at_which_a_dataset_begins_to_draw_is_read_twice(
    when: str, seeding: str
) -> None:
    data = Data("torch", when)
    batches(data, num_workers=0, seeding=seeding)
    twice = {index // SIZE for index, times in data.read.items() if times > 1}
    assert twice == ({LATE} if when in ("late ones", "one") else set())
    assert max(data.read.values()) <= 2


class Late(Data):
    """Makes a table when it is asked for it, after many batches."""

    def __init__(self) -> None:
        super().__init__("numpy", "late ones")
        self.table: Any = None

    def __getitem__(self, index: int) -> tuple[int, float]:
        if index >= SIZE * LATE and self.table is None:
            self.table = np.random.rand(10)
        return index, 0.0 if self.table is None else self.table[index % 10]


def test_a_table_that_is_drawn_late_is_told() -> None:
    with pytest.warns(UserWarning, match="Late.table was drawn from a random generator in a later"):
        batches(Late(), num_workers=0)


class Stream(IterableDataset[float]):
    """Draws late."""

    def __init__(self) -> None:
        self.read = 0

    def __iter__(self) -> Iterator[float]:
        for index in range(SIZE * BATCHES):
            self.read += 1
            yield random.random() if index >= SIZE * LATE else 0.0


def test_a_stream_is_read_once() -> None:
    data = Stream()
    assert batches(data, num_workers=0) == batches(data, num_workers=0, reseed_fn=leave)
    assert data.read == 2 * SIZE * BATCHES


# --- the program's own generators ---


@pytest.mark.parametrize("reserve", ["", *(draw for draw in DRAWS if "deviates" in draw)])
@pytest.mark.parametrize("draw", DRAWS)
def test_generators_of_the_program_are_left_alone(draw: str, reserve: str) -> None:
    """The program has a normal deviate in reserve as the dataset begins to draw, or none."""

    def program(each: Iterator[Any]) -> list[Any]:
        torch.manual_seed(2), np.random.seed(3), random.seed(4)
        found = [DRAWS[reserve]() if reserve else 0.0]
        for _ in each:
            found += [draw() for draw in DRAWS.values()]
        return found

    loader = DataLoader(Data(draw, "one"), SIZE, seed=1, num_workers=0)
    assert program(iter(loader)) == program(iter(range(BATCHES)))


def test_a_generator_that_the_program_put_behind_numpy_stays_there() -> None:
    before, bits = np.random.get_bit_generator(), np.random.PCG64(1)
    np.random.set_bit_generator(bits)
    try:
        data, options = Data("numpy", "late ones"), {"num_workers": 0}
        assert batches(data, **options) == batches(data, reseed_fn=leave, **options)
        assert np.random.get_bit_generator() is bits
        assert np.random.rand() == np.random.RandomState(np.random.PCG64(1)).rand()
    finally:
        np.random.set_bit_generator(before)


# --- what follows from a draw and shows in no generator ---


class Failing(Data):
    """A sample fails, or not, by what it draws."""

    def __getitem__(self, index: int) -> tuple[int, float]:
        sample = super().__getitem__(index)
        if sample[1] > 0.5:
            raise ValueError(str(sample))
        return sample


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("when", ["late ones", "some"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"on_sample_error": "skip"},
        {"on_sample_error": "replace"},
        {"sample_retries": {"times": 2, "backoff": 0, "on": (ValueError,)}},
    ],
)
def test_a_sample_that_fails_by_what_it_has_drawn(
    options: dict[str, Any], when: str, num_workers: int
) -> None:
    def run(**more: Any) -> list[Any]:
        found: list[Any] = []
        with DataLoader(
            Failing("random", when), SIZE, seed=1, num_workers=num_workers, **options, **more
        ) as loader:
            iterator = iter(loader)
            while True:
                try:
                    found.append(numbers(next(iterator)))
                except StopIteration:
                    return found
                except ValueError as error:
                    found.append(str(error).splitlines()[0])

    assert run() == run(reseed_fn=leave)


class Isolated(Dataset[float]):
    """Puts a generator back behind what it has drawn."""

    def __len__(self) -> int:
        return SIZE * BATCHES

    def __getitem__(self, index: int) -> float:
        with torch.random.fork_rng(devices=[]):
            return float(torch.rand(()))


class Inner(Dataset[float]):
    """Makes a loader for each sample, which draws its seed from the batch's."""

    def __len__(self) -> int:
        return SIZE * (QUIET + 2)

    def __getitem__(self, index: int) -> float:
        return float(next(iter(DataLoader(range(100), shuffle=True, num_workers=0))))


class Kept(Inner):
    """Keeps a loader, whose passes have new seeds where they find generators newly seeded."""

    def __init__(self) -> None:
        self.inner = DataLoader(Data("numpy", "all"), SIZE, num_workers=0)

    def __getitem__(self, index: int) -> float:
        return float(next(iter(self.inner))[1][1])


@pytest.mark.parametrize("kind", [Isolated, Inner, Kept])
def test_what_is_drawn_and_put_back(kind: type) -> None:
    assert batches(kind(), num_workers=0) == batches(kind(), num_workers=0, reseed_fn=leave)


def noisy(samples: list[Any]) -> Any:
    batch = default_collate(samples)
    return [*batch, random.random() if batch[0][0] >= SIZE * LATE else 0.0]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("seeding", ["batch", "sample"])
def test_a_collate_fn_that_draws(seeding: str, num_workers: int) -> None:
    data = Data("torch", "some")
    options = {"num_workers": num_workers, "seeding": seeding, "collate_fn": noisy}
    assert batches(data, **options) == batches(data, reseed_fn=leave, **options)


class Holder(Data):
    """Has a generator of its own, which moves no global one."""

    def __init__(self) -> None:
        super().__init__("numpy", "late ones")
        self.rng = np.random.default_rng(1)

    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, self.rng.random()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_generator_of_the_datasets_own(num_workers: int) -> None:
    options: dict[str, Any] = {"num_workers": num_workers}
    assert batches(Holder(), **options) == batches(Holder(), reseed_fn=leave, **options)


class New(Holder):
    """Makes one after many batches, of which a worker learns at the next epoch's start."""

    rng: Any = None

    def __init__(self) -> None:
        Data.__init__(self, "numpy", "late ones")

    def __getitem__(self, index: int) -> tuple[int, float]:
        if index == SIZE * LATE:
            self.rng = self.rng or np.random.default_rng(1)
        return index, self.rng.random() if self.rng else 0.0


@pytest.mark.filterwarnings("ignore:.*New.rng is a random generator that was made after")
def test_a_generator_that_is_made_late() -> None:
    def run(**options: Any) -> list[Any]:
        options |= {"seed": 1, "num_workers": 1, "persistent_workers": True}
        with DataLoader(New(), SIZE, **options) as loader:
            return [numbers(batch) for _ in range(2) for batch in loader]

    assert run() == run(reseed_fn=leave)


class NewInEachEpoch(Data):
    """Makes its generator when the first sample of an epoch is read."""

    def __init__(self) -> None:
        super().__init__("torch", "late ones")
        self.epoch, self.kept = -1, dict[str, Any]()

    def __len__(self) -> int:
        return SIZE * 3

    def __getitem__(self, index: int) -> tuple[int, float]:
        if self.epoch != get_epoch():
            self.epoch, self.kept["rng"] = get_epoch(), np.random.default_rng()
        return index, self.kept["rng"].random()


def test_a_generator_that_is_made_anew_in_each_pass_is_seeded_in_each() -> None:
    read = []
    for workers in (0, 2):
        with DataLoader(NewInEachEpoch(), SIZE, seed=1, num_workers=workers) as loader:
            read.append([numbers(batch) for _ in range(3) for batch in loader])
    assert read[0] == read[1]
    assert len({str(values) for _, values in read[0]}) == 9
