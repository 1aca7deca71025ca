"""`Viewer`: finds the loaders of running trainings, and returns what they do as plain data.

::

    /proc/*/fd ─▶ loaders' files, and who has them open ─▶ boards ─▶ loaders, workers ─▶ picture
    /proc/PID  ─▶ CPU time, memory, what a worker sleeps at ──────────╯                  or JSON

A loader's file is open in the training process and in all of its workers; the page in it names the
training process. Files are opened for reading and closed at once: the training is not touched.
Only :attr:`Viewer.asked` acts: those workers are sent a signal, whose handler writes their stacks.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any, Final

from lit_loader.core.system import linux
from lit_loader.core.system.stack_dumps import shortened
from lit_loader.core.transport.status_board import Stage
from lit_loader.diagnostics import looks
from lit_loader.top.board import WorkerRow, read_board, read_index

__all__ = ["NotFound", "Viewer"]

STALLED = 5.0  # seconds at one sample, or stage, after which a worker is said to be stalled

_FILE: Final = "/memfd:lit_loader (deleted)"
"""What ``/proc`` shows a loader's shared file as."""

_STAGES: Final = ("starting", "worker_init_fn", "idle", "fetch", "collate", "encode", "leaving")
_NONE: Final = (
    "no lit_loader DataLoader of this version has workers at this moment (one is seen from its "
    "start on; where the training process makes the batches itself, use py-spy dump --pid)"
)

Loader = dict[str, Any]
Worker = dict[str, Any]


class NotFound(Exception):
    """There is nothing to show; says why."""


class Viewer:
    """Looks at the loaders of process ``pid``, or of those below it; None: of all of this user's.

    ``asked``: the workers that are to show their stacks at the next look, by their processes.
    """

    def __init__(self, pid: int | None = None) -> None:
        self._pid = pid
        self._cpu: dict[tuple[int, str], tuple[float, float]] = {}
        self.stacks: dict[int, str] = {}
        self.asked: set[int] = set()

    def look(self) -> list[Loader]:
        """Return a dict for each loader; NotFound: there is none."""
        found = [each for key, at in _files().items() if (each := self._loader(key, at))]
        if self._pid is not None:
            found = [each for each in found if self._pid in _processes(each)]
        if not found:
            raise NotFound(_NONE if self._pid is None else f"process {self._pid}: {_NONE}")
        return sorted(found, key=lambda each: (each["rank"] or 0, each["pid"]))

    def _loader(self, key: tuple[int, int], paths: dict[int, str]) -> Loader | None:
        """Return what a loader's file says; ``paths``: who has it open, and where."""
        for path in paths.values():
            with contextlib.suppress(OSError), open(path, "rb", buffering=0) as file:
                if _key(file.fileno()) == key:  # else another file is there by now
                    return self._read(file.fileno(), [*paths])
        return None

    def _read(self, fd: int, pids: list[int]) -> Loader | None:
        view, now = read_board(fd), time.monotonic_ns()
        if view is None:
            return None  # of another version
        indices = [read_index(fd, row) for row in view.rows]
        uses = [_use(row.pid) for row in view.rows]
        # Read again after all that: which indices are of the same task, and who is missed. Workers
        # end only when nothing iterates, or after they have written that they leave.
        after = read_board(fd)
        if after is None or view.page["pid"] not in pids:
            return None  # it has ended, and its workers are about to
        page = view.page
        seconds = (now - abs(view.since)) / 1e9 if view.since else None
        state = "waiting" if view.since > 0 else "computing" if view.since else "idle"
        found = {**page["loader"], "pid": page["pid"], "epoch": view.epoch}
        found["command"] = _text(page["pid"], "cmdline")
        found |= {"state": state, "state_seconds": seconds, "ready": view.ready}
        found |= {"batches": view.batches, "num_workers": view.workers, "workers": []}
        if state == "waiting" and (seconds or 0) >= 1:
            found |= {"batches_per_second": 0.0, "wait_share": 1.0}  # the page is of before
        for number, row in enumerate(view.rows):
            then = after.rows[number] if number < len(after.rows) else row
            index = indices[number] if row.at_same_task(then) else None
            if row.pid or row.is_remote or (number < view.workers and view.since):
                use = None if row.pid == page["pid"] else uses[number]  # of a thread it says little
                worker = self._worker(number, row, index, use)
                gone = row.pid and uses[number] is None and then.stage != Stage.LEFT
                if gone and after.since and then.pid == row.pid:
                    worker |= {"stage": "dead", "stalled": False}
                found["workers"].append(worker)
        return found

    def _worker(
        self, number: int, row: WorkerRow, index: int | None, use: looks.Use | None
    ) -> Worker:
        """Return what a worker's row says, and the kernel of its process; None: it has none."""
        since = max(row.since, row.started)
        seconds = (time.monotonic_ns() - since) / 1e9 if since else None
        sample = row.position if row.stage in Stage.SAMPLES and row.position >= 0 else None
        stage = "relay" if row.is_relay else _STAGES[row.stage]
        busy = not row.is_remote and stage not in ("idle", "leaving", "relay")
        found: Worker = {"worker": number, "pid": row.pid or None, "stage": stage, "made": row.made}
        found |= {"batch": row.batch, "sample": sample, "index": index, "seconds": seconds}
        found |= {"stalled": busy and (seconds or 0) >= STALLED, "remote": row.is_remote}
        found |= {"cpu": None, "memory": None, "at": ""}
        if use is not None:
            cpu, memory = self._cpu_of(row.pid, use), _memory(row.pid)
            found |= {"cpu": cpu, "memory": memory, "at": looks.sleeps_at(row.pid)}
        if row.pid in self.asked:
            self.asked.discard(row.pid)
            self.stacks[row.pid] = _stacks(row)
        return {**found, "stack": self.stacks.get(row.pid)}

    def _cpu_of(self, pid: int, use: looks.Use) -> float | None:
        """CPU cores that a process has used since the last look; None: there was none."""
        key, now = (pid, use.started), time.monotonic()
        then, before = self._cpu.get(key, (now, use.cpu))
        self._cpu[key] = now, use.cpu
        return max(0.0, use.cpu - before) / (now - then) if now > then else None


def _files() -> dict[tuple[int, int], dict[int, str]]:
    """Return, for each loader's file, who has it open: process and path."""
    found: dict[tuple[int, int], dict[int, str]] = {}
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            for fd in os.listdir(f"/proc/{pid}/fd"):
                path = f"/proc/{pid}/fd/{fd}"
                with contextlib.suppress(OSError):
                    if os.readlink(path) == _FILE:
                        found.setdefault(_key(path), {}).setdefault(int(pid), path)
    return found


def _key(file: str | int) -> tuple[int, int]:
    status = os.stat(file)
    return status.st_dev, status.st_ino


def _processes(loader: Loader) -> set[int]:
    """The training process, its workers, and all above it: a number may mean any of them."""
    found = {worker["pid"] for worker in loader["workers"]}
    pid = loader["pid"]
    with contextlib.suppress(OSError):
        while pid > 1:
            found.add(pid)
            pid = int(linux.stat_fields(pid)[1])
    return found


def _use(pid: int) -> looks.Use | None:
    with contextlib.suppress(OSError):
        use = looks.use_of(pid)
        return use if use.state not in "ZX" else None
    return None


def _text(pid: int, name: str) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace").replace("\0", " ").strip()
    return ""


def _memory(pid: int) -> int | None:
    """Bytes of a process's own memory that are resident: neither files nor shared memory."""
    own = _text(pid, "status").partition("\nRssAnon:")[2].split()
    return int(own[0]) << 10 if own else None


def _stacks(row: WorkerRow) -> str:
    try:
        return shortened(looks.ask(row.pid, row.stacks - 1))
    except looks.NoStacks as none:
        return f"no stack: {none}"
