"""`Progress`: the batch that is being made: what it is at, and whether it is still wanted.

::

    begin ─▶ fetching ─▶ collating ─▶ encoding ─▶ idle      each is written into the worker's row
                 ╰── each sample, unless they are too quick for that ──╯   of the status board

What makes batches is given one, in a worker, in the parent and on a remote machine; only a worker's
lies on the board, where the parent and viewers see it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import repeat
from operator import getitem, length_hint
from typing import Any, Final

from lit_loader.core.transport.status_board import (
    INDICES,
    NBYTES,
    NUM_DONE,
    NUMBER,
    OFFSET,
    POSITION,
    ROW_WORDS,
    SINCE,
    STAGE,
    TOKEN,
    VOID,
    VOIDABLE,
    WORKERS,
    Stage,
)

__all__ = ["Cancelled", "EarlyProgress", "Progress"]

_QUICK: Final = 4_000
"""Nanoseconds a sample below which samples are neither announced nor timed one by one: that would
take as long as many a sample."""

_MANY: Final = 16
"""Samples of a batch in which that would be felt."""

_FETCHING, _READING, _COLLATING, _ENCODING, _IDLE = (  # read for each batch
    *(Stage.FETCHING, Stage.READING, Stage.COLLATING, Stage.ENCODING, Stage.IDLE),
)
_clock = time.monotonic_ns


class Cancelled(Exception):
    """The batch that is being made is no longer wanted."""


class Progress:
    """What makes a batch notes here where it is, and learns whether the batch is still wanted.

    ``words`` is the board, None for a process that has none, and ``row`` the first word of the
    worker's. What is read of it is in ``time.monotonic_ns()``: when the batch ``began``, was
    ``fetched`` and ``collated`` (0: it is not yet), its ``slowest`` sample (0: not timed), which is
    that at ``slowest_at``, how long samples have ``waited`` for what `reads_ahead` marks, and how
    long taking the ``state`` of a stream took. ``tokens`` are those that samples have noted.
    """

    __slots__ = (
        *("_at", "_into", "_last", "_one_by_one", "_quick", "_row", "_under_way", "_words"),
        *("began", "collated", "each", "empty", "fetched", "slowest"),
        *("slowest_at", "state", "token", "tokens", "waited"),
    )

    def __init__(self, words: memoryview | None = None, row: int = ROW_WORDS) -> None:
        self._words = memoryview(bytearray(16 * ROW_WORDS)).cast("q") if words is None else words
        self._row = row
        self.each = True  # announce samples however quick they are: somebody looks at the time
        # Gives slot memory for what the default collate stacks; None: there is none.
        self.empty: Callable[..., Any] | None = None
        self._quick = False
        self.token = 0  # that of the epoch whose batch is being made
        self.begin(-1)

    def begin(
        self, number: int, token: int = 0, sequence: int = 0, offset: int = 0, nbytes: int = 0
    ) -> bool:
        """Begin a task's batch, if it is wanted still; returns whether it is.

        Without a ``token`` it is. Its indices are ``nbytes`` bytes at ``offset`` of the arena,
        until the batch takes their place.
        """
        words, row = self._words, self._row
        if token and (words[TOKEN] != token or words[row + VOID] >> sequence % VOIDABLE & 1):
            return False
        words[row + STAGE] = _FETCHING
        words[row + NUMBER] = number
        words[row + POSITION] = 0
        words[row + SINCE] = self.began = _clock()
        if nbytes:
            words[row + OFFSET], words[row + NBYTES] = offset, nbytes
            words[row + INDICES] = number
        self.fetched = self.collated = self.slowest = self.slowest_at = self.waited = 0
        self.state = self.tokens = 0
        self._last = self._at = -1
        self._one_by_one = False
        self._under_way: tuple[Any, int] | None = None
        self._into: list[Any] | None = None  # what an iterator's samples are read into
        return True

    def collating(self) -> None:
        """Note that all samples have been read."""
        words, row = self._words, self._row
        words[row + STAGE] = _COLLATING
        words[row + SINCE] = now = self.fetched = _clock()
        if self._at >= 0:
            self._finish(now)

    def encoding(self) -> None:
        """Note that the batch is collated."""
        words, row = self._words, self._row
        words[row + STAGE] = _ENCODING
        words[row + SINCE] = self.collated = _clock()

    def idle(self, made: bool = False) -> int:
        """Note that nothing is to be done, and count a task that is done; returns "now"."""
        words, row = self._words, self._row
        words[row + STAGE] = _IDLE
        words[row + NUMBER] = -1
        words[row + SINCE] = now = _clock()
        words[row + NUM_DONE] += made
        return now

    def stages(self, now: int, processor: int = 0, queued: int = 0) -> tuple[int, ...]:
        """Give what making the batch has taken, in the order of the last fields of a `Reply`.

        One that failed, or was omitted, has not been through all stages.
        """
        collated = self.collated or now
        fetched = self.fetched or collated
        return (
            self.began,
            fetched - self.began,
            collated - fetched,
            now - collated,
            self.slowest,
            self.slowest_at,
            processor,
            queued,
            self.waited,
            self.state,
            self.tokens,
        )

    def step(self, position: int) -> None:
        """Note that the sample at ``position`` of the batch comes next; called for every sample.

        Raises:
            Cancelled: The board shows another token.
        """
        words, row, now = self._words, self._row, _clock()
        words[row + POSITION] = position
        words[row + SINCE] = now
        if words[TOKEN] != self.token:
            raise Cancelled
        if self._at >= 0:
            self._finish(now)
        self._at, self._last = position, now

    def read_begins(self) -> None:
        """Note that the sample waits for what `lit_loader.reads_ahead` marks."""
        self._words[self._row + STAGE] = _READING

    def read_ends(self) -> None:
        """Note that it goes on."""
        self._words[self._row + STAGE] = _FETCHING

    def beat(self) -> None:
        """Note that work of the loader's own gets on, before a sample or after it."""
        self._words[self._row + SINCE] = _clock()

    def _finish(self, now: int) -> None:
        if now - self._last > self.slowest:
            self.slowest, self.slowest_at = now - self._last, self._at
        self._at = -1

    def read_all(self, dataset: Any, indices: Any) -> list[Any]:
        """Read a batch's samples: ``[dataset[index] for index in indices]``.

        Where they are many, and those of the batch before were quick, they are not announced: a
        message about a dead worker names the batch then, and who makes it anew announces each.

        Raises:
            Cancelled: The board shows another token.
        """
        if not self._quick or type(indices) is not list or len(indices) < _MANY:
            return self.read(partial(getitem, dataset), indices)
        if self._words[TOKEN] != self.token:
            raise Cancelled
        self._words[self._row + POSITION] = -1
        began, left = _clock(), iter(indices)
        self._under_way = left, len(indices)  # tells where it is, should an exception come
        samples = [dataset[index] for index in left]
        self._under_way = None
        self._quick = _clock() - began < _QUICK * len(samples)
        return samples

    def read(self, get: Callable[[Any], Any], indices: Iterable[Any]) -> list[Any]:
        """Read a batch's samples by ``get``, announcing and timing each; see :meth:`read_all`."""
        # Spelled out: a call for each sample would take as long as many a sample.
        words, position_at, since = self._words, self._row + POSITION, self._row + SINCE
        token, slowest = self.token, self.slowest
        samples: list[Any] = []
        append = samples.append
        last = began = _clock()
        self._one_by_one = True
        for position, index in enumerate(indices):
            words[position_at] = position
            words[since] = last
            if words[TOKEN] != token:
                raise Cancelled
            append(get(index))
            now = _clock()
            if now - last > slowest:
                self.slowest = slowest = now - last
                self.slowest_at = position
            last = now
        self._one_by_one = False
        self._quick = not self.each and last - began < _QUICK * len(samples)
        return samples

    def read_next(self, source: Iterator[Any], samples: list[Any], size: int) -> None:
        """Read an iterator's next samples, up to ``size`` in all; see :meth:`read_all`.

        Raises:
            StopIteration: There are fewer.
            Cancelled: The board shows another token.
        """
        began, left = _clock(), size - len(samples)
        if not self._quick or left < _MANY:
            for position in range(len(samples), size):
                self.step(position)
                samples.append(next(source))
        else:
            self.step(len(samples))
            self._at, self._into = -1, samples  # they are not timed
            try:
                samples.extend(map(next, repeat(source, left)))  # as far as it comes, if it raises
            except BaseException:
                self._at = len(samples)
                raise
            finally:
                self._into = None
            if len(samples) < size:
                raise StopIteration
        self._quick = not self.each and _clock() - began < _QUICK * left

    def reading(self, indexed: bool) -> int | None:
        """Give the position of the sample that is being read; asked after an exception.

        ``indexed``: the batch has indices; else the samples are an iterator's next ones. None if no
        sample is being read, or several at once (``__getitems__``).
        """
        if not indexed:
            return self._at if self._at >= 0 else None
        return self.position if self._one_by_one or self._under_way is not None else None

    @property
    def position(self) -> int:
        """That of the sample that is being read."""
        if self._under_way is not None:
            left, count = self._under_way
            return count - length_hint(left) - 1
        if self._into is not None:
            return len(self._into)
        return self._words[self._row + POSITION]


class EarlyProgress(Progress):
    """Progress of a batch that is made before its epoch begins, and so its token.

    It is not wanted any more when the worker is to leave, or all are to end.
    """

    __slots__ = ()

    def step(self, position: int) -> None:
        """Note a sample, as :meth:`Progress.step` does.

        Raises:
            Cancelled: The worker is to leave.
        """
        words = self._words
        if self._row // ROW_WORDS > words[WORKERS]:
            raise Cancelled
        self.token = words[TOKEN]
        super().step(position)
