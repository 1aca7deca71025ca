"""Datasets, samplers and streams that tests load; at most 500 lines.

They live at module level so that spawn and forkserver can import them.
"""

import copy
import os
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, get_worker_info

import lit_loader
from tests.support import samples
from tests.support.samples import share as share

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


class Lines(IterableDataset[Any]):
    """``start``, ``start + 1``, …, divided among the shards, each with draws; has no state."""

    def __init__(self, length: int = 26, start: int = 0) -> None:
        self.length, self.numbers = length, range(start, start + length)

    def __iter__(self) -> Iterator[Tensor]:
        for number in share(self.numbers):
            yield drawn(number)


class StatefulStream(Lines):
    """The same; the dataset has the state."""

    place = begin = 0

    def __iter__(self) -> Iterator[Tensor]:
        self.place, self.begin = self.begin, 0
        for number in share(self.numbers)[self.place :]:
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


class BufferOfTheProcess(BufferedStream):
    """Draws from the global generators; a worker seeds these for each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.rng = random  # type: ignore[assignment]

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "rng": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, rng=random)


class Shuffled(Lines):
    """Shuffles its numbers in ``__iter__``, by a generator; takes its share; has no state."""

    def __init__(
        self, draw: Any = random, lazy: bool = False, length: int = 26, start: int = 0
    ) -> None:
        super().__init__(length, start)
        self.draw, self.lazy = draw, lazy

    def order(self) -> Sequence[int]:
        numbers = [*self.numbers]
        if self.draw is torch:
            return share(torch.randperm(self.length).tolist())
        if isinstance(self.draw, torch.Generator):
            return share(torch.randperm(self.length, generator=self.draw).tolist())
        self.draw.shuffle(numbers)
        return share(numbers)

    def __iter__(self) -> Iterator[Tensor]:
        return self.late() if self.lazy else map(drawn, self.order())

    def late(self) -> Iterator[Tensor]:
        yield from map(drawn, self.order())


class ByName(StatefulStream):
    """Has a state; its order follows from ``get_rng(name)``, so a resume finds it again."""

    def __iter__(self) -> Iterator[Tensor]:
        order = lit_loader.get_rng("order").permutation(self.length).tolist()
        self.place, self.begin = self.begin, 0
        for number in share(order)[self.place :]:
            self.place += 1
            yield drawn(number)


class Endless(Lines):
    """Never ends; its iterator has the state."""

    def __iter__(self) -> Iterator[Tensor]:
        return _Endless()


class _Endless(Iterator[Tensor]):
    def __init__(self) -> None:
        self.number, self.step = lit_loader.get_shard()

    def __next__(self) -> Tensor:
        self.number += self.step
        return drawn(self.number)

    def state_dict(self) -> dict[str, Any]:
        return {"number": self.number}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.number = state["number"]


class SomeAreBad(StatefulStream):
    """Its iterator continues after samples that cannot be read."""

    def __iter__(self) -> Iterator[Tensor]:
        self.place, self.begin = self.begin, 0
        return self

    def __next__(self) -> Tensor:
        numbers = share(range(self.length))
        if self.place >= len(numbers):
            raise StopIteration
        self.place += 1
        if (number := numbers[self.place - 1]) % 5 == 3:
            raise ValueError(number)
        return drawn(number)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place = state["place"]  # after iter(), for it is its own iterator


# --- of the tests that run with torch's loader, too, and of the core's ---


class Squares(samples.OfLength):
    """``index * index`` for ``length`` indices."""

    length = 10

    def __getitem__(self, index: int) -> int:
        return index * index


class Call(samples.Call):
    """``function(index)`` for ``length`` indices; ``function`` may use closures under fork."""

    def __init__(self, function: Any, length: int = 10) -> None:
        super().__init__(function, length)


class NoLength(Dataset[int]):
    """Map-style without ``__len__``: usable with a sampler."""

    def __getitem__(self, index: int) -> int:
        return index + 100


class Many(Squares):
    """Fetches a whole batch at once, and gives the type of what it was asked with."""

    def __getitem__(self, index: int) -> int:
        raise AssertionError("__getitems__ must be used")

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[int, str]]:
        return [(index, type(indices).__name__) for index in indices]


class Noise(Squares):
    """One number from each global generator, as a row."""

    def __getitem__(self, index: int) -> torch.Tensor:  # type: ignore[override]
        row = [random.random(), float(np.random.rand()), float(torch.rand(()))]
        return torch.tensor(row, dtype=torch.float64)


class Stream(IterableDataset[int]):
    """The same numbers in every worker."""

    def __init__(self, length: int = 10) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.length))


class SizedStream(Stream):
    """A stream with a promised length, which may be a lie."""

    def __init__(self, length: int = 10, promised: int | None = None) -> None:
        super().__init__(length)
        self.promised = length if promised is None else promised

    def __len__(self) -> int:
        return self.promised


class Shares(IterableDataset[int]):
    """Worker ``i`` gives the items of ``shares[i]``; the parent gives all of them."""

    def __init__(self, *shares: Sequence[int]) -> None:
        self.shares = shares

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        if info is None:
            return iter([item for share in self.shares for item in share])
        return iter(self.shares[info.id])


class CountingSampler:
    """``range(length)`` that remembers how many indices were drawn, and in which process."""

    def __init__(self, length: int) -> None:
        self.length, self.drawn = length, 0
        self.pids: set[int] = set()

    def __iter__(self) -> Iterator[int]:
        for index in range(self.length):
            self.drawn += 1
            self.pids.add(os.getpid())
            yield index

    def __len__(self) -> int:
        return self.length


class ReversedBatches:
    """A batch sampler that is no list and no torch class: it can be iterated again and again."""

    def __init__(self, length: int, kind: type = list) -> None:
        self.length, self.kind = length, kind

    def __iter__(self) -> Iterator[Any]:
        for start in range(0, self.length, 2):
            yield self.kind([start + 1, start])

    def __len__(self) -> int:
        return self.length // 2
