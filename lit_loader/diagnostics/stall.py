"""`Stall`: no worker sends a batch for a long time, and the loop waits: what each worker does.

The pool asks at the seam `Seams.stall` at half of ``stall_warning``, so that CPU time can be
compared, and has it told at ``stall_warning`` and once more at ten times that. Worker threads have
a `ThreadStall`. A program in which all goes well never imports this.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from lit_loader.core.executors.worker_pool import WorkerPool
from lit_loader.core.system.stack_dumps import shortened
from lit_loader.core.transport.messages import listed, position_of
from lit_loader.core.transport.status_board import BoardRow, Stage
from lit_loader.describe import program_stacklevel
from lit_loader.diagnostics import looks
from lit_loader.diagnostics.death_messages import doing_task
from lit_loader.diagnostics.sentences import doing, duration
from lit_loader.errors import StallWarning

_BUSY: Final = 0.05
"""Part of the time: a worker that got more CPU time than this computes, and does not sleep."""

_SHOWN, _LINES = 8, 12  # workers that are shown, and lines of the stacks of each

_SLOW: Final = (
    "the workers are slow but make progress.",
    "Use more workers or smaller batches, or make the samples cheaper.",
)
_STARTING: Final = (
    "the workers are still starting.",
    "What they import, or unpickle, takes long.",
)
_STUCK: Final = "the workers are stuck [LL008]."

_UNNAMED: Final = ("python", "python3", "pt_main_thread", Path(sys.executable).name[:15])
"""What threads are called that were given no name: torch's, OpenMP's."""

_STATES: Final = {
    "T": "it is stopped by a signal (SIGSTOP, Ctrl-Z): send it SIGCONT",
    "t": "a debugger holds it",
    "D": "it waits for a disk or the network and cannot be interrupted",
}


def stall_of(workers: Any) -> Stall | ThreadStall:
    """Begin to watch workers that send nothing: a `WorkerPool`, or a list of threads."""
    return ThreadStall(workers) if isinstance(workers, list) else Stall(workers)


class Stall:
    """A wait for worker processes in which nothing has come so far."""

    def __init__(self, pool: WorkerPool) -> None:
        self._began = time.monotonic()
        processes = pool.workers.processes.items()
        self._used = {worker: _use(process.pid) for worker, process in processes}

    def tell(self, pool: WorkerPool, seconds: float) -> None:
        """Warn that nothing has come for ``seconds``."""
        try:
            rows = pool.awaited_workers(every=True)
            slow = _slow(rows.values(), self._began)
            lines = [self._line(pool, *each) for each in [*rows.items()][:_SHOWN]]
            if len(rows) > _SHOWN:
                lines.append(f"… and {len(rows) - _SHOWN} more")
            lines += _remote(pool)
        except ValueError:  # the board's memory is given back
            if pool.closed:
                return
            raise
        starting = bool(rows) and all(row.stage == Stage.STARTING for row in rows.values())
        if slow:
            _warn(seconds, lines, *_SLOW)
        elif starting and not pool.workers.forks:
            _warn(seconds, lines, *_STARTING)
        else:
            _warn(seconds, lines, _STUCK, _advice(pool, rows, lines))

    def _line(self, pool: WorkerPool, worker: int, row: BoardRow) -> str:
        process = pool.workers.processes.get(worker)
        pid = 0 if process is None else process.pid
        what = doing(row.stage, None)
        if row.number >= 0:
            task = pool.task(row.number)
            what = doing_task(row, None if task is None else listed(task.indices))
        line = _at(f"Worker {worker} (pid {pid}): {what}", row, pid, self._used.get(worker))
        try:
            stacks = looks.ask(pid, pool.workers.board.stacks_of(worker))
            return "\n".join([line, *shortened(stacks).splitlines()[:_LINES]])
        except looks.NoStacks as none:
            return f"{line}\n  no stack: {none}"


class ThreadStall:
    """The same where worker threads send nothing; ``workers`` are the executor's."""

    def __init__(self, workers: list[Any]) -> None:
        self._began = time.monotonic()
        self._used = {each.number: _use(_task(each)) for each in workers}

    def tell(self, workers: list[Any], seconds: float) -> None:
        """Warn that nothing has come for ``seconds``."""
        rows = [(each, each.row) for each in workers]
        slow = _slow((row for _, row in rows), self._began)
        lines = []
        busy = [(each, row) for each, row in rows if row.stage != Stage.IDLE]
        for each, row in (busy or rows)[:_SHOWN]:
            who = f"Worker thread {each.number}: {each.doing(row)}"
            lines += [_at(who, row, _task(each), self._used.get(each.number)), each.stack()]
        advice = "Look at the stacks: a thread cannot be ended or replaced."
        _warn(seconds, lines, *(_SLOW if slow else (_STUCK, advice)))


def _task(worker: Any) -> str:
    return f"self/task/{worker.thread.native_id}"


def _slow(rows: Iterable[BoardRow], began: float) -> bool:
    """Whether workers make progress: one has begun a sample or a stage since."""
    return any(row.since / 1e9 > began for row in rows)


def _warn(seconds: float, lines: list[str], how: str, advice: str) -> None:
    text = "\n".join(
        (
            f"lit_loader: no batch received for {duration(seconds)}: {how}",
            *lines,
            f"{advice} (stall_warning=0 turns this warning off.)",
        )
    )
    warnings.warn(text, StallWarning, stacklevel=program_stacklevel())


def _at(who: str, row: BoardRow, pid: int | str, before: tuple[float, looks.Use] | None) -> str:
    """Say since when a worker does what, where it sleeps, and what CPU time it has had.

    ``before``: what the kernel said of it when the wait began.
    """
    parts, now = [who], _use(pid)
    if row.since:
        parts.append(f"for {duration(time.monotonic() - row.since / 1e9)}")
    if now is None or before is None:
        return ", ".join(parts)
    past, used = now[0] - before[0], now[1].cpu - before[1].cpu
    if used <= _BUSY * past and (at := looks.sleeps_at(pid)):
        parts.append(f"sleeps at {at}")
    parts.append(f"got {used:.1f} s of CPU time in the last {duration(past)}")
    if now[1].state in _STATES:
        parts.append(_STATES[now[1].state])
    return ", ".join(parts)


def _use(pid: int | str) -> tuple[float, looks.Use] | None:
    try:
        return time.monotonic(), looks.use_of(pid)
    except (OSError, ValueError, IndexError):
        return None


def _remote(pool: WorkerPool) -> list[str]:
    """Say what remote workers do; their rows are before their relay's."""
    relay, remote = pool.workers.relay, pool.workers.num_remote_workers
    lines: list[str] = []
    if not relay:
        return lines
    for number in range(min(remote, _SHOWN)):
        row = pool.workers.board.read(relay - remote + number)
        what = Stage.NAMES[row.stage]
        if row.stage == Stage.FETCHING:
            what = f"at batch {position_of(row.number)}"
        past = duration(time.monotonic() - row.since / 1e9)
        lines.append(f"Remote worker {number}: {what}{f', for {past}' if row.since else ''}")
    return lines


def _advice(pool: WorkerPool, rows: dict[int, BoardRow], lines: list[str]) -> str:
    if not rows:
        return "Look at the machines of the remote workers."
    locked = pool.workers.forks and looks.LOCK in "".join(lines)
    if not locked or not any(map(pool.is_at_its_first, rows)):
        return "With timeout=… (seconds) lit_loader replaces a worker that hangs."
    threads = Counter(name for name in looks.threads_of("self") if name not in _UNNAMED)
    threads |= Counter(pool.workers.other_threads)  # when they were forked
    names = ", ".join(f"{n} x {name}" if n > 1 else name for name, n in threads.items())
    return (
        "It is a worker's first batch, and the workers were forked next to other threads"
        f"{names and f' ({names})'}: a lock that one of these held is held in "
        "the worker forever. With timeout=… (seconds) lit_loader replaces such a worker; or set "
        "multiprocessing_context='forkserver' or 'spawn'."
    )
