"""The trace file: Chrome's format, one track for each actor, slices where the time went."""

from collections import defaultdict
from typing import Any

import pytest

from lit_loader import DataLoader
from lit_loader.core.batch.timings import Timings
from lit_loader.profiling.chrome_trace import trace_events
from lit_loader.profiling.recorder import Recorder
from lit_loader.profiling.records import LoaderTrace
from tests.support.samples import Rows

Event = dict[str, Any]

ALLOWED = {
    "X": {"ph", "cat", "name", "pid", "tid", "ts", "dur", "args"},
    "C": {"ph", "name", "pid", "tid", "ts", "args"},
    "M": {"ph", "name", "pid", "tid", "ts", "args"},
}
METADATA = {"process_name": "name", "thread_name": "name", "thread_sort_index": "sort_index"}


def nanoseconds(microseconds: float) -> int:
    return round(microseconds * 1000)


def check(events: list[Event]) -> None:
    """The rules of the Trace Event Format that such a file has to keep."""
    named: set[tuple[int, int]] = set()
    used: set[tuple[int, int]] = set()
    ends: dict[Any, int] = {}
    for event in events:
        assert set(event) == ALLOWED[event["ph"]]
        assert isinstance(event["name"], str) and event["name"]
        assert type(event["pid"]) is type(event["tid"]) is int
        assert isinstance(event["ts"], (int, float)) and event["ts"] >= 0
        track, start = (event["pid"], event["tid"]), nanoseconds(event["ts"])
        if event["ph"] == "M":
            assert set(event["args"]) == {METADATA[event["name"]]}
            named |= {track} if event["name"] == "thread_name" else set()
        elif event["ph"] == "C":
            (value,) = event["args"].values()
            assert type(value) is int and value >= 0
            assert start >= ends.get((track, event["name"]), 0)
            ends[track, event["name"]] = start
        else:
            used.add(track)
            assert event["dur"] > 0
            assert start >= ends.get(track, 0), "slices overlap"
            ends[track] = start + nanoseconds(event["dur"])
    assert used <= named, "a track has no name"


def by_track(events: list[Event]) -> dict[str, list[Event]]:
    names = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["name"] == "thread_name"
    }
    tracks = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            tracks[names[event["pid"], event["tid"]]].append(event)
    return dict(tracks)


@pytest.mark.parametrize("pin", [False, True], ids=["plain", "pinned"])
@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_a_loaders_own_records(pinned: None, num_workers: int, pin: bool) -> None:
    loader = DataLoader(
        Rows(60, 1_000), batch_size=4, shuffle=True, num_workers=num_workers, pin_memory=pin
    )
    records: list[Timings] = []
    Recorder.of(loader._core.log).listener = records.extend
    for _ in range(2):
        list(loader)
    loader.statistics()
    events = list(trace_events([LoaderTrace("train", records)]))
    check(events)
    tracks = by_track(events)
    stages = {name: {event["name"] for event in found} for name, found in tracks.items()}
    if num_workers:
        assert stages["consumer"] == ({"wait"} if pin else {"wait", "decode"})
        assert ("pin memory" in stages) == pin
    else:
        assert stages == {"consumer": {"fetch", "collate"} | ({"pin"} if pin else set())}
    made = [event for each in tracks.values() for event in each if event["name"] == "fetch"]
    numbers = sorted((event["args"]["epoch"], event["args"]["batch"]) for event in made)
    assert numbers == [(epoch, batch) for epoch in range(2) for batch in range(15)]
    counts = [event["args"]["batches"] for event in events if event["ph"] == "C"]
    assert len(counts) == (60 if num_workers else 0)
    # One more than are under way: the next is asked for just before a batch is given out.
    assert not counts or (counts[-1] == 0 and max(counts) <= 2 * num_workers + 1)
