"""Streams whose draws decide what comes next, as users write them: by kind, generator and state."""

import copy
import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from lit_loader import MixtureStream
from tests.support.samples import share

LENGTH = 48
BALLAST = bytes(1_000_000)
"""What makes a state large: it takes longer to be written down than many a batch does."""


class Draws:
    """Uniform draws in [0, 1) from a generator of some kind."""

    def __init__(self, kind: str, seed: int = 3) -> None:
        self.kind = kind
        self.own: Any = None
        if kind == "own random":
            self.own = random.Random(seed)
        elif kind == "own numpy":
            self.own = np.random.default_rng(seed)
        elif kind == "own legacy":
            self.own = np.random.RandomState(seed)
        elif kind == "own torch":
            self.own = torch.Generator().manual_seed(seed)

    def __call__(self) -> float:
        if self.kind == "own torch":
            return float(torch.rand((), generator=self.own))
        if self.own is not None:
            return float(self.own.random())
        if self.kind == "random":
            return random.random()
        if self.kind == "numpy":
            return float(np.random.random())
        if self.kind == "torch":
            return float(torch.rand(()))
        assert self.kind == "none knows"
        return int.from_bytes(os.urandom(4), "little") / 2**32

    def below(self, count: int) -> int:
        return int(self() * count)

    def shuffled(self, numbers: list[int]) -> list[int]:
        return sorted(numbers, key=lambda _: self())

    def state_dict(self) -> Any:
        if self.kind == "own torch":
            return self.own.get_state().tolist()
        if self.kind == "own numpy":
            return self.own.bit_generator.state
        if self.kind == "own legacy":
            kind, key, *rest = self.own.get_state()
            return [kind, key.tolist(), *rest]
        return self.own.getstate() if self.own is not None else None

    def load_state_dict(self, state: Any) -> None:
        if self.kind == "own torch":
            self.own.set_state(torch.tensor(state, dtype=torch.uint8))
        elif self.kind == "own numpy":
            self.own = np.random.default_rng()  # another object than the loader has found
            self.own.bit_generator.state = state
        elif self.kind == "own legacy":
            self.own.set_state(tuple(state))
        elif self.own is not None:
            self.own = random.Random()
            self.own.setstate(state)


class Place(Iterator[Any]):
    """Where a stream is, and what comes next."""

    def __init__(self, stream: "Drawing", draw: Draws) -> None:
        self.stream, self.kind, self.draw = stream, stream.kind, draw
        self.numbers, self.place, self.buffer = stream.numbers(), 0, list[int]()

    def __next__(self) -> Any:
        try:
            sample = self.drawn()
        except IndexError:
            raise StopIteration from None
        self.stream.taken += 1
        return sample

    def drawn(self) -> Any:
        kind = self.kind.removeprefix("shuffled ")
        if kind == "filter":
            while True:
                number = self.take()
                if self.draw() < 0.6:
                    return number
        if kind == "stride":
            number = self.take()
            self.place += self.draw.below(3)
            return number
        if kind == "buffer":
            while len(self.buffer) < 5 and self.place < len(self.numbers):
                self.buffer.append(self.take())
            return self.buffer.pop(self.draw.below(len(self.buffer)))
        if kind == "augmented":
            return self.take() + self.draw() / 2
        assert kind in ("shuffled", "by the process's seed")
        return self.take()

    def take(self) -> int:
        self.place += 1
        return self.numbers[self.place - 1]

    def state_dict(self) -> dict[str, Any]:
        own = copy.deepcopy(self.draw.state_dict())
        more = {"documents": BALLAST} if self.stream.large else {}
        return {"place": self.place, "buffer": list(self.buffer), "generator": own, **more}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place, self.buffer = state["place"], list(state["buffer"])
        if state["generator"] is not None:
            self.draw.load_state_dict(state["generator"])


class Drawing(IterableDataset[Any]):
    """Has no state; a generator, whose body begins with the first ``next()``."""

    large = False

    def __init__(self, kind: str, generator: str, first: int = 0, length: int = LENGTH) -> None:
        self.kind, self.draw = kind, Draws(generator)
        self.first, self.length = first, length
        self.taken = 0

    def numbers(self) -> list[int]:
        numbers = list(range(self.first, self.first + self.length))
        if self.kind == "shuffled by the process's seed":
            random.Random(torch.initial_seed()).shuffle(numbers)
        elif self.kind.startswith("shuffled"):
            numbers = self.draw.shuffled(numbers)
        return share(numbers)

    def begun(self) -> Place:
        return Place(self, self.draw)

    def __iter__(self) -> Iterator[Any]:
        yield from self.begun()


class OnDataset(Drawing):
    """The dataset has the state."""

    place: Place | None = None
    resumed: Any = None

    def __iter__(self) -> Iterator[Any]:
        self.place, state, self.resumed = self.begun(), self.resumed, None
        if state is not None:
            self.place.load_state_dict(state)
        yield from self.place

    def state_dict(self) -> dict[str, Any]:
        return {} if self.place is None else self.place.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.resumed = copy.deepcopy(state) or None


class OnIterator(Drawing):
    """Its iterator has the state."""

    def __iter__(self) -> Iterator[Any]:
        return self.begun()


class OnLazyIterator(Drawing):
    """Its iterator has the state, and begins with the first ``next()``."""

    def __iter__(self) -> Iterator[Any]:
        return _LazyIterator(self)


class _LazyIterator(Iterator[Any]):
    def __init__(self, stream: Drawing) -> None:
        self.stream, self.resumed = stream, None
        self.place: Any = None

    def __next__(self) -> Any:
        if self.place is None:
            self.place = self.stream.begun()
            if self.resumed is not None:
                self.place.load_state_dict(self.resumed)
        return next(self.place)

    def state_dict(self) -> Any:
        return self.resumed if self.place is None else self.place.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.resumed = state


class OfALocalGenerator(OnDataset):
    """Makes a generator of its own at each ``iter()``, which is not in its state."""

    def begun(self) -> Place:
        self.hidden = random.Random(7).random
        return Place(self, _Hidden(self.hidden))


class KnowsItself(OfALocalGenerator):
    """Where torch says which dataset is read, it is this one, and no copy in its stead."""

    def __iter__(self) -> Iterator[Any]:
        for sample in super().__iter__():
            info = get_worker_info()
            assert info is None or info.dataset is self
            yield sample


class _Hidden(Draws):
    def __init__(self, draw: Callable[[], float]) -> None:
        super().__init__("hidden")
        self.draw = [draw]

    def __call__(self) -> float:
        return self.draw[0]()


STATES: dict[str, Callable[..., Drawing]] = {
    "dataset": OnDataset,
    "iterator": OnIterator,
    "lazy iterator": OnLazyIterator,
    "none": Drawing,
}
PLAIN = ("filter", "stride", "buffer", "augmented")
SHUFFLED = ("shuffled", "shuffled filter", "shuffled buffer", "shuffled augmented")
KINDS = (*PLAIN, *SHUFFLED, "shuffled by the process's seed", "mixture")
GENERATORS = ("random", "numpy", "torch", "own random", "own numpy", "own legacy", "own torch")


def stream(kind: str, generator: str, state: str, large: bool = False) -> Any:
    """Make one, with a state of some size perhaps."""

    def make(*args: Any) -> Drawing:
        made = STATES[state](*args)
        made.large = large
        return made

    if kind != "mixture":
        return make(kind, generator)
    sources = [make("buffer", generator), make("filter", generator, 100)]
    return MixtureStream(
        sources, weights=[2, 1], stopping_strategy="all_exhausted_without_replacement", seed=1
    )
