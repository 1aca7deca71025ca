"""Where a dataset is being read: the epoch, and this reader's share of an iterable dataset.

Set by what reads (a worker process; the parent with ``num_workers=0``) before it reads, and asked
by datasets through `get_epoch`, `get_rng` and `get_shard`, which are public.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from operator import index as _whole
from typing import Any, Final

import numpy as np

from lit_loader.describe import program_stacklevel, public
from lit_loader.errors import OptionError

_Context = AbstractContextManager[object]
_Place = tuple[int, tuple[int, int], int, Any, int]

NOBODY, WORKERS, READERS = 0, 1, 2
"""Among whom a dataset has divided itself: workers, by ``get_worker_info()``, which without
``num_shards`` are those of a rank; or all readers of all ranks, by `get_shard`."""


in_read: Final[ContextVar[bool]] = ContextVar("in_read", default=False)
"""Whether this is a `lit_loader.reads_ahead` method, which may serve a sample that comes later."""


class _Reading:
    """What is being read, by whom, and as which share: one a process; in threads one a reader."""

    def __init__(self) -> None:
        self.epoch = 0
        self.shard = (0, 1)
        self.shard_asked = NOBODY  # for what a dataset has asked which share it is to give
        self.maker: Any = None  # the `BatchBuilder`; None: this is outside of a loader
        self.asked = ""  # by which function a sample has asked for what differs between epochs
        self.again = False  # this is another attempt at a sample
        self.tokens = 0  # that the batch's samples have noted so far
        self.info: Any = None  # a worker thread's, and of those that read for it

    def beginning(self, part: int) -> _Context:
        """Give a context in which a part that begins later finds what precedes a first sample."""
        return nullcontext() if self.maker is None else self.maker.beginning(part)

    @contextmanager
    def unnoted(self) -> Iterator[None]:
        """Return a context for samples that are replayed: their tokens do not count."""
        tokens = self.tokens
        try:
            yield
        finally:
            self.tokens = tokens

    def warn(self, text: str) -> None:
        """Have the program warned, once for all readers, of what is noticed while it is read."""
        if self.maker is None:
            warnings.warn(f"lit_loader: {text}", stacklevel=program_stacklevel())
        else:
            self.maker.note(text)

    def drawn(self) -> str | None:
        """Say where generators are: another word once something has been drawn."""
        return None if self.maker is None else self.maker.drawn()

    def leave(self) -> _Place:
        """Read something else (a loader within a dataset, say); returns what `return_to` takes."""
        place = self.epoch, self.shard, self.shard_asked, self.maker, self.tokens
        self.shard_asked, self.maker = NOBODY, None
        return place

    def return_to(self, place: _Place) -> None:
        """Be again where `leave` was called."""
        self.epoch, self.shard, self.shard_asked, self.maker, self.tokens = place


reading: Final = _Reading()


class _OfThread(threading.local):
    reading: _Reading | None = None


_of_thread: Final = _OfThread()


class _InThreads(_Reading):
    """What `reading` is once there are worker threads, each of which has another in its place."""

    def __getattribute__(self, name: str) -> Any:
        own = _of_thread.reading
        return object.__getattribute__(self if own is None else own, name)

    def __setattr__(self, name: str, value: Any) -> None:
        own = _of_thread.reading
        object.__setattr__(self if own is None else own, name, value)


def reading_here() -> _Reading | None:
    """Give what this thread reads, if that is its own, for `read_apart` of a thread of its own."""
    return _of_thread.reading


def read_apart(shared: _Reading | None = None) -> None:
    """Let this thread read for itself, or for whoever has what is ``shared``."""
    reading.__class__ = _InThreads  # who has no worker threads does not pay for it
    _of_thread.reading = _Reading() if shared is None else shared


@public
def get_epoch() -> int:
    """The number of the epoch that is being loaded, from 0; for use inside of a dataset.

    It is the same in a worker and with ``num_workers=0``.
    """
    reading.asked = "lit_loader.get_epoch()"
    return reading.epoch


@public
def get_shard() -> tuple[int, int]:
    """Which share of an iterable dataset is read here, and of how many; for its ``__iter__``.

    Returns:
        ``(index, count)``: with ``num_shards=8`` the share's number and 8, whatever the workers and
        ranks. Without, a share for each worker of each rank: with 2 ranks and 3 workers ``count``
        is 6, and worker 1 of rank 1 has ``index`` 4. Without either ``(0, 1)``. Typical use::

            index, count = lit_loader.get_shard()
            yield from itertools.islice(samples, index, None, count)

        Under torch's own loader it is the same: the worker is that of ``get_worker_info()``, and
        the rank that of ``torch.distributed``. Spawned workers, in which that is not initialised,
        take the rank from ``RANK`` and ``WORLD_SIZE``, which torchrun sets.
    """
    reading.shard_asked = READERS
    return share()


def share() -> tuple[int, int]:
    """Give what `get_shard` does, without noting that a dataset has asked."""
    if reading.maker is not None:
        return reading.shard
    from torch import distributed
    from torch.utils.data import get_worker_info

    info: Any = get_worker_info()
    if info is not None and not type(info).__module__.startswith("torch."):
        return reading.shard  # a worker of ours, before it reads
    rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if distributed.is_available() and distributed.is_initialized():
        rank, ranks = distributed.get_rank(), distributed.get_world_size()
    elif "RANK" not in os.environ:
        ranks = 1
    number, workers = (0, 1) if info is None else (info.id, info.num_workers)
    return rank * workers + number, ranks * workers


@public
def note(*, tokens: int) -> None:
    """Count tokens of the batch that is being read.

    For use inside of a dataset or ``collate_fn``. ``loader.statistics()`` shows them, in all and
    per second::

        lit_loader.note(tokens=int(batch["attention_mask"].sum()))  # in collate_fn: no padding

    `PackedStream` and `PackCollate` count tokens by themselves. If the dataset keeps samples in
    memory and does not read them in each epoch, count in ``collate_fn``.

    Args:
        tokens: The number that is added to the batch's tokens.

    Raises:
        TypeError: ``tokens`` is no whole number.
    """
    reading.tokens += _whole(tokens)


@public
def get_rng(index: Any = None) -> np.random.Generator:
    """A random generator for the sample that is being read; for use inside of a dataset.

    What it draws follows from (seed, epoch, index of the sample) and nothing else: the same in any
    worker, with ``num_workers=0``, on another machine, after a resume and in another attempt to
    read the sample. It needs not be found or kept, and costs nothing where it is not asked for::

        def __getitem__(self, index):
            rng = lit_loader.get_rng()
            return self.images[index] + rng.normal(0, 0.1, self.shape)

    All calls for one sample give the same generator, which goes on: two transforms that ask for it
    draw different numbers. A sample that comes twice in an epoch draws the same both times. Ask
    anew for each sample, and do not keep it.

    - In a collate function: one that follows from (seed, epoch, batch number).
    - In an iterable dataset: from these and the sample's place in the batch; before its first
      sample (``__iter__``, ``set_epoch``) from (seed, epoch) alone, alike for all readers:
      shuffle files by it. ``get_rng(get_shard()[0])`` is another one for each reader.
    - In ``__getitems__``, which reads a batch at once: as in a collate function; with ``index``
      that sample's. Threads of the dataset's own should give it, too.
    - Outside of a loader: a new one, seeded by a draw from torch's global generator, so that
      ``torch.manual_seed`` decides it.

    Args:
        index: The sample's index; None: that of the sample that is being read.
    """
    maker = reading.maker
    if maker is None:
        import torch

        return np.random.default_rng(int(torch.empty((), dtype=torch.int64).random_()))
    if in_read.get():
        raise OptionError(
            "get_rng() in a method that reads_ahead calls before its sample's turn: draw in "
            "__getitem__, with what the method has read [LL405]"
        )
    reading.asked = "lit_loader.get_rng()"
    return maker.rng.give(index)  # type: ignore[no-any-return]
