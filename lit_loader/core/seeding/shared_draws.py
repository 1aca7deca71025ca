"""`SharedDraws`: notices that samples draw from random generators that threads share.

Several threads share the three global generators and those that the dataset holds, so it is chance
which sample gets which number. That is reported once, with the cure. The states of these generators
are compared before and after a batch, by documented calls: around the first `WATCHED` batches that
can be judged, then around some of batches 32, 64, 128, …

A batch can be judged if nothing else of the program ran meanwhile: a training loop draws, too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from lit_loader.core.seeding import loader_seeds
from lit_loader.core.seeding.held_generators import GLOBAL_GENERATORS, tape
from lit_loader.core.seeding.seeds import canonical_pickle

WATCHED: Final = 16

_NAMES: Final = ("random", "numpy.random", "torch's global generator")


class Look(NamedTuple):
    """Where the generators were at a moment."""

    since: int
    states: tuple[bytes, ...]


class SharedDraws:
    """Compares the states of the global generators and those that were ``found`` in a dataset.

    ``quiet_since`` returns the same number as long as nothing else of the program runs, and 0 if
    something does. ``harm`` is what comes of such draws.
    """

    def __init__(
        self,
        found: Iterable[tuple[str, object]],
        quiet_since: Callable[[], int] = lambda: 1,
        harm: str = "it is chance which sample gets which random number",
    ) -> None:
        pairs = [*zip(_NAMES, GLOBAL_GENERATORS, strict=True), *found]
        # Not a SystemRandom, which has no state: it repeats nowhere.
        self._read = {name: made.read for name, each in pairs if (made := tape(each)) is not None}
        self._quiet_since, self._harm = quiet_since, harm
        self._batches = self._judged = 0
        self._has_reported = False
        self.lock = threading.Lock()  # held while a thread looks

    def look(self) -> Look | None:
        """Read the states before a batch; None: this one is not judged."""
        self._batches += 1
        since = self._quiet_since()
        is_due = self._judged < WATCHED or not self._batches & (self._batches - 1)
        return self._look(since) if since and is_due and not self._has_reported else None

    def report(self, before: Look | None) -> str | None:
        """Return what the user is to be warned of after a batch; None: nothing."""
        after = None if before is None else self._look(before.since)
        if before is None or after is None or self._quiet_since() != before.since:
            return None
        self._judged += 1
        pairs = zip(self._read, before.states, after.states, strict=True)
        drawn = [name for name, state, other in pairs if state != other]
        if not drawn or self._has_reported:
            return None
        self._has_reported = True
        return (
            f"samples draw from {' and '.join(drawn)}, which the threads that read them share, so "
            f"{self._harm}. Draw from lit_loader.get_rng(), or use "
            "worker_method='multiprocessing' and read_threads=0 [LL418]"
        )

    def _look(self, since: int) -> Look | None:
        lent = loader_seeds.lock
        with self.lock:  # else one thread would take another one's look for a loan
            if not lent.acquire(blocking=False):  # they are lent to another thread
                return None
            try:
                return Look(since, tuple(canonical_pickle(read()) for read in self._read.values()))
            finally:
                lent.release()
