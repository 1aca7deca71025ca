"""`Healer`: replaces a worker that dies or hangs, or raises the error that says why not.

::

    pool.receive ─ WorkerDeath ───────────────▶ is there budget?
        │                                        │ yes: pool.replace, a notice; waiting goes on
        ╰── time is up ─▶ who hangs? ─ ended, ──▶│ no: WorkerDiedError or WorkerTimeoutError
                           with its stacks       │ its task has ended two in a row: that task is
                                                 ╰ given up, and the error is its batch's outcome

One object lives as long as an iterator, which is one epoch, and so does its budget. It is used by
the thread that receives; the notices are taken by the consumer, who gets them as warnings. Without
a timeout, a reader that may wait for others for ever is told of, and left to itself. The texts say
what happened, the likely cause, and what to do.
"""

from __future__ import annotations

import signal
import time
import warnings
from collections import Counter, deque
from collections.abc import Mapping
from typing import Any, Final

from lit_loader.core.executors.outcome import FewerWorkers, Outcome, WorkerDeath, doing_task
from lit_loader.core.executors.payload import NO_ROOM
from lit_loader.core.executors.starters import Notice
from lit_loader.core.executors.worker_pool import WorkerPool
from lit_loader.core.state.position import ReadPoint
from lit_loader.core.system.cgroups import MemoryLimits, memory_limits
from lit_loader.core.transport.messages import listed, position_of
from lit_loader.core.transport.status_board import BoardRow, Stage
from lit_loader.describe import program_stacklevel
from lit_loader.errors import (
    LoaderError,
    WorkerDiedError,
    WorkerRestartWarning,
    WorkerTimeoutError,
)

__all__ = ["Healer"]

_SUSPICIOUS: Final = 60.0
"""Seconds at one sample after which a reader is told of, where another one has been replaced."""

_SECOND_LOOK: Final = 0.5
"""Seconds between the two looks that must find a worker in the same place, before it is said to
hang."""

_SLICE: Final = 1.0
"""Seconds from one look to the next at most: where one comes late by as much, all processes were
stopped meanwhile (Ctrl-Z, a scheduler), and waiting is counted from then on."""

Fault = type[WorkerDiedError] | type[WorkerTimeoutError]
"""What has befallen a worker, as the error that is raised if it may not be replaced."""

_KILLS_IN_A_ROW: Final = 2

_AT_A_LOCK: Final = (
    "It had made no batch: it may wait for a lock that another thread held when it was forked"
)

_ADVICE: Final = {
    WorkerDiedError: "num_workers=0 shows errors in place.",
    # Without workers the training process itself would hang, and have no timeout.
    WorkerTimeoutError: "Fix what keeps it from going on, or raise timeout.",
}


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


class Healer:
    """Replaces workers that died or hang, within a budget of ``max_restarts``.

    One hangs after ``timeout`` seconds without progress; None: never. Where batches are those of
    readers (``iterable``), none can be passed over.
    """

    def __init__(self, max_restarts: int, timeout: float | None, iterable: bool) -> None:
        self._max_restarts, self._charged = max_restarts, 0
        self._kills: Counter[int] = Counter()  # workers that each task has ended
        self._moves: Counter[int] = Counter()  # of these, how many were replaced from elsewhere
        self._timeout = timeout
        # Seconds at one sample after which a worker is looked at, by :meth:`look`; or
        # None.
        self.limit = timeout
        self._suspect: tuple[int, BoardRow] | None = None  # where the last look found a worker
        self._due, self._resumed = float("inf"), 0.0  # the next look; the end of the last pause
        self._iterable = iterable
        # Readers may wait for one another where they begin; one that begins anew is alone there.
        self._may_meet = iterable and timeout is None
        self.assigned: Mapping[int, Any] = {}  # the tasks in flight, by number; for messages
        self.restarts = 0  # workers replaced so far
        self.notices: deque[Notice] = deque()  # texts for the consumer, of what was replaced

    def heal(self, pool: WorkerPool, death: WorkerDeath) -> Outcome | None:
        """Replace a worker that is gone; returns the outcome of its task if that is given up.

        A WorkerDiedError if it may not be, a LoaderError if it was the last of remote ones alone.
        """
        self._suspect = None  # it may have kept the others waiting
        if death.relay_exit is None:
            message = died(death, self.assigned, pool.oom_kills)
            outcome = self._see_to(pool, death, WorkerDiedError, message)
            self._have_fewer(pool, death)
            return outcome
        if death.relay_exit.final:  # with a budget of its own, see `remote/`
            raise LoaderError(death.relay_exit.message) from None
        self._replace(pool, death.worker, death.relay_exit.message)
        return None

    def look(self, pool: WorkerPool, began: float) -> Outcome | None:
        """Replace a worker that hangs, if there is one; a WorkerTimeoutError if it may not be.

        As :meth:`heal`; ``began`` is ``time.monotonic()`` when the wait began.
        """
        if not (hanging := self._hanging(pool, began)):
            now, began = self._now(began)
            if self._timeout and now - began >= self._timeout:
                pool.workers.end_stopped_relay()
            return None
        worker, seconds = hanging
        if self._timeout is None:
            self.limit, self._may_meet = None, False
            level = program_stacklevel()
            warnings.warn(alone(worker, seconds), WorkerRestartWarning, stacklevel=level)
            return None
        workers, first = pool.workers, pool.is_at_its_first(worker)
        origin = workers.processes[worker].origin
        ended = workers.end(worker)
        message = hung(ended, seconds, self._timeout, self.assigned)
        if first and self._replaces_from_elsewhere(pool, ended, origin, message):
            return None
        if first and workers.forks:
            message += f"\n{_AT_A_LOCK}: set multiprocessing_context='forkserver' or 'spawn'."
        return self._see_to(pool, ended, WorkerTimeoutError, message)

    def _have_fewer(self, pool: WorkerPool, death: WorkerDeath) -> None:
        """Go on with a worker less if the kernel has ended one for want of memory, and for sure.

        Else the next one would come to the same end, in each epoch.
        """
        if death.exitcode != -signal.SIGKILL or pool.oom_kills is None:
            return
        kills = memory_limits().oom_kills or 0
        if kills > pool.oom_kills and pool.is_any_worker_s and pool.num_workers > 1:
            fewer = pool.num_workers - 1
            text = f"num_workers goes from {pool.num_workers} to {fewer}, "
            text += "so that there is memory for the others [LL050]"
            self.notices.append(FewerWorkers.of(text, fewer))
            pool.resize(fewer)
        pool.oom_kills = kills

    # --- the budget ---

    def _see_to(
        self, pool: WorkerPool, death: WorkerDeath, fault: Fault, message: str
    ) -> Outcome | None:
        """Replace a worker if it may be; returns the outcome of its task if that is given up."""
        number, stage = death.row.number, death.row.stage
        # Not one whose result it had sent already; nor one of an epoch that is over.
        if stage in Stage.BUSY and pool.is_pending(number):
            self._kills[number] += 1
            if self._kills[number] >= _KILLS_IN_A_ROW and self._max_restarts:
                error = fault(
                    f"{message}\nBatch {position_of(number)} has ended {_KILLS_IN_A_ROW} workers "
                    f"in a row and is not tried again. {_ADVICE[fault]} [LL014]"
                )
                if self._iterable:
                    raise error from None
                self.restarts += 1
                pool.replace(death.worker, skip_task=number)
                return Outcome(number, error=error)
        self._charged += 1
        if stage == Stage.STARTING and (death.exitcode or 0) > 0:
            raise fault(message) from None  # it would be the same again
        budget = f"max_worker_restarts={self._max_restarts}"
        if self._charged > self._max_restarts:
            spent = f"{budget} for this epoch is used up [LL013]. " if self._max_restarts else ""
            raise fault(f"{message}\n{spent}{_ADVICE[fault]}") from None
        notice = (
            f"{message}\nIt has been replaced and nothing is lost (restart {self._charged} of at "
            f"most {budget} in this epoch)."
        )
        if (starter := pool.workers.starter) is not None and starter.late:
            notice += (
                " The new worker is a fork of this program as it is now: what you have changed"
            )
            notice += " in the dataset since the epoch began is in its batches."
        self._replace(pool, death.worker, notice)
        return None

    def _replaces_from_elsewhere(
        self, pool: WorkerPool, death: WorkerDeath, origin: int, message: str
    ) -> bool:
        """Replace a worker that hung in its first batch by one of another origin, if there is one.

        The fork may have copied a lock that was held: then all workers of that origin hang. That
        costs the budget one restart.
        """
        workers, number = pool.workers, death.row.number
        if self._kills[number] > self._moves[number]:
            return False  # the batch has ended a worker that had made others
        if origin == workers.origin:
            if self._charged >= self._max_restarts or not workers.change_origin():
                return False
            self._charged += 1
        self._kills[number] += 1
        self._moves[number] += 1
        notice = (
            f"{message}\n{_AT_A_LOCK}. It has been replaced by a worker from {workers.source}, and "
            f"nothing is lost (restart {self._charged} of at most max_worker_restarts="
            f"{self._max_restarts} in this epoch). [LL011]"
        )
        self._replace(pool, death.worker, notice)
        return True

    def _replace(self, pool: WorkerPool, worker: int, notice: str) -> None:
        self.restarts += 1
        self.notices.append(notice)
        if self._may_meet:
            self.limit = _SUSPICIOUS
        pool.replace(worker)

    # --- who hangs ---

    def patience(self, pool: WorkerPool, began: float) -> float | None:
        """Seconds until the next look; None: there is none."""
        limit = self.limit
        if limit is None:
            return None
        now, began = self._now(began)
        if self._suspect is not None:
            seconds = min(_SECOND_LOOK, limit)
        elif now - began < limit:  # without looking at the board: none can hang for longer
            seconds = limit - (now - began)
        else:
            idle = [_idle(row, began) for row in pool.awaited_workers().values()]
            seconds = max(0.0, limit - max(idle, default=0.0))
        seconds = min(seconds, _SLICE)
        self._due = now + seconds
        return seconds

    def _hanging(self, pool: WorkerPool, began: float) -> tuple[int, float] | None:
        """Look for a worker that hangs; returns it, and for how many seconds it has."""
        limit = self.limit
        assert limit is not None
        now, began = self._now(began)
        awaited, suspect = pool.awaited_workers(), self._suspect
        if suspect is not None:
            worker, row = suspect
            self._suspect = None
            if awaited.get(worker) == row:
                return worker, now - (row.since / 1e9 if row.since else began)
        # One that waits for tasks is only to blame if those that have one get on.
        for worker, row in sorted(awaited.items(), key=lambda item: item[1].since):
            if _idle(row, began) >= limit:
                self._suspect = worker, row
                break
        return None

    def _now(self, began: float) -> tuple[float, float]:
        """The time, and that from which on waiting is counted."""
        now = time.monotonic()
        if now > self._due + _SLICE:
            self._resumed, self._suspect = now, None
        return now, max(began, self._resumed)


def _idle(row: BoardRow, began: float) -> float:
    """Seconds that a worker has been at one sample while it was waited for."""
    return time.monotonic() - max(began, row.since / 1e9)


# --- texts ---


def died(death: WorkerDeath, assigned: Mapping[int, Any], oom_kills: int | None = None) -> str:
    """Say how a worker came to its end; ``oom_kills``: of the kernel's, how many came before."""
    who = f"Worker {death.worker} (pid {death.pid})"
    doing = _doing(death.row, assigned)
    if death.exitcode is None:
        how = (
            "is gone, and its exit code is not known: the process that started it is gone, too, or "
            "SIGCHLD is ignored here, or other code has waited for it (os.waitpid(-1) in a handler "
            "or a thread) [LL039]"
        )
    elif death.exitcode < 0:
        name = _signal_name(-death.exitcode)
        if -death.exitcode == signal.SIGKILL:
            cause = _killed(death.peak_memory, memory_limits(), oom_kills)
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
    return f"{who} {how}. It was {doing}.{stack}"


def _killed(peak: int, limits: MemoryLimits, before: int | None = None) -> str:
    """Say who has sent SIGKILL, most likely, to a worker with so much memory at most.

    ``before``: OOM kills that the cgroup had had before.
    """
    own = f"the worker had {peak / 2**20:,.0f} MiB at most; " if peak else ""
    known = before is not None and (limits.oom_kills or 0) > before
    cause = "by another process or a person (kill -9, a scheduler): memory was not short [LL004]"
    if known or not limits.ample(peak):
        cause = (
            f"{'' if known else 'most likely '}by the kernel for want of memory: use fewer "
            "workers, a smaller prefetch_factor or smaller batches, or look for what grows in the "
            "dataset [LL001]"
        )
    return f"{cause} ({own}{limits.describe()})"


def hung(death: WorkerDeath, seconds: float, timeout: float, assigned: Mapping[int, Any]) -> str:
    """Say where a worker hung, for how many seconds; it has been ended."""
    stack = (
        f"Its stacks:\n{death.stack}"
        if death.stack
        else "It did not write its stacks: it was stopped, or in a system call that cannot be "
        "interrupted"
    )
    return (
        f"Worker {death.worker} (pid {death.pid}) did not get on within "
        f"timeout={timeout:g} s: it was {_doing(death.row, assigned)}, for {seconds:.1f} s, and "
        f"has been ended; raise timeout if that may take so long. [LL010] {stack}"
    )


def alone(worker: int, seconds: float) -> str:
    """Say that a reader does not get on, after one was replaced, and perhaps waits for others."""
    return (
        f"lit_loader: Worker {worker} has been at one sample for {seconds:.0f} s, after a worker "
        "was replaced: if readers of this dataset wait for each other where they begin (a barrier "
        "in __iter__), the new one waits there alone, and for ever; with timeout=... in seconds "
        "the loop ends with its stack, and max_worker_restarts=0 raises at a worker's death [LL012]"
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _doing(row: BoardRow, assigned: Mapping[int, Any]) -> str:
    """Say what a worker is at, of the tasks that are in flight."""
    from lit_loader.sentences import doing  # where something has gone wrong

    if row.number < 0:
        return doing(row.stage, None)
    task = assigned.get(row.number)  # another thread may take it away just now
    if task is None:
        return f"done with batch {position_of(row.number)}"
    indices = task.whose if isinstance(task.indices, ReadPoint | None) else listed(task.indices)
    return doing_task(row, indices)
