"""Saying in one message what happened to a worker, the likely cause, and what to do."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any, Final

from lit_loader.board import BoardRow, Stage
from lit_loader.cgroup import memory_limits
from lit_loader.failure import describe_indices
from lit_loader.messages import position_of
from lit_loader.worker_pool import WorkerDeath

__all__ = ["died", "hung"]

_DONE: Final = object()

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


def died(death: WorkerDeath, assigned: Mapping[int, Any]) -> str:
    """Say how a worker came to its end.

    Args:
        death: What was seen.
        assigned: Task number to indices, of the batches under way.
    """
    who = f"DataLoader worker {death.worker} (pid {death.pid})"
    doing = _doing(death.row, assigned)
    if death.exitcode is None:
        how = "is gone, nobody knows how: the process that could have told is gone, too"
    elif death.exitcode < 0:
        name = _signal_name(-death.exitcode)
        how = f"was killed by {name}, {_CAUSES.get(-death.exitcode, 'by a signal')}"
        if -death.exitcode == signal.SIGKILL:
            how += f" ({_memory(death)})"
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
    stack = f"\nIts last words:\n{death.stack}" if death.stack else ""
    return f"{who} {how}. It was {doing}.{stack}"


def _memory(death: WorkerDeath) -> str:
    own = f"it had {death.peak_memory / 2**20:,.0f} MiB at most; " if death.peak_memory else ""
    return own + memory_limits().describe()


def hung(death: WorkerDeath, seconds: float, timeout: float, assigned: Mapping[int, Any]) -> str:
    """Say where a worker hung.

    Args:
        death: The worker, which has been ended.
        seconds: How long it had been where it was.
        timeout: Seconds that it was given.
        assigned: Task number to indices, of the batches under way.
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
        f"has been ended. {stack}"
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
