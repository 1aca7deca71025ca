"""`Crew`: the remote workers of a loader: who is up, who has room, who is lost.

::

    hire ─▶ coming ─ hello ─▶ up ─ its process is gone, or gives no sign of life ─▶ lost ─╮
     ▲                                                                                     │
     ╰──────────────────────────────── after a pause ─────────────────────────────────────╯

Everything here runs in the relay's one thread; answers of the engine, which are futures, are queued
there. A worker that is lost loses its jobs: others get them, and another worker is hired in its
place. One that is only slow answers a request for a sign of life, and keeps its jobs.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from lit_loader.core.batch.batch_spec import Changes
from lit_loader.core.transport.messages import Task
from lit_loader.remote.engine import Engine, Failure, Handle, Hello, RemoteConfig, Role

__all__ = ["Crew", "Job", "Member"]

_T = TypeVar("_T")

_LONGEST_PAUSE: Final = 30.0
"""Seconds between two attempts to put another worker in the place of one that is lost."""

_ONE_EVENT: Final = 600.0
"""Seconds in which a node's losses, or losses for one reason, are reported once."""


@dataclasses.dataclass(eq=False)
class Job:
    """A task, in the hands of one remote worker."""

    task: Task  # the task
    order: bytes  # what travels: the task's message, and its indices as they lie in the slot
    member: Member | None = None  # who has it, or had it; None: nobody yet
    # What has come back, while a larger slot is requested: a `Reply`, and what goes into the
    # slot, uint8.
    answer: NDArray[np.uint8] | None = None
    began: int = 0  # ``time.monotonic_ns()`` when it was given to a remote worker
    over: bool = False  # whether nobody waits for it any more; it may be under way still


@dataclasses.dataclass(eq=False)
class Member:
    """One remote worker, and those that take its place."""

    position: int  # among them
    role: Role
    handle: Handle | None = None  # None: it is lost
    up: bool = False
    node: str = ""  # name of its machine; "": it is not up
    jobs: list[Job] = dataclasses.field(default_factory=list)  # those that it has, in order
    heard: float = 0.0  # when it gave its last sign of life
    asked: bool = False  # whether it was asked for one since
    failures: int = 0  # losses in a row, without a batch between them
    again: float = 0.0  # when another one is hired

    def __str__(self) -> str:
        return f"remote worker {self.role.worker}" + (f" (node {self.node})" if self.node else "")


class Crew:
    """Hires workers, gives them jobs, and notices what becomes of the workers.

    ``owner`` is the relay: it has `queue`, and `worker_up`, `job_done`, `job_lost` and `say`, which
    are called in its thread.
    """

    def __init__(
        self, owner: Any, engine: Engine, config: RemoteConfig, roles: list[Role], changes: Changes
    ) -> None:
        self.members = [Member(position, role) for position, role in enumerate(roles)]
        self.trouble = ""  # why the last one that was lost was lost; "": none was
        self._owner, self._engine = owner, engine
        self._in_flight: int = config.in_flight
        self._patience: float = config.patience
        self._reported: dict[str, float] = {}
        self._looked = time.monotonic()
        self._changes = changes

    @property
    def up(self) -> int:
        """How many are up."""
        return sum(member.up for member in self.members)

    @property
    def credit(self) -> int:
        """How many jobs that somebody waits for they can have; the others take room, too."""
        return sum(
            self._in_flight - sum(job.over for job in member.jobs)
            for member in self.members
            if member.up
        )

    def _hire(self, member: Member) -> None:
        handle = member.handle = self._engine.hire(member.role)
        if self._changes:
            handle.set_attributes(self._changes)
        self._await(member, handle.hello(), self._on_hello, self._lose)

    def _await(
        self,
        member: Member,
        future: Future[_T],
        done: Callable[[Member, _T], object],
        failed: Callable[[Member, Failure], object],
    ) -> None:
        """Make a call with a member's answer, unless another worker has its place by then."""
        handle = member.handle

        def answered() -> None:
            if member.handle is not handle:
                return
            error = future.exception()
            if error is None:
                done(member, future.result())
            else:
                failed(member, self._engine.explain(error))

        future.add_done_callback(lambda _: self._owner.queue(answered))

    def _on_hello(self, member: Member, hello: Hello) -> None:
        member.up, member.node = True, hello.node
        self._owner.worker_up(hello)
        # One that dies at nothing would be found by the next job only, which would be blamed.
        assert member.handle is not None
        self._await(member, member.handle.watch(), lambda *_: None, self._lose)

    def set_attributes(self, changes: Changes) -> None:
        """Set attributes of the workers' datasets; workers that are hired later get them too."""
        self._changes.update(changes)
        for member in self.members:
            if member.handle is not None:
                member.handle.set_attributes(changes)

    # --- jobs ---

    def with_room(self) -> Member | None:
        """The worker to be given the next job: the one with the fewest; None: none has room."""
        able = [member for member in self.members if member.up]
        member = min(able, key=lambda each: len(each.jobs), default=None)
        return member if member is not None and len(member.jobs) < self._in_flight else None

    def give(self, member: Member, job: Job) -> None:
        """Send a job to a worker."""
        assert member.handle is not None
        if not member.jobs:
            self._on_sign(member)
        member.jobs.append(job)
        job.member, job.began = member, time.monotonic_ns()

        def done(member: Member, answer: Any) -> None:
            self._on_sign(member)
            member.jobs.remove(job)
            member.failures = 0
            self._owner.job_done(job, np.frombuffer(answer, np.uint8))

        def failed(member: Member, failure: Failure) -> None:
            if failure.gone:
                self._lose(member, failure)
                return
            self._on_sign(member)
            member.jobs.remove(job)
            self._owner.job_lost(job, f"{member}: {failure.reason}", to_blame=failure.blamed)

        self._await(member, member.handle.make(job.order), done, failed)

    # --- what goes wrong ---

    def look(self) -> None:
        """Hire workers in the place of lost ones, and find those that give no sign of life."""
        now, patience = time.monotonic(), self._patience
        was_stopped = now - self._looked > patience  # this process was: nothing could be heard
        self._looked = now
        for member in self.members:
            if member.handle is None:
                if member.again <= now:
                    self._hire(member)
                continue
            if was_stopped:
                member.heard = now
            quiet = now - member.heard
            if not member.jobs or quiet < patience / 2:
                continue
            if quiet >= patience:
                reason = f"no sign of life for {quiet:.1f} s, remote.patience={patience:g}"
                self._lose(member, Failure(reason, gone=True, blamed=False))
            elif not member.asked:
                member.asked = True
                self._await(member, member.handle.ping(), self._on_sign, lambda *_: None)

    def _on_sign(self, member: Member, _: object = None) -> None:
        """Note a sign of life."""
        member.asked, member.heard = False, time.monotonic()

    def _lose(self, member: Member, failure: Failure) -> None:
        """Note that a worker is gone, and take its jobs away."""
        assert member.handle is not None
        member.handle.end()  # one that only cannot be reached still has its CPU cores
        name, node, was_up, jobs = str(member), member.node, member.up, member.jobs
        member.handle, member.up, member.node, member.jobs = None, False, "", []
        pause = 0.0 if was_up and not member.failures else 2.0**member.failures
        member.failures += 1
        member.again = time.monotonic() + min(pause, _LONGEST_PAUSE)
        self.trouble = failure.reason
        if was_up:
            text = f"is gone ({failure.reason}). Other workers build its batches, nothing is lost"
            self._report(node, name, text)
        elif failure.blamed:  # else it was lost with a machine, which was reported
            self._report(failure.reason, name, f"did not come up ({failure.reason})")
        for place, job in enumerate(jobs):
            to_blame = failure.blamed and place == 0
            self._owner.job_lost(job, f"{name}: {failure.reason}", to_blame)

    def _report(self, what: str, name: str, text: str) -> None:
        """Report a loss, unless ``what`` was reported lately: a node, or the reason."""
        now = time.monotonic()
        if now - self._reported.get(what, -_ONE_EVENT) >= _ONE_EVENT:
            name = name[0].upper() + name[1:]
            self._owner.say(f"{name} {text}, and a replacement is requested.")
        self._reported[what] = now
