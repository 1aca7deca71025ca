"""Texts that say what happened to a worker, the likely cause, and what to do.

Used by `pool/recovery.py` for warnings and errors.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any, Final

from lit_loader.pool.outcome import WorkerDeath
from lit_loader.system.cgroups import MemoryLimits, memory_limits
from lit_loader.transport.messages import position_of
from lit_loader.transport.remote_error import describe_indices
from lit_loader.transport.status_board import BoardRow, Stage
from lit_loader.worker.payload import NO_ROOM

__all__ = ["alone", "died", "hung", "unborn"]

_DONE: Final = object()

_CAUSES: dict[int, str] = {
    signal.SIGTERM: "at the request of another process (a scheduler, perhaps)",
    signal.SIGSEGV: (
        "by a crash in native code that the dataset or collate_fn calls: update or leave out that "
        "library, or set multiprocessing_context='spawn' if it uses threads"
    ),
    signal.SIGBUS: (
        "by memory that could not be had: look for a full disk, or a memory-mapped file that was "
        "truncated"
    ),
    signal.SIGABRT: (
        "by native code that gave up (an assertion, a corrupted heap): see its output above"
    ),
}


def died(death: WorkerDeath, assigned: Mapping[int, Any]) -> str:
    """Say how a worker came to its end.

    Args:
        death: What was seen.
        assigned: Task number to indices, of the tasks in flight.
    """
    who = f"DataLoader worker {death.worker} (pid {death.pid})"
    doing = _doing(death.row, assigned)
    if death.exitcode is None:
        how = (
            "is gone, and its exit code is not known: the process that started it is gone, too, or "
            "SIGCHLD is ignored here, or other code has waited for it (os.waitpid(-1) in a handler "
            "or a thread)"
        )
    elif death.exitcode < 0:
        name = _signal_name(-death.exitcode)
        if -death.exitcode == signal.SIGKILL:
            cause = _killed(death.peak_memory, memory_limits())
        else:
            cause = _CAUSES.get(-death.exitcode, "whose sender is not known")
        how = f"was killed by {name}, {cause}"
    elif death.row.stage == Stage.STARTING and death.exitcode == NO_ROOM:
        how = (
            "could not start: there is no room in its address space for the loader's shared memory "
            "(ENOMEM): raise the limit (ulimit -v), or lower num_workers or prefetch_factor"
        )
    elif death.row.stage == Stage.STARTING:
        how = (
            f"could not start (exit code {death.exitcode}): see its output above; put what a "
            'script does under `if __name__ == "__main__":`, unless workers are forked'
        )
    else:
        how = (
            f"exited by itself with code {death.exitcode}: something in the dataset, collate_fn or "
            "worker_init_fn calls os._exit(), or native code that they call does"
        )
    stack = f"\nIts stacks:\n{death.stack}" if death.stack else ""
    return f"{who} {how}. It was {doing}.{stack}"


def _killed(peak: int, limits: MemoryLimits) -> str:
    """Say who has sent SIGKILL, most likely, to a worker with so much memory at most."""
    own = f"the worker had {peak / 2**20:,.0f} MiB at most; " if peak else ""
    cause = (
        "by another process or a person (kill -9, a scheduler): memory was not short"
        if limits.ample(peak)
        else "most likely by the kernel for want of memory: use fewer workers, a smaller "
        "prefetch_factor or smaller batches"
    )
    return f"{cause} ({own}{limits.describe()})"


def hung(death: WorkerDeath, seconds: float, timeout: float, assigned: Mapping[int, Any]) -> str:
    """Say where a worker hung.

    Args:
        death: The worker, which has been ended.
        seconds: How long it had been where it was.
        timeout: Seconds that it was given.
        assigned: Task number to indices, of the tasks in flight.
    """
    stack = (
        f"Its stacks:\n{death.stack}"
        if death.stack
        else "It did not write its stacks: it was stopped, or in a system call that cannot be "
        "interrupted"
    )
    return (
        f"DataLoader worker {death.worker} (pid {death.pid}) did not get on within "
        f"timeout={timeout:g} s: it was {_doing(death.row, assigned)}, for {seconds:.1f} s, and "
        f"has been ended; raise timeout if that may take so long. {stack}"
    )


def unborn(death: WorkerDeath) -> str:
    """Say that a forked worker did not come up."""
    stack = f"; its stacks:\n{death.stack}" if death.stack else ""
    return (
        f"DataLoader worker {death.worker} (pid {death.pid}) did not come up: it waited, most "
        f"likely for a lock that another thread held while it was forked, and was ended{stack}"
    )


def alone(worker: int, seconds: float) -> str:
    """Say that a reader does not get on, after one was replaced, and perhaps waits for others."""
    return (
        f"DataLoader worker {worker} has been at one sample for {seconds:.0f} s, after a worker "
        "was replaced: if readers of this dataset wait for each other where they begin (a barrier "
        "in __iter__), the new one waits there alone, and for ever; with timeout=... in seconds "
        "the loop ends with its stack, and max_worker_restarts=0 raises at a worker's death"
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
    indices = assigned.get(row.number, _DONE)  # the consumer's thread may take it away just now
    if indices is _DONE:
        return f"done with batch {position_of(row.number)}"
    batch = f"batch {position_of(row.number)}, {describe_indices(indices)}"
    if row.stage == Stage.FETCHING:
        if isinstance(indices, list) and row.position < len(indices):
            return f"fetching index {indices[row.position]!r} (sample {row.position} of {batch})"
        return f"fetching sample {row.position} of {batch}"
    return f"{stage} ({batch})"
