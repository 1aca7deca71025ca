"""``num_workers="auto"`` beside fixed numbers of workers and hill climbing.

Each begins at nothing, as a training does; the first 200 batches (quick: 20) do not count. The
limit is the best fixed number of the round; for the workers that there are in the end, the fewest
of those that come within 5 % of it. Hill climbing has one worker more, as long as that makes it
quicker, else one less, every 16 batches.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from lit_loader.bench.core.names import OURS
from lit_loader.bench.core.results import LIMIT, Measurement, Target
from lit_loader.bench.core.settings import Settings
from lit_loader.bench.data.datasets import Costing
from lit_loader.bench.measure.rounds import Figures, Opener, Subject
from lit_loader.bench.measure.session import MICRO, Row, Session, plain_opener
from lit_loader.loader import DataLoader
from lit_loader.system.processors import usable_processors

__all__ = ["rows"]

FIXED: Final = (1, 2, 4, 8, 16, 32)

BATCH: Final = 4

NEAR: Final = 1.05
"""Times the best time that is as good."""

_ROWS: Final[dict[str, tuple[tuple[float, float], tuple[float, float], float]]] = {
    # name: (seconds of a processor, of waiting) a sample; the same later on; seconds of a step
    "decoding, 2 ms a sample": ((2e-3, 0), (2e-3, 0), 1e-3),
    "storage, 5 ms a sample": ((1e-4, 5e-3), (1e-4, 5e-3), 2e-3),
    "storage, 20 ms a sample": ((1e-4, 2e-2), (1e-4, 2e-2), 5e-3),
    "slow consumer, 20 ms a step": ((5e-4, 1e-3), (5e-4, 1e-3), 2e-2),
    "storage, then decoding": ((1e-4, 5e-3), (2e-3, 0), 2e-3),
    "decoding, then storage": ((2e-3, 0), (1e-4, 5e-3), 2e-3),
}


def rows(settings: Settings) -> list[Row]:
    """One row for each kind of load."""
    return [Row("workers", name, _measured(name)) for name in _ROWS]


def _measured(name: str) -> Callable[[Session], None]:
    return lambda session: _run(session, name)


def _run(session: Session, name: str) -> None:
    before, after, step = _ROWS[name]
    quick = session.settings.quick
    warm, counted = (20, 10) if quick else (200, 200)
    dataset = Costing((warm + counted + 64) * BATCH, before, after, BATCH * warm // 2)
    fixed: dict[int, float] = {}
    cores = math.ceil(usable_processors())

    def opener(workers: Any, climbs: bool = False) -> Opener:
        @contextlib.contextmanager
        def open_() -> Iterator[Subject]:
            given: dict[str, Any] = {} if workers == "auto" else {"prefetch_factor": 3}
            with DataLoader(dataset, BATCH, num_workers=workers, **given) as loader:

                def figures() -> Figures:
                    seconds = _seconds(loader, warm, counted, step, climbs)
                    if workers == "auto" or climbs:
                        return {"": seconds * MICRO, "workers": loader.num_workers}
                    fixed[workers] = seconds
                    return {"": seconds * MICRO}

                yield figures

        return open_

    def best() -> Figures:
        found = min(fixed.values())
        few = min(workers for workers, seconds in fixed.items() if seconds <= NEAR * found)
        fixed.clear()
        return {"": found * MICRO, "workers": few}

    numbers = (1, 4) if quick else sorted({*FIXED, cores})
    among = f"of {', '.join(map(str, numbers))} workers"
    measurements = {
        "": Measurement(
            "workers", name, "µs/batch", (Target("of_limit", 0.95),), limit_by=f"the best {among}"
        ),
        "workers": Measurement(
            "workers", f"… {name}", "workers in the end", limit_by=f"the fewest {among} as good"
        ),
    }
    names = {1: "1 worker", cores: f"all {cores} processors"}
    openers = {names.get(each, f"{each} workers"): opener(each) for each in numbers}
    openers["climbing"] = opener(1, climbs=True)
    session.compare(
        measurements, {OURS: opener("auto"), **openers, LIMIT: plain_opener(best)}, uncounted=0
    )


def _seconds(loader: DataLoader[Any], warm: int, counted: int, step: float, climbs: bool) -> float:
    """Seconds a batch, after the first ones."""
    began = window = time.perf_counter()
    last, direction = float("inf"), 1
    for number, _ in enumerate(loader, 1):
        time.sleep(step)
        if number == warm:
            began = time.perf_counter()
        elif number == warm + counted:
            break
        if climbs and number % 16 == 0:
            now = time.perf_counter()
            if now - window > 0.99 * last:
                direction = -direction
            last, window = now - window, now
            loader.resize(max(1, loader.num_workers + direction))
    return (time.perf_counter() - began) / counted
