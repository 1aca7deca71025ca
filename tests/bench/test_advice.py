"""What is said of a grid's figures: the setting, and what bounds it."""

from typing import Any

import pytest

from lit_loader.bench.advice import Point, advise
from lit_loader.statistics.records import LoaderStatistics, StageTimes, WorkerTimes


def point(num_workers: int, seconds: float, cpu: float, fetch: float = 0.01) -> Point:
    """1,000 batches, whose workers were at nothing else; they took a second to start."""
    made = 1000 * fetch / max(1, num_workers)
    workers = [WorkerTimes(n, 1, 1, made, 0.5) for n in range(num_workers)]
    found: dict[str, Any] = {
        "batches": 1000, "seconds": 1000 * seconds + 1.0, "waited": 1000 * seconds + 1.0,
        "starts": 1, "startup": 1.0, "fetch": StageTimes(1000 * fetch, fetch),
        "workers": tuple(workers),
    }  # fmt: skip
    figures = {"lit_loader": {"seconds_per_batch": seconds}}
    return Point(num_workers, 2, [figures], {}, LoaderStatistics(**found), cpu)


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([point(1, 0.01, 0.1), point(2, 0.005, 0.2)],
         "they computed for 10 % of that and waited for the rest, for storage, network or each"),
        ([point(1, 0.01, 1.0), point(2, 0.005, 2.0)], ": add workers or make __getitem__ cheaper"),
        ([point(1, 0.01, 1.0), point(2, 0.01, 2.0)], "in __getitem__: make __getitem__ cheaper"),
        ([point(4, 0.0025, 4.0)],
         "make __getitem__ cheaper; more workers do not help: 4 processors for 4 that compute"),
        ([point(0, 0.001, 1.0), point(1, 0.01, 1.0)], "larger batches make workers worth while"),
    ],
)  # fmt: skip
def test_what_bounds_it(points: list[Point], expected: str) -> None:
    use, bound, _ = advise(points, step_ms=None, samples=8, nbytes=100, cores=4)
    assert use.startswith("use num_workers=")
    assert bound.startswith("bound: ") and expected in bound
    assert bound.endswith(expected) or "help" in bound
