"""The rules of Chrome's "Trace Event Format" that a trace file has to keep."""

from collections import defaultdict
from typing import Any

Event = dict[str, Any]

_ALLOWED = {
    "X": {"ph", "cat", "name", "pid", "tid", "ts", "dur", "args"},
    "C": {"ph", "name", "pid", "tid", "ts", "args"},
    "M": {"ph", "name", "pid", "tid", "ts", "args"},
}


def tracks_of(events: list[Event]) -> dict[str, list[Event]]:
    """Check the events of one loader; returns the slices of each track, by its name."""
    names: dict[int, str] = {}
    ends: dict[Any, float] = {}
    tracks = defaultdict(list)
    for event in events:
        assert set(event) == _ALLOWED[event["ph"]]
        track, kind = event["tid"], event["ph"]
        assert type(event["pid"]) is type(track) is int and event["ts"] >= 0
        if event["name"] == "thread_name":
            names[track] = event["args"]["name"]
        elif kind != "M":
            assert event["ts"] >= ends.get((track, kind), 0) - 1e-3, "slices overlap"
            ends[track, kind] = event["ts"] + event.get("dur", 0)
        if kind == "X":
            assert event["dur"] > 0
            tracks[names[track]].append(event)
        elif kind == "C":
            (count,) = event["args"].values()
            assert count >= 0
    return dict(tracks)
