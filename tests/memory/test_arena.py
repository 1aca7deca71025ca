"""The arena for itself: slots, leases, growth, and memory that goes back to the system."""

from __future__ import annotations

import errno
import gc
import mmap
import os
import queue
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lit_loader.errors import LoaderError
from lit_loader.transport import arena as arena_module
from lit_loader.transport.arena import Arena, ArenaMap
from tests.support.programs import run_program
from tests.support.samples import given

ROOT = Path(__file__).parents[2]
SLOT = 1 << 20


@pytest.fixture(params=["memfd", "disk"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With memfd, and on a machine without."""
    if request.param == "disk":
        monkeypatch.delattr(os, "memfd_create", raising=False)
    elif not hasattr(os, "memfd_create"):
        pytest.skip("no memfd here")
    return request.param


@pytest.fixture
def arena(kind: str) -> Iterator[Arena]:
    made = Arena(board_bytes=100, in_flight=2, held=3, slot_bytes=SLOT)
    yield weakref.proxy(made)  # pytest keeps fixtures longer than the check of what is left behind
    made.close()


def fill(arena: Arena, value: int, nbytes: int = SLOT) -> Any:
    """Make a batch of ``nbytes`` equal bytes, as a worker would, and give it out."""
    slot = arena.acquire(nbytes)
    slot.memory[:nbytes] = value
    return given(arena, slot, nbytes)


def blocks(fd: int) -> int:
    """Bytes of real memory (or disk) behind a descriptor."""
    return os.fstat(fd).st_blocks * 512


def free(arena: Arena) -> int:
    return len(arena._free)


def test_slots_are_apart_and_aligned(arena: Arena) -> None:
    slots = [arena.acquire() for _ in range(5)]
    offsets = sorted(slot.offset for slot in slots)
    assert offsets[0] == mmap.PAGESIZE  # behind the board
    assert np.diff(offsets).tolist() == [SLOT] * 4
    for number, slot in enumerate(slots):
        slot.memory[:] = number + 1
    assert [int(slot.memory.max()) for slot in slots] == [1, 2, 3, 4, 5]
    assert bytes(arena.board) == bytes(100)


def test_the_slot_used_last_is_used_first(arena: Arena) -> None:
    first, second = arena.acquire(), arena.acquire()
    arena.release(second)
    arena.release(first)
    assert arena.acquire() is first
    assert arena.acquire() is second


def test_a_lease_returns_its_slot_with_the_last_view(arena: Arena) -> None:
    batch = fill(arena, 7)
    views = [
        batch[10:20],
        batch.view(np.int64)[::2].reshape(2, -1),
        torch.frombuffer(batch, dtype=torch.uint8)[4:].view(-1, 4),
    ]
    del batch
    while views:
        gc.collect()
        assert (arena.leased, free(arena)) == (1, 4)
        assert int(views.pop().flatten()[0]) in (7, 0x0707070707070707)
    assert (arena.leased, free(arena)) == (0, 5)


def test_a_lease_that_dies_in_another_thread(arena: Arena) -> None:
    held: queue.SimpleQueue[Any] = queue.SimpleQueue()
    held.put(torch.from_numpy(fill(arena, 1)))
    thread = threading.Thread(target=held.get)
    thread.start()
    thread.join()
    assert (arena.leased, free(arena)) == (0, 5)


def test_many_threads_take_and_give_back(arena: Arena) -> None:
    def use() -> None:
        for number in range(200):
            mine = fill(arena, number % 251, 512)
            if not (mine == number % 251).all():
                mixed.append(number)

    mixed: list[int] = []
    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not mixed
    slots = [*arena._free.warm, *arena._free.cold]
    assert len({slot.offset for slot in slots}) == len(slots) >= 5


def test_slots_that_threads_append_at_once_are_apart(arena: Arena) -> None:
    start = threading.Barrier(4)
    made: list[Any] = []

    def grow() -> None:
        start.wait()
        made.extend(arena.acquire(2 * SLOT) for _ in range(8))

    threads = [threading.Thread(target=grow) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    offsets = sorted(slot.offset for slot in made)
    assert np.diff(offsets).tolist() == [2 * SLOT] * 31


def test_what_is_kept_beyond_the_limit_is_private(arena: Arena) -> None:
    batches = [fill(arena, value) for value in range(10)]
    assert (arena.leased, free(arena)) == (3, 2)
    again = [fill(arena, 99) for _ in range(3)]
    assert [int(batch.min()) for batch in batches] == list(range(10))
    assert [int(batch.max()) for batch in batches] == list(range(10))
    del batches, again
    assert (arena.leased, free(arena)) == (0, 5)


def test_more_slots_than_there_are(arena: Arena) -> None:
    slots = [arena.acquire() for _ in range(8)]
    assert len({slot.offset for slot in slots}) == 8
    seen = ArenaMap(arena.fd, arena.mapped, 100)
    for number, slot in enumerate(slots):
        slot.memory[:4] = number
        assert seen.memory(slot.offset, slot.capacity)[:4].tolist() == [number] * 4
    seen.board.release()


def test_a_large_slot_is_made_once_and_used_again(arena: Arena) -> None:
    large = arena.acquire(5 * SLOT)
    assert large.capacity >= 5 * SLOT
    arena.release(large)
    small = arena.acquire(SLOT)
    assert small is large  # the one used last
    arena.release(small)
    others = [arena.acquire() for _ in range(5)]
    assert large in others
    for slot in others:
        arena.release(slot)
    before = free(arena)
    assert arena.acquire(5 * SLOT) is large
    assert free(arena) == before - 1  # those passed over are back, in their order
    assert arena.acquire() is not large


def test_worker_and_parent_see_the_same_bytes(arena: Arena) -> None:
    slot = arena.acquire()
    seen = ArenaMap(arena.fd, arena.mapped, len(arena.board))
    memory = seen.memory(slot.offset, slot.capacity)
    memory[:3] = (1, 2, 3)
    assert slot.memory[:3].tolist() == [1, 2, 3]
    seen.board[5] = 9
    assert arena.board[5] == 9
    assert seen.memory(slot.offset, slot.capacity) is memory
    seen.board.release()


def test_untouched_memory_costs_nothing() -> None:
    arena = Arena(board_bytes=64, in_flight=4)
    assert arena.mapped > 1 << 30
    assert blocks(arena.fd) <= 2 * mmap.PAGESIZE
    arena.close()


def test_trimming_gives_memory_back() -> None:
    arena = Arena(64, in_flight=4, held=4, slot_bytes=SLOT)
    batches = [fill(arena, value) for value in range(4)]
    assert blocks(arena.fd) >= 4 * SLOT
    kept = batches.pop()
    del batches
    arena.trim(keep=1)
    assert 2 * SLOT <= blocks(arena.fd) < 3 * SLOT
    assert (kept == 3).all()
    del kept
    arena.trim(keep=0)
    assert blocks(arena.fd) <= mmap.PAGESIZE * 2
    assert (fill(arena, 5, 100) == 5).all()  # a slot that gave its memory back is as good as new
    arena.close()


def test_a_slot_whose_fill_is_not_known_gives_all_back() -> None:
    arena = Arena(64, in_flight=1, held=1, slot_bytes=SLOT)
    fill(arena, 1)
    slot = arena.acquire()
    slot.memory[:] = 2
    arena.release(slot, used=False)
    arena.trim(0)
    assert blocks(arena.fd) <= mmap.PAGESIZE * 2
    arena.close()


def test_batches_outlive_the_arena(kind: str) -> None:
    arena = Arena(64, in_flight=2, held=3, slot_bytes=SLOT)
    fd = os.dup(arena.fd)
    kept = torch.from_numpy(fill(arena, 4))
    under_way = arena.acquire()
    arena.close()
    arena.close()
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        os.fstat(arena.fd)
    assert bool((kept == 4).all())
    if kind == "memfd":
        assert blocks(fd) <= SLOT + 2 * mmap.PAGESIZE
        arena.release(under_way)
        del kept
        assert blocks(fd) <= 2 * mmap.PAGESIZE
    assert os.fstat(fd).st_nlink == 0  # no name that could be left behind
    os.close(fd)


def test_a_forked_copy_takes_no_memory_from_its_parent() -> None:
    arena = Arena(64, in_flight=1, held=1, slot_bytes=SLOT)
    batch = fill(arena, 8)
    if (child := os.fork()) == 0:
        del batch
        arena.trim(0)
        arena.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert (batch == 8).all()
    arena.close()


def test_memory_that_cannot_be_had_is_an_error_that_says_so(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arena_module.mmap, "mmap", _refuse)
    with pytest.raises(LoaderError, match=rf"needs {4 * SLOT} bytes.*raise the limit \(ulimit"):
        arena.acquire(4 * SLOT)
    monkeypatch.undo()
    assert arena.acquire(4 * SLOT).capacity == 4 * SLOT


def test_no_memory_at_all(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena_module.mmap, "mmap", _refuse)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(LoaderError, match="no shared memory for the loader: mapping 5 parts"):
        Arena(64, in_flight=2, held=3, slot_bytes=SLOT)
    assert len(os.listdir("/proc/self/fd")) == before


def _refuse(*_: object, **__: object) -> None:
    raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))


def test_a_kernel_without_memfd(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSYS, "no such system call")

    monkeypatch.setattr(os, "memfd_create", refuse)
    arena = Arena(64, in_flight=1, held=1, slot_bytes=SLOT)
    assert blocks(arena.fd) >= 2 * SLOT  # every block is allocated: no SIGBUS on a full disk
    assert (fill(arena, 3) == 3).all()
    arena.close()


LIMITED = """
import resource, sys
import torch
import lit_loader, lit_loader.loader
from lit_loader.errors import LoaderError

pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
loader = lit_loader.DataLoader(range(1000), batch_size=10, num_workers=2,
                               multiprocessing_context="fork")
try:
    print(sum(int(batch.sum()) for batch in loader))
except LoaderError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("room", "words"),
    [(2 << 30, "499500"), (512 << 20, "499500"), (4 << 20, "raise the limit (ulimit -v)")],
    ids=["2 GiB", "512 MiB", "4 MiB"],
)
def test_a_small_address_space(room: int, words: str, tmp_path: Path) -> None:
    """Slots become smaller; where even the smallest do not fit, the error says what to raise."""
    program = tmp_path / "program.py"
    program.write_text(LIMITED)
    assert words in run_program(program, room)
