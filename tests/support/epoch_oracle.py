"""The data of the state machine of epochs, and its oracle: loaders read straight through."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, Sampler

import lit_loader
from lit_loader import DataLoader
from tests.support.epoch_model import GENERATORS, Root
from tests.support.samples import Cursor, share

Sample = tuple[int, int, float, float, float]

MAIN = os.getpid()


class Noting:
    """Its samples are a number, the epoch and a draw of each global generator.

    In workers they take a few milliseconds, so that there is something outstanding when a worker
    goes; and a process that finds the file ``strike`` removes it, and is killed.
    """

    apart = False  # it draws from torch's generator alone, which threads have for themselves

    def __init__(self, strike: str) -> None:
        self.strike = strike

    @property
    def generator(self) -> Any:
        """Torch's; None: the global one."""
        return torch.thread_safe_generator() if self.apart else None

    def sample(self, number: int) -> Sample:
        """Make a sample."""
        drawn = float(torch.rand((), dtype=torch.float64, generator=self.generator)), 0.0, 0.0
        if not self.apart:
            drawn = drawn[0], np.random.random(), random.random()
        if threading.current_thread() is not threading.main_thread():
            time.sleep(number % 3 / 1_000)
        if os.getpid() != MAIN:
            time.sleep(number % 3 / 1_000)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.strike)
                os.kill(os.getpid(), signal.SIGKILL)
        return number, lit_loader.get_epoch(), *drawn


class Batch(NamedTuple):
    """A batch, by what its parts follow from."""

    order: Any
    torch: Any
    numpy: Any
    python: Any


class Samples(Noting, Dataset[Sample]):
    """Of a map-style dataset."""

    def __len__(self) -> int:
        return 13

    def __getitem__(self, index: int) -> Sample:
        return self.sample(index)


class Stream(Noting, IterableDataset[Sample]):
    """Its order is drawn as it begins, from Python's generator, or torch's."""

    def numbers(self) -> list[int]:
        numbers = share(list(range(11)))
        if self.apart:
            order = torch.randperm(len(numbers), generator=self.generator)
            return [numbers[place] for place in order.tolist()]
        random.shuffle(numbers)
        return numbers

    def __iter__(self) -> Iterator[Sample]:
        return map(self.sample, self.numbers())


class StatefulStream(Stream):
    """Its iterator knows its place, and not the order."""

    def __iter__(self) -> Iterator[Sample]:
        return Cursor(self.sample, self.numbers())


class Drawing(Sampler[list[int]]):
    """A batch sampler of the program's: draws each batch when asked for it, and once at the end."""

    SIZES = (3, 1, 2, 3)

    def __init__(self, seed: int = 0) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def __len__(self) -> int:
        return len(self.SIZES)

    def __iter__(self) -> Iterator[list[int]]:
        for size in self.SIZES:
            yield torch.randint(13, (size,), generator=self.generator).tolist()
        torch.rand((), generator=self.generator)

    @property
    def place(self) -> str:
        """Where its generator is."""
        state = self.generator.get_state()
        name = hashlib.blake2b(state.numpy().tobytes(), digest_size=6).hexdigest()
        PLACES[name] = state
        return name


@functools.cache
def drawn(place: str) -> tuple[list[list[int]], list[str]]:
    """Give an epoch's batches of a `Drawing` that is at a place, and its places behind each."""
    sampler = Drawing()
    sampler.generator.set_state(PLACES[place])
    batches, places = [], [sampler.place]
    for batch in sampler:
        batches.append(batch)
        places.append(sampler.place)
    return batches, [*places[:-1], sampler.place]


class Kind(NamedTuple):
    """A dataset and its order."""

    dataset: Callable[[str], Any]
    options: Mapping[str, Any] = MappingProxyType({})
    drawing: bool = False  # whether there is a batch sampler with a generator
    resizable: bool = True  # whether the number of workers is no part of the data
    stream: bool = False
    shuffled: bool = False
    threads: bool = False  # the workers are

    def loader(self, workers: int, seed: int | None, strike: str, **options: Any) -> Any:
        """Make a loader."""
        if self.drawing:
            options["batch_sampler"] = Drawing()
        if workers and self.threads:
            options["worker_method"] = "thread"
        elif workers:
            options["max_worker_restarts"] = 1_000
        else:
            options.pop("persistent_workers", None)
        options = {**self.options, **options}
        dataset = self.dataset(strike)
        dataset.apart = self.threads
        return DataLoader(dataset, num_workers=workers, seed=seed, **options)

    def split(self, batch: Any) -> Batch:
        """Part a batch by what its parts follow from."""
        numbers, epochs, *drawn = batch
        columns = [tuple(each.tolist()) for each in drawn]
        order = tuple(zip(numbers.tolist(), epochs.tolist(), strict=True))
        if self.stream:  # whose order is drawn
            place = 0 if self.threads else 2
            columns[place], order = (*columns[place], *numbers.tolist()), tuple(epochs.tolist())
        return Batch(order, *columns)


KINDS = {
    "shuffled": Kind(Samples, {"batch_size": 3, "shuffle": True}, shuffled=True),
    "drawing": Kind(Samples, drawing=True),
    "shards": Kind(Stream, {"batch_size": 2, "num_shards": 2}, stream=True),
    "stateful shards": Kind(StatefulStream, {"batch_size": 2, "num_shards": 2}, stream=True),
    "stream": Kind(Stream, {"batch_size": 2}, resizable=False, stream=True),
    "stateful stream": Kind(StatefulStream, {"batch_size": 2}, resizable=False, stream=True),
}


PLACES: dict[str, Any] = {}
"""States of generators by their short names."""


def generators() -> dict[str, str]:
    """Give where the process's own generators are: a name for the state of each."""
    _, words, *rest = numpy = np.random.get_state()
    torchs, pythons = torch.get_rng_state(), random.getstate()
    states = torchs, numpy, pythons
    marks = torchs.numpy().tobytes(), (words.tobytes(), *rest), pythons
    found = {}
    for name, state, mark in zip(GENERATORS, states, marks, strict=True):
        found[name] = f"{name} at {hash(mark):x}"
        PLACES[found[name]] = state
    return found


def set_generator(name: str, place: str) -> None:
    """Put a generator where it was."""
    set_state = {"torch": torch.set_rng_state, "numpy": np.random.set_state}
    set_state.get(name, random.setstate)(PLACES[place])


SEEDS: dict[str, Callable[[int], Any]] = {  # NumPy's of torch's number draws what torch's does
    "torch": torch.manual_seed,
    "numpy": lambda number: np.random.seed(number + 1_000),
    "python": random.seed,
}
DRAWS: dict[str, Callable[[], Any]] = {
    "torch": lambda: torch.rand(()),
    "numpy": np.random.random,
    "python": random.random,
}


def seeded_long_ago(number: int) -> None:
    """Let the program have seeded its generators, and drawn from them since."""
    for name in GENERATORS:
        SEEDS[name](number)
        DRAWS[name]()


class Program:
    """A program that has done nothing but to read one fresh loader from the beginning."""

    def __init__(self, make: Callable[[], Any], root: Root) -> None:
        seeded_long_ago(7)
        if root[0] != "seed":
            for name, place in zip(root[1::2], root[2::2], strict=True):
                set_generator(name, place)
        self.loader, self.epochs = make(), list[list[Batch]]()
        self.generators = generators()

    def read(self, kind: Kind, number: int) -> None:
        """Read so many epochs in all."""
        for name, place in self.generators.items():  # of this program, too
            set_generator(name, place)
        while len(self.epochs) < number:
            self.epochs.append([kind.split(batch) for batch in self.loader])
        self.generators = generators()


class Oracle:
    """What fresh loaders give: one for each root, read straight through."""

    def __init__(self, kind: Kind, workers: int, strike: str) -> None:
        self._kind, self._strike = kind, strike
        self._workers = 0 if kind.resizable else workers
        self._programs: dict[Root, Program] = {}
        self._repeats: dict[tuple[Root, int, int], list[Batch]] = {}

    def __call__(self, root: Root, epoch: int, repeats: int) -> list[Batch]:
        """Give the batches of an epoch; of its so many-th repetition."""
        key = root, epoch, repeats
        program = self._programs.get(root)
        if not repeats and program is not None and len(program.epochs) > epoch:
            return program.epochs[epoch]
        if key in self._repeats:
            return self._repeats[key]
        before = generators()
        try:
            if repeats:
                self._repeats[key] = self._repeated(*key)
                return self._repeats[key]
            if program is None:
                program = self._programs[root] = self._begin(root)
            program.read(self._kind, epoch + 3)
            return program.epochs[epoch]
        finally:
            for name, place in before.items():
                set_generator(name, place)

    def _begin(self, root: Root) -> Program:
        seed = root[1] if root[0] == "seed" else None
        return Program(lambda: self._kind.loader(self._workers, seed, self._strike), root)

    def _repeated(self, root: Root, epoch: int, repeats: int) -> list[Batch]:
        loader = self._begin(root).loader
        for _ in range(repeats):
            loader.set_epoch(epoch)
            assert len([*itertools.islice(iter(loader), 2)]) == 2  # more than a look
        loader.set_epoch(epoch)
        return [self._kind.split(batch) for batch in loader]


__all__ = ["DRAWS", "KINDS", "SEEDS", "Batch", "Kind", "Oracle", "drawn", "generators"]
