"""`Watch`: looks at trainings again and again, at boards and ``/proc``."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Final

from lit_loader.core.transport.status_board import Stage
from lit_loader.top import processes
from lit_loader.top.board import OtherFormat, WorkerRow, read_board, read_index
from lit_loader.top.discovery import WHICH, Board, NotFound, find_boards, grouped, resolve
from lit_loader.top.snapshot import STAGES, Event, Frame, Loader, Rank, Training, Worker, findings
from lit_loader.top.stacks import NoStacks, ask, parse

__all__ = ["STALLED", "Watch"]

STALLED: Final = 5.0  # seconds at one sample, or stage, after which a worker is said to be stalled

_RANKS: Final = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "LOCAL_RANK")

_Answer = tuple[list[Frame] | None, str | None, float]
"""A worker's stacks; or why there are none; when they were asked for."""


class Watch:
    """Looks at one training, that of process ``pid``, or at all of this user's.

    The workers ``asked``, by their processes, are to show their stacks at the next look.
    """

    def __init__(self, pid: int | None = None) -> None:
        self._pid = pid
        self._trainers: list[processes.Process] = []
        self._last: dict[object, tuple[float, float]] = {}  # when, and processor time until then
        self._now: dict[object, tuple[float, float]] = {}
        self._answers: dict[int, _Answer] = {}
        self.asked: set[int | None] = set()

    def clear(self) -> None:
        """Forget the stacks that were asked for."""
        self._answers.clear()

    def look(self) -> list[Training]:
        """Look once; NotFound: there is nothing to be seen, or what there was has ended."""
        boards = find_boards()
        self._meet({board.owner for board in boards}, boards)
        before, self._trainers = self._trainers, [*filter(_is_running, self._trainers)]
        if not self._trainers:
            ended = ", ".join(str(process.pid) for process in before)
            raise NotFound(f"the training has ended (pid {ended})")
        self._last, self._now = self._now, {}
        groups = grouped(process.pid for process in self._trainers)
        return [found for group in groups for found in self._training(group, boards)]

    def _meet(self, owners: set[int], boards: list[Board]) -> None:
        """Take note of training processes that are to be looked at from now on."""
        known = {process.pid for process in self._trainers}
        if self._pid is not None:
            meant = known or {resolve(self._pid, boards)}
            groups = grouped(owners | known)
            owners = {pid for group in groups if meant.intersection(group) for pid in group}
        for pid in sorted(owners - known):
            with contextlib.suppress(OSError):
                self._trainers.append(processes.read_process(pid))
        if not self._trainers:
            user = processes.user_of(os.getpid())
            raise NotFound(f"no loader found: no process of {user} has a {WHICH}")

    def _training(self, pids: list[int], boards: list[Board]) -> list[Training]:
        ranks = []
        for pid in pids:
            with contextlib.suppress(OSError):
                ranks.append(self._rank(pid, [board for board in boards if board.owner == pid]))
        ranks.sort(key=lambda rank: (rank.rank or 0, rank.pid))
        with contextlib.suppress(OSError, IndexError):
            first = ranks[0].pid
            return [Training(first, processes.command_of(first), processes.user_of(first), ranks)]
        return []

    def _rank(self, pid: int, boards: list[Board]) -> Rank:
        rank = Rank(pid, cpu=self._cpu(pid), memory=processes.memory_of(pid))
        told = [board.view.page["loader"] for board in boards if board.view is not None]
        shared = [loader for loader in told if loader["ranks"] > 1]
        if shared:
            rank.rank, rank.ranks = shared[0]["rank"], shared[0]["ranks"]
        else:
            environment = processes.environment_of(pid)
            number = next((environment[name] for name in _RANKS if name in environment), "")
            rank.rank = int(number) if number.isdecimal() else None
        boards = sorted(boards, key=lambda each: each.view.page["began"] if each.view else 0)
        rank.loaders = [self._loader(board) for board in boards]
        return rank

    def _cpu(self, pid: int) -> float | None:
        """Processors that a process has used since the last look; None: there was none."""
        process, now = processes.read_process(pid), time.monotonic()
        then, before = self._last.get(process.key, (now, process.cpu))
        self._now[process.key] = now, process.cpu
        return max(0.0, process.cpu - before) / (now - then) if now > then else None

    def _loader(self, board: Board) -> Loader:
        view = board.view
        if view is None:
            return Loader(problem=board.problem)
        now = time.monotonic_ns()
        told = dict(view.page["loader"])
        del told["rank"], told["ranks"]
        events = [Event(*event) for event in told.pop("events", ())]
        loader = Loader(
            **told,
            events=events,
            age=max(0, now - view.page["written"]) / 1e9,
            state="waiting" if view.since > 0 else "computing" if view.since else "idle",
            state_seconds=(now - abs(view.since)) / 1e9 if view.since else None,
            epoch=view.epoch,
            batches=view.batches,
            ready=view.ready,
            num_workers=view.workers,
        )
        if loader.state == "waiting" and (loader.state_seconds or 0) >= 1:
            loader.batches_per_second, loader.wait_share = 0.0, 1.0  # the page is of before
        running = [_process_of(board, row) for row in view.rows]
        indices: list[int | None] = []
        after, iterated = [], False
        with contextlib.suppress(OSError, OtherFormat), board.opened() as fd:
            loader.shared_memory = os.fstat(fd).st_blocks * 512
            indices = [read_index(fd, row) for row in view.rows]
            # Once more, after all that: which indices are of the same task, and who is missed. For
            # workers end only when nothing iterates, or after they have written that they leave.
            now_seen = read_board(fd)
            after, iterated = now_seen.rows, bool(now_seen.since)
        for number, row in enumerate(view.rows):
            then = after[number] if number < len(after) else None
            if row.node is not None:
                loader.workers.append(_remote(number, row))
            elif row.pid or row.credit is not None or (number < view.workers and view.since):
                worker = self._worker(board, number, row, running[number])
                if row.stage in Stage.SAMPLES and row.position >= 0:
                    known = then is not None and row.at_same_task(then)
                    worker.sample, worker.index = row.position, indices[number] if known else None
                missed = iterated and then and then.pid == row.pid and then.stage != Stage.LEFT
                if worker.stage != "dead" or missed:
                    loader.workers.append(worker)
                loader.remote_in_flight += row.credit or 0
        remote = [worker for worker in loader.workers if worker.node is not None]
        loader.remote_workers = len(remote)
        loader.remote_batches = sum(worker.made for worker in remote)
        loader.nodes = sorted({worker.node for worker in remote if worker.node})
        loader.findings = findings(loader)
        return loader

    def _worker(
        self, board: Board, number: int, row: WorkerRow, process: processes.Process | None
    ) -> Worker:
        """A worker; "dead": its process is not there."""
        stage = STAGES[row.stage]
        pid = process.pid if process else board.pids.get(row.pid, row.pid)
        worker = Worker(number, pid or None, stage, batch=row.batch, made=row.made)
        since = max(row.since, row.started)
        worker.seconds = (time.monotonic_ns() - since) / 1e9 if since else None
        if process is None:
            worker.stage = "dead" if row.pid else stage
            return worker
        if process.pid == board.owner:
            worker.doing = "a thread of the training process"
            worker.stalled = stage not in ("idle", "leaving") and (worker.seconds or 0) >= STALLED
            if worker.stalled and pid in self.asked:
                worker.stack_problem = f"py-spy dump --pid {pid} shows the stacks of threads"
            return worker
        with contextlib.suppress(OSError):
            at_rest = stage == "idle" and process.state == "S"
            worker.doing = "waiting for a task" if at_rest else processes.DOING.get(process.state)
            worker.cpu, worker.memory = self._cpu(process.pid), processes.memory_of(process.pid)
        if row.credit is not None:
            worker.stage = "relay"
            worker.doing = f"remote workers can be at {row.credit} batches"
        elif stage not in ("idle", "leaving"):
            worker.stalled = (worker.seconds or 0) >= STALLED
        if pid in self.asked:
            self.asked.discard(pid)
            self._answers[process.pid] = _answer(process.pid, row)
        worker.stack, worker.stack_problem, worker.stack_time = self._answers.get(
            process.pid, (None, None, None)
        )
        return worker


def _process_of(board: Board, row: WorkerRow) -> processes.Process | None:
    """A worker's process; None: it has ended, or is a remote worker's."""
    pid = board.pids.get(row.pid)
    if row.pid and pid is None and row.pid in processes.descendants(board.owner):
        pid = row.pid  # it has been started since, or has not opened the file yet
    with contextlib.suppress(OSError):
        process = None if pid is None else processes.read_process(pid)
        return process if process and process.state not in "ZX" else None
    return None


def _remote(number: int, row: WorkerRow) -> Worker:
    stage = "remote" if row.stage in Stage.BUSY else "idle" if row.node else "starting"
    worker = Worker(number, None, stage, row.batch, made=row.made, node=row.node)
    worker.seconds = (time.monotonic_ns() - row.since) / 1e9 if row.since else None
    worker.doing = f"on node {row.node}" if row.node else "on no node yet, or lost"
    return worker


def _answer(pid: int, row: WorkerRow) -> _Answer:
    """Ask a worker for its stacks; returns them, or why there are none, and the time."""
    try:
        return parse(ask(pid, row.stacks - 1), pid), None, time.time()
    except NoStacks as problem:
        return None, str(problem), time.time()


def _is_running(process: processes.Process) -> bool:
    with contextlib.suppress(OSError):
        now = processes.read_process(process.pid)
        return now.key == process.key and now.state not in "ZX"
    return False
