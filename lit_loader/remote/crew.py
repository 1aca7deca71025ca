"""`Crew`: the remote workers of a loader: who is up, who has room, who is silent, who is lost.

::

    hire ─▶ coming ─ hello ─▶ up ─ nothing heard for ``patience`` ─▶ silent ─ a sign ─▶ up
              ▲                ╰─ its process is gone ─▶ lost ◀─ silent for very long ─╯
              ╰───────────────── after a pause ──────────╯

Used by `remote/relay.py`, in whose thread everything here runs; answers of the engine come in as
calls that are queued there. What an order has become is told by its *ticket*. A worker that is
silent, or gone, loses its orders: others get them. One that is only slow answers when it is asked
for a sign of life, and keeps them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, Protocol

from lit_loader.remote.engine import Engine, Fate, Hand, Hello, Made, Order, Role

__all__ = ["Crew", "Member", "Orders"]

_GIVE_UP: Final = 12
"""Times ``patience`` that a worker may be silent before it is ended, and another one hired."""

_LONGEST_PAUSE: Final = 30.0
"""Seconds between two attempts to put another worker in the place of one that is lost."""

_ONE_EVENT: Final = 2.0
"""Seconds within which the loss of several workers of a node is one event in any case."""


class Orders(Protocol):
    """What is told of orders."""

    def made(self, ticket: int, made: Made, member: Member) -> None:
        """An order is done."""

    def lost(self, ticket: int, reason: str, to_blame: bool) -> None:
        """An order will not be done, and it may have been the reason (``to_blame``)."""

    def came_up(self, member: Member, hello: Hello) -> None:
        """A worker has come up."""


class Member:
    """One remote worker, and those that take its place.

    Attributes:
        role: Which worker it is.
        place: Its place among them.
        hand: Its handle; None: it is lost.
        node: Name of its machine; "": not known.
        up: Whether it has come up.
        silent: Whether nothing was heard of it for too long.
        tickets: The orders that it has, in order.
    """

    def __init__(self, place: int, role: Role) -> None:
        self.role = role
        self.place = place
        self.hand: Hand | None = None
        self.node = ""
        self.up = self.silent = False
        self.tickets: list[int] = []
        self.heard = 0.0
        self.asked = False
        self.failures = 0
        self.again = 0.0

    def __str__(self) -> str:
        return f"remote worker {self.role.worker}" + (f" (node {self.node})" if self.node else "")


class Crew:
    """Hires workers, hands orders out, and notices what becomes of the workers.

    Args:
        engine: Where they come from.
        roles: Which there are to be.
        in_flight: Orders that each may have.
        patience: Seconds that nothing need be heard of one that has orders.
        queue: Has a call made in the thread that all else runs in; from any thread.
        orders: Is told of orders.
        tell: Is called with a message for the consumer.
        clock: Gives seconds.

    Attributes:
        members: The workers.
        trouble: Why the last one that was lost was lost; "": none was.
    """

    def __init__(
        self,
        engine: Engine,
        roles: Sequence[Role],
        in_flight: int,
        patience: float,
        queue: Callable[[Callable[[], None]], None],
        orders: Orders,
        tell: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.members = [Member(place, role) for place, role in enumerate(roles)]
        self._engine = engine
        self._in_flight = in_flight
        self._patience = patience
        self._queue = queue
        self._orders = orders
        self._tell = tell
        self._clock = clock
        self._ticket = 0
        self.trouble = ""
        self._told: dict[str, float] = {}
        self._ticked = clock()

    @property
    def up(self) -> int:
        """How many are up and not silent."""
        return sum(member.up and not member.silent for member in self.members)

    def credit(self, owed: Callable[[int], bool]) -> int:
        """How many orders that somebody waits for they can have together.

        Args:
            owed: Says whether somebody waits for an order; the others take room nevertheless.
        """
        return sum(
            self._in_flight - sum(not owed(ticket) for ticket in member.tickets)
            for member in self.members
            if member.up and not member.silent
        )

    def room(self) -> str:
        """Say how many processors there are for them; may take a while, in any thread."""
        return self._engine.room()

    def hire(self) -> None:
        """Ask for all workers."""
        for member in self.members:
            self._hire(member)

    def _hire(self, member: Member) -> None:
        hand = member.hand = self._engine.hire(member.role)
        member.up = member.silent = member.asked = False
        member.node = ""
        self._await(hand.hello(), partial(self._on_hello, member, hand))

    def _await(self, future: Future[Any], call: Callable[[Future[Any]], None]) -> None:
        future.add_done_callback(lambda done: self._queue(partial(call, done)))

    def _on_hello(self, member: Member, hand: Hand, future: Future[Hello]) -> None:
        if member.hand is not hand:
            return
        error = future.exception()
        if error is not None:
            self._lose(member, self._engine.explain(error))
            return
        hello = future.result()
        member.up, member.node, member.heard = True, hello.node, self._clock()
        self._is_well(hello.node)
        self._orders.came_up(member, hello)
        # One that dies at nothing would be found by the next order only, which would be blamed.
        self._await(hand.watch(), partial(self._on_end, member, hand))

    def _on_end(self, member: Member, hand: Hand, future: Future[Any]) -> None:
        error = future.exception()
        if member.hand is hand and error is not None:
            self._lose(member, self._engine.explain(error))

    # --- orders ---

    def with_room(self) -> Member | None:
        """The worker to be given the next order: the one with the fewest; None: none has room."""
        found, least = None, self._in_flight
        for member in self.members:
            if member.up and not member.silent and len(member.tickets) < least:
                found, least = member, len(member.tickets)
        return found

    def give(self, member: Member, order: Order) -> int:
        """Give an order; returns its ticket."""
        hand = member.hand
        assert hand is not None
        if not member.tickets:
            member.heard = self._clock()
        self._ticket += 1
        ticket = self._ticket
        member.tickets.append(ticket)
        self._await(hand.make(order), partial(self._on_made, member, hand, ticket))
        return ticket

    def _on_made(self, member: Member, hand: Hand, ticket: int, future: Future[Any]) -> None:
        if member.hand is not hand:
            return
        error = future.exception()
        if error is not None:
            fate = self._engine.explain(error)
            if fate.gone:
                self._lose(member, fate)
                return
        self._hear(member, hand)
        member.tickets.remove(ticket)
        if error is None:
            member.failures, made = 0, future.result()
            self._orders.made(ticket, Made.unpack(made) if type(made) is bytes else made, member)
        else:
            self._orders.lost(ticket, f"{member}: {fate.reason}", to_blame=fate.blamed)

    def _hear(self, member: Member, hand: Hand, future: Future[Any] | None = None) -> None:
        """Note a sign of life."""
        if member.hand is not hand:
            return
        member.asked = False
        if future is None or future.exception() is None:
            member.heard, member.silent = self._clock(), False
            self._is_well(member.node)

    # --- what goes wrong ---

    def look(self) -> float | None:
        """Look after the workers; returns seconds until it is to be done again, None: any time."""
        now, patience = self._clock(), self._patience
        if now - self._ticked > patience:
            for member in self.members:  # it is this process that was stopped
                member.heard = now
        self._ticked = now
        again = [self._look_at(member, now) for member in self.members]
        return min((seconds for seconds in again if seconds is not None), default=None)

    def _look_at(self, member: Member, now: float) -> float | None:
        patience, hand = self._patience, member.hand
        if hand is None:
            if member.again > now:
                return member.again - now
            self._hire(member)
            return None
        doubtful = member.node in self._told  # then idle ones are asked, too
        if not member.up or not (member.tickets or member.silent or doubtful):
            return None
        if not (member.tickets or member.silent or member.asked):
            member.heard, member.asked = now, True
            self._await(hand.ping(), partial(self._hear, member, hand))
        quiet = now - member.heard
        if quiet >= patience / 2 and not member.asked:
            member.asked = True
            self._await(hand.ping(), partial(self._hear, member, hand))
        if quiet >= _GIVE_UP * patience:
            self._lose(member, Fate(f"nothing was heard of it for {quiet:.0f} s", True, False))
        elif quiet >= patience and not member.silent:
            member.silent = True
            self._event(
                member.node,
                f"Nothing was heard of {member} for {quiet:.1f} s (remote.patience={patience:g}): "
                "its batches are made elsewhere, and nothing is lost.",
            )
            for ticket in member.tickets:
                self._orders.lost(ticket, f"{member} is silent", to_blame=False)
        return patience / 4

    def _lose(self, member: Member, fate: Fate) -> None:
        """Note that a worker is gone, and take its orders away."""
        tickets, member.tickets = member.tickets, []
        text, was_up, was_silent = f"{member}: {fate.reason}", member.up, member.silent
        if member.hand is not None:
            member.hand.end()  # one that only cannot be reached has its processors still
        member.hand, member.up, member.silent = None, False, False
        pause = 0.0 if was_up and not member.failures else min(2.0**member.failures, _LONGEST_PAUSE)
        member.failures += 1
        member.again = self._clock() + pause
        for place, ticket in enumerate(tickets):
            self._orders.lost(ticket, text, to_blame=fate.blamed and place == 0)
        self.trouble = fate.reason
        name = str(member)[0].upper() + str(member)[1:]
        if not was_up:
            # Told once, however often it is tried. With a machine that was lost it is nothing new.
            if fate.blamed:
                text = f"{name} did not come up ({fate.reason}); another one is asked for."
                self._event(fate.reason, text)
        elif not was_silent:  # that has been told of
            self._event(
                member.node,
                f"{name} is gone ({fate.reason}). Its batches are made elsewhere and nothing is "
                "lost; another one is asked for.",
            )

    def _event(self, what: str, message: str) -> None:
        """Tell of a loss, unless it belongs to what was told of.

        Args:
            what: The node: its loss is one event, however many workers it had, and until it gives a
                sign of life. Or the reason why there was none.
            message: What to say.
        """
        if what not in self._told:
            self._tell(message)
        self._told[what] = self._clock()

    def _is_well(self, node: str) -> None:
        """Note a sign of life of a node: what befalls it from now on is another event."""
        now = self._clock()
        if now - self._told.get(node, now) >= _ONE_EVENT:
            del self._told[node]
