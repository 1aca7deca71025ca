"""`Controller`: how many workers a loader should have, from what its last batches have cost.

It is a pure object: a `Load` in, a `Setting` out. It knows no process and no clock::

    Load ─▶ is this another load? (then everything learned is forgotten)
              ╰▶ did the last change help? (else it is taken back)
                    ╰▶ the loop waits ─▶ twice the workers
                       it has not waited for a while, and half would do ─▶ half the workers

What is compared is what the workers make while none of them is idle (Little's law): it varies less
than the rate of the loop.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

__all__ = ["Bounds", "Controller", "Load", "Setting"]

WAITING: Final = 0.03
"""The part of its time that a loop may wait, and of its batches that other machines may make."""

GAIN: Final = 0.04  # the least gain, relatively, for which twice the workers are kept

CHANGED: Final = 0.3  # means that differ by more than this, relatively, are those of two loads

MUCH: Final = 0.8
"""The part of its time, or batches, from which on the number is doubled twice at once."""

ALONE, CROWD = 0.8, 2
"""Workers that use more than 0.8 of a CPU core, and need not wait for one, are as many as there are
cores. Else there are twice as many: some always wait for storage, or other programs use the
machine, of which more workers get a larger part."""

CALM, PATIENCE = 4, 10
"""Windows without waiting after which half the workers are tried, and windows with waiting after
which more are tried again. Both are doubled each time that the trial was in vain."""

PREFETCH: Final = 6  # batches in flight for each worker, at most


class Load(NamedTuple):
    """What the batches of a window have cost; seconds are means per batch."""

    workers: int  # on this machine
    batches: int  # that they have made
    worker: float  # seconds from a worker's taking a batch up to its result
    cpu_time: float  # seconds of CPU time in that, of all threads of the worker
    queued: float  # seconds of it in which the worker waited for a CPU core
    spread: float  # standard deviation of ``worker`` over its mean
    step: float  # seconds that the loop was busy between two batches
    wait: float  # seconds that it waited for one
    remote: float = 0.0  # part of the batches that workers on other machines made
    nbytes: int = 0  # bytes of the largest batch

    @property
    def capacity(self) -> float:
        """Batches per second that the workers make while none is idle, by Little's law."""
        return self.workers / self.worker

    @property
    def computing(self) -> float:
        """CPU cores that a worker uses while it makes a batch and need not wait for one."""
        return self.cpu_time / max(self.worker - self.queued, 1e-9)

    @property
    def noise(self) -> float:
        """What the means of two such windows differ by, relatively, without a cause."""
        return self.spread / math.sqrt(self.batches)

    @property
    def between(self) -> float:
        """Seconds from batch to batch."""
        return self.step + self.wait

    @property
    def lacking(self) -> bool:
        """Whether the workers here fall short: the loop waits, or other machines make batches."""
        return self.wait > WAITING * self.between or self.remote > WAITING


class Bounds(NamedTuple):
    """What may be used: CPU cores (a quota may be a fraction), workers, batches in flight."""

    cores: float
    most: int
    batches: int
    why: str = "are not allowed"  # what is said of more workers than that


class Setting(NamedTuple):
    """What the loader should have: workers, batches in flight for each; and why, in words."""

    workers: int
    prefetch: int
    reason: str

    @property
    def limited(self) -> bool:
        """Whether there would be more workers, but for something."""
        return self.reason.startswith("more than")


class Controller:
    """Decides, window by window; ``setting`` is what the loader should have now."""

    def __init__(self, workers: int = 2) -> None:
        self.setting = Setting(workers, 2, "the first number; too little is measured to change it")
        self._forget()

    def _forget(self) -> None:
        """Know nothing of the load."""
        self._seen: dict[int, Load] = {}  # how it was first, by the number of workers
        self._trial: tuple[Load, bool] | None = None  # before the last change; seen to fail once
        self._most = math.inf  # workers, more of which did not help
        self._calm = self._age = 0  # windows without waiting; with waiting, since the last change
        self._composure, self._patience = CALM, PATIENCE

    @property
    def window(self) -> int:
        """Batches to be measured before the next decision."""
        return max(16, min(2 * self.setting.workers, 48))

    def bound(self, workers: int) -> None:
        """Note that no more than these workers can be started."""
        if workers < self.setting.workers:
            reason = f"more than {workers} cannot be started"
            self.setting = self.setting._replace(workers=workers, reason=reason)

    def decide(self, load: Load, bounds: Bounds) -> Setting:
        """Return what the loader should have now, by the last window and by what may be used."""
        workers, prefetch, reason = self.setting
        if load.lacking:
            prefetch = max(prefetch, 2 + round(2 * load.spread))
        if _differs(load, self._seen.setdefault(load.workers, load)):
            # It began in one load and ended in another: the next window shows the new one.
            self._forget()
        else:
            workers, reason = self._judged(load) or self._next(load, bounds)
        workers = max(1, min(workers, bounds.most))
        prefetch = min(prefetch, PREFETCH, max(1, bounds.batches // workers))
        self.setting = Setting(workers, prefetch, reason)
        return self.setting

    def _judged(self, load: Load) -> tuple[int, str] | None:
        """Take the last change back if it did not help; None: it did, or there was none."""
        trial, self._trial = self._trial, None
        if trial is None:
            return None
        before, failed = trial
        gain = load.capacity / before.capacity - 1
        if load.workers < before.workers:
            if load.lacking:
                self._composure *= 2
                return before.workers, f"{load.workers} were not enough"
        elif load.lacking and gain < GAIN:
            if not failed:  # perhaps only these batches took longer
                self._trial = before, True
                return load.workers, self.setting.reason
            self._most, self._age = before.workers, 0
            return before.workers, f"more than {before.workers} did not help"
        return None

    def _next(self, load: Load, bounds: Bounds) -> tuple[int, str]:
        now = load.workers
        if load.lacking:
            self._calm, self._age = 0, self._age + 1
            if self._age > self._patience:
                self._most, self._age, self._patience = 2 * self._most, 0, 2 * self._patience
            alone = load.computing > ALONE and load.queued < 0.1 * load.worker
            crowd = (1 if alone else CROWD) * bounds.cores / max(load.computing, 1e-3)
            most, reason = min(
                (self._most, "did not help"),
                (max(1, math.ceil(crowd)), "would only take CPU time from each other"),
                (bounds.most, bounds.why),
            )
            if now < most:
                self._trial = load, False
                much = max(load.wait / load.between, load.remote) > MUCH
                times = 4 if much else 2
                return int(min(times * now, most)), "the loop waited for the workers"
            return now, f"more than {now} {reason}"
        self._calm += 1
        margin = 1.1 + 0.2 * min(load.spread**2, 2)
        if self._calm >= self._composure and 2 * margin * load.worker < now * load.between:
            self._calm, self._trial = 0, (load, False)
            return now // 2, "half of them are enough"
        return now, "the loop does not wait"


def _differs(load: Load, seen: Load) -> bool:
    """Whether this is another load, by the same number of workers."""
    least = max(CHANGED, 3 * load.noise)
    pairs = (load.cpu_time, seen.cpu_time), (load.worker, seen.worker)
    return any(abs(now - then) > least * max(now, then) for now, then in pairs)
