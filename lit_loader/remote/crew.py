"""`Crew`: the remote workers of a loader: who is up, who has room, who is silent, who is lost.

::

    hire ─▶ coming ─ hello ─▶ up ─ nothing heard for ``patience`` ─▶ silent ─ a sign ─▶ up
              ▲                ╰─ its process is gone ─▶ lost ◀─ silent for very long ─╯
              ╰───────────────── after a pause ──────────╯

Everything here runs in the relay's one thread; answers of the engine, which are futures, are queued
there. A worker that is silent, or gone, loses its jobs: others get them. One that is only slow
answers a request for a sign of life, and keeps them.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from lit_loader.core.batch.dataset_attributes import Changes
from lit_loader.core.transport.messages import Task
from lit_loader.remote.engine import Engine, Failure, Handle, Hello, Role

__all__ = ["Crew", "Job", "Member"]

_GIVE_UP: Final = 12
"""Times ``patience`` that a worker may be silent before it is ended, and another one hired."""

_LONGEST_PAUSE: Final = 30.0
"""Seconds between two attempts to put another worker in the place of one that is lost."""

_ONE_EVENT: Final = 2.0
"""Seconds within which the loss of several workers of a node is one event in any case."""


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
    handle: Handle | None = None  # its handle; None: it is lost
    node: str = ""  # name of its machine; "": not known
    up: bool = False  # whether it has come up, and is not silent
    silent: bool = False  # whether nothing was heard of it for too long
    jobs: list[Job] = dataclasses.field(default_factory=list)  # those that it has, in order
    heard: float = 0.0
    asked: bool = False
    failures: int = 0
    again: float = 0.0

    def __str__(self) -> str:
        return f"remote worker {self.role.worker}" + (f" (node {self.node})" if self.node else "")


class Owner(Protocol):
    """Whom a crew tells what becomes of jobs and workers: the relay."""

    def queue(self, call: Callable[[], None]) -> None:
        """Queue a call for the relay's thread; from any thread."""

    def worker_up(self, member: Member, hello: Hello) -> None:
        """A worker has come up."""

    def job_done(self, job: Job, answer: NDArray[np.uint8], member: Member) -> None:
        """A job is done."""

    def job_lost(self, job: Job, reason: str, to_blame: bool) -> None:
        """A job will not be done; it may have been the reason (``to_blame``)."""

    def say(self, what: str) -> None:
        """Send a warning to the consumer."""


class Crew:
    """Hires workers, gives them jobs, and notices what becomes of the workers."""

    def __init__(
        self, owner: Owner, engine: Engine, config: Any, roles: list[Role], changes: Changes
    ) -> None:
        self.members = [
            Member(position, role) for position, role in enumerate(roles)
        ]  # the workers
        self.trouble = ""  # why the last one that was lost was lost; "": none was
        self._owner, self._engine = owner, engine
        self._in_flight: int = config.in_flight
        self._patience: float = config.patience
        self._told: dict[str, float] = {}
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

    def hire(self) -> None:
        """Ask for all workers."""
        for member in self.members:
            self._hire(member)

    def _hire(self, member: Member) -> None:
        handle = member.handle = self._engine.hire(member.role)
        member.up = member.silent = member.asked = False
        member.node = ""
        if self._changes:
            handle.set_attributes(self._changes)
        self._await(handle.hello(), self._on_hello, member)

    def _await(
        self, future: Future[Any], call: Callable[..., None], member: Member, *more: Any
    ) -> None:
        """Make a call with a member's answer, unless another worker has its place by then."""
        handle = member.handle

        def heard() -> None:
            if member.handle is handle:
                call(member, *more, future)

        future.add_done_callback(lambda _: self._owner.queue(heard))

    def _on_hello(self, member: Member, future: Future[Hello]) -> None:
        error = future.exception()
        if error is not None:
            self._lose(member, self._engine.explain(error))
            return
        hello = future.result()
        member.up, member.node, member.heard = True, hello.node, time.monotonic()
        self._is_well(hello.node)
        self._owner.worker_up(member, hello)
        # One that dies at nothing would be found by the next job only, which would be blamed.
        assert member.handle is not None
        self._await(member.handle.watch(), self._on_end, member)

    def _on_end(self, member: Member, future: Future[Any]) -> None:
        error = future.exception()
        if error is not None:
            self._lose(member, self._engine.explain(error))

    def set_attributes(self, changes: Changes) -> None:
        """Set attributes of the workers' datasets; workers that are hired later get them too."""
        for path, attributes in changes.items():
            self._changes.setdefault(path, {}).update(attributes)
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
            member.heard = time.monotonic()
        member.jobs.append(job)
        job.member, job.began = member, time.monotonic_ns()
        self._await(member.handle.make(job.order), self._on_made, member, job)

    def _on_made(self, member: Member, job: Job, future: Future[Any]) -> None:
        error = future.exception()
        if error is not None:
            failure = self._engine.explain(error)
            if failure.gone:
                self._lose(member, failure)
                return
        self._on_sign(member)
        member.jobs.remove(job)
        if error is None:
            member.failures = 0
            self._owner.job_done(job, np.frombuffer(future.result(), np.uint8), member)
        else:
            self._owner.job_lost(job, f"{member}: {failure.reason}", to_blame=failure.blamed)

    def _on_sign(self, member: Member, future: Future[Any] | None = None) -> None:
        """Note a sign of life."""
        member.asked = False
        if future is None or future.exception() is None:
            member.heard = time.monotonic()
            member.up, member.silent = member.up or member.silent, False
            self._is_well(member.node)

    # --- what goes wrong ---

    def look(self) -> float | None:
        """Look after the workers; returns seconds until it is to be done again, None: any time."""
        now = time.monotonic()
        if now - self._looked > self._patience:
            for member in self.members:  # it is this process that was stopped
                member.heard = now
        self._looked = now
        again = [self._look_at(member, now) for member in self.members]
        return min((seconds for seconds in again if seconds is not None), default=None)

    def _look_at(self, member: Member, now: float) -> float | None:
        patience, handle = self._patience, member.handle
        if handle is None:
            if member.again > now:
                return member.again - now
            self._hire(member)
            return None
        owes = bool(member.jobs) or member.silent
        # Idle ones are asked only where something has befallen their node.
        if not (member.up or member.silent) or not (owes or member.node in self._told):
            return None
        if not owes and not member.asked:
            member.heard = now
        quiet = now - member.heard
        if not member.asked and (not owes or quiet >= patience / 2):
            member.asked = True
            self._await(handle.ping(), self._on_sign, member)
        if quiet >= _GIVE_UP * patience:
            self._lose(member, Failure(f"nothing was heard of it for {quiet:.0f} s", True, False))
        elif quiet >= patience and not member.silent:
            member.up, member.silent = False, True
            self._event(
                member.node,
                f"No sign of life from {member} for {quiet:.1f} s (remote.patience={patience:g}). "
                "Other workers build its batches, and nothing is lost",
            )
            for job in member.jobs:
                self._owner.job_lost(job, f"{member} is silent", to_blame=False)
        return patience / 4

    def _lose(self, member: Member, failure: Failure) -> None:
        """Note that a worker is gone, and take its jobs away."""
        jobs, member.jobs = member.jobs, []
        text, was_up, was_silent = f"{member}: {failure.reason}", member.up, member.silent
        if member.handle is not None:
            member.handle.end()  # one that only cannot be reached still has its CPU cores
        member.handle, member.up, member.silent = None, False, False
        at_once = (was_up or was_silent) and not member.failures
        pause = 0.0 if at_once else min(2.0**member.failures, _LONGEST_PAUSE)
        member.failures += 1
        member.again = time.monotonic() + pause
        for place, job in enumerate(jobs):
            self._owner.job_lost(job, text, to_blame=failure.blamed and place == 0)
        self.trouble = failure.reason
        name = str(member)[0].upper() + str(member)[1:]
        if was_up:
            self._event(
                member.node,
                f"{name} is gone ({failure.reason}). Other workers build its batches, nothing is "
                "lost, and a replacement is requested.",
            )
        elif not was_silent and failure.blamed:  # that of a silent one has been reported
            # Told once, however often it is tried. With a machine that was lost it is nothing new.
            text = f"{name} did not come up ({failure.reason}). A replacement is requested."
            self._event(failure.reason, text)

    def _event(self, what: str, message: str) -> None:
        """Report a loss, unless it belongs to one that was reported.

        ``what`` is the node: its loss is one event, however many workers it had, and until it gives
        a sign of life. Or it is the reason why there was none.
        """
        if what not in self._told:
            self._owner.say(message)
        self._told[what] = time.monotonic()

    def _is_well(self, node: str) -> None:
        """Note a sign of life of a node: what befalls it from now on is another event."""
        now = time.monotonic()
        if now - self._told.get(node, now) >= _ONE_EVENT:
            del self._told[node]
