"""The relay alone: what it says to the pool, message by message; remote workers are scripted."""

from __future__ import annotations

import multiprocessing
import os
import queue
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lit_loader.memory.arena import Arena
from lit_loader.remote.engine import Fate, Hello, Made, Order, Role
from lit_loader.remote.relay import Relay
from lit_loader.remote.wires import Plan, Wires
from lit_loader.transport.board_view import read_board
from lit_loader.transport.loader_page import PAGE_BYTES, LoaderPage
from lit_loader.transport.messages import (
    NOT_TO_BE_HAD,
    NOT_WANTED,
    SIZE,
    Message,
    Need,
    Reply,
    Resume,
    Resumed,
    Space,
    Status,
    Stop,
    Task,
    Up,
    pack,
    pack_indices,
    unpack,
)
from lit_loader.transport.status_board import Stage, StatusBoard, board_bytes

IN_FLIGHT = 2
HERE, THERE = 4, 2  # rows of the board for workers here, and remote workers
RELAY = HERE + THERE
DROPPED, DONE, FAILED = Status.DROPPED, Status.DONE, Status.FAILED


class Hand:
    """A remote worker that does what the test says."""

    def __init__(self) -> None:
        self.said: Future[Hello] = Future()
        self.ended: Future[Any] = Future()
        self.orders: queue.Queue[tuple[Order, Future[Made]]] = queue.Queue()

    def hello(self) -> Future[Hello]:
        return self.said

    def watch(self) -> Future[Any]:
        return self.ended

    def ping(self) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(None)
        return done

    def make(self, order: Order) -> Future[Made]:
        made: Future[Made] = Future()
        self.orders.put((order, made))
        return made

    def end(self) -> None:
        pass


class Engine:
    def __init__(self) -> None:
        self.hands: queue.Queue[Hand] = queue.Queue()

    def join(self, payload: memoryview) -> None:
        pass

    def hire(self, role: Role) -> Hand:
        hand = Hand()
        self.hands.put(hand)
        return hand

    def explain(self, error: BaseException) -> Fate:
        return Fate(str(error), True, True)

    def room(self) -> str:
        return ""

    def leave(self) -> None:
        pass


def made_of(number: int, nbytes: int = 8) -> Made:
    return Made(DONE, np.full(nbytes, number, np.uint8), 0, nbytes, 1, 0, 0, 0, 0, 0)


class Rig:
    """A relay in a thread, and the pool's ends of what connects it."""

    def __init__(self) -> None:
        self.arena = Arena(board_bytes(RELAY + 1) + PAGE_BYTES, 8, slot_bytes=1 << 12)
        self.board = StatusBoard(self.arena.board)
        self.board.token, self.board.workers = 1, 1
        self.page = LoaderPage(self.arena.board)
        self.page.write({"ahead": 1}, 0, 0)
        self.results, results = os.pipe()
        tasks, self.tasks = os.pipe()
        payload = os.memfd_create("payload")
        os.write(payload, b"x")
        self.requests, theirs = multiprocessing.Pipe()
        self.ends = [self.results, results, tasks, self.tasks, payload]
        self.engine = Engine()
        config = SimpleNamespace(
            patience=60.0, in_flight=IN_FLIGHT, verify=0.0, engine=lambda: self.engine
        )
        roles = [Role(place, THERE, place) for place in range(THERE)]
        fds = (self.arena.fd, results, -1, payload, os.dup(theirs.fileno()), tasks)
        wires = Wires(os.getpid(), self.arena.mapped, len(self.arena.board), fds)
        relay = self.relay = Relay(wires, Plan(config, roles, RELAY))
        relay._look_again = SimpleNamespace(meet=lambda hello: None, note=lambda *args: None)
        self.slots: dict[int, Any] = {}
        self.thread = threading.Thread(target=relay.run)
        self.thread.start()
        self.hands = [self.engine.hands.get() for _ in range(THERE)]
        assert self.said() == Up(RELAY, 0)

    def said(self) -> Message:
        return unpack(os.read(self.results, SIZE))

    def replied(self) -> tuple[int, int]:
        """The next reply: its status, and the number of the task."""
        reply = self.said()
        assert type(reply) is Reply, reply
        return reply.status, self.slots.pop(reply.slot)[0]

    def send(self, *messages: Message) -> None:
        for message in messages:
            os.write(self.tasks, pack(message))

    def task(self, number: int, token: int = 1, slot: Any = None) -> Any:
        slot = self.arena.acquire() if slot is None else slot
        packed = pack_indices([number])
        slot.view[: len(packed)] = packed
        self.slots[slot.offset] = number, slot
        shape = slot.offset, slot.capacity, len(packed)
        self.send(Task(token, number, 0, 0, *shape, place=number + 1))
        return slot

    def comes_up(self, place: int) -> None:
        self.hands[place].said.set_result(Hello(f"node{place}", 1, {}))
        # What it says to the consumer comes with a message that wakes the pool.
        assert type(self.said()) is Up

    def order(self, place: int) -> Future[Made]:
        return self.hands[place].orders.get()[1]

    def close(self) -> None:
        self.send(Stop())
        self.thread.join()
        relay = self.relay  # whose process ends, else
        for end in (*self.ends, relay._parent, relay._woken, relay._wake):
            os.close(end)
        self.requests.close()
        relay._requests.close()
        self.page.close()
        self.board.release()
        self.arena.close()
        vars(self).clear()  # what looks into the arena


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.close()


def test_a_batch_is_that_of_the_remote_worker_that_has_made_it(rig: Rig) -> None:
    rig.comes_up(1)
    assert rig.said() == Up(RELAY, IN_FLIGHT)
    slot = rig.task(7)
    rig.order(1).set_result(made_of(7))
    reply = rig.said()
    assert isinstance(reply, Reply)
    assert (reply.status, reply.worker, reply.slot, reply.offset, reply.nbytes) == (
        DONE,
        HERE + 1,
        slot.offset,
        slot.offset,
        8,
    )
    assert slot.view[:8].tolist() == [7] * 8
    view = read_board(rig.arena.fd)
    assert [row.node for row in view.rows[HERE:]] == ["", "node1", None]
    assert [row.credit for row in view.rows[HERE:]] == [None, None, IN_FLIGHT]


def test_a_row_shows_the_oldest_batch_that_a_remote_worker_has(rig: Rig) -> None:
    rig.comes_up(0)
    assert rig.said() == Up(RELAY, IN_FLIGHT)
    rig.task(3)
    rig.task(4)
    first, second = rig.order(0), rig.order(0)
    assert rig.board.read(HERE)[:2] == (Stage.FETCHING, 3)
    first.set_result(made_of(3))
    assert rig.replied() == (DONE, 3)
    assert rig.board.read(HERE)[:2] == (Stage.FETCHING, 4)
    second.set_result(made_of(4))
    assert rig.replied() == (DONE, 4)
    assert rig.board.read(HERE)[:2] == (Stage.IDLE, -1)


def test_what_nobody_has_room_for_goes_back(rig: Rig) -> None:
    rig.task(1)
    assert rig.replied() == (DROPPED, 1)
    rig.comes_up(0)
    assert rig.said() == Up(RELAY, IN_FLIGHT)
    for number in (2, 3, 4):
        rig.task(number)
    assert rig.replied() == (DROPPED, 4)


def test_a_task_that_is_called_off_or_of_another_epoch_goes_back(rig: Rig) -> None:
    rig.comes_up(0)
    assert rig.said() == Up(RELAY, IN_FLIGHT)
    rig.board.call_off(RELAY, 5 + 1, True)
    rig.task(5)
    rig.task(6, token=9)
    assert [rig.replied(), rig.replied()] == [(DROPPED, 5), (DROPPED, 6)]
    assert rig.hands[0].orders.empty()


def test_orders_of_an_epoch_that_was_left_take_room_until_they_are_done(rig: Rig) -> None:
    rig.comes_up(0)
    assert rig.said() == Up(RELAY, IN_FLIGHT)
    rig.task(1)
    rig.task(2)
    old = rig.order(0), rig.order(0)
    rig.board.token = 2
    rig.send(Resume(2))
    assert {rig.replied(), rig.replied()} == {(DROPPED, 1), (DROPPED, 2)}
    assert [rig.said(), rig.said()] == [Up(RELAY, 0), Resumed(RELAY, 2)]
    slot = rig.task(1, token=2)  # sent before that was read
    assert rig.replied() == (DROPPED, 1)
    old[0].set_result(made_of(1))
    assert rig.said() == Up(RELAY, 1)
    slot = rig.task(1, 2, slot)
    old[1].set_result(made_of(99))  # that of the old batch writes nowhere
    assert rig.said() == Up(RELAY, 2)
    rig.order(0).set_result(made_of(5))
    assert rig.replied() == (DONE, 1)
    assert slot.view[0] == 5


def test_an_epoch_that_begins_while_a_larger_slot_is_asked_for(rig: Rig) -> None:
    rig.comes_up(0)
    assert rig.said() == Up(RELAY, IN_FLIGHT)
    slot = rig.task(1)
    large = slot.capacity + 1
    rig.order(0).set_result(made_of(1, large))
    assert rig.said() == Need(RELAY, slot.offset, large)
    rig.board.token = 2
    # The answer to what the pool has read by then comes behind, and the slot is another task's.
    rig.send(Resume(2), Space(slot.offset, 0, NOT_WANTED))
    assert rig.replied() == (DROPPED, 1)
    assert rig.said() == Resumed(RELAY, 2)
    rig.task(2, 2, slot)
    rig.order(0).set_result(made_of(2, large))
    assert rig.said() == Need(RELAY, slot.offset, large)
    wide = rig.arena.acquire(large)
    rig.send(Space(slot.offset, wide.offset, wide.capacity))
    reply = rig.said()
    assert isinstance(reply, Reply)
    assert (reply.status, reply.slot, reply.offset) == (DONE, slot.offset, wide.offset)
    assert wide.view[large - 1] == 2


@pytest.mark.parametrize(("answer", "status"), [(NOT_WANTED, DROPPED), (NOT_TO_BE_HAD, FAILED)])
def test_a_larger_slot_that_is_refused(rig: Rig, answer: int, status: int) -> None:
    rig.comes_up(0)
    assert rig.said() == Up(RELAY, IN_FLIGHT)
    slot = rig.task(1)
    rig.order(0).set_result(made_of(1, slot.capacity + 1))
    assert type(rig.said()) is Need
    # Whatever epoch it is by then: each Need has one answer, and the slot says whose it is.
    rig.board.token = 2
    rig.send(Space(slot.offset, 0, answer))
    assert rig.replied() == (status, 1)


def test_what_a_lost_worker_had_goes_to_another_one_or_back(rig: Rig) -> None:
    for place in range(THERE):
        rig.comes_up(place)
        assert rig.said() == Up(RELAY, IN_FLIGHT * (place + 1))
    for number in (1, 2, 3):
        rig.task(number)
    other = rig.order(1)  # 2; and worker 0 has 1 and 3
    rig.hands[0].ended.set_exception(RuntimeError("gone"))
    while type(said := rig.said()) is Up:
        credit = said.credit
    assert credit == IN_FLIGHT  # known before the task comes back
    assert isinstance(said, Reply) and said.status == DROPPED
    assert rig.slots.pop(said.slot)[0] == 3
    assert type(rig.said()) is Up  # with what the consumer is told
    other.set_result(made_of(2))
    rig.order(1).set_result(made_of(1))
    assert [rig.replied(), rig.replied()] == [(DONE, 2), (DONE, 1)]


def test_one_that_comes_up_anew_is_shown_and_used(rig: Rig) -> None:
    rig.comes_up(0)
    assert rig.said() == Up(RELAY, IN_FLIGHT)
    rig.hands[0].ended.set_exception(RuntimeError("gone"))
    again = rig.engine.hands.get()
    while rig.said() != Up(RELAY, 0):
        pass
    while read_board(rig.arena.fd).rows[HERE].node:
        time.sleep(0)
    rig.hands[0] = again
    rig.comes_up(0)
    while rig.said() != Up(RELAY, IN_FLIGHT):
        pass
    rig.task(1)
    rig.order(0).set_result(made_of(1))
    assert rig.replied() == (DONE, 1)
