"""What stands out in a loader at this moment, in words: who waits for whom.

Pure: a `Loader` in, sentences out, the most pressing one first. What limits in the long run is the
loader's own verdict.
"""

from __future__ import annotations

from typing import Final

from lit_loader.statistics.sentences import NOT_KNOWN, doing, duration
from lit_loader.top.snapshot import Loader, Worker

__all__ = ["STAGES", "findings"]

STAGES: Final = (
    *("starting", "worker_init_fn", "idle", "fetch", "collate", "encode", "leaving", "read"),
)
"""What a worker's stages are called where there is little room, in the order of `Stage`."""

_LONG_STEP: Final = 30.0  # seconds that a training step takes before it is remarked upon


def findings(loader: Loader) -> list[str]:
    """Say what stands out."""
    found = [
        f"worker {worker.worker} (pid {worker.pid}) has died; another one takes its place when "
        "the training next waits for a batch"
        for worker in loader.workers
        if worker.stage == "dead"
    ]
    stalled = [worker for worker in loader.workers if worker.stalled]
    found += [_stalled(each, loader) for each in sorted(stalled, key=lambda w: -(w.seconds or 0))]
    seconds = loader.state_seconds or 0
    if not found and loader.state == "waiting" and seconds >= 1:
        found.append(
            f"the training has waited for batch {loader.batches} for {duration(seconds)}, and the "
            "workers get on: samples are slow"
        )
    elif not found and loader.state == "computing" and seconds >= _LONG_STEP:
        found.append(
            f"the training has been at its own step for {duration(seconds)}, and {loader.ready} "
            "batches are ready: it does not wait for the loader"
        )
    return found


def _stalled(worker: Worker, loader: Loader) -> str:
    """Say where a worker is, since when, and who waits for it."""
    batch = None if worker.batch is None else f"batch {worker.batch}"
    index = NOT_KNOWN if worker.index is None else worker.index
    sample = -1 if worker.sample is None else worker.sample
    at = doing(STAGES.index(worker.stage), batch, sample, index)
    text = f"worker {worker.worker} has been {at} for {duration(worker.seconds or 0)}"
    if worker.doing:
        text += f", {worker.doing}"
    line = next((frame for frame in worker.stack or () if frame.user), None)
    if line is not None:
        text += f", in {line.function} ({line.file}:{line.line})"
    if loader.state == "waiting" and (loader.state_seconds or 0) >= 1:
        which = "this batch" if worker.batch == loader.batches else f"batch {loader.batches}"
        text += f"; the training has waited for {which} for {duration(loader.state_seconds or 0)}"
    elif loader.ready:
        text += f"; the training does not wait for it yet ({loader.ready} batches are ready)"
    return text
