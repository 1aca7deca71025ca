"""What is said of a grid's figures: the setting, and what bounds it."""

import dataclasses
import itertools
import random
from typing import Any

import pytest

from lit_loader.bench import machine
from lit_loader.bench.advice import Point, advise, choose
from lit_loader.profiling.records import StageTimes, WorkerTimes
from lit_loader.profiling.verdict import LoaderStatistics


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
         "mostly waiting for storage, network or each other (they computed for 10 %): add workers"),
        ([point(1, 0.01, 1.0), point(2, 0.005, 2.0)], ": add workers or make __getitem__ cheaper"),
        ([point(1, 0.01, 1.0), point(2, 0.01, 2.0)], "in __getitem__: make __getitem__ cheaper"),
        ([point(4, 0.0025, 4.0)],
         "make __getitem__ cheaper; more workers do not help: 4 processors for 4 that compute"),
        ([point(0, 0.001, 1.0), point(1, 0.01, 1.0)], "larger batches make workers worth while"),
    ],
)  # fmt: skip
def test_what_bounds_it(points: list[Point], expected: str) -> None:
    use, _, bound, *_ = advise(points, step_ms=None, samples=8, nbytes=100, cores=4)
    assert use.startswith("use num_workers=")
    assert bound.startswith("bound: ") and expected in bound
    assert bound.endswith(expected) or "add workers" in bound


def measured(workers: int, ours: list[float], torchs: list[float]) -> Point:
    """With two loaders, round by round; seconds a batch."""
    found = point(workers, ours[0], 1.0)
    pairs = [{"lit_loader": a, "torch": b} for a, b in itertools.zip_longest(ours, torchs)]
    rounds = [
        {name: {"seconds_per_batch": value} for name, value in pair.items() if value}
        for pair in pairs
    ]
    return dataclasses.replace(found, rounds=rounds)


def told(points: list[Point], **around: Any) -> str:
    options: dict[str, Any] = {"step_ms": None, "samples": 8, "nbytes": 100, "cores": 4}
    return "\n".join(advise(points, **{**options, **around}))


STEADY = measured(2, [0.010, 0.0101], [0.02, 0.02])


def test_spread_and_what_the_program_has() -> None:
    text = told([measured(1, [0.02, 0.02], [0.03, 0.03]), STEADY], now=(1, 2))
    assert "(796 samples/s, 792 to 800 by round)" in text
    assert "now: torch's loader with num_workers=1 prefetch_factor=2 (loader.*, set it to" in text
    assert "267 samples/s; the above is 2.99 times as fast" in text
    assert "not sure" not in text
    assert "step: none is in these figures" in text
    assert "beside a step of 5 ms, which sleeps" in told([STEADY], step_ms=5.0)


@pytest.mark.parametrize(
    ("points", "around", "expected"),
    [
        ([STEADY], {"load": 6.0}, "not sure: other programs ran (load 6.0 on 4 processors): meas"),
        ([measured(2, [0.01, 0.014], [0.02, 0.02])], {}, "its figures differ by 33 % from round"),
        ([measured(2, [0.01], [0.02])], {}, "not sure: there was one round only"),
    ],
)
def test_when_it_is_not_sure(points: list[Point], around: dict[str, Any], expected: str) -> None:
    assert expected in told(points, **around)


def test_threads_and_auto_are_advised_where_they_are_faster() -> None:
    slow = measured(2, [0.010, 0.0101], [0.02, 0.02])
    threads = dataclasses.replace(measured(2, [0.005, 0.005], []), threads=True)
    text = told([slow, threads])
    assert text.startswith('use num_workers=2 prefetch_factor=2 worker_method="thread": 5 ms a')
    assert "processes: num_workers=2 prefetch_factor=2: 796 samples/s, 792 to 800 by" in text
    alike = dataclasses.replace(measured(2, [0.0098, 0.0098], []), threads=True)
    text = told([slow, alike])
    assert text.startswith("use num_workers=2 prefetch_factor=2: 10.1 ms a batch")
    assert "threads: num_workers=2 prefetch_factor=2 worker_method=" in text
    assert "1.03 times as fast as the above; they take turns with what a step runs in" in text
    auto = dataclasses.replace(measured(6, [0.005, 0.005], []), auto=True)
    assert told([slow, auto]).startswith('use num_workers="auto": 5 ms a batch')


def test_workers_that_do_not_help_batches_that_are_dear() -> None:
    text = told([point(0, 0.05, 1.0, fetch=0.05), point(2, 0.06, 1.0, fetch=0.05)], cores=1)
    assert text.startswith("use num_workers=0")
    assert "bound: workers did not help: workers were" in text


@pytest.mark.parametrize("seed", range(20))
def test_nothing_in_its_own_table_is_better_without_a_word(seed: int) -> None:
    draw = random.Random(seed)
    quick = [draw.uniform(0.005, 0.02) for _ in range(6)]
    noise = draw.choice([0.02, 0.5])
    points = [
        measured(
            workers,
            *(
                [quick[2 * n + who] * (1 + noise * draw.random()) for _ in range(3)]
                for who in (0, 1)
            ),
        )
        for n, workers in enumerate((1, 2, 4))
    ]
    points += [dataclasses.replace(draw.choice(points), threads=True)]
    points += [dataclasses.replace(draw.choice(points[:3]), auto=True, num_workers=3)]
    for each in points[3:]:  # of our loader alone, and not like the others
        ours = each.rounds[0]["lit_loader"]["seconds_per_batch"] * draw.uniform(0.5, 1.5)
        each.rounds = [{"lit_loader": {"seconds_per_batch": ours}}] * 3
    text, chosen = told(points), choose(points)
    assert chosen is not None
    for each in points:
        for loader in ("lit_loader", "torch"):
            spread = each.figure(loader)
            if spread is not None and 1.1 * spread.median < chosen.seconds:
                assert "not sure" in text or "but torch's loader was faster with" in text


@pytest.mark.parametrize(
    ("average", "percent", "expected"), [(1.8, 0.0, 0.0), (0.1, 100.0, 0.1), (3.0, 50.0, 2.0)]
)
def test_a_program_that_has_ended_is_no_load(
    average: float, percent: float, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The load average has it for minutes."""
    monkeypatch.setattr(machine.psutil, "getloadavg", lambda: (average, 0.0, 0.0))
    monkeypatch.setattr(machine.psutil, "cpu_percent", lambda interval: percent)
    monkeypatch.setattr(machine.psutil, "cpu_count", lambda: 4)
    assert machine.load_now() == expected
