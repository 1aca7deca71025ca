"""`Controller`: how many workers a loader should have, from what its batches have cost.

It is a pure object: a `Load` in, a `Setting` out. It knows no process and no clock::

    Load ─▶ is it another load? (then what was learned is forgotten)
              ╰▶ was the last step worth it? (else back, and not again for this load)
                    ╰▶ a step to as many as keep up, or as the processors bear ─▶ Setting

A batch's time in a worker over the consumer's step is how many keep up, processors over its
processor time how many make more. What was added and brought less than half of what was expected is
taken back, to as many as would have made that much at the pace before.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

__all__ = ["Bounds", "Controller", "Load", "Setting"]

WAITING: Final = 0.03
"""The part of its time that a consumer may wait, and of the batches that others may make."""

MARGIN: Final = 1.1
"""Workers for each one that would just keep up: batches differ in what they take."""

NOISE, CHANGED = 0.03, 0.3
"""What windows of one load differ by at least, relatively; and by more than that, those of two."""

CROWD: Final = 2
"""Times the workers that keep all processors busy, that there are at most beside other programs:
more would get a larger part of the processors, but by what the others lose."""

NEAR: Final = 0.9  # the part of the workers that are wanted, or that there are, which is as good

CALM, PATIENCE = 4, 20
"""Windows in which fewer would do, before there are fewer; those after which, if the consumer
waits, more than was learned is tried. Twice as many, each time that it was in vain."""

PREFETCH: Final = 6  # batches in flight for each worker, at most


class Load(NamedTuple):
    """What the batches of a window have cost; seconds are means per batch."""

    workers: int  # of this machine that there were
    batches: int  # that they have made
    worker: float  # seconds from a worker's taking a batch up to its result
    processor: float  # seconds of processor time in that, of all of the worker's threads
    queued: float  # seconds of it in which the worker waited for a processor
    spread: float  # standard deviation of ``worker`` over its mean
    step: float  # seconds that the consumer was busy between two batches
    wait: float  # seconds that it waited for one
    remote: float = 0.0  # part of the batches that workers on other machines made
    nbytes: int = 0  # bytes of the largest batch
    reading: float = 0.0  # part of ``worker`` in which samples waited for reads

    @property
    def capacity(self) -> float:
        """Batches per second that the workers make while none is idle, by Little's law."""
        return self.workers / self.worker

    @property
    def alone(self) -> float:
        """Seconds that a batch takes a worker that need not wait for a processor."""
        return max(self.worker - self.queued, 1e-9)

    @property
    def noise(self) -> float:
        """What means over so many batches differ by, relatively, without a cause."""
        return self.spread / math.sqrt(self.batches)

    @property
    def between(self) -> float:
        """Seconds from batch to batch."""
        return self.step + self.wait

    @property
    def waits(self) -> bool:
        """Whether the consumer waits for more than a little of its time."""
        return self.wait > WAITING * self.between

    @property
    def lacking(self) -> bool:
        """Whether the workers here fail to give something: it is waited for, or made elsewhere."""
        return self.waits or self.remote > WAITING


class Bounds(NamedTuple):
    """What may be used: processors (a quota may be a fraction), workers, batches at a time."""

    processors: float
    most: int
    batches: int
    why: str = "are not allowed"  # that there be more, with a number before it


class Setting(NamedTuple):
    """What the loader should have: workers, batches in flight for each; and why, in words."""

    workers: int
    prefetch: int
    reason: str


class Controller:
    """Decides, window by window; ``setting`` is what the loader should have now."""

    def __init__(self, workers: int = 2) -> None:
        self.setting = Setting(
            workers, 2, "the first number, with too little measured to change it"
        )
        self._forget()

    def _forget(self) -> None:
        """Know nothing of the load."""
        self._seen: dict[int, Load] = {}  # how it was first, by so many workers
        self._trial: tuple[Load, float, bool] | None = None  # before, expected, failed once
        self._most = math.inf  # workers, more of which did not help
        self._calm = self._age = 0  # windows: fewer would do; since the last change
        self._composure, self._patience = CALM, PATIENCE

    @property
    def window(self) -> int:
        """Batches to be measured before the next decision: each worker's part of them counts."""
        return max(16, min(2 * self.setting.workers, 48))

    def bound(self, workers: int) -> None:
        """Hear that there are no more workers than these, though more were to be."""
        if workers < self.setting.workers:
            reason = f"more than {workers} cannot be started"
            self.setting = self.setting._replace(workers=workers, reason=reason)

    def decide(self, load: Load, bounds: Bounds) -> Setting:
        """Say what the loader should have now, by the last window and by what may be used."""
        (workers, prefetch, reason), now = self.setting, load.worker
        seen = self._seen.setdefault(load.workers, load)
        if load.waits:
            varies = max(load.spread, 2 * abs(now - seen.worker) / (now + seen.worker))
            prefetch = max(prefetch, 2 + round(2 * varies))
        if _differs(load, seen):
            # Begun in one load, and ended in another: the next window says what this one is.
            self._forget()
        else:
            workers, reason = self._judged(load) or self._stepped(load, bounds)
        workers = max(1, min(workers, bounds.most))
        prefetch = min(prefetch, PREFETCH, max(1, bounds.batches // workers))
        self.setting = Setting(workers, prefetch, reason)
        return self.setting

    def _judged(self, load: Load) -> tuple[int, str] | None:
        """Take the last step back, as far as it was not worth it; None: it was."""
        trial, self._trial = self._trial, None
        if trial is None:
            return None
        self._age = 0
        (before, expected, again), now = trial, load.workers
        gained = load.capacity / before.capacity - 1
        if now < before.workers:
            if load.waits and gained < -max(NOISE, load.noise):
                self._composure *= 2
                return before.workers, "fewer were not enough"
        elif load.lacking and gained < (expected - 1) / 2 - before.noise - load.noise:
            if not again:  # it may be a moment in which batches take longer
                self._trial = before, expected, True
                return now, self.setting.reason
            worth = before.workers * (1 + MARGIN * max(0.0, gained))
            self._most = min(math.ceil(worth), now)
            if self._most < now:
                return int(self._most), f"more than {self._most} did not help"
        return None

    def _stepped(self, load: Load, bounds: Bounds) -> tuple[int, str]:
        """How many there are to be, by what was measured and learned."""
        now = load.workers
        self._age += 1
        if load.lacking and self._age > self._patience:
            self._patience *= 2
            self._most, self._age = 1.5 * self._most, 0
        margin = MARGIN + 0.2 * min(load.spread * load.spread, 2.0)
        keep_up = math.ceil(min(margin * load.worker / load.step, 1e6))
        full, expected = _crowded(load, bounds.processors)
        most = max(1, int(min(self._most, bounds.most)))
        wanted = min(keep_up, full, most)
        reason = f"more than {wanted} {'did not help' if self._most <= wanted else bounds.why}"
        if wanted in (keep_up, full):
            busy = "keep up with the consumer" if wanted == keep_up else "keep the processors busy"
            reason = f"so many {busy}"
        if load.lacking and NEAR * wanted > now:
            return self._try(load, wanted, reason, min(wanted / now, expected))
        self._calm = self._calm + 1 if wanted < NEAR * now else 0
        if self._calm >= self._composure:
            # Those that only wait for processors cost all others time: they go at once.
            fewer = wanted if load.lacking else now - max(1, (now - wanted) // 2)
            return self._try(load, fewer, "so many are enough", 1.0)
        if not load.lacking:
            reason = "the consumer does not wait"
        elif wanted < now:
            reason = "more would not help"
        return now, reason

    def _try(self, load: Load, workers: int, reason: str, expected: float) -> tuple[int, str]:
        """Have so many, and see whether they make as many times as much as is expected."""
        self._calm, self._trial = 0, (load, expected, False)
        return workers, reason


def _crowded(load: Load, processors: float) -> tuple[int, float]:
    """Workers that keep the processors busy, and how many times as much as now they make."""
    threads = load.processor / load.alone  # that a worker keeps busy; below 1, it waits besides
    processors, computing = processors / max(1.0, threads), max(1e-9, min(1.0, threads))
    compute, others = computing * load.alone, 0.0
    at_once = load.workers * (compute + load.queued) / load.worker
    if load.queued > 0.1 * (compute + load.queued):
        # That they wait so long says how many other processes want processors as well.
        others = max(0.0, processors * (1 + load.queued / compute) - at_once)
    wanted = max(processors, min(12 * others, CROWD * processors))
    more, less = (n * min(1.0, processors / (n + others)) for n in (wanted, at_once))
    # Now and then more workers than on average wait for storage.
    wanted += math.sqrt(wanted * (1 - computing))
    return math.ceil(min(wanted / computing, 1e6)), more / less


def _differs(load: Load, seen: Load) -> bool:
    """Whether this is another load, by the same number of workers."""
    least = max(CHANGED, 3 * load.noise)
    pairs = (load.processor, seen.processor), (load.worker, seen.worker)
    return any(abs(now - then) > least * max(now, then) for now, then in pairs)
