"""Known records, summed up: what a recorder makes of them, and the objects that it gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lit_loader.statistics.recorder import WINDOW, Recorder
from lit_loader.statistics.records import (
    BatchRecord,
    LoaderStatistics,
)


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
        recorder.records.append(each)
    return recorder.summary()


# --- known records ---


@pytest.mark.parametrize("count", [1, 2, 100, WINDOW, WINDOW + 300, 3 * WINDOW])
def test_percentiles_are_numpys(count: int) -> None:
    values = np.random.default_rng(count).integers(0, 10**9, count)
    recorder = Recorder()
    for number, value in enumerate(values.tolist()):
        recorder.records.append(record(number, fetch=value))
    times = recorder.summary().fetch
    recent = values[-WINDOW:] / 1e9
    expected = np.percentile(recent, (50, 90, 99, 100))
    assert (times.p50, times.p90, times.p99, times.max) == pytest.approx(tuple(expected))
    assert times.total == pytest.approx(values.sum() / 1e9)
    assert times.mean == pytest.approx(values.mean() / 1e9)
