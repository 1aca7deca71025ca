"""The same bytes with a cache and without, whatever fills it: compared with one process's run.

What is decoded is kept; what is drawn, from every generator there is, comes behind the cache.
"""

import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from lit_loader import CachedDataset, DataLoader
from lit_loader.data.cached_dataset import MappedDataset
from lit_loader.errors import OptionError
from tests.support.decoded import Augment, Decoded
from tests.support.exact import digests, taken, through_file
from tests.support.samples import Counting

BATCHES = 7


class Numbers(Augment):
    """Leaves out what `digests` does not take."""

    def __call__(self, sample: Any) -> Any:
        return [value for value in super().__call__(sample).values() if type(value) is not str]


def make(dataset: Any, **options: Any) -> DataLoader[Any]:
    options = {"batch_size": 4, "shuffle": True, "seed": 11} | options
    return DataLoader(MappedDataset(dataset, Numbers()), **options)


@cache
def reference() -> list[list[str]]:
    """Three epochs in this process, without a cache."""
    loader = make(Decoded())
    return [digests(loader) for _ in range(3)]


@pytest.mark.parametrize("filled", [False, True], ids=["", "filled"])
@pytest.mark.parametrize("stop", [0, 3, BATCHES])
def test_stopped_and_resumed(stop: int, filled: bool, tmp_path: Path) -> None:
    """The run that goes on has a cache of its own, or what the first has left on disk."""
    expected = reference()
    with make(CachedDataset(Decoded(), 0, tmp_path / "one", "v1"), num_workers=2) as loader:
        assert digests(loader) == expected[0]
        got, _ = taken(loader, stop)
        assert got == expected[1][:stop]
        state = through_file(loader.state_dict())
    cached = CachedDataset(Decoded(), "1 MB", tmp_path / ("one" if filled else "other"), "v1")
    with make(cached, num_workers=1) as resumed:
        resumed.load_state_dict(state)
        assert digests(resumed) == expected[1][stop:]
        assert digests(resumed) == expected[2]
    assert (cached.figures().misses == 0) == filled


def test_checked_by_being_made_again() -> None:
    cached = CachedDataset(Decoded(), "1 MB")
    with make(cached, num_workers=2, check_determinism=5) as loader:
        assert digests(loader) == reference()[0]


def rows_of(dataset: Any) -> Counting:
    """A stream that goes through its share of a map-style dataset."""
    return Counting(len(dataset), dataset.__getitem__)


@pytest.mark.parametrize("workers", [0, 2])
def test_readers_of_a_stream_share_what_is_kept(workers: int) -> None:
    """Each has a copy of the dataset, anew in each epoch (their bytes: test_exactness.py)."""
    cached = CachedDataset(Decoded(), "1 MB")
    rows = rows_of(MappedDataset(cached, Numbers()))
    options = {"num_workers": workers, "persistent_workers": workers > 0}
    with DataLoader(rows, 4, num_shards=3, seed=11, **options) as loader:
        assert all(len(digests(loader)) for _ in range(3))
    hits, misses, *_ = cached.figures()
    assert misses == 26 and hits >= 2 * 26


class Sometimes(Decoded):
    """Draws for one sample, out of a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.own = random.Random(3)

    def __getitem__(self, index: int) -> Any:
        return torch.full((2,), self.own.random() if index == 1 else index)


def test_each_readers_generators_are_watched() -> None:
    rows = rows_of(CachedDataset(Sometimes(), "1 MB"))
    with pytest.raises(OptionError, match="draws from .* in sample 1, and CachedDataset"):
        list(DataLoader(rows, 4, num_shards=2))
