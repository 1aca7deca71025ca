"""The page that a loader writes, as its reader finds it in a file."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Iterator

import pytest

from lit_loader.transport.board_view import OtherFormat, WorkerRow, read_board, read_index
from lit_loader.transport.loader_page import BAD_SAMPLE, EVENTS, PAGE_BYTES, RESTART, LoaderPage
from lit_loader.transport.messages import pack_indices, task_number
from lit_loader.transport.progress import Progress
from lit_loader.transport.status_board import ROW_WORDS, Stage, StatusBoard, board_bytes

WORKERS = 3
SLOT = 1 << 16


class Shared:
    """A board with its page, in a file."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("board")
        os.ftruncate(self.fd, SLOT + 4096)
        self.map = mmap.mmap(self.fd, SLOT + 4096)
        memory = memoryview(self.map)[: board_bytes(WORKERS) + PAGE_BYTES]
        self.board, self.page = StatusBoard(memory), LoaderPage(memory)
        self.board.workers = WORKERS

    def describe(self, dataset: str = "Images") -> None:
        self.page.describe("train", dataset, 32, (1, 4), depth=6)


@pytest.fixture
def shared() -> Iterator[Shared]:
    shared = Shared()
    yield shared
    os.close(shared.fd)


def test_what_is_written_is_read(shared: Shared) -> None:
    with pytest.raises(OtherFormat):
        read_board(shared.fd)
    shared.describe()
    shared.page.begin_epoch(3, 100, 250)
    view = read_board(shared.fd)
    assert (view.pid, view.role, view.dataset) == (os.getpid(), "train", "Images")
    assert (view.workers, view.depth, view.batch_size) == (WORKERS, 6, 32)
    assert (view.rank, view.replicas, view.epoch, view.length) == (1, 4, 3, 250)
    assert view.given - view.base == 100 and view.consumer > 0
    assert view.events == [] and len(view.rows) == WORKERS
    now = time.monotonic_ns()
    shared.page.gave(now, 70)
    shared.page.gave(now, 7)
    view = read_board(shared.fd)
    assert (view.given - view.base, view.waited, view.consumer) == (102, 77, -now)
    shared.page.asked(now + 1)
    assert read_board(shared.fd).consumer == now + 1
    shared.page.rest(kept=True)
    assert read_board(shared.fd).consumer == 0


def test_ready_batches_follow_from_counters(shared: Shared) -> None:
    shared.describe()
    shared.page.begin_epoch(0, 0, -1)
    shared.board.count(0)
    shared.board.count(2)
    shared.page.received = 1
    shared.page.in_flight = [1, 2]
    shared.page.balance(3)
    assert read_board(shared.fd).ready == 2
    shared.board.count(1)
    shared.page.settle()
    assert shared.page.received == 3
    shared.page.received = 1
    assert read_board(shared.fd).ready == 3
    shared.page.gave(1, 0)
    assert read_board(shared.fd).ready == 2
    shared.page.drop(1)
    assert read_board(shared.fd).ready == 1 and shared.page.received == 2
    shared.page.drop(-1)
    assert read_board(shared.fd).ready == 2 and shared.page.received == 2
    shared.page.drop(1)
    assert read_board(shared.fd)._replace(given=99).ready == 0
    shared.page.rest(kept=True)
    assert read_board(shared.fd).ready == 1
    shared.page.rest(kept=False)
    assert read_board(shared.fd).ready == 0


def test_the_last_events_are_kept(shared: Shared) -> None:
    shared.describe(dataset="é" * 500)
    shared.page.restarted("x" * 5000)
    shared.page.bad_samples([f"index {n}" for n in range(EVENTS)])
    view = read_board(shared.fd)
    assert (view.restarts, view.bad) == (1, EVENTS)
    assert [event.text for event in view.events] == [f"index {n}" for n in range(EVENTS)]
    assert {event.kind for event in view.events} == {BAD_SAMPLE}
    shared.page.restarted("x" * 5000)
    last = read_board(shared.fd).events[-1]
    assert last.kind == RESTART and 400 < len(last.text) < 500
    assert abs(last.time - time.time()) < 60
    other = Shared()
    other.describe()
    other.page.follow(shared.page)
    view = read_board(other.fd)
    os.close(other.fd)
    assert (view.restarts, view.bad, len(view.events)) == (2, EVENTS, EVENTS)
    assert view.events[-1].text == last.text


def test_after_its_end_it_writes_nowhere(shared: Shared) -> None:
    shared.describe()
    before = read_board(shared.fd)
    shared.page.close()
    shared.page.begin_epoch(1, 1, 1)
    shared.page.gave(1, 1)
    shared.page.restarted("late")
    shared.describe("another")
    assert read_board(shared.fd) == before


def row_of(shared: Shared, worker: int) -> WorkerRow:
    return read_board(shared.fd).rows[worker]


def test_rows(shared: Shared) -> None:
    shared.describe()
    shared.board.launched(1, 77)
    shared.board.shows_stacks(1, 5)
    shared.board.enter(1, Stage.FETCHING, task_number(2, 9))
    row = row_of(shared, 1)
    assert (row.pid, row.stacks, row.stage, row.batch) == (77, 6, Stage.FETCHING, 9)
    assert 0 < row.started <= row.since
    shared.board.count(1)
    shared.board.clear(1)
    row = row_of(shared, 1)
    assert (row.pid, row.stacks, row.made, row.batch) == (0, 0, 1, None)


def test_indices(shared: Shared) -> None:
    shared.describe()
    packed = pack_indices([5, -6, 7])
    shared.map[SLOT : SLOT + len(packed)] = packed
    shared.board.reads(0, 9, SLOT, len(packed))
    shared.board.enter(0, Stage.FETCHING, 9)
    progress = Progress(shared.board.words, ROW_WORDS)
    found = []
    for position in range(4):
        progress.step(position)
        found.append(read_index(shared.fd, row_of(shared, 0)))
    assert found == [5, -6, 7, None]
    progress.step(0)
    shared.board.enter(0, Stage.FETCHING, 10)
    assert read_index(shared.fd, row_of(shared, 0)) is None, "those of another task"
    shared.board.enter(0, Stage.COLLATING, 9)
    assert read_index(shared.fd, row_of(shared, 0)) is None, "the batch takes their place"
    packed = pack_indices(["a", "b"])
    shared.map[SLOT : SLOT + len(packed)] = packed
    shared.board.reads(0, 9, SLOT, len(packed))
    shared.board.enter(0, Stage.FETCHING, 9)
    assert read_index(shared.fd, row_of(shared, 0)) is None, "nothing of others is unpickled"
