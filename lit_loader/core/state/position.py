"""How far a pass has been delivered: what a checkpoint has to remember of it.

What is given out is noted by storing one attribute, and counted when the consumer asks for more. So
it can be taken back as a whole if a signal handler raises before the consumer has it. How the
readers of a stream advance: `streams/stream_position.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from lit_loader.core.seeding.seeds import derive, order_seed

COUNT: Final = "num_shards"
"""The number of shards among what a fingerprint has, where it is given."""


class ReaderPlace:
    """Where a reader of an iterable dataset is to begin: what its task has for indices."""

    __slots__ = ()


class Root(NamedTuple):
    """What a pass follows from.

    The ``seed`` that it has drawn; a ``base`` that all passes share; or nothing yet: it comes
    ``after`` a pass that had this seed.
    """

    seed: int
    kind: Literal["seed", "base", "after"]


@dataclass(frozen=True)
class Shards:
    """The shards that a rank serves, of ``count`` that all ranks have (``num_shards``)."""

    rank: int
    replicas: int
    count: int

    @property
    def mine(self) -> range:
        """The numbers of this rank's shards, in the order in which they take turns."""
        return range(self.rank, self.count, self.replicas)


class Position(NamedTuple):
    """A moment in a pass, or before one; never changes."""

    epoch: int
    root: Root | None = None  # None: no pass has begun
    repeat: int = 0  # earlier passes of this epoch
    order_repeat: int = 0  # the same, as far as it counts for the order: 0 where ranks share data
    batches: int = 0  # the first batches, of this number, have all been delivered
    ahead: tuple[int, ...] = ()  # batches after those, delivered too (``in_order=False``)
    sampler: Mapping[str, object] | None = None  # what the sampler must remember at ``batches``
    readers: tuple[Any, ...] = ()  # of an iterable dataset; empty for a map-style one
    since: int = 0  # batches of a stream since the pass began or was resumed, the same on all ranks
    ended: bool = False  # whether the consumer has asked for more than there was
    distributed: int | None = None  # seed of torch's DistributedSampler, if it gives the order
    told: bool = False  # whether the dataset gets the epoch, because the program has set it
    generators: tuple[int, ...] = ()  # the number that each held generator counts from

    @property
    def delivered(self) -> int:
        """Batches that have been delivered."""
        return self.batches + len(self.ahead)

    @property
    def has_begun(self) -> bool:
        """Whether this is in a pass that is to be continued; else it is before one."""
        return self.root is not None and (self.delivered > 0 or self.root.kind == "seed")

    @property
    def seed(self) -> int:
        """The seed of the pass: what is drawn follows from it."""
        assert self.root is not None
        seed, kind = self.root
        return derive(seed, self.epoch, self.repeat) if kind == "base" else seed

    @property
    def order_seed(self) -> int:
        """The seed of the pass's order."""
        assert self.root is not None
        seed, kind = self.root
        if kind != "base":
            return order_seed(seed, 0)
        return order_seed(seed, self.epoch, self.order_repeat)


class PassPosition:
    """The position of an iterator, kept up to date by it. For a stream see `StreamPosition`."""

    padding = False  # whether batches are repeated, until all ranks have as many

    def __init__(self, start: Position) -> None:
        self.begin_at(start)

    def begin_at(self, start: Position) -> None:
        """Begin here, with nothing yielded yet."""
        self.start = start
        self._batches, self._ahead = start.batches, set(start.ahead)
        # Before batches of these numbers, from that one on.
        self._samplers = {} if start.sampler is None else {start.batches: start.sampler}
        self._kept = start.batches
        self.ended = False
        self.latest: Any = None  # the number of the batch given out last, if it is not counted yet
        self._last: int | None = None  # of the batch that was counted last

    def drawn(self, number: int, sampler: Mapping[str, object] | None) -> None:
        """Note the sampler's state after it has given batch ``number``."""
        if sampler is not None:
            self._samplers[number + 1] = sampler

    def sampler_at(self, number: int) -> Mapping[str, object] | None:
        """Return the sampler's state before it gives batch ``number``."""
        return self._samplers.get(number)

    def settle(self) -> None:
        """Count what was given out last: the consumer has got it.

        May be interrupted anywhere, and done again.
        """
        latest = self.latest
        if latest is None:
            return
        self._last = latest
        if latest == self._batches:
            self._batches = latest + 1
        elif latest > self._batches:
            self._ahead.add(latest)
        while (done := self._batches) in self._ahead:
            self._batches = done + 1
            self._ahead.discard(done)
        # Not its own: `before_last` may ask for it.
        while self._samplers and self._kept < latest and self._kept < self._batches:
            self._samplers.pop(self._kept, None)
            self._kept += 1
        self.latest = None

    def take_back(self) -> None:
        """Forget what was given out last: it has not come to the consumer."""
        self.latest = None

    @property
    def delivered(self) -> int:
        """Batches that have been given out."""
        self.settle()
        return self._batches + len(self._ahead)

    @property
    def since(self) -> int:
        """Batches that have been given out since the pass began, or was resumed."""
        return self.delivered - self.start.delivered

    def end(self) -> None:
        """Note that the consumer has come to the pass's end."""
        self.ended = True

    def before_last(self) -> Position:
        """Return the position before the batch given out last; at the end, that of this moment."""
        now, last = self.now(), self._last
        if self.ended or last is None:  # at the end the consumer has asked, and was given nothing
            return now
        batches = min(last, now.batches)
        return self._at(batches, {*now.ahead, *range(last, now.batches)} - {last})

    def now(self) -> Position:
        """Return the position of this moment."""
        self.settle()
        return self._at(self._batches, self._ahead)

    def _at(self, batches: int, ahead: Iterable[int]) -> Position:
        return self.start._replace(
            batches=batches,
            ahead=tuple(sorted(ahead)),
            sampler=self._samplers.get(batches),
            ended=self.ended,
        )
