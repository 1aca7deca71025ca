"""Datasets, callables and waits that the loader's own tests share.

They live at module level so that spawn and forkserver can import them.
"""

import os
import random
import select
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset

import lit_loader

METHODS = ["fork", "spawn", "forkserver"]


class OfLength(Dataset[Any]):
    """Has so many samples; what they are is for a subclass to say."""

    length = 16

    def __init__(self, length: int | None = None) -> None:
        if length is not None:
            self.length = length

    def __len__(self) -> int:
        return self.length


class Rows(OfLength):
    """Sample ``index`` is a row of ``width`` numbers, each equal to ``index``."""

    def __init__(self, length: int = 64, width: int = 4) -> None:
        super().__init__(length)
        self.width = width

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((self.width,), index, dtype=torch.int64)


class Call(OfLength):
    def __init__(self, function: Callable[[Any], Any], length: int = 16) -> None:
        super().__init__(length)
        self.function = function

    def __getitem__(self, index: Any) -> Any:
        return self.function(index)


Some = TypeVar("Some", bound=Sequence[Any])


def share(numbers: Some) -> Some:
    """What the reader that asks is to give of these."""
    reader, readers = lit_loader.get_shard()
    return numbers[reader::readers]  # type: ignore[return-value]


class Counting(IterableDataset):
    """0, 1, 2, ... below ``length``, shared out among the readers; each given to ``function``."""

    def __init__(self, length: int = 20, function: Callable[[int], Any] = int) -> None:
        self.length = length
        self.function = function

    def __iter__(self) -> Iterator[Any]:
        for number in share(range(self.length)):
            yield self.function(number)


class Cursor(Iterator[Any]):
    """What ``make`` makes of each number; tells where it is, and can be brought there."""

    def __init__(self, make: Callable[[int], Any], numbers: Sequence[int]) -> None:
        self.make, self.numbers, self.position = make, numbers, 0

    def __next__(self) -> Any:
        if self.position >= len(self.numbers):
            raise StopIteration
        self.position += 1
        return self.make(self.numbers[self.position - 1])

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]


class StatefulCounting(Counting):
    """The same numbers by an iterator that knows its place, and goes on behind an exception."""

    def __iter__(self) -> Iterator[Any]:
        return Cursor(self.function, share(range(self.length)))


class BrokenArrival:
    """Can be pickled and, in no process but the first, unpickled."""

    def __init__(self) -> None:
        self.home = os.getpid()

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return index

    def __setstate__(self, state: dict[str, Any]) -> None:
        raise LookupError("no way to unpack this")


def hang() -> None:
    """Wait, without using the processor, for something that never happens."""
    select.select([], [], [])


def until(condition: Callable[[], Any], seconds: float = 30.0) -> None:
    """Look, as often as the scheduler lets it, until something of another process's is true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came to that"
        os.sched_yield()


def uncollated(samples: Any) -> Any:
    """A ``collate_fn`` that changes nothing."""
    return samples


def ints(batches: Iterable[Any]) -> list[int]:
    return [int(number) for batch in batches for number in torch.as_tensor(batch).flatten()]


def pool_of(loader: Any) -> Any:
    return loader._core.keeper.pool


def worker_pids(iterator: Any) -> list[int]:
    return list(iterator.workers.workers.pids)


def named_memory() -> set[str]:
    """Names in /dev/shm, but for semaphores: the loader makes none, and other programs do."""
    return {name for name in os.listdir("/dev/shm") if not name.startswith("sem.")}


def usage() -> tuple[int, int, int, set[str]]:
    """Descriptors, threads, mappings of arenas and children of this process."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    maps = Path("/proc/self/maps").read_text().count("memfd:lit_loader")
    return len(os.listdir("/proc/self/fd")), threading.active_count(), maps, {*children}


def reads_ended() -> None:
    """Wait until the threads of ``read_threads`` have ended with what they read for."""
    for thread in threading.enumerate():
        if thread.name.startswith("lit_loader reader"):
            thread.join(5)


def own_generators() -> list[Any]:
    """Where the process's own generators are, with what they have in reserve."""
    numpy = np.random.get_state(legacy=False)
    return [
        random.getstate(),
        numpy["state"]["key"].tolist(),
        numpy["state"]["pos"],
        numpy["has_gauss"],
        torch.get_rng_state().tolist(),
        torch.initial_seed(),
        type(np.random.get_bit_generator()),
    ]
