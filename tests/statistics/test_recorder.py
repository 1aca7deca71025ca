"""Known records, summed up: what a recorder makes of them, and the objects that it gives."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import numpy as np
import pytest

from lit_loader.statistics.recorder import WINDOW, Recorder
from lit_loader.statistics.records import (
    BatchRecord,
    LoaderStatistics,
    SlowSample,
    StageTimes,
    StepRecord,
    WorkerTimes,
)

MS = 1_000_000


def record(number: int = 0, **fields: Any) -> BatchRecord:
    """A record; what is not given is 0, and an epoch's first batch is number 0."""
    known = {
        **dict.fromkeys(BatchRecord._fields, 0),
        "number": number,
        "samples": 1,
        "step": 1 if number else 0,
        "slowest_index": None,
    }
    return BatchRecord(**{**known, **fields})


def summed(*records: BatchRecord) -> LoaderStatistics:
    recorder = Recorder()
    for each in records:
        recorder.add(each)
    return recorder.summary()


# --- known records ---


@pytest.mark.parametrize("count", [1, 2, 100, WINDOW, WINDOW + 300, 3 * WINDOW])
def test_percentiles_are_numpys(count: int) -> None:
    values = np.random.default_rng(count).integers(0, 10**9, count)
    recorder = Recorder()
    for number, value in enumerate(values.tolist()):
        recorder.add(record(number, fetch=value))
    times = recorder.summary().fetch
    recent = values[-WINDOW:] / 1e9
    expected = np.percentile(recent, (50, 90, 99, 100))
    assert (times.p50, times.p90, times.p99, times.max) == pytest.approx(tuple(expected))
    assert times.total == pytest.approx(values.sum() / 1e9)
    assert times.mean == pytest.approx(values.mean() / 1e9)


def test_sums() -> None:
    found = summed(
        # An iterator that was resumed: the first batch it has given out is not the epoch's.
        record(7, samples=3, nbytes=100, wait=30 * MS, decode=10 * MS, step=0),
        record(8, samples=2, nbytes=50, wait=0, decode=10 * MS, step=50 * MS),
    )
    assert (found.batches, found.samples, found.nbytes) == (2, 5, 150)
    assert found.waited == pytest.approx(0.05)
    assert found.seconds == pytest.approx(0.1)
    assert found.wait_fraction == pytest.approx(0.5)
    assert (found.starts, found.startup) == (1, pytest.approx(0.04))


@pytest.mark.parametrize(
    ("fields", "waited"),
    [
        ({"worker": 0, "wait": 5, "decode": 2}, 7),  # decoded by the consumer
        ({"worker": 0, "wait": 5, "decode": 2, "pin": 3}, 5),  # by the pin-memory thread
        ({"worker": -1, "wait": 5, "fetch": 4, "collate": 1}, 5),
        ({"worker": -1, "wait": 5, "pin": 3}, 8),  # pinned by the consumer
    ],
    ids=["workers", "workers-pinned", "in-process", "in-process-pinned"],
)
def test_what_counts_as_waiting(fields: dict[str, int], waited: int) -> None:
    one = record(asked=100, **fields)
    assert (one.waited, one.given) == (waited, 100 + waited)
    assert summed(one).waited == pytest.approx(waited / 1e9)


def test_workers() -> None:
    found = summed(
        record(0, worker=1, samples=4, fetch=60 * MS, wait=60 * MS),
        record(1, worker=0, samples=4, fetch=10 * MS, collate=15 * MS, encode=5 * MS),
        record(2, worker=1, samples=2, fetch=20 * MS, step=40 * MS - 1),
    )
    assert found.workers == (
        WorkerTimes(0, 1, 4, 0.03, pytest.approx(0.3)),
        WorkerTimes(1, 2, 6, 0.08, pytest.approx(0.8)),
    )
    assert found.busy_fraction == pytest.approx(0.55)


def test_slowest_samples_are_the_slowest() -> None:
    times = np.random.default_rng(0).permutation(np.arange(1, 3 * WINDOW + 1)).tolist()
    found = summed(
        *(
            record(n, epoch=2, slowest=time, slowest_index=1_000_000 + time)
            for n, time in enumerate(times)
        )
    )
    expected = sorted(times, reverse=True)[:5]
    assert found.slowest_samples == tuple(
        SlowSample(1_000_000 + time, time / 1e9, 2, times.index(time)) for time in expected
    )


def test_a_slow_sample_is_named_once() -> None:
    always = [record(n, slowest=900 + n, slowest_index=[7]) for n in range(20)]  # not hashable
    others = [record(n, slowest=n, slowest_index=[n]) for n in range(10, 20)]
    recorder = Recorder()
    for each in always + others:
        recorder.add(each)
        recorder.flush()
    found = [(s.index, round(s.seconds * 1e9)) for s in recorder.summary().slowest_samples]
    assert found == [([7], 919), ([19], 19), ([18], 18), ([17], 17), ([16], 16)]


def test_stragglers() -> None:
    found = summed(
        record(0, samples=4, fetch=40, slowest=12),  # the others took 9.3 each
        record(1, samples=4, fetch=130, slowest=100),  # the others took 10 each
        record(2, samples=1, fetch=100, slowest=100),  # there are no others
        record(3, samples=4, fetch=100),  # read all at once
    )
    assert found.stragglers == pytest.approx(100 / 1e9)


# --- the objects ---

PUBLIC = (LoaderStatistics, StageTimes, WorkerTimes, SlowSample, BatchRecord, StepRecord)


@pytest.mark.parametrize("kind", PUBLIC, ids=lambda kind: kind.__name__)
def test_every_field_is_documented(kind: Any) -> None:
    names = (
        [field.name for field in dataclasses.fields(kind)]
        if dataclasses.is_dataclass(kind)
        else kind._fields
    )
    missing = [name for name in names if f"    {name}: " not in (kind.__doc__ or "")]
    assert not missing


def test_statistics_are_frozen_and_can_be_pickled() -> None:
    found = summed(record(0, slowest=5, slowest_index=3))
    assert pickle.loads(pickle.dumps(found)) == found
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.batches = 3  # type: ignore[misc]


def test_a_copy_of_a_recorder_begins_anew() -> None:
    recorder = Recorder()
    recorder.add(record())
    recorder.listener = lambda records: None  # which could not be pickled
    copy = pickle.loads(pickle.dumps(recorder))
    assert copy.listener is None
    assert copy.summary() == LoaderStatistics()


def test_a_watcher_gets_every_record_once() -> None:
    windows: list[Any] = []
    recorder = Recorder()
    recorder.listener = windows.append
    records = [record(n) for n in range(2 * WINDOW + 5)]
    for each in records:
        recorder.add(each)
        assert recorder.last is each
    assert [len(window) for window in windows] == [WINDOW, WINDOW]
    recorder.flush()
    recorder.flush()
    assert [each for window in windows for each in window] == records
