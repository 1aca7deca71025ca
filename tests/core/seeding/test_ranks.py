"""What ranks of a job draw: real gloo ranks, each a process of its own."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DistributedSampler

from lit_loader import LoaderError
from lit_loader.streams import rank_store as job
from tests.support import seeded_ranks
from tests.support.programs import run_program
from tests.support.seeded_ranks import Noisy

KINDS = ["sampler", "shuffle", "stream"]


def jobs(*each: tuple[str, int, str]) -> list[Any]:
    """The passes of each job's ranks: columns of indices, and of noise of three libraries."""
    printed = run_program(Path(seeded_ranks.__file__), json.dumps(each), forked=True)
    found: list[Any] = json.loads(printed.splitlines()[-1])
    return found


def drawn(passes: Any) -> set[float]:
    return {noise for columns in passes for column in columns[1:] for noise in column}


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_have_one_order_and_draw_each_their_own(kind: str) -> None:
    """Also if each is seeded by a number of its own, as some programs do."""
    both, again = jobs(("rank", 0, kind), ("rank", 2 if kind == "stream" else 0, kind))
    for epoch in range(2):
        indices = sorted(index for rank in both for index in rank[epoch][0])
        assert indices == [*range(16)]
    alike = 2 * 3 * 3 if kind == "stream" else 0  # the first samples of readers, as their page says
    assert len(drawn(both[0]) | drawn(both[1])) == 2 * 2 * 8 * 3 - alike
    assert again == both


def test_seeds_give_other_augmentations_and_runs_without_differ() -> None:
    runs = jobs(*[(seed, 0, "sampler") for seed in ("1", "2", "1", "-", "-")])
    noise = [drawn(run[0]) for run in runs]
    assert noise[0] == noise[2]
    assert all(
        not one & other
        for one, other in [
            (noise[0], noise[1]),
            (noise[0], noise[3]),
            (noise[3], noise[4]),
        ]
    )
    # The order is that of the sampler, whatever is seeded, as with torch's loader.
    for rank in range(2):
        sampler = DistributedSampler(Noisy(), 2, rank)
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
