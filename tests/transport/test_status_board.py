"""The status board: rows of shared words, and what a reader of samples does with them."""

from __future__ import annotations

import time

import pytest

from lit_loader.transport.status_board import Cancelled, Progress, Stage, StatusBoard, board_bytes


def new_board(workers: int = 3) -> StatusBoard:
    return StatusBoard(memoryview(bytearray(board_bytes(workers))))


def test_a_new_row() -> None:
    assert new_board().read(2) == (Stage.STARTING, 0, 0, 0, 0)


def test_entering_a_stage() -> None:
    board = new_board()
    before = time.monotonic_ns()
    board.enter(1, Stage.FETCHING, 17)
    row = board.read(1)
    assert (row.stage, row.number, row.position) == (Stage.FETCHING, 17, 0)
    assert before <= row.since <= time.monotonic_ns()
    assert board.read(0).since == board.read(2).since == 0


def test_progress_is_seen_and_starts_again_with_the_next_stage() -> None:
    board = new_board()
    progress = board.progress(1)
    board.enter(1, Stage.FETCHING, 4)
    progress.step(9)
    assert board.read(1).position == 9
    assert board.read(0).position == board.read(2).position == 0
    board.enter(1, Stage.COLLATING, 4)
    assert board.read(1).position == 0


def test_another_generation_cancels() -> None:
    board = new_board()
    board.generation = 5
    progress = board.progress(0)
    progress.generation = 5
    progress.step(0)
    board.generation = 6
    with pytest.raises(Cancelled):
        progress.step(1)
    progress.generation = 6
    progress.step(1)


def test_the_generation_is_no_row() -> None:
    board = new_board()
    board.generation = 2**31
    assert board.generation == 2**31
    assert board.read(0) == (Stage.STARTING, 0, 0, 0, 0)


def test_clearing_a_row() -> None:
    board = new_board()
    board.enter(0, Stage.ENCODING, 3)
    before = time.monotonic_ns()
    board.clear(0)
    row = board.read(0)
    assert (row.stage, row.number, row.position, row.issue) == (Stage.STARTING, -1, 0, 0)
    assert row.since >= before  # a new worker is not taken to hang since the beginning of time


def test_a_reader_that_nobody_watches() -> None:
    progress = Progress()
    for position in range(3):
        progress.step(position)


def test_every_stage_has_a_name() -> None:
    stages = [number for name, number in vars(Stage).items() if name.isupper()]
    stages = [number for number in stages if isinstance(number, int)]
    assert sorted(stages) == list(range(len(Stage.NAMES)))


def test_a_released_board_lets_go_of_its_memory() -> None:
    memory = bytearray(board_bytes(1))
    board = StatusBoard(memoryview(memory))
    board.release()
    memory.clear()  # would raise BufferError if anything still looked into it


def test_who_rests_learns_whether_it_is_to_stay() -> None:
    board = new_board()
    board.enter(1, Stage.ENCODING, 17, 3)
    board.workers = 2
    assert board.rest(1)
    assert board.read(1)[:3] + board.read(1)[4:] == (Stage.IDLE, -1, 0, 0)
    board.workers = 1
    assert board.rest(0)
    assert not board.rest(1)
    assert (board.read(0).stage, board.read(1).stage) == (Stage.IDLE, Stage.LEFT)
    assert board.generation == board.issue == 0
