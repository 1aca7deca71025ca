"""What ranks of a job draw: real gloo ranks, each a process of its own."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DistributedSampler, IterableDataset

from lit_loader import DataLoader, LoaderError
from lit_loader.streams import rank_store as job
from tests.support.ranks import of_ranks
from tests.support.samples import Call, share

KINDS = ["sampler", "shuffle", "stream"]


def noisy(index: int) -> tuple[Any, ...]:
    return index, torch.rand((), dtype=torch.float64), np.random.random(), random.random()


class NoisyStream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return map(noisy, share(range(16)))


def loader_of(kind: str, rank: int, workers: int) -> DataLoader[Any]:
    options: dict[str, Any] = {"batch_size": 4, "num_workers": workers}
    if kind == "sampler":
        return DataLoader(Call(noisy), sampler=DistributedSampler(Call(noisy), 2, rank), **options)
    options["num_replicas"] = "auto"
    if kind == "stream":
        return DataLoader(NoisyStream(), num_shards=4, uneven_ranks="keep", **options)
    return DataLoader(Call(noisy), shuffle=True, **options)


def two_passes(rank: int, seed: str, workers: int, kind: str) -> list[Any]:
    """By pass: columns of indices, and of noise of three libraries."""
    torch.seed(), np.random.seed(None), random.seed()
    if seed != "-":
        number = 100 + rank if seed == "rank" else int(seed)
        torch.manual_seed(number), np.random.seed(number), random.seed(number)
    passes = []
    with loader_of(kind, rank, workers) as made:
        for epoch in range(2):
            if kind == "sampler":
                made.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
            passes.append([torch.cat(each).tolist() for each in zip(*made, strict=True)])
    return passes


def passes(seed: str, workers: int, kind: str) -> list[Any]:
    """By rank; seed "-": none, "rank": another one on each rank."""
    return of_ranks(2, two_passes, seed, workers, kind)


def drawn(passes: Any) -> set[float]:
    return {noise for columns in passes for column in columns[1:] for noise in column}


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_have_one_order_and_draw_each_their_own(kind: str) -> None:
    """Also if each is seeded by a number of its own, as some programs do."""
    both = passes("rank", 0, kind)
    for epoch in range(2):
        indices = sorted(index for rank in both for index in rank[epoch][0])
        assert indices == [*range(16)]
    alike = 2 * 3 * 3 if kind == "stream" else 0  # the first samples of readers, as their page says
    assert len(drawn(both[0]) | drawn(both[1])) == 2 * 2 * 8 * 3 - alike
    assert passes("rank", 2 if kind == "stream" else 0, kind) == both


def test_seeds_give_other_augmentations_and_runs_without_differ() -> None:
    runs = [passes(seed, 0, "sampler") for seed in ("1", "2", "1", "-", "-")]
    noise = [drawn(run[0]) for run in runs]
    assert noise[0] == noise[2]
    for one, other in ((0, 1), (0, 3), (3, 4)):
        assert not noise[one] & noise[other]
    # The order is that of the sampler, whatever is seeded, as with torch's loader.
    for rank in range(2):
        sampler = DistributedSampler(Call(noisy), 2, rank)
        for epoch in range(2):
            sampler.set_epoch(epoch)
            assert all(run[rank][epoch][0] == [*sampler] for run in runs)


def test_a_first_rank_that_never_comes_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    store = torch.distributed.HashStore()
    store.set_timeout(timedelta(milliseconds=50))
    monkeypatch.setattr(job, "store", lambda: store)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    with pytest.raises(LoaderError, match="rank 0 .*Noisy"):
        job.Name("Noisy").first_rank([1])
