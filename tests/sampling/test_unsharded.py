"""What a distributed job is told whose processes all read the same."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.utils.data import IterableDataset

from lit_loader import DataLoader, get_shard


class Split(IterableDataset):  # type: ignore[type-arg]
    """Gives each reader its share."""

    def __iter__(self) -> Iterator[int]:
        reader, readers = get_shard()
        return iter(range(reader, 8, readers))


def test_a_stream_that_splits_by_readers_is_not_told_to_say_that_it_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else every rank would go on with all of the shards, and hear no more of it."""
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with pytest.warns(UserWarning) as caught:
        assert len(list(DataLoader(Split(), 1, num_shards=4))) == 8
    assert [str(each.message) for each in caught] == [
        "each of the 2 processes of this job reads all 4 shards of Split: pass "
        "num_replicas=torch.distributed.get_world_size(), rank=torch.distributed.get_rank(), or "
        "num_replicas=1, rank=0 if they are to, for the dataset splits by ranks besides"
    ]
    shares = [
        DataLoader(Split(), 1, num_shards=4, num_replicas=2, rank=rank, shard_tail="keep")
        for rank in range(2)
    ]
    assert sorted(int(batch) for share in shares for batch in share) == list(range(8))
