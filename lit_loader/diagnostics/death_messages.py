"""What is said of a worker that died or hung: what it was at, why, most likely, and what to do.

Asked by the `Healer`, which replaces it, at the seam `Seams.explain`; a run in which all goes well
does not load this.
"""

from __future__ import annotations

import signal
from typing import Any

from lit_loader.core.executors.outcome import FewerWorkers, WorkerDeath
from lit_loader.core.executors.payload import NO_ROOM
from lit_loader.core.state.position import ReaderPlace
from lit_loader.core.transport.messages import listed, position_of
from lit_loader.core.transport.status_board import BoardRow, Stage
from lit_loader.core.transport.worker_exception import describe_indices
from lit_loader.data.memory import MemoryLimits, memory_limits
from lit_loader.diagnostics.sentences import NOT_KNOWN, doing

_CAUSES: dict[int, str] = {
    signal.SIGSEGV: (
        "by a crash in native code that the dataset or collate_fn calls: update or leave out that "
        "library, or set multiprocessing_context='spawn' if it uses threads [LL002]"
    ),
    signal.SIGBUS: (
        "by memory that could not be had: look for a full disk, or a memory-mapped file that was "
        "truncated [LL003]"
    ),
    signal.SIGABRT: (
        "by native code that gave up (an assertion, a corrupted heap): see its output above [LL040]"
    ),
}


def explain(
    pool: Any, death: WorkerDeath, task: Any, waited: tuple[float, float] | None = None
) -> str:
    """Say how a worker came to its end, as `Seams.explain` has it."""
    return _died(pool, death, task) if waited is None else _hung(death, task, *waited)


def fewer_workers(pool: Any, death: WorkerDeath) -> FewerWorkers | None:
    """Have a worker less if the kernel has ended one for want of memory, and for sure.

    Else the next one would come to the same end, in each epoch.
    """
    before = _kills_before(pool)
    if death.exitcode != -signal.SIGKILL or before is None:
        return None
    pool.growth.oom_kills = kills = memory_limits().oom_kills or 0
    if kills <= before or not pool.is_any_worker_s or pool.num_workers < 2:
        return None
    fewer = pool.num_workers - 1
    text = f"num_workers goes from {pool.num_workers} to {fewer}, "
    return FewerWorkers(text + "so that there is memory for the others [LL050]", fewer)


def _kills_before(pool: Any) -> int | None:
    """OOM kills that the control group had had before; None: not known."""
    return None if pool.growth is None else pool.growth.oom_kills


def _died(pool: Any, death: WorkerDeath, task: Any) -> str:
    who = f"Worker {death.worker} (pid {death.pid})"
    if death.exitcode is None:
        how = (
            "is gone, and its exit code is not known: the process that started it is gone, too, or "
            "SIGCHLD is ignored here, or other code has waited for it (os.waitpid(-1) in a handler "
            "or a thread) [LL039]"
        )
    elif death.exitcode < 0:
        name = _signal_name(-death.exitcode)
        if -death.exitcode == signal.SIGKILL:
            cause = _killed(death.peak_memory, memory_limits(), _kills_before(pool))
        else:
            cause = _CAUSES.get(-death.exitcode, "whose sender is not known [LL041]")
        how = f"was killed by {name}, {cause}"
    elif death.row.stage == Stage.STARTING and death.exitcode == NO_ROOM:
        how = (
            "could not start: there is no room in its address space for the loader's shared memory "
            "(ENOMEM): raise the limit (ulimit -v), or lower num_workers or prefetch_factor [LL007]"
        )
    elif death.row.stage == Stage.STARTING:
        how = (
            f"could not start (exit code {death.exitcode}): see its output above; put what a "
            'script does under `if __name__ == "__main__":`, unless workers are forked [LL006]'
        )
    else:
        how = (
            f"exited by itself with code {death.exitcode}: something in the dataset, collate_fn or "
            "worker_init_fn calls os._exit(), or native code that they call does [LL005]"
        )
    stack = f"\nIts stacks:\n{death.stack}" if death.stack else ""
    return f"{who} {how}. It was {_doing(death.row, task)}.{stack}"


def _killed(peak: int, limits: MemoryLimits, before: int | None = None) -> str:
    """Say who has sent SIGKILL, most likely, to a worker with so much memory at most.

    ``before``: OOM kills that the cgroup had had before.
    """
    own = f"the worker had {peak / 2**20:,.0f} MiB at most; " if peak else ""
    known = before is not None and (limits.oom_kills or 0) > before
    cause = "by another process (kill -9, a scheduler) or by the dataset itself: memory was "
    cause += "not short [LL004]"
    if known or not limits.ample(peak):
        cause = (
            f"{'' if known else 'most likely '}by the kernel for want of memory: use fewer "
            "workers, a smaller prefetch_factor or smaller batches, or look for what grows in the "
            "dataset [LL001]"
        )
    return f"{cause} ({own}{limits.describe()})"


def _hung(death: WorkerDeath, task: Any, seconds: float, timeout: float) -> str:
    stack = (
        f"Its stacks:\n{death.stack}"
        if death.stack
        else "It did not write its stacks: it was stopped, or in a system call that cannot be "
        "interrupted"
    )
    return (
        f"Worker {death.worker} (pid {death.pid}) did not get on within "
        f"timeout={timeout:g} s: it was {_doing(death.row, task)}, for {seconds:.1f} s, and "
        f"has been ended; raise timeout if that may take so long. [LL010] {stack}"
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _doing(row: BoardRow, task: Any) -> str:
    """Say what a worker is at; ``task``: the one in flight that its row names, or None."""
    if row.number < 0:
        return doing(row.stage, None)
    if task is None:
        return f"done with batch {position_of(row.number)}"
    indices = task.whose if isinstance(task.indices, ReaderPlace | None) else listed(task.indices)
    return doing_task(row, indices)


def doing_task(row: BoardRow, indices: Any) -> str:
    """Say what a worker is at: ``fetching index 17 (sample 2 of batch 3, indices [...])``."""
    if isinstance(indices, ReaderPlace):  # where a reader is to begin
        indices = None
    batch = f"batch {position_of(row.number)}, {describe_indices(indices)}"
    known = isinstance(indices, list) and 0 <= row.position < len(indices)
    index = indices[row.position] if known else NOT_KNOWN
    return doing(row.stage, batch, row.position, index)
