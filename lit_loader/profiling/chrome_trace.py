"""Writes the timeline of a training loop's latest batches as a Chrome trace, for ui.perfetto.dev.

Used by ``LoaderMonitor(trace=…)``. Each loader is one process of the trace, with these tracks::

    loop         wait │ decode │ step …   (with num_workers=0 also fetch, collate, pin)
    pin memory   decode │ pin …
    worker 0     fetch │ collate │ encode …   (of batch 17, slowest sample …)
    worker 1     …
    ready batches, a counter

The format is the "Trace Event Format" of Chrome's catapult project: a JSON object whose
``traceEvents`` are complete events ("X"), counters ("C") and names of tracks ("M"), with times in
microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from lit_loader.core.batch.progress import Timings
from lit_loader.describe import short_repr

__all__ = ["trace_events", "write_trace"]

_COUNTER, _LOOP, _PIN, _WORKERS = 0, 1, 2, 10
"""Numbers of the tracks; a worker's is its own number above the last."""

_TRACKS: Final = {_LOOP: "loop", _PIN: "pin memory"}


class _Slice(NamedTuple):
    """A coloured piece of a track; times in nanoseconds."""

    track: int
    name: str
    start: int
    end: int
    args: dict[str, Any]


def write_trace(path: Path, loaders: Mapping[str, Sequence[Timings]]) -> None:
    """Write the records of loaders, by their names, into a file; its directory is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    trace = {"traceEvents": list(trace_events(loaders)), "displayTimeUnit": "ms"}
    path.write_text(json.dumps(trace, separators=(",", ":")))


def trace_events(loaders: Mapping[str, Sequence[Timings]]) -> Iterator[dict[str, Any]]:
    """Yield the events, in order of time within each track."""
    slices = {name: _in_order(_slices(records)) for name, records in loaders.items()}
    origin = min((each.start for pieces in slices.values() for each in pieces), default=0)
    for pid, (name, records) in enumerate(loaders.items(), 1):

        def event(kind: str, name: str, track: int, moment: int, args: Any, **more: Any) -> Any:
            at = (moment - origin) / 1000
            return dict(ph=kind, name=name, pid=pid, tid=track, ts=at, args=args, **more)  # noqa: B023

        yield event("M", "process_name", _COUNTER, origin, {"name": f"lit_loader {name}"})
        for track in sorted({each.track for each in slices[name]}):
            title = _TRACKS.get(track, f"worker {track - _WORKERS}")
            yield event("M", "thread_name", track, origin, {"name": title})
            yield event("M", "thread_sort_index", track, origin, {"sort_index": track})
        for track, stage, start, end, args in slices[name]:
            yield event("X", stage, track, start, args, dur=(end - start) / 1000, cat="loader")
        for moment, ready in _ready(records):
            yield event("C", "ready batches", _COUNTER, max(moment, origin), {"batches": ready})


def _slices(records: Iterable[Timings]) -> Iterator[_Slice]:
    pinned = 0
    for record in records:
        args: dict[str, Any] = {"epoch": record.epoch, "batch": record.number}
        own = record.worker < 0
        track = _LOOP if own else _WORKERS + record.worker
        making = dict(fetch=record.fetch, collate=record.collate, encode=record.encode)
        yield from _row(track, record.began, making, {**args, **_slowest(record)})
        yield from _row(_LOOP, record.asked - record.step, {"step": record.step}, {})
        if not own:  # else the loop makes the batch while it waits
            taking = {"wait": record.wait, "decode": 0 if record.pin else record.decode}
            yield from _row(_LOOP, record.asked, taking, args)
        pin = {"decode": 0 if own else record.decode, "pin": record.pin}
        if record.pin:
            # The thread begins with a batch once that has come in and the one before is done.
            start = record.asked + record.wait if own else max(record.arrived, pinned)
            yield from _row(_LOOP if own else _PIN, start, pin, args)
            pinned = start + sum(pin.values())


def _row(
    track: int, start: int, stages: Mapping[str, int], args: dict[str, Any]
) -> Iterator[_Slice]:
    """Yield stages that follow each other."""
    for name, duration in stages.items():
        if duration:
            yield _Slice(track, name, start, start + duration, args)
        start += duration


def _in_order(slices: Iterable[_Slice]) -> list[_Slice]:
    """Sort slices, and cut those that overlap: several iterators may share a track."""
    ends: dict[int, int] = {}
    found = []
    for each in sorted(slices, key=lambda each: (each.track, each.start)):
        start = max(each.start, ends.get(each.track, each.start))
        if each.end > start:
            found.append(each._replace(start=start))
            ends[each.track] = each.end
    return found


def _ready(records: Iterable[Timings]) -> Iterator[tuple[int, int]]:
    """Yield how many batches were made and not yielded, whenever that changed."""
    changes = []
    for record in records:
        if record.worker >= 0:
            made = record.began + record.fetch + record.collate + record.encode
            changes += [(min(made, record.given), 1), (record.given, -1)]
    ready = 0
    for moment, change in sorted(changes, key=lambda item: (item[0], -item[1])):
        ready += change
        yield moment, ready


def _slowest(record: Timings) -> dict[str, Any]:
    if not record.slowest:
        return {"samples": record.samples}
    index = {} if record.slowest_index is None else {"index": short_repr(record.slowest_index)}
    return {"samples": record.samples, **index, "slowest sample ms": record.slowest / 1e6}
