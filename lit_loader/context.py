"""Where a dataset is being read: the epoch, and this reader's share of an iterable dataset.

Set by what reads (a worker process; the parent with ``num_workers=0``) before it reads, and asked
by datasets through `get_epoch` and `get_shard`, which are public.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Final

from lit_loader.describe import public

__all__ = ["get_epoch", "get_shard", "reading"]


Aside = Callable[[], AbstractContextManager[object]]
Beginning = Callable[[int], AbstractContextManager[object]]


def _as_they_are(part: int = 0) -> AbstractContextManager[object]:
    return nullcontext()


Drawn = Callable[[], str | None]


def _unknown() -> None:
    return None


_Place = tuple[int, tuple[int, int], bool, Beginning, Aside, Drawn]


class _Reading:
    """What is being read, and as which share; there is one a process.

    Attributes:
        beginning: Gives a context in which generators are as before the epoch's first sample, for
            a part of an iterable dataset that begins later; by the part's number.
        aside: Gives a context after which the generators that the dataset holds are where they
            were, for what is read again in the midst of a batch.
        drawn: Says where generators are: another word once something has been drawn.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self.shard = (0, 1)
        self.beginning: Beginning = _as_they_are
        self.aside: Aside = _as_they_are
        self.drawn: Drawn = _unknown
        self.shard_asked = False
        self.epoch_asked = False

    def leave(self) -> _Place:
        """Read something else (a loader within a dataset, say); returns what `return_to` takes."""
        place = (
            *(self.epoch, self.shard, self.shard_asked),
            *(self.beginning, self.aside, self.drawn),
        )
        self.shard_asked, self.drawn = False, _unknown
        self.beginning, self.aside = _as_they_are, _as_they_are
        return place

    def return_to(self, place: _Place) -> None:
        """Be again where `leave` was called."""
        self.epoch, self.shard, self.shard_asked, self.beginning, self.aside, self.drawn = place


reading: Final = _Reading()


@public
def get_epoch() -> int:
    """The number of the epoch that is being loaded, from 0; for use inside of a dataset.

    It is the same in a worker and with ``num_workers=0``.
    """
    reading.epoch_asked = True
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
    """
    reading.shard_asked = True
    return reading.shard
