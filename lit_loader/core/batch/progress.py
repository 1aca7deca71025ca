"""`Progress`: the batch that is being built: its stage, and whether it is still wanted.

::

    begin ─▶ fetching ─▶ collating ─▶ encoding ─▶ idle      each is written into the worker's row
                 ╰── each sample, unless they are too quick for that ──╯   of the status board

What makes batches is given one, in a worker, in the parent and on a remote machine; only a worker's
lies on the board, where the parent and viewers see it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
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
    Stage,
)

_QUICK: Final = 20_000
"""Nanoseconds per sample below which samples are not announced one by one: that takes almost a
microsecond."""

_MANY: Final = 16
"""Samples of a batch in which that is felt."""

_FETCHING, _COLLATING, _ENCODING, _IDLE = (  # read for each batch
    *(Stage.FETCHING, Stage.COLLATING, Stage.ENCODING, Stage.IDLE),
)
_clock = time.monotonic_ns


class Cancelled(Exception):
    """The batch that is being made is no longer wanted."""


class Progress:
    """What makes a batch notes here where it is, and learns whether the batch is still wanted.

    ``words`` is the board, None for a process that has none, and ``row`` the first word of the
    worker's. What is read of it is in ``time.monotonic_ns()``: when the batch ``began``, was
    ``fetched`` and ``collated`` (0: it is not yet), its ``slowest`` sample (0: not timed), which is
    that at ``slowest_at``, and how long taking the ``state`` of a stream took. ``place`` is that of
    the sample which is being read, -1 for none or all at once. ``tokens`` are those that samples
    have noted.
    """

    __slots__ = (
        *("_at", "_has_board", "_last", "_row", "_words", "began", "collated", "each", "empty"),
        *("fetched", "is_quick", "place", "slowest", "slowest_at", "state", "token", "tokens"),
    )

    def __init__(self, words: memoryview | None = None, row: int = ROW_WORDS) -> None:
        self._words = memoryview(bytearray(16 * ROW_WORDS)).cast("q") if words is None else words
        self._row = row
        self.each = True  # announce samples however quick they are: somebody looks at the time
        # Returns slot memory for what the default collate stacks; None: there is none.
        self.empty: Callable[..., Any] | None = None
        # Whether samples need not be announced one by one: nobody sees it, or those of the batch
        # before were quick. A message about a dead worker then names the batch, and who makes it
        # again announces each.
        self._has_board = words is not None
        self.is_quick = not self._has_board
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
        words[row + POSITION] = -1
        words[row + SINCE] = self.began = _clock()
        if nbytes:
            words[row + OFFSET], words[row + NBYTES] = offset, nbytes
            words[row + INDICES] = number
        self.fetched = self.collated = self.slowest = self.slowest_at = 0
        self.state = self.tokens = 0
        self._last = self._at = self.place = -1
        return True

    def collating(self, samples: int) -> None:
        """Note that all samples have been read, and how many they are."""
        words, row = self._words, self._row
        words[row + STAGE] = _COLLATING
        words[row + SINCE] = now = self.fetched = _clock()
        if self._at >= 0 and now - self._last > self.slowest:
            self.slowest, self.slowest_at = now - self._last, self._at
        if self._has_board:
            is_quick = samples >= _MANY and now - self.began < _QUICK * samples
            self.is_quick = is_quick and not self.each
        self._at = self.place = -1

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
        """Return what building the batch has taken, in the order of the last fields of a `Reply`.

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
            self.state,
            self.tokens,
        )

    def step(self, place: int) -> None:
        """Note that the sample at ``place`` of the batch comes next; -1: those that are left.

        Raises:
            Cancelled: The board shows another token.
        """
        words, row, now = self._words, self._row, _clock()
        words[row + POSITION] = place
        words[row + SINCE] = now
        if words[TOKEN] != self.token:
            raise Cancelled
        last, at = self._last, self._at
        if at >= 0 and now - last > self.slowest:
            self.slowest, self.slowest_at = now - last, at
        self._at = self.place = place
        self._last = now

    def beat(self) -> None:
        """Note that the loader's own work makes progress, before a sample or after it."""
        self._words[self._row + SINCE] = _clock()
