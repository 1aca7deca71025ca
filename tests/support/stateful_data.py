"""Datasets and samplers of every kind that torchdata's Stateful protocol knows.

Each draws its order where it begins, if it is told to, and random numbers for every sample; some
keep generators in their states. What was called of the protocol is noted in ``calls``.
"""

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, Sampler

from tests.support.datasets import drawn
from tests.support.samples import Cursor, share

SHUFFLES: dict[str, Callable[[list[int]], list[int]]] = {
    "no": list,
    "torch": lambda numbers: [numbers[place] for place in torch.randperm(len(numbers)).tolist()],
    "python": lambda numbers: random.sample(numbers, len(numbers)),
    "numpy": lambda numbers: np.random.permutation(numbers).tolist(),
}


class Ordered:
    """An order, drawn from a global generator or one of its own; and states that keep torch's."""

    def __init__(self, length: int, shuffle: str = "no", keeps: bool = False) -> None:
        self.length, self.shuffle, self.keeps = length, shuffle, keeps
        self.rng = random.Random(5)
        self.calls: list[str] = []

    def order(self) -> list[int]:
        numbers = list(range(self.length))
        if self.shuffle == "own":
            self.rng.shuffle(numbers)
            return numbers
        return SHUFFLES[self.shuffle](numbers)

    def told(self, **place: Any) -> dict[str, Any]:
        return place | ({"generator": bytes(torch.get_rng_state().numpy())} if self.keeps else {})

    def brought(self, state: dict[str, Any]) -> None:
        if self.keeps:
            torch.set_rng_state(torch.frombuffer(bytearray(state["generator"]), dtype=torch.uint8))


class Place(Cursor):
    """The iterator's state, which says nothing of the order."""

    def __init__(self, owner: Any, items: list[int]) -> None:
        super().__init__(owner.item, items)
        self.owner = owner

    def state_dict(self) -> dict[str, Any]:
        return self.owner.told(position=self.position)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.owner.calls.append("load iterator")
        super().load_state_dict(state)
        self.owner.brought(state)


class IteratorState:
    def __iter__(self: Any) -> Iterator[Any]:
        self.calls.append("iter")
        return Place(self, self.share())


class OwnState:
    """The dataset or sampler has it; its ``__iter__`` is a generator, so that it begins late."""

    position = start = 0
    wraps = False  # whether it begins anew behind its end

    def __iter__(self: Any) -> Iterator[Any]:
        self.calls.append("iter")
        self.position, self.start = self.start % self.length if self.wraps else self.start, 0
        for number in self.share()[self.position :]:
            self.position += 1
            yield self.item(number)

    def state_dict(self: Any) -> dict[str, Any]:
        return self.told(position=self.position)

    def load_state_dict(self: Any, state: dict[str, Any]) -> None:
        self.calls.append("load")
        self.start = state["position"]
        self.brought(state)


class ItsOwnIterator:
    """Its own iterator, which begins in ``__iter__``."""

    position = 0

    def __iter__(self: Any) -> Iterator[Any]:
        self.calls.append("iter")
        self.items, self.position = self.share(), 0
        return self

    def __next__(self: Any) -> Any:
        if self.position >= len(self.items):
            raise StopIteration
        self.position += 1
        return self.item(self.items[self.position - 1])

    def state_dict(self: Any) -> dict[str, Any]:
        return self.told(position=self.position)

    def load_state_dict(self: Any, state: dict[str, Any]) -> None:
        self.calls.append("load iterator")
        self.position = state["position"]
        self.brought(state)


class BothStates(IteratorState):
    """The dataset remembers which shift of the data it gives, its iterator the place in it."""

    shift = 0
    brought_to = False

    def __iter__(self: Any) -> Iterator[Any]:
        self.shift += not self.brought_to
        self.brought_to = False
        return super().__iter__()

    def item(self: Any, number: int) -> Any:
        return self.shifted(super().item, number)

    def state_dict(self: Any) -> dict[str, Any]:
        return self.told(shift=self.shift)

    def load_state_dict(self: Any, state: dict[str, Any]) -> None:
        self.calls.append("load")
        self.shift, self.brought_to = state["shift"], True
        self.brought(state)


class Stream(Ordered, IterableDataset[Tensor]):
    """Neither it nor its iterator has a state."""

    def share(self) -> list[int]:
        return share(self.order())

    def item(self, number: int) -> Tensor:
        return drawn(number, self.rng.random())

    def shifted(self, item: Callable[[int], Tensor], number: int) -> Tensor:
        return item(1000 * self.shift + number)  # type: ignore[attr-defined]

    def __iter__(self) -> Iterator[Tensor]:
        self.calls.append("iter")
        return map(self.item, self.share())


class WithIteratorState(IteratorState, Stream):
    pass


class WithState(OwnState, Stream):
    pass


class OwnIterator(ItsOwnIterator, Stream):
    pass


class WithBothStates(BothStates, Stream):
    pass


STREAMS = {
    "neither": Stream,
    "iterator": WithIteratorState,
    "dataset": WithState,
    "its own iterator": OwnIterator,
    "both": WithBothStates,
}


class Drawn(Ordered, Sampler[int]):
    def __len__(self) -> int:
        return self.length

    def item(self, number: int) -> int:
        return number

    def shifted(self, item: Callable[[int], int], number: int) -> int:
        return (item(number) + self.shift) % self.length  # type: ignore[attr-defined]

    def share(self) -> list[int]:
        return self.order()

    def __iter__(self) -> Iterator[int]:
        self.calls.append("iter")
        return map(self.item, self.share())


SAMPLERS = {
    "neither": Drawn,
    "iterator": type("DrawnWithIteratorState", (IteratorState, Drawn), {}),
    "sampler": type("DrawnWithState", (OwnState, Drawn), {"wraps": True}),
    "its own iterator": type("DrawnOwnIterator", (ItsOwnIterator, Drawn), {}),
    "both": type("DrawnWithBothStates", (BothStates, Drawn), {}),
}


class Threes:
    """A batch sampler of the user's own kind: makes lists of what a sampler's item would be."""

    def item(self, number: int) -> list[int]:
        one: int = super().item(number)  # type: ignore[misc]
        return [one, (one + 1) % self.length, (one + 2) % self.length]  # type: ignore[attr-defined]


BATCH_SAMPLERS = {
    name: type(f"{kind.__name__}InThrees", (Threes, kind), {}) for name, kind in SAMPLERS.items()
}


def sampling(use: str, kind: str, *args: Any) -> tuple[Any, dict[str, Any]]:
    """Make a sampler of a kind; also give the options by which a loader uses it."""
    if use == "batch sampler":
        sampler = BATCH_SAMPLERS[kind](*args)
        return sampler, {"batch_sampler": sampler}
    sampler = SAMPLERS[kind](*args)
    return sampler, {"sampler": sampler, "batch_size": 4}
