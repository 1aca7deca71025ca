"""Streams as programs have them, most with a state that does not say where they are.

A stream is a chain of stages, each an iterator with ``state_dict`` and ``load_state_dict``. A stage
may leave out what it has in reserve (``whole=False``), or tell the place of another moment.
"""

import copy
import functools
import itertools
import random
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import IterableDataset

import lit_loader
from lit_loader import MixtureStream
from tests.support.samples import share

Numbers = list[int]
Draw = Callable[[], float]


class Stage(Iterator[Any]):
    """Has its source's state, and of its own attributes those that are named."""

    own: tuple[str, ...] = ()

    def __init__(self, source: Any, whole: bool = True) -> None:
        self.source, self.whole = source, whole

    def __next__(self) -> Any:
        return next(self.source)

    def state_dict(self) -> dict[str, Any]:
        own = {name: copy.deepcopy(getattr(self, name)) for name in self.own if self.whole}
        return {**own, "source": self.source.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.source.load_state_dict(state["source"])
        for name in self.own if self.whole else ():
            setattr(self, name, copy.deepcopy(state[name]))


class Rows(Stage):
    def __init__(self, numbers: Numbers) -> None:
        self.numbers, self.place = numbers, 0

    def __next__(self) -> int:
        if self.place >= len(self.numbers):
            raise StopIteration
        self.place += 1
        return self.numbers[self.place - 1]

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place = state["place"]


def mixed(numbers: Numbers, draw: Draw) -> Rows:
    return Rows(sorted(numbers, key=lambda _: draw()))


class Noisy(Stage):
    def __init__(self, source: Any, draw: Draw) -> None:
        super().__init__(source)
        self.draw = draw

    def __next__(self) -> Any:
        return next(self.source), self.draw()


class Buffer(Stage):
    """Fills a buffer, and takes out of it at random; or in turn, if it has nothing to draw by."""

    own = ("buffer",)

    def __init__(self, source: Any, draw: Draw | None, size: int, whole: bool = True) -> None:
        super().__init__(source, whole)
        self.draw, self.size, self.buffer = draw, size, list[Any]()

    def __next__(self) -> Any:
        self.buffer += itertools.islice(self.source, self.size - len(self.buffer))
        if not self.buffer:
            raise StopIteration
        return self.buffer.pop(int(self.draw() * len(self.buffer)) if self.draw else 0)


class Late(Stage):
    """Tells the place where it was so many samples ago."""

    def __init__(self, source: Any, by: int) -> None:
        super().__init__(source)
        self.past = deque([source.state_dict()], by + 1)

    def __next__(self) -> Any:
        sample = next(self.source)
        self.past.append(copy.deepcopy(self.source.state_dict()))
        return sample

    def state_dict(self) -> dict[str, Any]:
        return {"source": self.past[0]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.past = deque([self.source.state_dict()], self.past.maxlen)


class InTurns(Stage):
    """Several sources, one sample of each in turn; each is begun with its first sample."""

    def __init__(self, *makers: Callable[[], Stage]) -> None:
        self.makers, self.turn = makers, 0
        self.sources: list[Any] = [None] * len(makers)
        self.loaded: list[Any] = [None] * len(makers)

    def __next__(self) -> Any:
        for _ in self.makers:
            place = self.turn
            self.turn = (place + 1) % len(self.makers)
            if self.sources[place] is None:
                self.sources[place] = self.makers[place]()
                if self.loaded[place] is not None:
                    self.sources[place].load_state_dict(self.loaded[place])
            if (sample := next(self.sources[place], None)) is not None:
                return sample
        raise StopIteration

    def state_dict(self) -> dict[str, Any]:
        pairs = zip(self.sources, self.loaded, strict=True)
        return {"turn": self.turn, "sources": [s.state_dict() if s else own for s, own in pairs]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.turn, self.loaded = state["turn"], list(state["sources"])
        self.sources = [None] * len(self.makers)


class Stream(IterableDataset[Any]):
    """``build`` makes its stages, of the numbers that it is to give and of what it draws by."""

    def __init__(self, build: Callable[..., Stage], kind: str = "random") -> None:
        self.build, self.kind = build, kind
        self.held = random.Random(3)  # which the loader finds, and seeds

    def begun(self) -> Stage:
        draw = random.random
        if self.kind == "held":
            draw = self.held.random
        elif self.kind == "hidden":
            draw = random.Random(7).random
        elif self.kind == "of the epoch":
            draw = random.Random(lit_loader.get_epoch()).random
        return self.build(share(list(range(40))), draw)


class OfDataset(Stream):
    """A generator; the dataset has the state."""

    stages: Any = None
    loaded: Any = None

    def __iter__(self) -> Iterator[Any]:
        self.stages, state, self.loaded = self.begun(), self.loaded, None
        if state is not None:
            self.stages.load_state_dict(state)
        yield from self.stages

    def state_dict(self) -> dict[str, Any]:
        return {} if self.stages is None else self.stages.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loaded = copy.deepcopy(state) or None


class OfIterator(Stream):
    """The iterator has it, and begins at once."""

    def __iter__(self) -> Iterator[Any]:
        return Stage(self.begun())


class OfLazyIterator(Stream):
    """The iterator has it, and begins with the first sample."""

    def __iter__(self) -> Iterator[Any]:
        return InTurns(self.begun)


BUILDS: dict[str, Callable[[Numbers, Draw], Stage]] = {
    "plain": lambda n, d: Rows(n),
    "noisy": lambda n, d: Noisy(Rows(n), d),
    "buffer": lambda n, d: Buffer(Rows(n), d, 6),
    "mixed": mixed,
    "mixed, buffer": lambda n, d: Buffer(mixed(n, d), d, 6),
    "buffer of 2, lost": lambda n, d: Buffer(Rows(n), d, 2, whole=False),
    "buffer of 25, lost": lambda n, d: Buffer(Rows(n), d, 25, whole=False),
    "ahead by a batch, lost": lambda n, d: Buffer(Rows(n), None, 4, whole=False),
    "late by 1": lambda n, d: Late(Rows(n), 1),
    "late by 7": lambda n, d: Late(Noisy(Rows(n), d), 7),
    "mixed, late": lambda n, d: Late(mixed(n, d), 2),
    "in turns, mixed": lambda n, d: InTurns(lambda: mixed(n[::2], d), lambda: mixed(n[1::2], d)),
}

MIXTURES = [
    *(("plain", "noisy"), ("buffer", "plain")),
    *(("late by 1", "plain"), ("buffer of 2, lost", "plain")),
]
"""None of which draws its order as it begins: a mixture goes on by what its sources' states say."""


def mixture(kind: Any, weights: Numbers, names: tuple[str, ...]) -> MixtureStream:
    sources = [kind(BUILDS[name]) for name in names]
    return MixtureStream(
        sources, weights=weights, stopping_strategy="all_exhausted_without_replacement", seed=1
    )


def programs() -> Iterator[tuple[str, Callable[[], Any]]]:
    places = [OfDataset, OfIterator, OfLazyIterator]
    drawn = itertools.cycle(("random", "held", "random", "hidden", "of the epoch"))
    for number, (name, build) in enumerate(BUILDS.items()):
        for place in (places * 2)[number % 3 :][:2]:
            kind = next(drawn)
            yield f"{name}, {kind}, {place.__name__}", functools.partial(place, build, kind)
    weighted = zip(places[:2], ([1, 1], [5, 1]), strict=True)
    for names, (place, weights) in itertools.product(MIXTURES, weighted):
        make = functools.partial(mixture, place, weights, names)
        yield f"{' and '.join(names)}, {weights}, {place.__name__}", make
