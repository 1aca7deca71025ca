"""What divides the data among processes is chosen when a loader is made."""

from __future__ import annotations

from typing import Any

import pytest

from lit_loader import DataLoader, OptionError


@pytest.mark.parametrize(
    ("name", "value"),
    [("num_replicas", 2), ("rank", 0), ("num_shards", 4), ("shard_tail", "drop")],
)
def test_what_would_do_nothing_later_is_refused(name: str, value: Any) -> None:
    loader = DataLoader(range(4), num_replicas=2, rank=1)
    with pytest.raises(OptionError, match=f"{name} divides the data among processes"):
        setattr(loader, name, value)
    assert [batch.tolist() for batch in loader] == [[1], [3]]


class Numbered(DataLoader[Any]):
    """Keeps a number of its own."""

    def __init__(self, dataset: Any, rank: int) -> None:
        super().__init__(dataset)
        self.rank = rank


def test_a_subclass_may_have_a_rank_of_its_own() -> None:
    assert len([*Numbered(range(4), 3)]) == 4
