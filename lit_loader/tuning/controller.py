"""`Controller`: how many workers a loader should have, from what its batches have cost.

It is a pure object: a `Load` in, a `Setting` out. It knows no process and no clock; the loader
measures, asks it once a window of batches, and resizes its pool.

::

    Load ─▶ is it another load? (then what was learned is forgotten)
              ╰▶ was the last step worth it? (else back, and not again for this load)
                    ╰▶ a step to as many as keep up, or as the processors bear ─▶ Setting

- **A step goes as far as what was measured says**: a batch's time in a worker over the consumer's
  step is how many keep up, processors over its processor time how many make more.
- **Each step is measured.** Workers added that brought less than half of what was expected are
  taken back, to as many as would have made that much at the pace before: so the bandwidth of a
  disk is found, which no measurement shows beforehand. Workers taken away that are missed come
  back. What was learned is doubted ever more rarely, as long as the consumer waits.
- **More batches ahead** are had where what they take varies, and the consumer waits: then it is one
  slow batch that all others queue behind.
- **Workers on other machines** take what those here leave: there are to be as many here as if there
  were no others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from lit_loader.tuning.window import Load

__all__ = ["Bounds", "Controller", "Setting"]

WAITING: Final = 0.03
"""The part of its time that a consumer may wait before more workers are thought of."""

MARGIN: Final = 1.1
"""Workers for each one that would just keep up: batches differ in what they take."""

CHANGED: Final = 0.3
"""A batch or a step that takes so much more or less, relatively, is another load."""

CROWD: Final = 4
"""Times the workers that keep all processors busy, which other programs may make worth while."""

FEWER: Final = 0.9
"""The part of the workers that would do, from which on there are to be fewer."""

CALM: Final = 4
"""Windows in a row in which fewer workers would do, before there are fewer."""

PATIENCE: Final = 20
"""Windows after which more than was learned is tried, if the consumer waits; then twice as many."""

PREFETCH: Final = 6
"""Batches in flight for each worker, at most."""


@dataclass(frozen=True)
class Bounds:
    """What the workers may use.

    Attributes:
        processors: Processors for this process and its workers; a quota may be a fraction.
        most: Workers that there may be at most, by memory.
        batches: Batches that may be ready or in work at most, by the memory budget.
    """

    processors: float
    most: int
    batches: int


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
        self._forget()

    def _forget(self) -> None:
        """Know nothing of the load."""
        self._seen: dict[int, Load] = {}  # how it was first, by so many workers
        self._last: Load | None = None
        self._step: tuple[Load, float, bool] | None = None  # the load before it, what it should bring
        self._least, self._most = 1, math.inf  # learned
        self._calm = self._age = 0
        self._patience = PATIENCE

    @property
    def window(self) -> int:
        """Batches to be measured before the next decision: each worker's part of them counts."""
        each, least, most = (3, 24, 64) if self._step else (2, 16, 48)
        usual = max(least, min(each * self.setting.workers, most))
        last=self._last
        return usual if last is None else round(usual * (1 + min(last.spread, 1.4)**2))

    def bound(self, workers: int) -> None:
        """Hear that there are no more workers than these, though more were to be."""
        if workers < self.setting.workers:
            reason = f"more than {workers} cannot be started"
            self.setting = replace(self.setting, workers=workers, reason=reason)

    def decide(self, load: Load, bounds: Bounds) -> Setting:
        """Returns what the loader should have now.

        Args:
            load: What the last window has cost, with the workers of the last decision.
            bounds: What the workers may use now.
        """
        seen = self._seen.setdefault(load.workers, self._last or load)
        if _differs(load, seen):
            # Begun in one load, and ended in another: the next window says what this one is.
            self._forget()
            return self.setting
        if seen.workers != load.workers:
            self._seen[load.workers] = load
        self._last = load
        workers, reason = self._judged(load) or self._stepped(load, bounds)
        workers = max(1, min(workers, bounds.most))
        prefetch = self.setting.prefetch
        if load.waiting > WAITING:
            prefetch = max(prefetch, 2 + round(2 * load.spread))
        prefetch = min(prefetch, PREFETCH, max(1, bounds.batches // workers))
        self.setting = Setting(workers, prefetch, reason)
        return self.setting

    def _judged(self, load: Load) -> tuple[int, str] | None:
        """Take the last step back, as far as it was not worth it; None: it was."""
        step, self._step = self._step, None
        if step is None:
            return None
        self._age = 0
        (before, expected, again), now = step, load.workers
        gained = load.capacity / before.capacity - 1
        if now < before.workers:
            if load.waiting > WAITING and gained < -max(WAITING, load.noise):
                self._least = before.workers
                return before.workers, "fewer were not enough"
        elif load.waiting > WAITING or load.remote > WAITING:
            if gained < (expected - 1) / 2 - before.noise - load.noise:
                if not again:  # it may be a moment in which batches take longer
                    self._step = before, expected, True
                    return now, self.setting.reason
                worth = before.workers * (1 + MARGIN * max(0.0, gained))
                self._most = min(math.ceil(worth), now)
                if self._most < now:
                    return int(self._most), f"more than {self._most} did not help"
        else:
            self._least = before.workers + 1
        return None

    def _stepped(self, load: Load, bounds: Bounds) -> tuple[int, str]:
        """How many there are to be, by what was measured and learned."""
        now, lacking = load.workers, max(load.waiting, load.remote) > WAITING
        self._age += 1
        if lacking and self._age > self._patience:
            self._patience *= 2
            self._least, self._most, self._age = 1, 1.5 * self._most, 0
        most = max(1, int(min(self._most, bounds.most)))
        keep_up, machine = _enough(load), _Machine(load, bounds)
        wanted = max(min(self._least, most), min(keep_up, machine.full, most))
        if lacking and wanted > now:
            if keep_up > machine.full:
                reason = "so many keep the processors busy"
            else:
                reason = "so many keep up with the consumer"
            return self._try(load, wanted, reason, machine.makes(wanted) / machine.makes(now))
        self._calm = self._calm + 1 if wanted < FEWER * now else 0
        if self._calm >= CALM:
            wanted = now - max(1, (now - wanted) // 2)
            return self._try(load, wanted, "so many are enough", 1.0)
        if not lacking:
            return now, "the consumer does not wait"
        if self._most <= now:
            return now, f"more than {now} did not help"
        return now, "more would not help"

    def _try(self, load: Load, workers: int, reason: str, expected: float) -> tuple[int, str]:
        self._calm, self._step = 0, (load, expected, False)
        return workers, reason


def _enough(load: Load) -> int:
    """Workers that keep up with the consumer, were there processors for all."""
    margin = MARGIN + 0.2 * min(load.spread, 1.4) ** 2
    return math.ceil(min(margin * load.worker / load.step, 1e6))


class _Machine:
    """What so many workers would make, by what a window has cost.

    Args:
        load: The window's.
        bounds: What the workers may use.
    """

    def __init__(self, load: Load, bounds: Bounds) -> None:
        self.processors = bounds.processors / load.threads
        self.computing = min(1.0, load.compute / load.alone)  # part of a worker's time
        self.others = 0.0  # processes that want the processors as well, by the wait for these
        wanted = load.compute + load.queued
        if load.queued > 0.1 * wanted:
            at_once = load.workers * wanted / load.worker
            self.others = max(0.0, self.processors * wanted / load.compute - at_once)

    def makes(self, workers: int) -> float:
        """What so many make, in what one alone makes."""
        return workers * min(1.0, self.processors / (workers * self.computing + self.others))

    @property
    def full(self) -> int:
        """Workers that keep the processors busy: more make hardly more."""
        at_once = max(self.processors, min(12 * self.others, CROWD * self.processors))
        # Now and then more of them than on average wait for storage.
        at_once += math.sqrt(at_once * (1 - self.computing))
        return math.ceil(min(at_once / self.computing, 1e6))


def _differs(load: Load, seen: Load) -> bool:
    """Whether this is another load, or only the same one by more or fewer workers."""
    same = load.workers == seen.workers
    pairs = [(load.processor, seen.processor)] + [(load.worker, seen.worker)] * same
    least = max(CHANGED, 3 * load.noise) * (1 if same else 2)
    if any(abs(now - then) > least * max(now, then) for now, then in pairs):
        return True
    # Of a consumer that mostly waits, what it does besides is of no account.
    return abs(load.step - seen.step) > least * max(load.between, seen.between)
