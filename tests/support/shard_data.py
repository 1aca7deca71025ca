"""Streams whose samples say which reader they were read by, and what the dataset was told of it."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import get_worker_info

import lit_loader
from tests.support import stateful_data

COLUMNS = 12
"""Numbers of a sample: shard and number of shards, twice, two seeds with the epoch between; the
item; four draws."""


class Tagged:
    """Adds to a sample what the dataset is told about its reader."""

    def item(self, number: int) -> Tensor:
        info = get_worker_info()
        assert info is not None and info.dataset is self
        told = [*lit_loader.get_shard(), info.id, info.num_workers, info.seed]
        told += [lit_loader.get_epoch(), torch.initial_seed()]
        drawn: Tensor = super().item(number)  # type: ignore[misc]
        return torch.cat([torch.tensor(told, dtype=torch.float64), drawn])


class Generator(Tagged, stateful_data.Stream):
    def __iter__(self) -> Iterator[Tensor]:
        for number in self.share():
            yield self.item(number)


class WithIteratorState(Tagged, stateful_data.WithIteratorState):
    pass


class WithBothStates(Tagged, stateful_data.WithBothStates):
    pass


KINDS: dict[str, Any] = {"generator": Generator, "iterator": WithIteratorState}
