"""What a loader's statistics say: counts, and delays found in their stage."""

import statistics as stdlib
import time
from typing import Any

import numpy as np
import pytest

from lit_loader import DataLoader
from lit_loader.core.batch.timings import WINDOW, BatchLog, Timings
from lit_loader.profiling.recorder import Recorder
from lit_loader.profiling.records import StageTimes, WorkerTimes
from lit_loader.profiling.verdict import LoaderStatistics
from tests.parity.tools import PROMPT
from tests.support.delays import DELAY, SAMPLES, STAGES, Collate, Delayed, Wait, compute, sleep
from tests.support.samples import Call, Counting, Rows

# --- of a loader ---


def slow_at_13(index: int) -> int:
    if index == 13:
        sleep()
    return index


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("shuffle", [False, True], ids=["ordered", "shuffled"])
def test_the_slowest_sample_is_named(num_workers: int, shuffle: bool) -> None:
    loader = DataLoader(
        Call(slow_at_13, 40), batch_size=4, shuffle=shuffle, num_workers=num_workers
    )
    where = {
        (epoch, int(index)): number
        for epoch in range(2)
        for number, batch in enumerate(loader)
        for index in batch
    }
    slowest = loader.statistics().slowest_samples[0]
    assert slowest.index == 13
    assert DELAY <= slowest.seconds <= loader.statistics().fetch.max
    assert where[slowest.epoch, 13] == slowest.batch


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_iterable_dataset(num_workers: int) -> None:
    loader = DataLoader(Counting(40, slow_at_13), batch_size=4, num_workers=num_workers)
    list(loader)
    found = loader.statistics()
    assert (found.batches, found.samples, found.starts) == (10, 40, 1)
    assert found.slowest_samples[0].index is None
    assert found.slowest_samples[0].seconds >= DELAY


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_counts(num_workers: int) -> None:
    loader = DataLoader(Rows(50), batch_size=4, num_workers=num_workers)
    for _ in range(2):
        list(loader)
    found = loader.statistics()
    assert (found.batches, found.samples, found.starts) == (26, 100, 2)
    assert sum(worker.batches for worker in found.workers) == 26
    assert sum(worker.samples for worker in found.workers) == 100
    allowed = set(range(num_workers)) or {-1}
    assert {worker.worker for worker in found.workers} <= allowed
    assert (found.nbytes > 0) == (num_workers > 0)
    assert found.ready == 0
    assert 0 <= found.wait_fraction <= 1
    assert found.seconds == pytest.approx(found.waited + found.step.total)


def test_ready_batches() -> None:
    with DataLoader(range(20), num_workers=1, prefetch_factor=3) as loader:
        iterator = iter(loader)
        assert loader.statistics().ready == 0
        next(iterator)
        end = time.monotonic() + PROMPT
        while loader.statistics().ready < 3:
            assert time.monotonic() < end
        list(iterator)
        assert loader.statistics().ready == 0


def bad_at_3_and_7(index: int) -> int:
    if index in (3, 7):
        raise ValueError(f"sample {index} is bad")
    return index


def test_batches_are_counted_beyond_what_is_kept_of_each() -> None:
    loader = DataLoader(Call(int, WINDOW + 9), None)
    assert sum(1 for _ in loader) == loader.statistics().batches == WINDOW + 9


@pytest.mark.parametrize("num_workers", [0, 2])
def test_sample_errors_are_counted(num_workers: int) -> None:
    loader = DataLoader(
        Call(bad_at_3_and_7, 16), batch_size=4, num_workers=num_workers, on_sample_error="skip"
    )
    list(loader)
    found = loader.statistics()
    assert (found.sample_errors, found.samples) == (2, 14)


# --- delays are found where they were put ---


def delayed_loader(stage: str, wait: Wait, num_workers: int) -> DataLoader[Any]:
    return DataLoader(
        Delayed(stage, wait),
        batch_size=SAMPLES,
        num_workers=num_workers,
        collate_fn=Collate(stage, wait),
        pin_memory=stage == "pin",
    )


@pytest.mark.parametrize(
    ("stage", "num_workers"),
    # Nothing is encoded or decoded without workers.
    [(stage, n) for stage in STAGES for n in (0, 2) if n or stage not in ("encode", "decode")],
)
@pytest.mark.parametrize("wait", [sleep, compute], ids=["asleep", "busy"])
def test_a_delay_is_found_in_its_stage(
    pinned: None, stage: str, wait: Wait, num_workers: int
) -> None:
    loader = delayed_loader(stage, wait, num_workers)
    took = stdlib.median(batch["cargo"].took for batch in loader) / 1e9
    found = loader.statistics()
    assert took >= DELAY
    assert getattr(found, stage).p50 >= 0.9 * took
    assert all(getattr(found, name).p50 < 0.9 * took for name in STAGES if name != stage)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("wait", [sleep, compute], ids=["asleep", "busy"])
def test_a_delay_between_batches_is_the_consumers(wait: Wait, num_workers: int) -> None:
    loader = delayed_loader("none", wait, num_workers)
    took = []
    for _ in loader:
        began = time.monotonic()
        wait()
        took.append(time.monotonic() - began)
    found = loader.statistics()
    assert found.step.p50 >= 0.9 * stdlib.median_low(took)
    assert found.step.total >= sum(took[:-1])
    assert max(found.fetch.p50, found.collate.p50, found.wait.p50) < stdlib.median(took)


# --- known records ---


@pytest.mark.parametrize("count", [1, 2, 100, WINDOW + 300, 3 * WINDOW])
def test_percentiles_are_numpys(count: int) -> None:
    values = np.random.default_rng(count).integers(0, 10**9, count)
    log, zeros = BatchLog(), dict.fromkeys(Timings.__slots__, 0)
    for number, value in enumerate(values.tolist()):
        log.records.append(Timings(**{**zeros, "number": number, "fetch": value}))
    times = Recorder(log).summary().fetch
    expected = np.percentile(values[-WINDOW:] / 1e9, (50, 90, 99, 100))
    assert (times.p50, times.p90, times.p99, times.max) == pytest.approx(tuple(expected))
    assert (times.total, times.mean) == pytest.approx((values.sum() / 1e9, values.mean() / 1e9))


# --- in words ---


def test_the_text_is_figures_and_a_verdict() -> None:
    stage = StageTimes(total=0.8, mean=0.0125)
    workers = tuple(WorkerTimes(worker, 32, 1_000, 0.4, 0.5) for worker in range(2))
    found = LoaderStatistics(
        batches=64, samples=2_000, seconds=0.8, fetch=stage, wait=stage, wait_fraction=0.253,
        workers=workers, busy_fraction=0.5, worker_restarts=1, sample_errors=3,
    )  # fmt: skip
    assert str(found) == f"{found.figures()}\n{found.verdict}"
    assert found.figures() == (
        "64 batches (2,000 samples) in 0.8 s; waited 25% of it; 2 workers 50% busy; "
        "mean ms a batch: fetch 12.5; 1 restart, 3 bad samples"
    )
    assert repr(found).startswith("LoaderStatistics(batches=64, samples=2000,")
