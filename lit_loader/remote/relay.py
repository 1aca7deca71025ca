"""The relay: the process between a pool and remote workers; serves all lanes of a loader.

::

    task pipe ─Task─▶ a free lane ─Order─▶ Crew ─▶ Engine ─▶ remote workers
    control pipes ─Resume, Proceed, Grant, Stop─▶ lanes         │
    result pipe ◀─ Result, Return, Ack ─ lanes ◀─ queue ◀─Made──╯   (futures, in other threads)
    starter ─ open a lane ─▶      ◀─ messages for the consumer ─

Started clean (spawn), so that the engine's threads, signal handlers and trouble with forks stay out
of the training process. One thread does everything, and waits in one ``poll``; the engine has a
second one, from joining to leaving. A task is taken out of the pipe only when a lane is free and a
remote worker has room, so the workers of this machine, which wait in a read, are not kept short.

It ends when its lanes are told to stop, and when the training process is gone; either way it ends
its remote workers before. Killed, it leaves them to the engine, which ends what belonged to it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import select
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np

from lit_loader.errors import WorkerDiedError
from lit_loader.memory.arena import ArenaMap
from lit_loader.remote.crew import Crew, Member
from lit_loader.remote.engine import Engine, Hello, Made, Order, UnreachableError
from lit_loader.remote.lane import Desk, Lane
from lit_loader.remote.reader_lane import ReaderLane
from lit_loader.remote.second_look import SecondLook
from lit_loader.remote.wires import EXACTNESS, FINAL, GONE, NODE, OPEN, RESTART, Plan, Wires
from lit_loader.system.stack_dumps import write_stacks_to
from lit_loader.transport.messages import SIZE, Attend, Spare, Task, Up, unpack
from lit_loader.transport.status_board import StatusBoard

__all__ = ["relay_main"]

_LEAVING: Final = 8.0
"""Seconds that the engine has to end its workers."""

_TELL_AFTER: Final = 6
"""Times ``patience`` after which it is told that workers have not come up."""

_ALONE: Final = 24
"""Times ``patience`` that no worker may be up where there are none on this machine either."""

_JOINING: Final = 300.0
"""Seconds that joining may take, where there are none on this machine."""

_BLAMED: Final = 2
"""Remote workers that a batch may end in a row before it is given up."""

_LONGEST_PAUSE: Final = 60.0
"""Seconds between two attempts to reach a cluster."""


def relay_main(wires: Wires, plan: Plan) -> None:
    """Be the relay until a lane is told to stop, or the parent is gone."""
    # Of the parent's, a new interpreter has no handlers, only what was held back meanwhile.
    for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    write_stacks_to(wires.fds[2])
    code = Relay(wires, plan).run()
    os._exit(code)  # the engine's threads have nothing more to say


class Relay:
    """The loop and what it needs.

    Args:
        wires: Connects it with the parent.
        plan: What it is for.
    """

    def __init__(self, wires: Wires, plan: Plan) -> None:
        arena_fd, results, _, payload, requests, *tasks = wires.fds
        arena = ArenaMap(arena_fd, wires.mapped, wires.board_bytes)
        self._desk = Desk(arena, StatusBoard(arena.board), results)
        self._tasks: int | None = None  # lanes have tasks of their own
        for fd in tasks:
            # Opened anew: that reading it does not block is to hold for nobody else.
            how = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
            self._tasks = os.open(f"/proc/self/fd/{fd}", how)
            os.close(fd)
        self._parent = os.pidfd_open(wires.parent)
        self._requests = socket.socket(fileno=requests)
        self._woken, self._wake = os.pipe()
        for end in (self._woken, self._wake):
            os.set_blocking(end, False)
        self._payload = _mapped(payload)
        self._plan = plan
        self._calls: deque[Callable[[], None]] = deque()
        self._lanes: dict[int, Lane] = {}  # by control pipe
        self._lanes_of: dict[int, list[Lane]] = {}  # by a remote worker's place
        self._orders: dict[int, tuple[Lane, Task, Order]] = {}  # by ticket
        self._blamed: dict[int, int] = {}
        self._code: int | None = None
        self._poll = select.poll()
        for fd in (requests, self._parent, self._woken):
            self._poll.register(fd, select.POLLIN)
        self._watches_tasks = False
        self._crew: Crew | None = None
        self._leave = threading.Event()
        self._left = threading.Event()
        self._left.set()
        if plan.config is not None:
            self._begin(plan)

    def _begin(self, plan: Plan) -> None:
        config, engine = plan.config, plan.engine()
        self._patience: float = config.patience
        self._look_again = SecondLook(
            self._payload,
            config.verify,
            lambda text: self._queue(partial(self._say, EXACTNESS, text)),
        )
        self._crew = Crew(
            engine,
            plan.roles,
            config.in_flight,
            config.patience,
            self._queue,
            self,
            partial(self._say, RESTART),
        )
        self._joined = False
        self._unreachable = ""
        self._since: float | None = None  # when none was up any more
        self._told_of_room = self._asked_for_room = False
        self._left.clear()
        # Lives until it has left: what Ray starts ends with the thread that started it.
        threading.Thread(target=self._have, args=(engine,), daemon=True).start()

    # --- the engine's thread ---

    def _have(self, engine: Engine) -> None:
        """Join, wait until all is over, and leave."""
        pause = self._patience
        try:
            while not self._leave.is_set():
                try:
                    engine.join(self._payload.data)
                except Exception as error:
                    text = str(error) if isinstance(error, UnreachableError) else repr(error)
                    self._queue(partial(self._on_unreachable, text))
                    self._leave.wait(pause)
                    pause = min(2 * pause, _LONGEST_PAUSE)
                else:
                    self._queue(self._on_joined)
                    self._leave.wait()
            engine.leave()
        finally:
            self._left.set()

    def _queue(self, call: Callable[[], None]) -> None:
        """Have a call made in the loop; from any thread."""
        self._calls.append(call)
        with contextlib.suppress(BlockingIOError):  # it has been woken very often
            os.write(self._wake, b"w")

    # --- the loop ---

    def run(self) -> int:
        """Serve; returns the exit code."""
        try:
            while self._code is None:
                self._wait()
                self._make_calls()
                self._take_tasks()
        finally:
            self._leave.set()
            self._left.wait(_LEAVING)
        return self._code

    def _wait(self) -> None:
        """Wait until something is to be done, and do what pipes say."""
        crew = self._crew
        again = None if crew is None else self._look(crew)
        wanted = self._wants_tasks()
        if wanted != self._watches_tasks and self._tasks is not None:
            if wanted:
                self._poll.register(self._tasks, select.POLLIN)
            else:
                self._poll.unregister(self._tasks)
            self._watches_tasks = wanted
        self._attend_all(None if again is None else 1000 * again)

    def _attend_all(self, milliseconds: float | None) -> None:
        for fd, _ in self._poll.poll(milliseconds):
            if fd == self._parent:
                self._code = 0
            elif fd == self._requests.fileno():
                self._open_lane()
            elif fd == self._woken:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._woken, 4096)
            elif fd in self._lanes and not self._lanes[fd].attend():
                self._code = 0

    def _open_lane(self) -> None:
        data, fds, _, _ = socket.recv_fds(self._requests, OPEN.size, 1)
        if not data or not fds:  # the parent is gone, or has let go
            self._code = 0
            return
        worker, generation = OPEN.unpack(data)
        kind = ReaderLane if self._tasks is None else Lane
        lane = self._lanes[fds[0]] = kind(worker, fds[0], generation, self._desk)
        if self._crew is not None:
            place = (worker - self._plan.first) // self._plan.config.in_flight
            self._lanes_of.setdefault(place, []).append(lane)
            lane.serves(self._crew.members[place].node)
        self._poll.register(fds[0], select.POLLIN)

    def _make_calls(self) -> None:
        while self._calls:
            self._calls.popleft()()

    def _wants_tasks(self) -> bool:
        crew = self._crew
        return crew is not None and crew.with_room(self._has_lane) is not None

    def _free_lane(self, member: Member) -> Lane | None:
        lanes = self._lanes_of.get(member.place, ())
        return next((lane for lane in lanes if lane.free), None)

    def _has_lane(self, member: Member) -> bool:
        return self._free_lane(member) is not None

    def _take_tasks(self) -> None:
        """Take tasks while there is a lane and a worker for one.

        Before each, lanes read what they were sent. Of the messages by which a new epoch is
        announced, as many as there are workers, no more than one is taken so: with it, the lanes
        find that they are to wait.
        """
        crew = self._crew
        if crew is not None and self._tasks is None:
            self._serve_readers(crew)
        while self._code is None and crew is not None and self._tasks is not None:
            self._attend_all(0)
            member = crew.with_room(self._has_lane)
            lane = None if member is None else self._free_lane(member)
            if member is None or lane is None:
                return
            try:
                data = os.read(self._tasks, SIZE)
            except BlockingIOError:
                return
            if not data:
                self._code = 0
                return
            message = unpack(data)
            if isinstance(message, Attend):
                # Most likely for another, one that is to leave: it is sent again.
                self._desk.send(Spare(lane.worker))
                continue
            assert isinstance(message, Task)
            order = lane.take(message)
            if order is not None:
                self._orders[crew.give(member, order)] = lane, message, order

    def _serve_readers(self, crew: Crew) -> None:
        """Order what lanes were sent, and see which of them have a worker."""
        for place, lanes in self._lanes_of.items():
            member = crew.members[place]
            for lane in lanes:
                assert isinstance(lane, ReaderLane)
                lane.follow(member.up and not member.silent)
                order = lane.next_order()
                if order is not None and lane.task is not None:
                    self._orders[crew.give(member, order)] = lane, lane.task, order

    # --- what the crew tells ---

    def made(self, ticket: int, made: Made, member: Member) -> None:
        """An order is done: write it into its slot, unless it belongs to nobody any more."""
        lane, task, order = self._orders.pop(ticket, (None, None, None))
        if lane is None or order is None or lane.task is not task:
            return
        assert task is not None
        self._blamed.pop(task.number, None)
        self._look_again.note(member.node, order, made)
        lane.finish(made)

    def lost(self, ticket: int, reason: str, to_blame: bool) -> None:
        """An order will not be done: another worker is to have it, unless it has ended several."""
        lane, task, order = self._orders.pop(ticket, (None, None, None))
        if lane is None or order is None or task is None or lane.task is not task:
            return
        if to_blame:
            self._blamed[task.number] = self._blamed.get(task.number, 0) + 1
            if self._blamed[task.number] >= _BLAMED:
                lane.fail(
                    WorkerDiedError(
                        f"{reason}. Batch {order.number} has ended {_BLAMED} remote workers in a "
                        "row and is not tried again. num_workers=0, remote_workers=0 shows errors "
                        "in place."
                    )
                )
                return
        lane.give_back()

    def came_up(self, member: Member, hello: Hello) -> None:
        """A remote worker has come up."""
        self._look_again.meet(hello)
        self._say(NODE, f"{member.place} {hello.node}")
        for lane in self._lanes_of.get(member.place, ()):
            lane.serves(hello.node)

    # --- having none ---

    def _on_joined(self) -> None:
        assert self._crew is not None
        self._joined, self._since = True, None
        self._crew.hire()

    def _on_unreachable(self, text: str) -> None:
        if self._plan.alone:
            self._say(FINAL, f"remote_workers: {text}")
            self._code = GONE
        elif text != self._unreachable:
            self._unreachable = text
            self._say(
                RESTART,
                f"remote_workers: {text}. The workers of this machine go on without; joining is "
                "tried again.",
            )

    def _look(self, crew: Crew) -> float | None:
        """Look after the workers; returns seconds until it is to be done again."""
        again = crew.look() if self._joined else None
        if crew.up == len(crew.members):
            self._since = None
            return again
        now = time.monotonic()
        if self._since is None:
            self._since = now
        missing = now - self._since
        if self._joined and missing >= _TELL_AFTER * self._patience and not self._asked_for_room:
            self._asked_for_room = True
            threading.Thread(target=self._ask_for_room, daemon=True).start()
        # Joining has an end of its own.
        longest = _ALONE * self._patience if self._joined else _JOINING
        if self._plan.alone and crew.up == 0 and missing >= longest:
            why = f" (the last one: {crew.trouble})" if crew.trouble else ""
            self._say(
                FINAL,
                f"remote_workers={len(crew.members)}: none has come up for {missing:.0f} s{why}, "
                "and there are no workers on this machine (num_workers=0): see what the cluster "
                "has (ray status), ask for less (remote.cpus_per_worker, remote.resources), or "
                "set num_workers",
            )
            self._code = GONE
        return self._patience / 2 if again is None else min(again, self._patience / 2)

    def _ask_for_room(self) -> None:
        assert self._crew is not None
        room = self._crew.room()  # may take a while, if the cluster does not answer
        self._queue(partial(self._tell_of_room, room))

    def _tell_of_room(self, room: str) -> None:
        crew = self._crew
        assert crew is not None
        if crew.up < len(crew.members) and not self._told_of_room:
            self._told_of_room = True
            self._say(
                RESTART,
                f"{crew.up} of remote_workers={len(crew.members)} are up: {room}. The others come "
                "up when there is room for them.",
            )

    def _say(self, kind: str, text: str) -> None:
        """Have the consumer told something."""
        with contextlib.suppress(OSError):
            self._requests.send(pickle.dumps((kind, text)), socket.MSG_DONTWAIT)
            lane = next(iter(self._lanes.values()), None)
            if lane is not None:
                self._desk.send(Up(lane.worker))


def _mapped(fd: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Map a file; uint8 of one dimension."""
    return np.frombuffer(mmap.mmap(fd, 0, access=mmap.ACCESS_READ), np.uint8)
