"""`Shard`: how a stream of items is shared out to the ranks of a distributed job.

Arithmetic on positions, the same for the loader's own orders, users' samplers and batch samplers.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from lit_loader.config.checks import one_of
from lit_loader.config.loader_config import SHARD_TAILS
from lit_loader.errors import OptionError
from lit_loader.sampling.orders import Indices

__all__ = ["Shard"]


@dataclass(frozen=True)
class Shard:
    """This process's share of a stream of items that all processes see alike.

    Item ``j`` goes to rank ``j % num_replicas``. What becomes of the last items, when their
    number does not divide evenly, is ``tail``.

    Attributes:
        rank: This process, ``0 <= rank < num_replicas``.
        num_replicas: Number of processes that share the stream.
        tail: "pad": repeat items from the start of the stream until it divides evenly;
            "drop": leave the remainder off; "keep": each item once, so lower ranks may get one
            more than higher ones.
    """

    rank: int = 0
    num_replicas: int = 1
    tail: Literal["pad", "drop", "keep"] = "pad"

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.num_replicas:
            raise OptionError(
                f"rank must be at least 0 and less than num_replicas, got rank={self.rank} and "
                f"num_replicas={self.num_replicas}"
            )
        one_of("shard_tail", self.tail, SHARD_TAILS)

    def assigned(self, length: int) -> int:
        """Give how many items all ranks together get from a stream of ``length`` items."""
        remainder = length % self.num_replicas
        if self.tail == "keep" or not remainder:
            return length
        return length - remainder + (self.num_replicas if self.tail == "pad" else 0)

    def share(self, length: int) -> int:
        """Give how many items this rank gets from a stream of ``length`` items."""
        return -((self.rank - self.assigned(length)) // self.num_replicas)

    def positions(self, start: int, stop: int, length: int) -> Indices:
        """Give where in a stream of ``length`` items this rank's items ``start`` to ``stop`` are.

        Returns:
            int64, shape ``(stop - start,)``, each in ``range(length)``.
        """
        positions = np.arange(start, stop, dtype=np.int64)
        positions *= self.num_replicas
        positions += self.rank
        if self.tail == "pad":
            positions %= max(length, 1)
        return positions

    def deal(self, items: list[Any], head: list[Any]) -> list[Any]:
        """Give this rank's items of a part of the stream that begins at a multiple of the ranks.

        Args:
            items: Consecutive items; a number that does not divide evenly is the stream's end.
            head: The stream's first ``num_replicas - 1`` items, or all if there are fewer.

        Returns:
            This rank's items in their order.
        """
        missing = self.assigned(len(items)) - len(items)
        if missing < 0:
            items = items[:missing]
        elif missing:
            items = items + list(itertools.islice(itertools.cycle(head), missing))
        return items[self.rank :: self.num_replicas]
