"""Where a dataset is being read: the epoch, and this reader's share of an iterable dataset.

Set by what reads (a worker process; the parent with ``num_workers=0``) before it reads, and asked
by datasets through `get_epoch`, `get_rng` and `get_shard`, which are public.
"""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager, nullcontext
from operator import index as _whole
from typing import Any, Final

import numpy as np

from lit_loader.describe import public

__all__ = ["get_epoch", "get_rng", "get_shard", "note"]

_Place = tuple[int, tuple[int, int], int, Any, int]

NOBODY, WORKERS, READERS = 0, 1, 2
"""Among whom a dataset has divided itself: workers, by ``get_worker_info()``, which without
``num_shards`` are those of a rank; or all readers of all ranks, by `get_shard`."""


class Reading:
    """What is being read, by whom, and as which share: one per process, or of one thread.

    ``of_thread``: `info` and `generator` are answered, in place of what torch knows of the process.
    """

    def __init__(self, of_thread: bool = False) -> None:
        self.of_thread = of_thread
        self.epoch = 0
        self.shard = (0, 1)
        self.shard_asked = NOBODY  # for what a dataset has asked which share it is to give
        # The `BatchBuilder`, or the `Sample` of a `ReadPool`; None: this is outside of a loader.
        self.maker: Any = None
        self.asked = ""  # by which function a sample has asked for what differs between epochs
        self.tokens = 0  # that the batch's samples have noted so far
        self.info: Any = None  # what get_worker_info() answers in a thread
        self.generator: Any = None  # … and torch.thread_safe_generator()

    def beginning(self, part: int) -> AbstractContextManager[object]:
        """Seed within as before a pass's first sample, for a stream that begins in mid-pass.

        All shards then shuffle its files in the same way. ``part`` is its number among such
        streams.
        """
        beginning = getattr(self.maker, "beginning", None)
        return nullcontext() if beginning is None else beginning(part)

    def leave(self) -> _Place:
        """Read something else (a loader within a dataset, say); return what `return_to` takes."""
        place = self.epoch, self.shard, self.shard_asked, self.maker, self.tokens
        self.shard_asked, self.maker = NOBODY, None
        return place

    def return_to(self, place: _Place) -> None:
        """Go back to where `leave` was called."""
        self.epoch, self.shard, self.shard_asked, self.maker, self.tokens = place


_of_process: Final = Reading()
_of_thread: Final = threading.local()
_apart = False  # whether a thread has one of its own


def reading() -> Reading:
    """Return what this thread reads: its own, if it is a worker thread, else the process's."""
    if not _apart:  # as nearly always: to ask a threading.local takes a microsecond
        return _of_process
    return reading_apart() or _of_process


def read_apart(own: Reading) -> None:
    """Use a separate `Reading` for this thread, a worker thread, from now on."""
    global _apart
    _of_thread.reading = own
    _apart = True


def reading_apart() -> Reading | None:
    """Return the `Reading` that this thread has of its own; None: it has none."""
    return getattr(_of_thread, "reading", None)


@public
def get_epoch() -> int:
    """Return the number of the epoch that is being loaded, from 0; call it inside a dataset.

    It is the same in a worker and with ``num_workers=0``.
    """
    reading().asked = "lit_loader.get_epoch()"
    return reading().epoch


@public
def get_shard() -> tuple[int, int]:
    """Return which share of an iterable dataset is read here; for its ``__iter__``.

    Under torch's own loader the worker is that of ``get_worker_info()``, and the rank that of
    ``torch.distributed``. Spawned workers, in which that is not initialised, take the rank from
    ``RANK`` and ``WORLD_SIZE``, which torchrun sets.

    Returns:
        ``(index, count)``: with ``num_shards=8`` the shard's number and 8, whatever the workers and
        ranks. Without ``num_shards`` each worker of each rank is a shard: with 2 ranks and 3
        workers ``count`` is 6, and worker 1 of rank 1 has ``index`` 4. Without workers and ranks
        ``(0, 1)``.

    Examples:
        >>> from torch.utils.data import IterableDataset
        >>> from lit_loader import DataLoader, get_shard
        >>> class Numbers(IterableDataset):
        ...     def __iter__(self):
        ...         shard, shards = get_shard()
        ...         return iter(range(shard, 8, shards))
        >>> list(DataLoader(Numbers(), batch_size=2, num_shards=2))  # shards take turns
        [tensor([0, 2]), tensor([1, 3]), tensor([4, 6]), tensor([5, 7])]
    """
    reading().shard_asked = READERS
    return share()


def share() -> tuple[int, int]:
    """Return what `get_shard` does, without noting that a dataset has asked."""
    if reading().maker is not None:
        return reading().shard
    from torch import distributed
    from torch.utils.data import get_worker_info

    info = get_worker_info()
    if info is not None and not type(info).__module__.startswith("torch."):
        return reading().shard  # a worker of ours, before it reads
    rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if distributed.is_available() and distributed.is_initialized():
        rank, ranks = distributed.get_rank(), distributed.get_world_size()
    elif "RANK" not in os.environ:
        ranks = 1
    number, workers = (0, 1) if info is None else (info.id, info.num_workers)
    return rank * workers + number, ranks * workers


@public
def note(*, tokens: int) -> None:
    """Count the tokens of the sample or batch that is being read.

    Call it inside a dataset or ``collate_fn``. ``loader.statistics()`` has the number of tokens,
    in total and per second::

        lit_loader.note(tokens=int(batch["attention_mask"].sum()))  # in collate_fn: no padding

    `PackedStream` and `PackCollate` count tokens by themselves.

    Args:
        tokens: A number of tokens, which is added to the batch's.

    Raises:
        TypeError: ``tokens`` is no whole number.
    """
    reading().tokens += _whole(tokens)


@public
def get_rng(index: object = None) -> np.random.Generator:
    """Return a NumPy generator for the sample that is being read; call it inside a dataset.

    What it draws follows from the pass's seed and the sample's position in the pass, and nothing
    else: it is the same in any worker, with ``num_workers=0``, on another number of ranks, after a
    resume, and in another attempt to read the sample. A dataset that does not call it pays nothing.

    All calls for one sample return the same generator, which continues: two transforms that ask for
    it draw different numbers. Ask again for each sample, and do not keep the generator.

    - In ``collate_fn``, and in ``__getitems__``, which reads a batch at once: a generator that
      follows from the pass's seed and the batch's number. With ``read_threads`` it follows from the
      first sample of the part that ``__getitems__`` gets: ask ``get_rng(index)`` for each sample.
    - In an iterable dataset: one that follows from the sample's place in its batch. Before the
      first sample (``__iter__``) with ``num_shards`` it is the same for all shards: shuffle files
      by it. ``get_rng(get_shard()[0])`` differs for each shard. Without ``num_shards`` it differs
      for each worker.
    - Outside of a loader: a new generator, seeded by a draw from torch's global generator, so that
      ``torch.manual_seed`` decides it.

    Args:
        index: Any value, such as the sample's index: the generator then follows from the pass's
            seed and that value alone, also if a sample comes twice in a pass. Pass it in threads
            that you start, too. None: the sample that is being read.

    Examples:
        >>> from lit_loader import DataLoader, get_rng
        >>> class Noisy:
        ...     def __len__(self):
        ...         return 4
        ...     def __getitem__(self, index):
        ...         return index + get_rng().normal(0, 0.1)
        >>> first, second = (list(DataLoader(Noisy(), 4, seed=1)) for _ in range(2))
        >>> bool((first[0] == second[0]).all())
        True
    """
    maker = reading().maker
    if maker is None:
        import torch

        return np.random.default_rng(int(torch.empty((), dtype=torch.int64).random_()))
    reading().asked = "lit_loader.get_rng()"
    return maker.rng.give(index)  # type: ignore[no-any-return]
