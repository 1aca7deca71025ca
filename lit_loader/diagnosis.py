"""Saying in one message what happened to a worker, the likely cause, and what to do."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from typing import Any

from lit_loader.board import BoardRow, Stage
from lit_loader.errors import WorkerDiedError, WorkerTimeoutError
from lit_loader.failure import describe_indices
from lit_loader.worker_pool import WorkerDeath

__all__ = ["died", "timed_out"]

_CAUSES: dict[int, str] = {
    signal.SIGKILL: (
        "most likely by the kernel for want of memory: use fewer workers, a smaller "
        "prefetch_factor or smaller batches"
    ),
    signal.SIGTERM: "by somebody's request (a scheduler, another process)",
    signal.SIGSEGV: "by a crash in native code that the dataset or collate_fn calls",
    signal.SIGBUS: "by memory that could not be had: a full disk or a truncated memory-mapped file",
    signal.SIGABRT: "by native code that gave up (an assertion, a corrupted heap)",
}


def died(death: WorkerDeath, assigned: Mapping[int, Any]) -> WorkerDiedError:
    """Describe a worker's death.

    Args:
        death: What was seen.
        assigned: Batch number to indices, of the batches under way.
    """
    who = f"DataLoader worker {death.worker} (pid {death.pid})"
    doing = _doing(death.row, assigned)
    if death.exitcode < 0:
        name = _signal_name(-death.exitcode)
        how = f"was killed by {name}, {_CAUSES.get(-death.exitcode, 'by a signal')}"
    elif death.row.stage == Stage.STARTING:
        how = (
            f"could not start (exit code {death.exitcode}): see its output above; a script that "
            'uses workers needs its `if __name__ == "__main__":` unless they are forked'
        )
    else:
        how = (
            f"exited by itself with code {death.exitcode}: something in the dataset or collate_fn "
            "calls os._exit() or ends the process from native code"
        )
    return WorkerDiedError(f"{who} {how}. It was {doing}. num_workers=0 shows errors in place.")


def timed_out(
    timeout: float, rows: list[BoardRow], pids: list[int], assigned: Mapping[int, Any]
) -> WorkerTimeoutError:
    """Describe what the workers were at when the consumer's time was up.

    Args:
        timeout: Seconds waited.
        rows: The workers' rows of the status board.
        pids: Their process ids.
        assigned: Batch number to indices, of the batches under way.
    """
    now = time.monotonic_ns()
    lines = [
        f"worker {worker} (pid {pid}) {_doing(row, assigned)}"
        + (f", for {(now - row.since) / 1e9:.1f} s" if row.since else "")
        for worker, (row, pid) in enumerate(zip(rows, pids, strict=True))
    ]
    return WorkerTimeoutError(
        f"no batch arrived within timeout={timeout:g} s: {'; '.join(lines)}. "
        "Raise timeout, or make the sample that hangs return"
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _doing(row: BoardRow, assigned: Mapping[int, Any]) -> str:
    """Say what a worker is at: ``fetching sample 2 (index 17) of batch 3, indices [...]``."""
    stage = Stage.NAMES[row.stage]
    if row.number < 0:
        return stage
    indices = assigned.get(row.number)
    batch = f"batch {row.number}, {describe_indices(indices)}"
    if row.stage == Stage.FETCHING:
        if isinstance(indices, list) and row.position < len(indices):
            return f"fetching index {indices[row.position]!r} (sample {row.position} of {batch})"
        return f"fetching sample {row.position} of {batch}"
    return f"{stage} ({batch})"
