"""`ReaderLane`: which of the tasks it is sent it takes, as its remote worker comes and goes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from lit_loader.remote.lane import Desk
from lit_loader.remote.reader_lane import ReaderLane
from lit_loader.transport.messages import (
    ALL,
    SIZE,
    Message,
    Part,
    Proceed,
    Resume,
    Task,
    pack,
    unpack,
)
from lit_loader.transport.status_board import Stage, StatusBoard, board_bytes


class Memory:
    """In the place of the arena: every slot is the same."""

    def memory(self, offset: int, capacity: int) -> Any:
        return np.zeros(capacity, np.uint8)


class Rig:
    """A lane with its pipes."""

    def __init__(self) -> None:
        self.results, sending = os.pipe()
        control, self._control = os.pipe()
        os.set_blocking(self.results, False)
        self.ends = [self.results, sending, control, self._control]
        self.board = StatusBoard(memoryview(bytearray(board_bytes(3))))
        self.board.generation = 1
        self.lane = ReaderLane(2, control, 1, Desk(Memory(), self.board, sending))  # type: ignore[arg-type]

    def send(self, *messages: Message) -> None:
        for message in messages:
            os.write(self._control, pack(message))
            assert self.lane.attend()

    def said(self) -> list[str]:
        try:
            data = os.read(self.results, 100 * SIZE)
        except BlockingIOError:
            return []
        return [type(unpack(data, at)).__name__ for at in range(0, len(data), SIZE)]

    @property
    def stage(self) -> int:
        return self.board.read(2).stage

    def next_number(self) -> int | None:
        order = self.lane.next_order()
        return None if order is None else order.number


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    for end in rig.ends:
        os.close(end)


def task(number: int, generation: int = 1) -> Task:
    return Task(generation, number, 0, 0, 0, 64, 0, 0)


def test_it_says_that_it_is_up_when_its_worker_is(rig: Rig) -> None:
    assert rig.stage == Stage.STARTING and rig.said() == []
    rig.lane.follow(False)
    assert rig.said() == []
    rig.lane.follow(True)
    rig.lane.follow(True)
    assert rig.stage == Stage.IDLE and rig.said() == ["Up"]


def test_tasks_are_taken_one_at_a_time_and_in_order(rig: Rig) -> None:
    rig.lane.follow(True)
    rig.send(task(4), task(8))
    assert [rig.next_number(), rig.next_number()] == [4, None]
    rig.lane.task = None
    assert [rig.next_number(), rig.next_number()] == [8, None]


def test_what_was_on_its_way_is_dropped_until_the_answer(rig: Rig) -> None:
    rig.lane.follow(True)
    rig.send(task(4), task(8))
    assert rig.next_number() == 4
    rig.lane.follow(False)
    assert rig.lane.task is None and rig.stage == Stage.STARTING
    assert rig.said() == ["Up", "Return"]
    rig.lane.follow(False)  # said once
    rig.send(task(12), Part(3))  # sent before that was read; and another reader's farewell
    rig.lane.follow(True)
    assert rig.said() == [] and rig.next_number() is None and rig.stage == Stage.STARTING
    rig.send(Part(ALL))
    rig.lane.follow(True)
    assert rig.said() == ["Up"] and rig.next_number() is None
    rig.send(task(16))
    assert rig.next_number() == 16


def test_an_answer_is_waited_for_past_a_new_epoch(rig: Rig) -> None:
    rig.lane.follow(True)
    rig.send(task(4))
    rig.lane.follow(False)
    rig.board.generation = 2
    rig.send(Resume(2), Proceed())
    rig.lane.follow(True)
    assert rig.said() == ["Up", "Return", "Ack"] and rig.stage == Stage.STARTING
    rig.send(Part(ALL))
    rig.lane.follow(True)
    rig.send(task(5, 1), task(4, 2))
    assert rig.said() == ["Up"]
    assert rig.next_number() == 4  # the other one is of the epoch before


def test_a_new_epoch_voids_what_waits(rig: Rig) -> None:
    rig.lane.follow(True)
    rig.send(task(4), task(8))
    assert rig.next_number() == 4
    rig.send(Resume(2))
    assert rig.lane.task is None and rig.next_number() is None
    rig.send(Proceed(), task(0, 2))
    assert rig.next_number() == 0
