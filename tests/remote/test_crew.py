"""`Crew`: who gets orders, who is silent, who is lost; on a clock of the test's own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from lit_loader.remote.crew import Crew, Member
from lit_loader.remote.engine import Fate, Hello, Made, Order, Role

ORDER = Order(b"", 0, 0, 0, 0)
PATIENCE = 4.0


class GoneError(Exception):
    pass


class LostError(GoneError):
    """Not the order's fault."""


class Hand:
    def __init__(self) -> None:
        self.said: Future[Hello] = Future()
        self.orders: list[Future[Made]] = []
        self.pings: list[Future[Any]] = []
        self.ended = False
        self.watched: Future[Any] = Future()

    def hello(self) -> Future[Hello]:
        return self.said

    def make(self, order: Order) -> Future[Made]:
        self.orders.append(Future())
        return self.orders[-1]

    def ping(self) -> Future[Any]:
        self.pings.append(Future())
        return self.pings[-1]

    def watch(self) -> Future[Any]:
        return self.watched

    def end(self) -> None:
        self.ended = True


class Scene:
    """A crew, its engine, the clock, and what it tells."""

    def __init__(self, workers: int = 2, in_flight: int = 2) -> None:
        self.now = 100.0
        self.calls: list[Callable[[], None]] = []
        self.hands: list[Hand] = []
        self.done: list[int] = []
        self.missed: list[tuple[int, bool]] = []
        self.told: list[str] = []
        roles = [Role(worker, workers, worker) for worker in range(workers)]
        engine: Any = self
        self.crew = Crew(
            engine,
            roles,
            in_flight,
            PATIENCE,
            self.calls.append,
            self,
            self.told.append,
            lambda: self.now,
        )
        self.crew.hire()

    def hire(self, role: Role) -> Hand:
        self.hands.append(Hand())
        return self.hands[-1]

    def explain(self, error: BaseException) -> Fate:
        return Fate(str(error), isinstance(error, GoneError), not isinstance(error, LostError))

    def made(self, ticket: int, made: Made, member: Member) -> None:
        self.done.append(ticket)

    def lost(self, ticket: int, reason: str, to_blame: bool) -> None:
        self.missed.append((ticket, to_blame))

    def came_up(self, member: Member, hello: Hello) -> None:
        pass

    def up(self, *hands: Hand) -> None:
        for hand in hands:
            hand.said.set_result(Hello("node", 1, {}))
        self.run()

    def run(self) -> None:
        while self.calls:
            self.calls.pop(0)()

    def give(self) -> int | None:
        member = self.crew.with_room()
        return None if member is None else self.crew.give(member, ORDER)

    def passes(self, seconds: float) -> None:
        """Time passes, in steps that are no gap."""
        for _ in range(round(seconds)):
            self.now += 1
            self.crew.look()
            self.run()


def test_one_that_is_silent_for_very_long_is_ended_and_replaced() -> None:
    scene = Scene(workers=1)
    scene.up(*scene.hands)
    scene.give()
    scene.passes(12 * PATIENCE + 2)
    assert scene.hands[0].ended and len(scene.hands) == 2
    scene.up(scene.hands[1])
    assert scene.give() == 2


def test_one_that_never_comes_up_is_asked_for_in_growing_intervals() -> None:
    scene = Scene(workers=1)
    hired = []
    for _ in range(100):
        if not scene.hands[-1].said.done():
            scene.hands[-1].said.set_exception(GoneError("no"))
        scene.run()
        scene.passes(1)
        hired.append(len(scene.hands))
    assert 5 <= hired[-1] <= 9


def test_the_loss_of_a_node_is_one_event() -> None:
    scene = Scene(workers=3)
    scene.up(*scene.hands)
    for _ in range(3):
        scene.give()
    for hand in scene.hands[:3]:
        hand.orders[0].set_exception(GoneError("killed"))
    scene.run()
    assert [ticket for ticket, _ in scene.missed] == [1, 2, 3]
    assert len(scene.told) == 1


def test_a_node_that_is_silent_and_lost_later_is_one_event() -> None:
    scene = Scene(workers=2)
    scene.up(*scene.hands)
    scene.give()
    scene.passes(PATIENCE)
    assert len(scene.told) == 1
    scene.passes(6)
    assert scene.crew.up == 0 and scene.give() is None  # the other one was asked then, too
    for hand in scene.hands[:2]:
        hand.watched.set_exception(GoneError("its node is lost"))
    scene.run()
    assert len(scene.told) == 1
    scene.crew.look()
    assert len(scene.hands) == 4


def test_a_node_that_was_well_again_is_another_event() -> None:
    scene = Scene(workers=1)
    scene.up(*scene.hands)
    for times in (1, 2):
        scene.give()
        scene.hands[-1].orders[0].set_exception(GoneError("killed"))
        scene.run()
        assert len(scene.told) == times
        scene.passes(3)
        scene.up(scene.hands[-1])


def test_one_that_cannot_be_reached_is_ended_before_another_takes_its_processors() -> None:
    scene = Scene(workers=1)
    scene.up(*scene.hands)
    scene.give(), scene.give()
    scene.hands[0].orders[0].set_exception(LostError("it cannot be reached"))
    scene.run()
    assert scene.hands[0].ended
    assert scene.missed == [(1, False), (2, False)]


def test_a_sign_of_life_that_fails_is_asked_for_again() -> None:
    scene = Scene(workers=1)
    scene.up(*scene.hands)
    scene.give()
    scene.passes(3)
    [ping] = scene.hands[0].pings
    ping.set_exception(LostError("it cannot be reached"))
    scene.passes(3)
    assert scene.crew.up == 0
    scene.hands[0].pings[1].set_result(None)
    scene.run()
    assert scene.crew.up == 1


def test_one_that_was_to_come_up_on_a_node_that_is_lost_is_no_event_besides() -> None:
    scene = Scene(workers=1)
    scene.hands[0].said.set_exception(LostError("its node has died"))
    scene.run()
    scene.passes(2)
    assert len(scene.hands) == 2 and not scene.told


def test_a_pause_of_this_process_is_nobody_elses_silence() -> None:
    scene = Scene(workers=1)
    scene.up(*scene.hands)
    scene.give()
    scene.now += 1000
    scene.crew.look()
    scene.run()
    assert not scene.missed
