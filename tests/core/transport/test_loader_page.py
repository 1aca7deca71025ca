"""The page that a loader writes, and its board, as their reader finds them in a file."""

import mmap
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from lit_loader.core.transport.status_board import StatusBoard, board_bytes
from lit_loader.core.transport.viewer_page import PAGE_BYTES, ViewerPage
from lit_loader.top.board import BoardView
from lit_loader.top.board import read_board as read

WORKERS = 3
SLOT = 1 << 16


class Shared:
    """A board with its page, in a file."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("board")
        os.ftruncate(self.fd, SLOT + 4096)
        self.map = mmap.mmap(self.fd, SLOT + 4096)
        memory = memoryview(self.map)[: board_bytes(WORKERS) + PAGE_BYTES]
        self.board, self.page = StatusBoard(memory), ViewerPage(memory)
        self.board.workers = WORKERS

    def write(self, ready: int = 0, **figures: Any) -> None:
        self.page.write({"ahead": 6, **figures}, ready, time.monotonic_ns())


def read_board(fd: int) -> BoardView:
    found = read(fd)
    assert found is not None
    return found


@pytest.fixture
def shared() -> Iterator[Shared]:
    shared = Shared()
    yield shared
    os.close(shared.fd)


def test_a_reader_never_sees_half_a_page(shared: Shared) -> None:
    """Whoever writes is read all the while; then it ends in the midst of a page."""
    shared.write(text="", number=0)
    ended = threading.Event()

    def write() -> None:
        for number in range(1, 2000):
            shared.write(text="x" * (7 * number % 6000), number=number)
        ended.set()

    writer = threading.Thread(target=write)
    writer.start()
    last = 0
    while not ended.is_set():
        found = read_board(shared.fd).page["loader"]
        assert len(found["text"]) == 7 * found["number"] % 6000 and found["number"] >= last
        last = found["number"]
    writer.join()
    page = board_bytes(WORKERS)
    written = os.pread(shared.fd, PAGE_BYTES, page)
    # That which would be written next is the one that is not read.
    for half in (0, PAGE_BYTES // 2):
        os.pwrite(shared.fd, b"\xff" * 100, page + half)
        if read_whole(shared) != 1999:
            os.pwrite(shared.fd, written[half:][:100], page + half)
    assert read_whole(shared) == 1999


def read_whole(shared: Shared) -> int | None:
    found = read(shared.fd)
    return None if found is None else int(found.page["loader"]["number"])


def test_what_is_too_long_is_left_out(shared: Shared) -> None:
    shared.write(dataset="Images", events=[[0, "restart", "ü" * 450]] * 7, verdict="v" * 9000)
    assert read_board(shared.fd).page["loader"] == {"ahead": 6, "dataset": "Images"}
