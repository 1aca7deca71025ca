"""What there is to say about a loader, in words: who waits for whom, and why.

Pure: a `Loader` in, sentences out, the most pressing one first.
"""

from __future__ import annotations

from typing import Final

from lit_loader.top.snapshot import Loader, Worker

__all__ = ["doing", "duration", "findings", "who"]

_LONG_STEP: Final = 30.0
"""Seconds that a training step takes before it is remarked upon."""

_MUCH: Final = 0.1
"""Which part of the time a training waits before it is remarked upon."""

_STAGES: Final = {
    "starting": "starting",
    "worker_init_fn": "at its start, in unpickling the dataset or in worker_init_fn",
    "idle": "idle",
    "fetch": "reading",
    "collate": "collating",
    "encode": "writing the batch into shared memory",
    "leaving": "leaving, as fewer are wanted now",
    "dead": "dead",
    "remote": "making a batch on another machine",
    "relay": "handing batches over to remote workers",
}


def duration(seconds: float) -> str:
    """Write a duration shortly: ``4.2 s``, ``42 s``, ``3 min 20 s``, ``2 h 5 min``."""
    if seconds < 10:
        return f"{max(seconds, 0):.1f} s"
    whole = round(seconds)
    if whole < 100:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 100:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def doing(worker: Worker) -> str:
    """Say what a worker is at: ``reading index 700 (sample 12 of batch 43)``."""
    stage = _STAGES.get(worker.stage, worker.stage)
    if worker.batch is None:
        return stage
    if worker.stage != "fetch":
        return f"{stage} (batch {worker.batch})"
    if worker.index is None:
        return f"reading sample {worker.sample} of batch {worker.batch}"
    return f"reading index {worker.index} (sample {worker.sample} of batch {worker.batch})"


def who(worker: Worker) -> str:
    """Name a worker: ``worker 3``."""
    return "the training process itself" if worker.worker < 0 else f"worker {worker.worker}"


def findings(loader: Loader) -> list[str]:
    """Say what stands out."""
    found = []
    dead = [worker for worker in loader.workers if worker.stage == "dead"]
    stalled = [worker for worker in loader.workers if worker.stalled]
    waits = loader.state == "waiting" and (loader.state_seconds or 0) >= 1
    waited = duration(loader.state_seconds or 0)
    for worker in dead:
        found.append(
            f"worker {worker.worker} (pid {worker.pid}) has died; another one takes its place when "
            "the training next waits for a batch"
        )
    for worker in sorted(stalled, key=lambda worker: -(worker.seconds or 0)):
        text = f"{who(worker)} has been {doing(worker)} for {duration(worker.seconds or 0)}"
        if worker.doing:
            text += f", {worker.doing}"
        line = next((frame for frame in worker.stack or () if frame.user), None)
        if line is not None:
            text += f", in {line.function} ({line.file}:{line.line})"
        if worker.worker < 0:
            pass  # it cannot wait meanwhile
        elif waits and worker.batch == loader.batches:
            text += f"; the training has waited for this batch for {waited}"
        elif waits:
            text += f"; the training has waited for batch {loader.batches} for {waited}"
        elif loader.ready:
            text += f"; the training does not wait for it yet ({loader.ready} batches are ready)"
        found.append(text)
    here = any(worker.worker < 0 for worker in loader.workers)
    if not found and waits:
        get_on = "which it makes itself" if here else "and the workers get on"
        found.append(
            f"the training has waited for batch {loader.batches} for {waited}, {get_on}: samples "
            "are slow"
        )
    elif not found and loader.state == "computing" and (loader.state_seconds or 0) >= _LONG_STEP:
        ready = "" if here else f", and {loader.ready} batches are ready"
        found.append(
            f"the training has been at its own step for {waited}{ready}: it does not wait for the "
            "loader"
        )
    elif not found and (loader.wait_share or 0) >= _MUCH:
        found.append(
            f"the training {'makes batches' if here else 'waits'} {loader.wait_share:.0%} of the "
            f"time: {'' if here else 'more '}workers, or samples that take less; "
            "loader.statistics() says which part takes how long"
        )
    return found
