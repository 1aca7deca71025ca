"""Writes the timeline of a training loop as a Chrome trace, for ui.perfetto.dev.

Used by ``LoaderMonitor(trace=…)``. The kept records of each loader come in, a JSON file goes out.
One process of the trace is one loader, with these tracks::

    consumer     wait │ decode │ transfer │ step …   (num_workers=0: and fetch, collate, pin)
    pin memory   decode │ pin …
    worker 0     waiting for reads │ fetch │ collate │ encode …   (of batch 17, slowest sample …)
    worker 1     …
    ready batches, a counter

The format is the "Trace Event Format" of Chrome's catapult project: a JSON object whose
``traceEvents`` are complete events ("X"), counters ("C") and names of tracks ("M"), with times in
microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from lit_loader.core.batch.timings import Timings
from lit_loader.profiling.records import LoaderTrace, StepRecord

__all__ = ["trace_events", "write_trace"]

_COUNTER, _CONSUMER, _PIN, _WORKERS = 0, 1, 2, 10
"""Numbers of the tracks; a worker's is its own above the last."""

_TRACKS: Final = {_CONSUMER: "consumer", _PIN: "pin memory"}

_INDEX_LENGTH: Final = 80  # characters that are shown of a sample's index


class _Slice(NamedTuple):
    """A coloured piece of a track; times in nanoseconds."""

    track: int
    name: str
    start: int
    duration: int
    args: dict[str, Any]


def write_trace(path: Path, loaders: Sequence[LoaderTrace]) -> None:
    """Write a trace file; its directory is made if need be. OSError: it cannot be written."""
    origin = min((piece.start for loader in loaders for piece in _slices(loader)), default=0)
    trace = {
        "traceEvents": list(trace_events(loaders, origin)),
        "displayTimeUnit": "ms",
        "otherData": {
            "program": "lit_loader",
            "origin": f"{origin} ns of time.monotonic_ns()",
            "batches": {
                loader.name: f"the last {len(loader.records)} of "
                f"{len(loader.records) + loader.left_out}"
                for loader in loaders
            },
        },
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        json.dump(trace, file, separators=(",", ":"))


def trace_events(loaders: Sequence[LoaderTrace], origin: int = 0) -> Iterator[dict[str, Any]]:
    """Give the events, by time within each track; times are counted from ``origin``."""
    for pid, loader in enumerate(loaders, 1):

        def event(kind: str, name: str, track: int, moment: int, args: Any, **more: Any) -> Any:
            at = (moment - origin) / 1000
            return dict(ph=kind, name=name, pid=pid, tid=track, ts=at, args=args, **more)  # noqa: B023

        slices = _slices(loader)
        title = {"name": f"lit_loader {loader.name}"}
        yield event("M", "process_name", _COUNTER, origin, title)
        for track in sorted({piece.track for piece in slices}):
            name = _TRACKS.get(track, f"worker {track - _WORKERS}")
            yield event("M", "thread_name", track, origin, {"name": name})
            yield event("M", "thread_sort_index", track, origin, {"sort_index": track})
        for track, name, start, duration, args in slices:
            cat = "consumer" if track == _CONSUMER else "loader"
            yield event("X", name, track, start, args, dur=duration / 1000, cat=cat)
        for moment, ready in _ready(loader.records):
            yield event("C", "ready batches", _COUNTER, moment, {"batches": ready})


def _batch_slices(records: Iterable[Timings]) -> Iterator[_Slice]:
    pinned = 0
    for record in records:
        args: dict[str, Any] = {"epoch": record.epoch, "batch": record.number}
        own = record.worker < 0
        track = _CONSUMER if own else _WORKERS + record.worker
        made = {**args, "samples": record.samples, **_slowest(record)}
        yield from _after_another(track, record.began, record.making, made)
        if own:
            pin = {"pin": record.pin}
            yield from _after_another(_CONSUMER, record.asked + record.wait, pin, args)
            continue
        yield from _after_another(_CONSUMER, record.asked, record.taking, args)
        if record.pin:
            # The thread began with it once it had come in and the one before it was done.
            start = max(record.arrived, pinned)
            stages = {"decode": record.decode, "pin": record.pin}
            yield from _after_another(_PIN, start, stages, args)
            pinned = start + record.decode + record.pin


def _step_slices(steps: Iterable[StepRecord]) -> Iterator[_Slice]:
    for step in steps:
        if step.given:
            yield _Slice(_CONSUMER, "transfer", step.given, step.start - step.given, {})
        yield _Slice(_CONSUMER, "step", step.start, step.end - step.start, {})


def _after_another(
    track: int, start: int, stages: dict[str, int], args: dict[str, Any]
) -> Iterator[_Slice]:
    for name, duration in stages.items():
        if duration:
            yield _Slice(track, name, start, duration, args)
        start += duration


def _slices(loader: LoaderTrace) -> list[_Slice]:
    """Those of each track by time; what would overlap, several iterators' say, is cut."""
    slices = [*_batch_slices(loader.records), *_step_slices(loader.steps)]
    ends: dict[int, int] = {}
    lined = []
    for piece in sorted(slices, key=lambda piece: (piece.track, piece.start)):
        end = piece.start + piece.duration
        start = max(piece.start, ends.get(piece.track, piece.start))
        if end > start:
            lined.append(piece._replace(start=start, duration=end - start))
            ends[piece.track] = end
    return lined


def _ready(records: Iterable[Timings]) -> Iterator[tuple[int, int]]:
    """How many batches were made and not given out, at every moment at which that changed."""
    changes = []
    for record in records:
        if record.worker >= 0:
            made = record.began + sum(record.making.values())
            changes += [(min(made, record.given), 1), (record.given, -1)]
    ready = 0
    for moment, change in sorted(changes, key=lambda item: (item[0], -item[1])):
        ready += change
        yield moment, ready


def _slowest(record: Timings) -> dict[str, Any]:
    if not record.slowest:
        return {}
    shown = {"slowest sample ms": record.slowest / 1e6}
    if record.slowest_index is None:
        return shown
    return {"slowest sample": repr(record.slowest_index)[:_INDEX_LENGTH], **shown}
