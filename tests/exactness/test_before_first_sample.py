"""What a dataset draws before its first sample: the same in every reader, on every rank."""

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

import lit_loader
from lit_loader import DataLoader
from tests.support.drawing_streams import Draws
from tests.support.samples import OfLength

FILES = 24


def by_worker_info() -> tuple[int, int]:
    info = get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)


class Shuffled(IterableDataset[Any]):
    """Shuffles its files, takes its share of them, and draws for each sample."""

    def __init__(self, draw: str, share: Callable[[], tuple[int, int]] = lit_loader.get_shard):
        self.draws, self.share = Draws(draw), share
        self.numpy = np.random.default_rng(2)

    def shuffled(self) -> list[int]:
        files = self.draws.shuffled([*range(FILES)])
        index, count = self.share()
        return files[index::count]

    def augmented(self, file: int) -> torch.Tensor:
        noise = [random.random(), np.random.random(), float(torch.rand(())), self.numpy.random()]
        return torch.tensor([float(file), *noise], dtype=torch.float64)

    def __iter__(self) -> Iterator[Any]:
        """Shuffle with the first ``next()``: the body of a generator."""
        for file in self.shuffled():
            yield self.augmented(file)


class ShuffledInIter(Shuffled):
    def __iter__(self) -> Iterator[Any]:
        return map(self.augmented, self.shuffled())


class ShuffledInSetEpoch(Shuffled):
    """Draws when it is told of the epoch; nobody tells it one that the program has not told."""

    files: list[int] | None = None

    def set_epoch(self, epoch: int) -> None:
        self.files = self.shuffled()

    def __iter__(self) -> Iterator[Any]:
        index, count = self.share()
        files = [*range(FILES)][index::count] if self.files is None else self.files
        return map(self.augmented, files)


class ShuffledAtNext(Shuffled):
    """An iterator with a ``__next__`` of its own, which shuffles at the first."""

    def __iter__(self) -> Iterator[Any]:
        self.files: list[int] | None = None
        return self

    def __next__(self) -> Any:
        if self.files is None:
            self.files = self.shuffled()
        if not self.files:
            raise StopIteration
        return self.augmented(self.files.pop())


DRAWS = ["own random", "own numpy", "own torch", "random", "numpy", "torch"]
KINDS = [Shuffled, ShuffledInIter, ShuffledInSetEpoch, ShuffledAtNext]
FEW = [("own random", 0), ("torch", 1), ("own numpy", 2), ("random", 3)]


def read(loader: DataLoader[Any]) -> list[list[float]]:
    return [row for batch in loader for row in batch.reshape(-1, 5).tolist()]


def check_shares(
    dataset: Callable[[], Any], workers: int, replicas: int = 1, **options: Any
) -> None:
    orders, first = [], []
    for epoch in range(2):
        rows = []
        for rank in range(replicas):
            ranks = {"num_replicas": replicas, "rank": rank} if replicas > 1 else {}
            with DataLoader(
                dataset(), 3, num_workers=workers, seed=5, **ranks, **options
            ) as loader:
                loader.set_epoch(epoch)
                rows += read(loader)
        assert Counter(int(row[0]) for row in rows) == Counter(range(FILES))
        orders.append([row[0] for row in rows])
        first += [row[1] for row in rows]
    assert orders[0] != orders[1]
    # The readers' first samples may be alike in what they draw, and no others.
    readers = options.get("num_shards", max(1, workers) * replicas)
    assert len(set(first)) >= len(first) - 2 * (readers - 1)


def cases() -> Iterator[Any]:
    """All there are; by default some of one rank, and of two."""
    several: list[dict[str, Any]] = [{}, {"seeding": "sample"}, {"on_sample_error": "skip"}]
    for case in itertools.product(KINDS, DRAWS, (0, 1, 2, 3), (1, 2, 3), several):
        kind, draw, workers, replicas, options = case
        of_two = replicas == 2 and draw == "numpy" and workers in (0, 2)
        # From global generators workers draw differently, but where they are told of an epoch.
        if workers > 1 and not draw.startswith("own") and kind is not ShuffledInSetEpoch:
            options = {**options, "num_shards": 6, "uneven_ranks": "keep"}
        plain = options in ({}, {"num_shards": 6, "uneven_ranks": "keep"})
        usual = plain and (of_two or (replicas == 1 and (draw, workers) in FEW))
        name = "-".join(map(str, (kind.__name__, *case[1:])))
        marks = [] if usual else [pytest.mark.slow]
        yield pytest.param(*case[:-1], options, marks=marks, id=name)


@pytest.mark.parametrize(("kind", "draw", "workers", "replicas", "options"), [*cases()])
def test_each_file_is_read_once(
    kind: Any, draw: str, workers: int, replicas: int, options: dict[str, Any]
) -> None:
    check_shares(lambda: kind(draw), workers, replicas, **options)


@pytest.mark.parametrize("kind", [Shuffled, ShuffledInIter])
def test_shares_by_torchs_worker_info(kind: Any) -> None:
    check_shares(lambda: kind("own random", by_worker_info), 3)


@pytest.mark.parametrize("kind", [Shuffled, ShuffledInIter, ShuffledAtNext])
def test_torchs_seeding_leaves_own_generators_alike(kind: Any) -> None:
    """As with torch's loader; a global generator is each worker's own, there as here."""
    with DataLoader(kind("own random"), 3, num_workers=2, seed=5, seeding="worker") as loader:
        assert Counter(int(row[0]) for row in read(loader)) == Counter(range(FILES))


class Permuted(OfLength):
    """A map-style dataset that draws when it is told of the epoch."""

    length = FILES

    def __init__(self) -> None:
        self.rng = random.Random(1)
        self.offsets: list[float] = []

    def set_epoch(self, epoch: int) -> None:
        self.offsets = [self.rng.random(), random.random(), np.random.random()]
        self.offsets.append(float(torch.rand(())))

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index + offset for offset in self.offsets], dtype=torch.float64)


@pytest.mark.parametrize("seeding", ["batch", "sample"])
@pytest.mark.parametrize("workers", [0, 2])
def test_what_is_drawn_in_set_epoch_is_resumed(seeding: str, workers: int) -> None:
    def begin() -> DataLoader[Any]:
        return DataLoader(Permuted(), 4, True, num_workers=workers, seed=5, seeding=seeding)

    whole, states = [], []
    with begin() as loader:
        for epoch in range(2):
            loader.set_epoch(epoch)
            for batch in loader:
                whole.append(batch.tolist())
                states.append(loader.state_dict())
    for number in (0, 2, len(states) - 2):
        with begin() as loader:
            loader.load_state_dict(states[number])
            rest = [batch.tolist() for batch in loader]
            if number < len(states) // 2:
                loader.set_epoch(1)
                rest += [batch.tolist() for batch in loader]
        assert rest == whole[number + 1 :]
