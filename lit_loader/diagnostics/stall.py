"""`Stall`: no worker sends a batch for a long time, and the consumer waits: what each is at.

Looked at from half of ``stall_warning`` on, told at that and once more at ten times as much. Worker
threads likewise (`ThreadStall`). A program in which all goes well never loads this.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any, Final

from lit_loader.core.system.stack_dumps import shortened
from lit_loader.core.transport.messages import position_of, unpack_indices
from lit_loader.core.transport.status_board import BoardRow, Stage
from lit_loader.describe import program_stacklevel
from lit_loader.diagnostics import looks
from lit_loader.diagnostics.death_messages import doing_task
from lit_loader.diagnostics.sentences import doing, duration
from lit_loader.errors import StallWarning

_BUSY: Final = 0.05
"""Part of the time: a worker that got a processor for more of it computes, and does not sleep."""

_SHOWN: Final = 8
"""Workers that are shown one by one."""

_LINES: Final = 12
"""Lines of a worker's stacks."""

_SLOW: Final = "Use more workers or smaller batches, or make the samples cheaper."

_UNNAMED: Final = ("python", "python3", "pt_main_thread", Path(sys.executable).name[:15])
"""What threads are called that were given no name: torch's, OpenMP's."""

_STATES: Final = {
    "T": "it is stopped by a signal (SIGSTOP, Ctrl-Z): send it SIGCONT",
    "t": "a debugger holds it",
    "D": "it waits for a disk or the network and cannot be interrupted",
}


def stall_of(workers: Any) -> Stall | ThreadStall:
    """Begin to look at workers from which nothing comes: a `WorkerPool`, or a list of threads."""
    return ThreadStall(workers) if isinstance(workers, list) else Stall(workers)


class Stall:
    """A wait in which nothing has come so far, for half of the time that is told of."""

    def __init__(self, pool: Any) -> None:
        self._began = time.monotonic()
        self._used = {
            worker: use.cpu
            for worker, process in pool.workers.processes.items()
            if (use := _use(process.pid)) is not None
        }

    def tell(self, pool: Any, seconds: float) -> None:
        """Warn; ``seconds`` is how long nothing has come."""
        try:
            text = self._text(pool, seconds)
        except ValueError:  # the board's memory is given back
            if pool.closed:
                return
            raise
        warnings.warn(text, StallWarning, stacklevel=program_stacklevel())

    def _text(self, pool: Any, seconds: float) -> str:
        rows = pool.awaited_workers(every=True)
        slow = any(row.since / 1e9 > self._began for row in rows.values())
        lines = [self._line(pool, *each) for each in [*rows.items()][:_SHOWN]]
        advice = _advice(pool, rows, slow, looks.LOCK in "".join(lines))
        if len(rows) > _SHOWN:
            lines.append(f"… and {len(rows) - _SHOWN} more")
        remote = pool.workers.num_remote_workers  # whose rows are those before their relay's
        for number in range(min(remote, _SHOWN) if pool.workers.relay else 0):
            row = pool.workers.board.read(pool.workers.relay - remote + number)
            what = Stage.NAMES[row.stage]
            if row.stage == Stage.FETCHING:
                what = f"at batch {position_of(row.number)}"
            past = duration(time.monotonic() - row.since / 1e9)
            lines.append(f"Remote worker {number}: {what}{f', for {past}' if row.since else ''}")
        return _told(seconds, slow, lines, advice)

    def _line(self, pool: Any, worker: int, row: BoardRow) -> str:
        process = pool.workers.processes.get(worker)
        pid = 0 if process is None else process.pid
        packed = pool.packed_indices(row.number)
        what = doing(row.stage, None)
        if row.number >= 0:
            what = doing_task(row, unpack_indices(packed) if packed else None)
        who = f"Worker {worker} (pid {pid}): {what}"
        line = _at(who, row.since, pid, self._began, self._used.get(worker))
        try:
            fd = pool.workers.board.stacks_of(worker)
            stack = shortened(looks.ask(pid, fd)).splitlines()[:_LINES]
        except looks.NoStacks as none:
            stack = [f"  no stack: {none}"]
        return "\n".join([line, *stack])


class ThreadStall:
    """The same where worker threads give nothing; ``workers`` are the executor's."""

    def __init__(self, workers: list[Any]) -> None:
        self._began = time.monotonic()
        self._used = {
            each.number: use.cpu for each in workers if (use := _use(_task(each))) is not None
        }

    def tell(self, workers: list[Any], seconds: float) -> None:
        """Warn; ``seconds`` is how long nothing has come."""
        rows = [(each, each.row) for each in workers]
        slow = any(row.since / 1e9 > self._began for _, row in rows)
        lines = []
        busy = [(each, row) for each, row in rows if row.stage != Stage.IDLE]
        for each, row in (busy or rows)[:_SHOWN]:
            who = f"Worker thread {each.number}: {each.doing(row)}"
            used = self._used.get(each.number)
            lines += [_at(who, row.since, _task(each), self._began, used), each.stack()]
        advice = _SLOW if slow else "Look at the stacks: a thread cannot be ended or replaced."
        warnings.warn(
            _told(seconds, slow, lines, advice), StallWarning, stacklevel=program_stacklevel()
        )


def _task(worker: Any) -> str:
    return f"self/task/{worker.thread.native_id}"


def _told(seconds: float, slow: bool, lines: list[str], advice: str) -> str:
    how = "its workers are slow, and get on. [LL009]"
    if not slow:
        how = "its workers do not get on. [LL008]"
    return "\n".join(
        (
            f"lit_loader: no batch has come for {duration(seconds)}, and the program waits: {how}",
            *lines,
            f"{advice} (stall_warning=0 turns this warning off.)",
        )
    )


def _at(who: str, since: int, pid: int | str, began: float, before: float | None) -> str:
    """Say what one is at: since when, at what it sleeps, and what processor time it has had.

    ``before`` is what it had had at ``began``.
    """
    now, parts = time.monotonic(), [who]
    if since:
        parts.append(f"for {duration(now - since / 1e9)}")
    use = _use(pid)
    if use is None:
        parts.append("and the kernel says nothing of it")
        return ", ".join(parts)
    past, used = now - began, use.cpu - (use.cpu if before is None else before)
    computes = used > _BUSY * past
    if (at := looks.sleeps_at(pid)) and not computes:
        parts.append(f"sleeps at {at}")
    parts.append(f"got {used:.1f} s of processor time in the last {duration(past)}")
    if use.state in _STATES:
        parts.append(_STATES[use.state])
    return ", ".join(parts)


def _use(pid: int | str) -> looks.Use | None:
    try:
        return looks.use_of(pid)
    except (OSError, ValueError, IndexError):
        return None


def _advice(pool: Any, rows: dict[int, BoardRow], slow: bool, locked: bool) -> str:
    if slow:
        return _SLOW
    if not rows:
        return "Look at the machines of the remote workers."
    if all(row.stage == Stage.STARTING for row in rows.values()) and not pool.workers.forks:
        return "They still start: what they import, or unpickle, takes long."
    advice = "Look at the stacks."
    if pool.of_readers and any(pool.is_at_its_first(w) and pool.is_successor(w) for w in rows):
        advice += (
            " This comes after a worker was replaced: if readers of this dataset wait for each "
            "other where they begin (a barrier in __iter__), the new one waits there alone, and "
            "for ever; with timeout=… (seconds) the loop ends with its stack, and "
            "max_worker_restarts=0 raises at a worker's death [LL012]."
        )
    elif pool.workers.forks and locked and any(map(pool.is_at_its_first, rows)):
        native = Counter(looks.threads_of("self"))
        threads = native - Counter({name: native[name] for name in _UNNAMED})
        threads |= Counter(pool.workers.beside)
        names = ", ".join(f"{n} x {name}" if n > 1 else name for name, n in threads.items())
        advice += (
            " It is in the first batch of a worker, and workers were forked beside other threads"
            f"{names and f' ({names})'}: a lock that one of these held is held in the worker for "
            "ever. With "
            "timeout=… (seconds) lit_loader replaces such a worker, from the program as it is "
            "then; or set multiprocessing_context='forkserver' or 'spawn'."
        )
    else:
        advice += " With timeout=… (seconds) lit_loader replaces a worker that hangs."
    return advice
