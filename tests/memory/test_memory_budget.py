"""``memory_budget``: the shared memory stays within it, whatever is in flight or held."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from lit_loader import DataLoader
from tests.support.samples import Call, Counting

MB = 1 << 20
SLACK = 1.1


def row(index: int) -> torch.Tensor:
    return torch.full((MB // 8,), index, dtype=torch.int64)


def memory(loader: DataLoader[Any]) -> int:
    """Bytes that the arena's file takes."""
    assert loader._core.pool is not None
    return os.fstat(loader._core.pool.arena.fd).st_blocks * 512


def watched(loader: DataLoader[Any], peaks: list[int]) -> Iterator[torch.Tensor]:
    for batch in loader:
        peaks.append(memory(loader))
        yield batch


@pytest.mark.parametrize("held", [0, 3, 100], ids="hold {}".format)
@pytest.mark.parametrize("in_order", [True, False], ids=["in order", "as finished"])
def test_within_the_budget(held: int, in_order: bool) -> None:
    budget = 24 * MB
    with DataLoader(
        Call(row, 240), batch_size=4, num_workers=2, prefetch_factor=8, persistent_workers=True,
        memory_budget=budget, in_order=in_order,
    ) as loader:  # fmt: skip
        for _ in range(2):
            peaks: list[int] = []
            kept: list[torch.Tensor] = []
            found = []
            for batch in watched(loader, peaks):
                found += batch[:, 0].tolist()
                kept = [*kept, batch][-held:] if held else []
            assert (found if in_order else sorted(found)) == list(range(240))
            assert [int(batch[0, -1]) for batch in kept] == [int(batch[0, 0]) for batch in kept]
            assert max(peaks) <= budget * SLACK
            assert max(peaks) >= 8 * MB  # it is this memory that the batches lie in


def test_without_a_budget_more_is_taken() -> None:
    """The measure can fail."""
    with DataLoader(
        Call(row, 240), batch_size=4, num_workers=2, prefetch_factor=8, persistent_workers=True
    ) as loader:
        peaks: list[int] = []
        kept = list(watched(loader, peaks))
        assert max(peaks) > 100 * MB
        assert len(kept) == 60


def test_a_batch_larger_than_the_budget_is_made_all_the_same() -> None:
    with DataLoader(
        Call(row, 24), batch_size=4, num_workers=2, persistent_workers=True, memory_budget=MB
    ) as loader:
        iterator = iter(loader)
        with pytest.warns(RuntimeWarning, match="larger than memory_budget=1048576") as caught:
            found = [batch[0, 0].item() for batch in iterator]
        assert found == [0, 4, 8, 12, 16, 20]
        assert len(caught) == 1
        peaks: list[int] = []
        for _ in watched(loader, peaks):
            pass
        assert max(peaks) <= 3 * 4 * MB


def test_a_stream_within_the_budget() -> None:
    budget = 12 * MB
    with DataLoader(
        Counting(60, row), batch_size=2, num_workers=3, prefetch_factor=4, persistent_workers=True,
        memory_budget=budget,
    ) as loader:  # fmt: skip
        peaks: list[int] = []
        found = sorted(n for batch in watched(loader, peaks) for n in batch[:, 0].tolist())
        assert found == list(range(60))
        assert max(peaks) <= budget * SLACK
