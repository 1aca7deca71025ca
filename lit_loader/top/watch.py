"""`Watch`: looks at trainings again and again, and computes rates from what has changed.

::

    boards, /proc ─▶ look ─▶ Training ▸ Rank ▸ Loader ▸ Worker (top/snapshot.py)
                      ▲ │
                      ╰─┴ the numbers of the last look
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable
from typing import Final

from lit_loader.top import processes
from lit_loader.top.discovery import (
    NO_LOADER,
    Board,
    NotFound,
    find_boards,
    grouped,
    resolve,
)
from lit_loader.top.findings import findings
from lit_loader.top.snapshot import Event, Frame, Loader, Rank, Training, Worker
from lit_loader.top.stacks import NoStacks, ask, parse
from lit_loader.transport.board_view import BoardView, WorkerRow, read_board, read_index
from lit_loader.transport.loader_page import RESTART
from lit_loader.transport.status_board import Stage

__all__ = ["STALLED", "Watch"]

STALLED: Final = 5.0
"""Seconds at one sample, or stage, after which a worker is said to be stalled."""

_AGAIN: Final = 10
"""Looks after which ranks are looked for that have come later."""

_STAGES: Final = {
    Stage.STARTING: "starting",
    Stage.INITIALISING: "worker_init_fn",
    Stage.IDLE: "idle",
    Stage.FETCHING: "fetch",
    Stage.COLLATING: "collate",
    Stage.ENCODING: "encode",
    Stage.LEFT: "leaving",
}
_DOING: Final = {
    "R": "computing",
    "S": "asleep",
    "D": "waiting for a disk or the network, not to be interrupted",
    "T": "stopped by a signal",
    "t": "stopped by a debugger",
}
_WAITS: Final = {
    "futex": "waiting for a lock, or another thread",
    "pipe": "waiting for a pipe",
    "nanosleep": "sleeping",
    "nfs": "waiting for a network file system",
    "rpc": "waiting for a network file system",
    "sk_": "waiting for the network",
    "tcp": "waiting for the network",
    "inet": "waiting for the network",
    "poll": "waiting for a file, a pipe or the network",
    "wait4": "waiting for a process",
}
"""What functions of the kernel that a process waits in mean, by a part of their name."""

NO_STACKS: Final = (
    "the training process makes these batches itself, and is sent no signal: py-spy dump --pid "
    "{pid} shows where it is"
)

_Answer = tuple[list[Frame] | None, str | None, float]
"""A worker's stacks; or why there are none; when they were asked for."""

_RANKS: Final = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "LOCAL_RANK")


class Watch:
    """Looks at one training, or at all of this user's.

    Args:
        pid: A process of the training; None: all.

    Attributes:
        asked: The workers that are to show their stacks at the next look, by their processes.
        every: Whether at each look all are asked that are stalled.
    """

    def __init__(self, pid: int | None = None) -> None:
        self._pid = pid
        self._trainers: list[processes.Process] = []
        self._looks = 0
        self._last: dict[object, tuple[float, float, float]] = {}
        self._now: dict[object, tuple[float, float, float]] = {}
        self._answers: dict[int, _Answer] = {}
        self.asked: set[int] = set()
        self.every = False

    def clear(self) -> None:
        """Forget the stacks that were asked for."""
        self._answers.clear()

    def look(self) -> list[Training]:
        """Look once.

        Raises:
            NotFound: There is nothing to be seen; or what there was has ended.
        """
        boards = find_boards(self._near())
        self._looks += 1
        self._meet({board.owner for board in boards}, boards)
        trainers = [
            process for process in self._trainers if _is_running(process.pid, process.started)
        ]
        if not trainers:
            ended = ", ".join(str(process.pid) for process in self._trainers)
            raise NotFound(f"the training has ended (pid {ended})")
        self._trainers = trainers
        self._now = {}
        trainings = [
            self._training(group, boards) for group in grouped(process.pid for process in trainers)
        ]
        self._last = self._now
        return [training for training in trainings if training is not None]

    def _near(self) -> Iterable[int]:
        """The processes that are looked through: all, then mostly those of the training alone."""
        if self._pid is None or not self._looks % _AGAIN:
            return processes.own_pids()
        near = {process.pid for process in self._trainers}
        return near.union(*(processes.descendants(pid) for pid in near))

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
            raise NotFound(NO_LOADER.format(user=processes.user_of(os.getpid())))

    def _training(self, pids: list[int], boards: list[Board]) -> Training | None:
        ranks = []
        for pid in pids:
            with contextlib.suppress(OSError):
                ranks.append(self._rank(pid, [board for board in boards if board.owner == pid]))
        if not ranks:
            return None
        ranks.sort(key=lambda rank: (rank.rank or 0, rank.pid))
        try:
            first = ranks[0].pid
            return Training(first, processes.command_of(first), processes.user_of(first), ranks)
        except OSError:
            return None

    def _rank(self, pid: int, boards: list[Board]) -> Rank:
        views = [board.view for board in boards if board.view is not None]
        shared = [view for view in views if view.replicas > 1]
        rank = Rank(pid, cpu=self._cpu(pid), memory=processes.memory_of(pid))
        if shared:
            rank.rank, rank.ranks = shared[0].rank, shared[0].replicas
        else:
            environment = processes.environment_of(pid)
            number = next((environment[name] for name in _RANKS if name in environment), "")
            rank.rank = int(number) if number.isdecimal() else None
        boards = sorted(boards, key=lambda board: 0 if board.view is None else board.view.began)
        rank.loaders = [self._loader(board) for board in boards]
        return rank

    def _cpu(self, pid: int) -> float | None:
        process = processes.read_process(pid)
        return self._rate((pid, process.started), process.cpu)[0]

    def _rate(
        self, key: object, count: float, other: float = 0.0
    ) -> tuple[float, float] | tuple[None, None]:
        """How much a second two numbers have grown since the last look; None: there was none."""
        now = time.monotonic()
        self._now[key] = now, count, other
        if key not in self._last:
            return None, None
        then, before, other_before = self._last[key]
        seconds = max(now - then, 1e-6)
        return max(0.0, count - before) / seconds, max(0.0, other - other_before) / seconds

    def _loader(self, board: Board) -> Loader:
        view = board.view
        if view is None:
            return Loader(problem=board.problem)
        now = time.monotonic_ns()
        waits = (now - view.consumer) / 1e9 if view.consumer > 0 else 0.0
        rate, share = self._rate(board.key, view.given, view.waited / 1e9 + waits)
        loader = Loader(
            role=view.role,
            dataset=view.dataset,
            state="waiting" if view.consumer > 0 else "computing" if view.consumer else "idle",
            state_seconds=(now - abs(view.consumer)) / 1e9 if view.consumer else None,
            epoch=view.epoch,
            batches=view.given - view.base,
            length=None if view.length < 0 else view.length,
            batch_size=view.batch_size or None,
            batches_per_second=rate,
            wait_share=None if share is None else min(1.0, share),
            ready=view.ready,
            ahead=view.depth,
            num_workers=view.workers,
            restarts=view.restarts,
            bad_samples=view.bad,
            events=[
                Event(event.time, "restart" if event.kind == RESTART else "bad sample", event.text)
                for event in view.events
            ],
        )
        with contextlib.suppress(OSError):
            loader.shared_memory = os.stat(board.path).st_blocks * 512
        indices = _indices(board, view)
        for number, row in enumerate(view.rows):
            if row.pid == view.pid:
                loader.workers.append(self._itself(board.owner, view.consumer, row, loader))
            elif row.node is not None:
                loader.workers.append(_remote(number, row))
            elif row.credit is not None:
                relay = self._worker(board, number, row, None)
                if relay is not None:
                    relay.stage = "dead" if relay.stage == "dead" else "relay"
                    relay.doing = f"remote workers can be at {row.credit} batches"
                    loader.workers.append(relay)
                    loader.remote_in_flight = row.credit
            elif row.pid or (number < view.workers and view.consumer):
                worker = self._worker(board, number, row, indices.get(number))
                loader.workers += [] if worker is None else [worker]
        remote = [worker for worker in loader.workers if worker.node is not None]
        loader.remote_workers = len(remote)
        loader.remote_batches = sum(worker.made for worker in remote)
        loader.nodes = sorted({worker.node for worker in remote if worker.node})
        loader.findings = findings(loader)
        return loader

    def _itself(self, pid: int, asked: int, row: WorkerRow, loader: Loader) -> Worker:
        """The training process, where it makes the batches itself."""
        worker = Worker(-1, pid, "fetch" if loader.state == "waiting" else "idle")
        worker.made, worker.seconds = loader.batches, loader.state_seconds
        worker.memory = processes.memory_of(pid)
        if worker.stage == "idle":
            worker.doing = "training" if loader.state == "computing" else None
            return worker
        worker.batch = loader.batches
        if row.since >= asked:
            worker.sample = row.position
            worker.seconds = (time.monotonic_ns() - row.since) / 1e9
        worker.stalled = (worker.seconds or 0) >= STALLED
        worker.doing = _means(processes.read_process(pid))
        self._show_stacks(worker, pid, lambda: (None, NO_STACKS.format(pid=pid), time.time()))
        return worker

    def _show_stacks(self, worker: Worker, pid: int, answer: Callable[[], _Answer]) -> None:
        """Add its stacks, or why there are none, if they are asked for now or were before."""
        if pid in self.asked or (self.every and worker.stalled):
            self.asked.discard(pid)
            self._answers[pid] = answer()
        if pid in self._answers:
            worker.stack, worker.stack_problem, worker.stack_time = self._answers[pid]

    def _worker(
        self, board: Board, number: int, row: WorkerRow, index: int | None
    ) -> Worker | None:
        """A worker; None: it has ended as it was to."""
        pid = board.pids.get(row.pid)
        if row.pid and pid is None and _is_below(board.owner, row.pid):
            pid = row.pid  # it has been started since, or has not opened the file yet
        if row.pid and pid is None and not _is_missed(board, number, row):
            return None
        stage = _STAGES.get(row.stage, "?")
        worker = Worker(number, pid or row.pid or None, stage, batch=row.batch, made=row.made)
        if row.stage == Stage.FETCHING:
            worker.sample, worker.index = row.position, index
        since = max(row.since, row.started)
        worker.seconds = (time.monotonic_ns() - since) / 1e9 if since else None
        if row.pid and pid is None:
            worker.stage = "dead"
            return worker
        if pid is None:
            return worker
        if stage not in ("idle", "leaving"):
            worker.stalled = (worker.seconds or 0) >= STALLED
        with contextlib.suppress(OSError):
            process = processes.read_process(pid)
            at_rest = stage == "idle" and process.state == "S"
            worker.doing = "waiting for a task" if at_rest else _means(process)
            worker.cpu = self._cpu(pid)
            worker.memory = processes.memory_of(pid)
        self._show_stacks(worker, pid, lambda: _answer(pid, row))
        return worker


def _remote(number: int, row: WorkerRow) -> Worker:
    """A remote worker."""
    stage = "remote" if row.stage in Stage.BUSY else "idle" if row.node else "starting"
    worker = Worker(number, None, stage, row.batch, made=row.made)
    worker.node = row.node
    worker.seconds = (time.monotonic_ns() - row.since) / 1e9 if row.since else None
    worker.doing = f"on node {row.node}" if row.node else "on no node yet, or lost"
    return worker


def _means(process: processes.Process) -> str | None:
    """Say what the system says that a process is at."""
    doing = _DOING.get(process.state)
    if process.state != "S":
        return doing
    where = processes.waits_in(process.pid)
    return next((text for part, text in _WAITS.items() if part in where), doing)


def _answer(pid: int, row: WorkerRow) -> _Answer:
    """Ask a worker for its stacks; returns them, or why there are none, and the time."""
    try:
        return parse(ask(pid, row.stacks - 1), pid), None, time.time()
    except NoStacks as problem:
        return None, str(problem), time.time()


def _is_running(pid: int, started: int | None = None) -> bool:
    try:
        now = processes.read_process(pid)
    except OSError:
        return False
    return started in (None, now.started) and now.state not in "ZX"


def _is_below(owner: int, pid: int) -> bool:
    """Whether this is a living process that the training has started."""
    return pid in processes.descendants(owner) and _is_running(pid)


def _is_missed(board: Board, number: int, row: WorkerRow) -> bool:
    """Whether the training reckons with a worker that was seen to be gone.

    So it is read once more, after that: workers end only when nothing iterates the loader any more,
    or after they have written that they leave.
    """
    try:
        with open(board.path, "rb") as file:
            status = os.fstat(file.fileno())
            if (status.st_dev, status.st_ino) != board.key:
                return False
            now = read_board(file.fileno())
    except Exception:  # it has just been closed, and is another loader's
        return False
    after = now.rows[number] if number < len(now.rows) else None
    return bool(now.consumer) and after is not None and (
        after.pid == row.pid and after.stage != Stage.LEFT
    )  # fmt: skip


def _indices(board: Board, view: BoardView) -> dict[int, int]:
    """Read which index each worker is at, by its number; only of those that are there still."""
    found: dict[int, int] = {}
    try:
        fd = os.open(board.path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return found
    try:
        status = os.fstat(fd)
        if (status.st_dev, status.st_ino) != board.key:
            return found
        for number, row in enumerate(view.rows):
            index = read_index(fd, row)
            if index is not None:
                found[number] = index
        after = read_board(fd).rows
    except Exception:  # it has just been closed, and is another loader's
        return {}
    finally:
        os.close(fd)
    same = [_task(row) == _task(again) for row, again in zip(view.rows, after, strict=False)]
    return {number: index for number, index in found.items() if same[number]}


def _task(row: WorkerRow) -> tuple[int, ...]:
    return row.stage, row.number, row.void, row.made, row.indices_of, row.offset, row.nbytes
