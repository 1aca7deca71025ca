"""The status board: rows of shared words, and what a reader of samples does with them."""

from __future__ import annotations

import time

import pytest

from lit_loader.transport.progress import Cancelled, Progress
from lit_loader.transport.status_board import (
    ROW_BYTES,
    ROW_WORDS,
    VOIDABLE,
    Stage,
    StatusBoard,
    board_bytes,
    credit_of,
    node_of,
)


def new_board(workers: int = 3) -> StatusBoard:
    return StatusBoard(memoryview(bytearray(board_bytes(workers))))


def test_a_new_row() -> None:
    assert new_board().read(2) == (Stage.STARTING, 0, 0, 0)


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
    progress = Progress(board.words, 2 * ROW_WORDS)
    board.enter(1, Stage.FETCHING, 4)
    progress.step(9)
    assert board.read(1).position == 9
    assert board.read(0).position == board.read(2).position == 0
    board.enter(1, Stage.COLLATING, 4)
    assert board.read(1).position == 0


def test_another_token_cancels() -> None:
    board = new_board()
    board.token = 5
    progress = Progress(board.words, ROW_WORDS)
    progress.token = 5
    progress.step(0)
    board.token = 6
    with pytest.raises(Cancelled):
        progress.step(1)
    progress.token = 6
    progress.step(1)


def test_the_token_is_no_row() -> None:
    board = new_board()
    board.token = 2**31
    assert board.token == 2**31
    assert board.read(0) == (Stage.STARTING, 0, 0, 0)


def test_tasks_are_called_off_one_by_one() -> None:
    board = new_board()
    for place in range(1, VOIDABLE + 1):
        board.call_off(1, place, True)
        assert [p for p in range(1, VOIDABLE + 1) if not board.wants(1, 0, p)] == [place]
        assert board.wants(0, 0, place) and board.wants(2, 0, place)
        board.call_off(1, place, False)
    board.call_off(1, VOIDABLE, True)
    board.clear(1)
    assert board.wants(1, 0, VOIDABLE) and not board.wants(1, 1, VOIDABLE)


def test_clearing_a_row() -> None:
    board = new_board()
    board.enter(0, Stage.ENCODING, 3)
    before = time.monotonic_ns()
    board.clear(0)
    row = board.read(0)
    assert (row.stage, row.number, row.position) == (Stage.STARTING, -1, 0)
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


def test_rows_of_workers_elsewhere_and_of_their_relay() -> None:
    memory = bytearray(board_bytes(3))
    board = StatusBoard(memoryview(memory))
    board.is_elsewhere(1, "node")
    board.is_relay(2, 5)

    def row(worker: int) -> bytes:
        return bytes(memory[(worker + 1) * ROW_BYTES : (worker + 2) * ROW_BYTES])

    assert [node_of(row(worker)) for worker in range(3)] == [None, "node", None]
    assert [credit_of(row(worker)) for worker in range(3)] == [None, None, 5]
    board.is_elsewhere(1, "")
    board.clear(2)
    assert node_of(row(1)) == "" and credit_of(row(2)) is None
