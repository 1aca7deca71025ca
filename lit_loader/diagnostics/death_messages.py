"""What is said of a worker that died or hung: what it was doing, the likely cause, and a fix.

The `Healer`, which replaces the worker, asks at the seams `Seams.explain` and
`Seams.fewer_workers`. A run in which all goes well does not import this.
"""

from __future__ import annotations

import signal
from typing import Any, Final

from lit_loader.core.executors.executor import FewerWorkers, Task, WorkerDeath
from lit_loader.core.executors.process_start import NO_ROOM
from lit_loader.core.executors.worker_pool import WorkerPool
from lit_loader.core.state.position import ReaderPlace
from lit_loader.core.transport.messages import listed, position_of
from lit_loader.core.transport.status_board import BoardRow, Stage
from lit_loader.core.transport.worker_exception import describe_indices
from lit_loader.data.memory import MemoryLimits, memory_limits
from lit_loader.diagnostics.sentences import NOT_KNOWN, doing

_CAUSES: Final[dict[int, str]] = {
    signal.SIGSEGV: (
        "by a crash in native code that the dataset or collate_fn calls: update that library, or "
        "set multiprocessing_context='spawn' if it uses threads [LL002]"
    ),
    signal.SIGBUS: (
        "because memory was not available: look for a full disk, or a memory-mapped file that was "
        "truncated"
    ),
    signal.SIGABRT: (
        "by native code that aborted (a failed assertion, a corrupted heap): see its output above "
        "[LL002]"
    ),
}


def explain(
    pool: WorkerPool,
    death: WorkerDeath,
    task: Task | None,
    waited: tuple[float, float] | None = None,
) -> str:
    """Return how a worker ended, as `Seams.explain` has it."""
    who = f"Worker {death.worker} (pid {death.pid})"
    what = _doing(death.row, task)
    stack = f"\nIts stacks:\n{death.stack}" if death.stack else ""
    if waited is None:
        return f"{who} {_ended(pool, death)}. It was {what}.{stack}"
    seconds, timeout = waited
    silent = " It did not write its stacks: it was stopped, or in an uninterruptible system call"
    return (
        f"{who} made no progress for {seconds:.1f} s (timeout={timeout:g} s) and was ended. It was "
        f"{what}. If such samples are expected, raise timeout [LL010].{stack or silent}"
    )


def fewer_workers(pool: WorkerPool, death: WorkerDeath) -> FewerWorkers | None:
    """Return one worker less if the OOM killer has certainly ended one, else None.

    Otherwise the next one would end in the same way, in each epoch.
    """
    before = pool.oom_kills
    if death.exitcode != -signal.SIGKILL or before is None:
        return None
    pool.oom_kills = kills = memory_limits().oom_kills or 0
    if kills <= before or not pool.is_any_worker_s or pool.num_workers < 2:
        return None
    fewer = pool.num_workers - 1
    text = f"num_workers goes from {pool.num_workers} to {fewer}, "
    return FewerWorkers(text + "so that there is memory for the others [LL050]", fewer)


def _ended(pool: WorkerPool, death: WorkerDeath) -> str:
    code, starting = death.exitcode, death.row.stage == Stage.STARTING
    if code is None:
        return (
            "is gone, and its exit code is not known: the process that started it is gone too, "
            "SIGCHLD is ignored, or other code waits for children (os.waitpid(-1))"
        )
    if code < 0:
        cause = _CAUSES.get(-code, "whose sender is not known")
        if code == -signal.SIGKILL:
            cause = _killed(death.peak_memory, memory_limits(), pool.oom_kills)
        return f"was killed by {_signal_name(-code)}, {cause}"
    if starting and code == NO_ROOM:
        return (
            "could not start: its address space has no room for the loader's shared memory "
            "(ENOMEM). Raise the limit (ulimit -v), or lower num_workers or prefetch_factor"
        )
    if starting:
        return (
            f"could not start (exit code {code}): see its output above. Put what a script does "
            'under `if __name__ == "__main__":`, unless workers are forked [LL018]'
        )
    return (
        f"exited by itself with code {code}: something in the dataset, collate_fn or "
        "worker_init_fn calls os._exit(), or native code that they call does"
    )


def _killed(peak: int, limits: MemoryLimits, before: int | None = None) -> str:
    """Return who has sent SIGKILL, most likely, to a worker that had ``peak`` bytes at most.

    ``before``: processes of the cgroup that the OOM killer had ended before; None: not known.
    """
    own = f"the worker had {peak / 2**20:,.0f} MiB at most; " if peak else ""
    known = before is not None and (limits.oom_kills or 0) > before
    cause = "by another process (kill -9, a scheduler) or by the dataset itself; there was enough "
    cause, number = cause + "memory", "LL004"
    if known or not limits.ample(peak):
        cause = (
            f"{'' if known else 'most likely '}by the OOM killer: use fewer workers, a smaller "
            "prefetch_factor or smaller batches, or look for what grows in the dataset"
        )
        number = "LL001"
    return f"{cause} ({own}{limits.describe()}) [{number}]"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _doing(row: BoardRow, task: Task | None) -> str:
    """Say what a worker is doing; ``task``: the one in flight that its row names, or None."""
    if row.number < 0:
        return doing(row.stage, None)
    if task is None:
        return f"done with batch {position_of(row.number)}"
    indices = task.whose if isinstance(task.indices, ReaderPlace | None) else listed(task.indices)
    return doing_task(row, indices)


def doing_task(row: BoardRow, indices: Any) -> str:
    """Say what a worker is doing: ``fetching index 17 (sample 2 of batch 3, indices [...])``."""
    if isinstance(indices, ReaderPlace):  # where a reader is to begin
        indices = None
    batch = f"batch {position_of(row.number)}, {describe_indices(indices)}"
    known = isinstance(indices, list) and 0 <= row.position < len(indices)
    index = indices[row.position] if known else NOT_KNOWN
    return doing(row.stage, batch, row.position, index)
