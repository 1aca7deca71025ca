"""Datasets, samplers and streams that tests load; at most 500 lines.

They live at module level so that spawn and forkserver can import them.
"""

import copy
import random
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

import lit_loader

# --- map-style -----------------------------------------------------------------------------------


class Numbers(Dataset[int]):
    """Sample ``index`` is the index."""

    def __init__(self, length: int = 24) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        if not 0 <= index < self.length:
            raise IndexError(index)
        return index


def drawn(number: float, *more: float) -> Tensor:
    """Return a sample: its number, a draw from each global generator, and what else is passed."""
    draws = random.random(), np.random.random(), float(torch.rand((), dtype=torch.float64))
    return torch.tensor([number, *draws, *more], dtype=torch.float64)


class Augmented(Numbers):
    """Sample ``index`` is the index with draws: from the global generators, and from held ones."""

    def __init__(self, length: int = 26) -> None:
        super().__init__(length)
        self.numpy_rng = np.random.default_rng()
        self.python_rng = random.Random()
        self.torch_rng = torch.Generator()

    def __getitem__(self, index: int) -> Any:
        held = self.numpy_rng.random(), self.python_rng.random()
        torchs = float(torch.rand((), generator=self.torch_rng, dtype=torch.float64))
        return drawn(super().__getitem__(index), *held, torchs, lit_loader.get_epoch())


# --- streams -------------------------------------------------------------------------------------

Some = TypeVar("Some", bound=Sequence[Any])


def share(numbers: Some) -> Some:
    """Return what the shard that asks is to yield of these."""
    shard, shards = lit_loader.get_shard()
    return numbers[shard::shards]  # type: ignore[return-value]


class Lines(IterableDataset[Any]):
    """0, 1, 2, … below ``length``, divided among the shards, each with draws; has no state."""

    def __init__(self, length: int = 26) -> None:
        self.length = length

    def __iter__(self) -> Iterator[Tensor]:
        for number in share(range(self.length)):
            yield drawn(number)


class StatefulStream(Lines):
    """The same; the dataset has the state."""

    place = begin = 0

    def __iter__(self) -> Iterator[Tensor]:
        self.place, self.begin = self.begin, 0
        for number in share(range(self.length))[self.place :]:
            self.place += 1
            yield drawn(number)

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.begin = state["place"]


class BufferedStream(Lines):
    """The same out of a shuffle buffer; the iterator has the state: buffer, place, generator."""

    def __init__(self, length: int = 26, size: int = 5, more: Any = None) -> None:
        super().__init__(length)
        self.rng, self.size, self.more = random.Random(3), size, more

    def __iter__(self) -> Iterator[Tensor]:
        return _Buffer(share(range(self.length)), self)


class _Buffer(Iterator[Tensor]):
    def __init__(self, numbers: Sequence[int], stream: BufferedStream) -> None:
        self.numbers, self.stream = numbers, stream
        self.place, self.buffer, self.states = 0, list[int](), 0

    def __next__(self) -> Tensor:
        while len(self.buffer) < self.stream.size and self.place < len(self.numbers):
            self.buffer.append(self.numbers[self.place])
            self.place += 1
        if not self.buffer:
            raise StopIteration
        return drawn(self.buffer.pop(self.stream.rng.randrange(len(self.buffer))))

    def state_dict(self) -> dict[str, Any]:
        self.states += 1
        # The very objects that it continues with, as most programs write it.
        own = {"buffer": self.buffer, "place": self.place, "states": self.states}
        return {**own, "rng": self.stream.rng.getstate(), "more": self.stream.more}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.buffer, self.place = copy.copy(state["buffer"]), state["place"]
        self.states = state["states"]
        self.stream.rng.setstate(state["rng"])
