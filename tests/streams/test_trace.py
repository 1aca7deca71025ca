"""`note` and `trace`: which documents a batch is made of."""

from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import Dataset, IterableDataset

import lit_loader
from lit_loader import DataLoader, MixtureStream, OptionError, PackedStream


class Documents(IterableDataset[list[int]]):
    """Documents of different lengths, whose tokens are their numbers; each notes its name."""

    def __init__(self, kind: int, count: int = 200) -> None:
        self.kind, self.count = kind, count

    def __iter__(self) -> Iterator[list[int]]:
        index, count = lit_loader.get_shard()
        for number in range(index, self.count, count):
            lit_loader.note(self.kind + number)
            yield [self.kind + number] * (3 + number % 11)


def packed(workers: int = 0, shards: int | None = 4, **options: Any) -> DataLoader[Any]:
    sources = [PackedStream(Documents(kind), 16) for kind in (0, 1000)]
    mixture = MixtureStream(sources, stopping_strategy="all_exhausted_without_replacement")
    return DataLoader(mixture, 4, num_workers=workers, num_shards=shards, **options)


def documents_in(batch: Any) -> set[int]:
    return {int(token) for row in batch["tokens"] for token in row}


@pytest.mark.process
@pytest.mark.parametrize("workers", [0, 2])
def test_the_documents_of_a_batch(workers: int) -> None:
    """Of each epoch, also those that go on from the batch before; the loader stays where it is."""
    with packed(workers, persistent_workers=workers > 0) as loader:  # draws its own seed
        epochs = [list(loader) for _ in range(2)]
        for epoch, batches in enumerate(epochs):
            for number in (0, 7, len(batches) - 1):
                assert {*loader.trace(number, epoch)} == documents_in(batches[number])
        with pytest.raises(IndexError, match=f"batch {len(epochs[0])}: epoch 0 has fewer batches"):
            loader.trace(len(epochs[0]))


@pytest.mark.process
def test_from_a_state_only_what_follows_is_read() -> None:
    with packed(2) as loader:
        iterator = iter(loader)
        for _ in range(5):
            next(iterator)
        state = loader.state_dict()
        names = loader.trace(9, state=state)
        rest = list(iterator)
        assert {*names} == documents_in(rest[4])
        # What is read again on the way is no part of the batch.
        assert {*loader.trace(5, state=state)} == documents_in(rest[0])
        with pytest.raises(OptionError, match="state must be one from before batch 3 of epoch 0"):
            loader.trace(3, state=state)


def test_a_stream_without_shards_has_one_worker() -> None:
    with packed(2, None) as loader, pytest.raises(OptionError, match="trace reads in this process"):
        loader.trace(3)


class Drawn(IterableDataset[int]):
    """Random numbers, each of which is its sample's name."""

    def __iter__(self) -> Iterator[int]:
        for _ in range(10 + lit_loader.get_shard()[0]):
            number = int(lit_loader.get_rng().integers(1 << 40))
            lit_loader.note(number)
            yield number


def test_a_loader_without_a_seed() -> None:
    """In mid-epoch, and of other epochs: with the seed that it has drawn."""
    loader = DataLoader(Drawn(), 4, num_shards=2)
    first = [batch.tolist() for batch in loader]
    iterator = iter(loader)
    second = [next(iterator).tolist() for _ in range(3)]
    assert [loader.trace(n, 1) for n in range(3)] == second
    assert [loader.trace(n, 0) for n in range(len(first))] == first
    assert first[:3] != second
    assert len(list(iterator)) == len(first) - 3


class Images(Dataset[int]):
    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> int:
        lit_loader.note(f"{index}.png")
        return index


def test_a_map_style_batch_is_read_alone() -> None:
    loader = DataLoader(Images(), 8, shuffle=True, seed=1)
    batches = list(loader)
    assert loader.trace(5) == [f"{index}.png" for index in batches[5].tolist()]


def test_outside_of_a_trace_it_does_nothing() -> None:
    lit_loader.note("a")
    loader = DataLoader(Images(), 8)
    next(iter(loader))
    assert loader.trace(0) == [f"{index}.png" for index in range(8)]
