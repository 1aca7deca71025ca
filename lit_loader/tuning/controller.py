"""`Controller`: how many workers a loader should have, from what its batches have cost.

It is a pure object: a `Load` in, a `Setting` out. It knows no process and no clock; the loader
measures, asks it once a window of batches, and resizes its pool.

::

    Load ─▶ has the load changed? (then what was learned is forgotten)
              ╰▶ was the last change worth it? (else back, and not again for this load)
                    ╰▶ estimate ─▶ workers wanted ─▶ bounded by what was learned ─▶ Setting

- **The estimate** (`tuning/estimate.py`) is had from the first batches, and gone to at once: the
  fewest workers that keep up with the consumer, or else make nearly what any number would.
- **Each change is a trial.** Workers added that brought less than half of what was expected are
  taken back, to as many as would have made that much at the pace before: so the bandwidth of a
  disk is found, which no measurement shows beforehand.
  Workers taken away that are missed come back.
- What was learned holds until the load is another one; and a little more is tried, ever more
  rarely, as long as the consumer waits.
- **More batches ahead** are had where what they take varies, and the consumer waits: then it is one
  slow batch that all others queue behind.
- **Workers on other machines** take what those here leave. So there are to be as many here as if
  there were no others: the processors of this machine are used first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from lit_loader.tuning.estimate import IDLE, Bounds, Load, others_at_work, rates_by_workers

__all__ = ["Controller", "Setting"]

MARGIN: Final = 1.1
"""Workers for each one that would just keep up: batches differ in what they take."""

WAITING: Final = 0.03
"""The part of its time that a consumer may wait before more workers are thought of."""

CHANGED: Final = 0.3
"""A batch or a step that takes so much more or less, relatively, is another load."""

CROWDED: Final = 0.5
"""A batch that takes so much more or less, relatively, by waiting for a processor, has other
programs beside it."""

ENOUGH: Final = 0.97
"""The part of what any number of workers would make that is aimed at."""

LESS: Final = 0.7
"""The part of its wait for slow batches that a consumer may wait still, if more workers helped."""

FEWER: Final = 0.9
"""The part of the workers that would do, from which on there are to be fewer."""

CALM: Final = 2
"""Windows in a row in which fewer workers would do, before there are fewer."""

QUIET: Final = (4, 64)
"""Windows alike, after one that led to nothing, before the estimate is made again; then twice as
many, up to the second number."""

CROWD: Final = 4
"""Times the workers that keep all processors busy, which other programs may make worth while."""

PATIENCE: Final = 20
"""Windows after which a little more than was learned is tried, if the consumer waits; then twice as
many."""

PREFETCH: Final = 6
"""Batches in flight for each worker, at most."""


@dataclass(frozen=True)
class Setting:
    """What the loader should have.

    Attributes:
        workers: Number of workers.
        prefetch: Batches in flight for each.
        reason: Why, in words for a log.
    """

    workers: int
    prefetch: int
    reason: str


@dataclass(frozen=True)
class _Trial:
    """A change whose worth is not known yet.

    Attributes:
        before: The load before it.
        expected: Times as much as before that the workers, or where these were idle the consumer,
            should get done.
    """

    before: Load
    expected: float


class Controller:
    """Decides, window by window.

    Args:
        workers: Workers that there are at the beginning.
        prefetch: Batches in flight for each, to begin with.

    Attributes:
        setting: What the loader should have now.
    """

    def __init__(self, workers: int = 2, prefetch: int = 2) -> None:
        self.setting = Setting(workers, prefetch, "to begin with")
        self._patience = PATIENCE
        self._resized = False
        self._seen: Load | None = None  # the load that the following was learned for
        self._forget()

    def _forget(self) -> None:
        self._trial: _Trial | None = None
        self._floor, self._ceiling = 1, math.inf
        self._calm = self._age = self._quiet = 0
        self._still = QUIET[0]

    def _try_more(self) -> None:
        """Doubt what was learned."""
        self._floor, self._ceiling, self._age = 1, 1.5 * self._ceiling, 0

    @property
    def window(self) -> int:
        """Batches to be measured before the next decision: each worker's part of them counts."""
        each, least, most = (3, 24, 64) if self._trial else (2, 16, 48)
        usual = max(least, min(each * self.setting.workers, most))
        return usual if self._seen is None else round(usual * (1 + min(self._seen.variance, 2.0)))

    def bound(self, workers: int) -> None:
        """Hear that there are no more workers than these, though more were to be."""
        if workers < self.setting.workers:
            reason = f"more than {workers} cannot be started"
            self.setting = replace(self.setting, workers=workers, reason=reason)

    def is_quiet(self, load: Load) -> bool:
        """Whether this window is as the ones before, for which nothing was to be done."""
        seen = self._seen
        if self._quiet <= 0 or seen is None:
            return False
        self._quiet -= 1
        if (load.lacking > WAITING) != (seen.lacking > WAITING):
            return False
        return not _differs(load, seen, resized=False) and not _crowded(load, seen)

    def decide(self, load: Load, bounds: Bounds) -> Setting:
        """Returns what the loader should have now.

        Args:
            load: What the last window has cost, with the workers of the last decision.
            bounds: What the workers may use now.
        """
        before = self.setting
        if self._seen is not None and _differs(load, self._seen, self._resized):
            # Begun in one load, and ended in another: the next window says what this one is.
            self._forget()
            self._seen, self._patience = None, PATIENCE
            return before
        if self._seen is not None and not self._resized and _crowded(load, self._seen):
            self._seen, self._calm = load, 0
            self._try_more()
        if self._resized or self._seen is None:
            self._seen = load  # by other workers than before: another reference
        workers, reason = self._judged(load) or self._wanted(load, bounds)
        workers = max(1, min(workers, bounds.most))
        self.setting = Setting(workers, self._prefetch(load, bounds, workers), reason)
        self._resized = workers != before.workers
        if self.setting != before:
            self._still = QUIET[0]
        elif not self._calm:
            self._quiet, self._still = self._still, min(2 * self._still, QUIET[1])
        return self.setting

    def _judged(self, load: Load) -> tuple[int, str] | None:
        """Take the last change back, as far as it was not worth it; None: it was."""
        trial, self._trial = self._trial, None
        if trial is None:
            return None
        self._age = 0
        before, now = trial.before, load.workers
        if (load.lacking if now > before.workers else load.waiting) <= WAITING:
            if now > before.workers:
                self._floor = before.workers + 1
            return None
        gained = _gain(before, load) - 1
        if now > before.workers:
            helped = gained >= (trial.expected - 1) / 2 - _noise(load)
            less = before.idle <= IDLE or load.waiting <= max(WAITING, LESS * before.waiting)
            if helped and less:
                return None
            worth = math.ceil(before.workers * (1 + MARGIN * max(0.0, gained)))
            self._ceiling = min(worth, now)
            if self._ceiling < now:
                return int(self._ceiling), f"more than {self._ceiling} did not help"
        elif gained < -max(WAITING, _noise(load)):
            self._floor = before.workers
            return before.workers, "fewer were not enough"
        return None

    def _wanted(self, load: Load, bounds: Bounds) -> tuple[int, str]:
        """How many the estimate asks for, within what was learned."""
        now, waits = load.workers, load.waiting > WAITING
        self._age += 1
        if waits and self._age > self._patience:
            self._patience *= 2
            self._try_more()
        rates = _rates(load, bounds, self._floor)
        demand = 1 / max(load.step, 1e-9)
        full = ENOUGH * max(rates)
        filling = next((n for n, rate in enumerate(rates, 1) if rate >= full), len(rates))
        margin = MARGIN + 0.2 * min(load.variance, 2.0)
        target = math.ceil(min(filling, margin * _reaching(demand, rates)))
        most = max(1, int(min(self._ceiling, bounds.most)))
        target = max(min(self._floor, most), min(target, most))
        # If workers elsewhere see to it that there is no wait: what those here would make alone.
        if target > now and (waits or (load.remote > WAITING and rates[now - 1] < demand)):
            expected = rates[target - 1] / rates[now - 1]
            busy = target == filling
            reason = "keep the processors busy" if busy else "keep up with the consumer"
        elif load.waiting > 2 * WAITING and load.idle > IDLE and most > now:
            target = min(now + max(1, now // 4), most)
            expected = min(demand / load.rate, target / now)
            reason = "catch up with slow batches"
        elif target < FEWER * now and (not waits or rates[target - 1] >= ENOUGH * max(rates)):
            return self._fewer(load, target)
        else:
            self._calm = 0
            return now, self._why_not_more(load) if waits else "the consumer does not wait"
        self._calm = 0
        self._trial = _Trial(load, expected)
        return target, f"so many {reason}"

    def _fewer(self, load: Load, target: int) -> tuple[int, str]:
        """Come down, slowly."""
        now = load.workers
        self._calm += 1
        if self._calm < CALM:
            return now, self.setting.reason
        self._calm = 0
        self._trial = _Trial(load, 1.0)
        return now - max(1, (now - target) // 2), "fewer are enough"

    def _why_not_more(self, load: Load) -> str:
        if self._ceiling <= load.workers:
            return f"more than {load.workers} did not help"
        return "more would not help"

    def _prefetch(self, load: Load, bounds: Bounds, workers: int) -> int:
        """As many batches ahead as keep the consumer from waiting for one that takes longer."""
        wanted = self.setting.prefetch
        if load.waiting > WAITING:
            wanted = max(wanted, 2 + round(2 * load.spread))
        return min(wanted, PREFETCH, max(1, bounds.batches // workers))


def _rates(load: Load, bounds: Bounds, least: int) -> list[float]:
    """Batches per second of each number of workers that is thought of, ``least`` among them."""
    compute = max(load.processor / load.threads, 1e-9)
    filling = bounds.processors / load.threads * (1 + load.storage / compute)
    most = max(least, min(bounds.most, math.ceil(CROWD * filling)))
    others = others_at_work(load, bounds.processors)
    return rates_by_workers(load, bounds.processors, others, most)


def _reaching(rate: float, rates: Sequence[float]) -> float:
    """Workers, perhaps a fraction, that make so many batches per second; inf: no number does."""
    below = 0.0
    for n, reached in enumerate(rates, 1):
        if reached >= rate:
            return n - (reached - rate) / (reached - below)
        below = reached
    return math.inf


def _gain(before: Load, after: Load) -> float:
    """Times as much as before that gets done, by batches that are as dear as those were."""
    rate = after.capacity / before.capacity
    if before.idle > IDLE and not before.remote:  # else others take what these could
        rate = after.rate / before.rate
    dearer = after.processor / before.processor - 1 if before.processor else 0.0
    return rate * (1 + dearer * min(1.0, before.processor / before.alone))


def _noise(load: Load) -> float:
    """What a window's means differ by, relatively, without a cause."""
    return load.spread / math.sqrt(load.batches)


def _differs(load: Load, seen: Load, resized: bool) -> bool:
    """Whether this is another load, or only the same one by more or fewer workers."""
    pairs = [(load.processor, seen.processor)]
    if not resized:
        pairs.append((load.alone, seen.alone))
    least = max(CHANGED, 3 * _noise(load)) * (2 if resized else 1)
    if any(abs(now - then) > least * max(now, then) for now, then in pairs):
        return True
    # Of a consumer that mostly waits, what it does besides is of no account.
    between = max(load.step + load.wait, seen.step + seen.wait)
    return abs(load.step - seen.step) > least * between


def _crowded(load: Load, seen: Load) -> bool:
    """Whether other programs want the processors more, or less, than before."""
    least = max(CROWDED, 3 * _noise(load))
    return abs(load.worker - seen.worker) > least * max(load.worker, seen.worker)
