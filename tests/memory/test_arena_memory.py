"""What the arena costs: memory of a past peak goes back, and a budget is kept."""

from __future__ import annotations

import gc
import itertools
import mmap
import os
import random
import sys
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lit_loader.errors import LoaderError
from lit_loader.system import shared_file
from lit_loader.transport import arena as arena_module
from lit_loader.transport.arena import Arena, ArenaMap, Slot
from tests.support.samples import given

PAGE = mmap.PAGESIZE
BATCH = 64 << 10
DEPTH = 4
EPOCH = 128

needs_memfd = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="no memfd here")


def blocks(arena: Arena) -> int:
    """Bytes of real memory behind an arena, by the kernel's account."""
    return os.fstat(arena.fd).st_blocks * 512


class Consumer:
    """A loader in miniature: tasks are sent while there is room, made at once, given out in order.

    Args:
        arena: What the batches lie in.
        size: Number of a batch to its bytes.
        hold: Batches that the consumer keeps.
        depth: Tasks under way, where there is room.

    Attributes:
        peak: Bytes of real memory that the arena has taken at most.
        most: Tasks that were under way at most.
    """

    def __init__(
        self, arena: Arena, size: Callable[[int], int], hold: int = 2, depth: int = DEPTH
    ) -> None:
        self.arena = arena
        self.size = size
        self.depth = depth
        self.held: deque[tuple[int, Any]] = deque(maxlen=hold)
        self.flight: deque[tuple[int, Slot]] = deque()
        self.peak = self.most = 0
        self.numbers = itertools.count()

    def take(self, count: int) -> None:
        """Be given batches, each compared with what it should be when it is let go of."""
        for _ in range(count):
            while len(self.flight) < self.depth and self.arena.room(len(self.flight)) > 0:
                number, slot = next(self.numbers), self.arena.acquire(8)
                slot.memory[: self.size(number)] = number % 251
                self.flight.append((number, slot))
            self.most = max(self.most, len(self.flight))
            self.peak = max(self.peak, blocks(self.arena))
            number, slot = self.flight.popleft()
            if len(self.held) == self.held.maxlen:
                self.check(*self.held[0])
            self.held.append((number, given(self.arena, slot, self.size(number))))

    def epochs(self, count: int) -> None:
        """Take so many epochs."""
        for _ in range(count):
            self.arena.trim(self.depth + 2)
            self.take(EPOCH)

    def check(self, number: int, batch: Any) -> None:
        """Hold a batch against its number."""
        assert len(batch) == self.size(number)
        assert (batch == number % 251).all()

    def let_go(self) -> None:
        """Drop everything held, after a last look at it."""
        while self.held:
            self.check(*self.held.popleft())


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of all system calls that change what is mapped or there."""
    made: list[str] = []

    def watch(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def called(*args: Any, **options: Any) -> Any:
            made.append(name)
            return original(*args, **options)

        monkeypatch.setattr(owner, name, called)

    class Watched(mmap.mmap):
        def madvise(self, *args: Any) -> Any:
            made.append("madvise")
            return super().madvise(*args)

        def __del__(self) -> None:
            made.append("munmap")

    watch(os, "ftruncate")
    watch(shared_file, "map_part")
    monkeypatch.setattr(mmap, "mmap", Watched)
    return made


# Without a budget ------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [None, 12 * BATCH], ids=["unlimited", "budget"])
@pytest.mark.parametrize("hold", [1, 3])
def test_nothing_is_mapped_or_given_back_while_nothing_changes(
    calls: list[str], budget: int | None, hold: int
) -> None:
    arena = Arena(64, in_flight=DEPTH, budget=budget)
    sizes = random.Random(5).choices(range(BATCH * 3 // 4, BATCH), k=997)
    consumer = Consumer(arena, lambda number: sizes[number % 997], hold)
    consumer.epochs(2)
    assert calls  # what is watched for is seen
    calls.clear()
    consumer.epochs(4)
    assert calls == []
    consumer.let_go()
    arena.close()


@needs_memfd
def test_a_burst_of_held_batches_is_given_back_at_the_epochs_end() -> None:
    arena = Arena(64, in_flight=DEPTH)
    consumer = Consumer(arena, lambda _: BATCH, hold=60)
    consumer.take(200)
    assert blocks(arena) >= 60 * BATCH
    consumer.let_go()
    consumer.held = deque(maxlen=2)
    consumer.epochs(1)
    assert blocks(arena) <= (2 * DEPTH + 2) * BATCH
    consumer.let_go()
    arena.close()


@needs_memfd
@pytest.mark.parametrize("peak", ["many", "large"])
def test_a_peak_is_over_in_the_epoch_after_the_next(peak: str) -> None:
    arena = Arena(64, in_flight=DEPTH)
    large = 20 * BATCH if peak == "large" else BATCH
    consumer = Consumer(arena, lambda number: large if number < 120 else BATCH, hold=110)
    consumer.take(150)
    assert blocks(arena) >= 110 * BATCH
    consumer.let_go()
    consumer.held = deque(maxlen=2)
    consumer.epochs(2)
    assert blocks(arena) <= (2 * DEPTH + 2) * BATCH
    consumer.let_go()
    arena.close()


@needs_memfd
@pytest.mark.parametrize("many", [30, 100, 120])
def test_batches_gathered_and_dropped_in_turn_keep_their_memory(
    calls: list[str], many: int
) -> None:
    """As long as no more are gathered than slots may be held."""
    arena = Arena(64, in_flight=DEPTH)
    consumer = Consumer(arena, lambda _: PAGE, hold=many)
    for turn in range(2_000 // many):
        consumer.take(many)
        consumer.let_go()
        if turn == 400 // many:
            calls.clear()
    assert calls == []
    arena.close()


@needs_memfd
def test_large_batches_of_the_past_are_given_back() -> None:
    """A slot keeps no more than the batches of late need; also one that is held meanwhile."""
    arena = Arena(64, in_flight=DEPTH)
    consumer = Consumer(arena, lambda number: 64 * BATCH if number < 20 else PAGE)
    consumer.take(20)
    consumer.epochs(2)
    consumer.held = deque(consumer.held, maxlen=30)
    consumer.take(30)
    assert blocks(arena) <= 50 * PAGE + (DEPTH + 30) * 2 * PAGE
    consumer.let_go()
    arena.close()


@needs_memfd
def test_sizes_that_vary_keep_their_memory(calls: list[str]) -> None:
    """One large batch in an epoch is enough for what the slots keep."""
    arena = Arena(64, in_flight=DEPTH)
    large = EPOCH - 1
    consumer = Consumer(arena, lambda number: 8 * BATCH if number % large == 0 else BATCH)
    consumer.epochs(3)
    assert "madvise" not in calls
    consumer.let_go()
    arena.close()


@needs_memfd
def test_half_of_the_largest_is_too_little_to_give_back() -> None:
    arena = Arena(64, in_flight=1, held=1)
    arena.release(_written(arena, 2 * BATCH))
    for _ in range(3):
        arena.trim(1)
        arena.lease(arena.acquire(), BATCH + PAGE)
    assert arena.acquire().touched == 2 * BATCH
    arena.close()


def _written(arena: Arena, nbytes: int) -> Slot:
    slot = arena.acquire(nbytes)
    slot.memory[:nbytes] = 1
    return slot


@needs_memfd
def test_what_a_task_writes_is_counted_before_it_is_done() -> None:
    """A task's indices, or the batch that a larger slot was asked for, lie in the slot."""
    arena = Arena(64, in_flight=2, held=2)
    arena.release(_written(arena, 5 * PAGE + 1))
    assert arena.resident == blocks(arena) == 6 * PAGE
    arena.trim(0)
    assert arena.resident == blocks(arena) == 0
    arena.close()


@needs_memfd
def test_a_slot_is_nobodys_while_it_is_emptied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or another thread could be lent it, and what is written there be lost."""
    arena = Arena(64, in_flight=4, held=1)
    emptied = []

    def punch(slot: Slot) -> None:
        emptied.append(slot)
        assert slot not in [*arena._free.warm, *arena._free.cold]

    monkeypatch.setattr(Slot, "punch", punch)
    for slot in [arena.acquire(PAGE) for _ in range(4)]:
        arena.release(slot)
    arena.trim(1)
    assert len(emptied) == 3
    monkeypatch.undo()
    emptied.clear()
    del slot
    arena.close()


@needs_memfd
def test_threads_never_meet_a_slot_that_is_being_emptied() -> None:
    """Memory is given back all the time, never of a slot in use."""
    arena = Arena(64, in_flight=8, held=4, budget=10 * BATCH)
    mixed: list[int] = []

    def use(seed: int) -> None:
        dice = random.Random(seed)
        held: deque[Any] = deque(maxlen=3)
        for number in range(400):
            nbytes = dice.choice([PAGE, BATCH, 4 * BATCH])
            slot = arena.acquire()
            slot.memory[:nbytes] = value = (number + seed) % 251
            held.append((given(arena, slot, nbytes), value))
            mixed.extend(value for batch, value in held if not (batch == value).all())
            if dice.random() < 0.1:
                arena.trim(1)

    threads = [threading.Thread(target=use, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not mixed
    assert (arena.leased, arena.in_flight) == (0, 0)
    arena.close()


@needs_memfd
def test_batches_that_the_garbage_collector_finds() -> None:
    """A lease may die anywhere: in the middle of whatever the arena does."""
    arena = Arena(64, in_flight=2, held=20, budget=30 * PAGE)
    before = gc.get_threshold()
    gc.set_threshold(3)
    try:
        for number in range(2_000):
            slot = arena.acquire()
            assert arena.room(0) > 0
            slot.memory[:100] = number % 251
            batch = [arena.lease(slot, 100)]
            assert (batch[0] == number % 251).all()
            batch.append(batch)  # type: ignore[arg-type]
    finally:
        gc.set_threshold(*before)
    del batch
    gc.collect()
    assert (arena.leased, arena.in_flight) == (0, 0)
    arena.close()


# With a budget ---------------------------------------------------------------------------------


@needs_memfd
@pytest.mark.parametrize("hold", [1, 2, 10, 100])
@pytest.mark.parametrize("batches", [1, 2, 3, 6, 20])
def test_the_peak_stays_within_the_budget(batches: int, hold: int) -> None:
    """Also while as many batches as ever are held: those beyond the budget are copies."""
    budget = batches * BATCH
    arena = Arena(64, in_flight=DEPTH, budget=budget)
    consumer = Consumer(arena, lambda number: BATCH - number % 5 * 100, hold)
    consumer.take(400)
    assert consumer.peak <= budget * 1.1
    assert arena.resident <= budget * 1.1
    assert consumer.most == min(DEPTH, batches)
    consumer.let_go()
    arena.close()


@needs_memfd
def test_a_change_of_sizes_under_a_budget() -> None:
    """What is under way is larger than could be known; from then on it is kept within bounds."""
    budget = 8 * BATCH
    arena = Arena(64, in_flight=DEPTH, budget=budget)
    sizes = [*[BATCH // 4] * 50, *[2 * BATCH] * 100, *[BATCH // 4] * 500]
    consumer = Consumer(arena, lambda number: sizes[number])
    consumer.take(50 + DEPTH + 2)
    consumer.peak = 0
    consumer.take(90)
    assert 4 * BATCH < consumer.peak <= budget * 1.1
    consumer.epochs(3)
    assert consumer.arena.room(0) > 20
    consumer.let_go()
    arena.close()


@needs_memfd
def test_slots_under_a_budget_keep_no_more_than_is_expected() -> None:
    """Smaller batches, of which more fit; but not beside what slots have kept of larger ones."""
    arena = Arena(64, in_flight=16, budget=8 * BATCH)
    small = BATCH * 5 // 8
    consumer = Consumer(arena, lambda number: 2 * (BATCH if number < 50 else small), depth=16)
    consumer.take(50)
    consumer.epochs(3)
    assert consumer.most == 8 * BATCH // (2 * small) - 1  # beside one that is held
    assert consumer.peak <= 8 * BATCH * 1.1
    consumer.let_go()
    arena.close()


def test_room_by_the_numbers() -> None:
    unlimited = Arena(64, in_flight=1, held=1, slot_bytes=BATCH)
    assert unlimited.room(1_000) == sys.maxsize
    unlimited.close()
    arena = Arena(64, in_flight=DEPTH, slot_bytes=BATCH, budget=10 * BATCH)
    assert arena.room(0) == 1  # nobody knows yet how large a batch is
    slot = arena.acquire()
    assert arena.room(1) == 0
    batch = arena.lease(slot, BATCH)
    assert [arena.room(undelivered) for undelivered in (0, 1, 8, 9, 50)] == [9, 8, 1, 0, 0]
    slots = [arena.acquire() for _ in range(3)]  # of tasks sent twice, perhaps
    assert arena.room(0) == arena.room(3) == 6
    for slot in slots:
        arena.release(slot)
    del batch
    assert arena.room(0) == 10
    arena.close()


@needs_memfd
def test_a_batch_larger_than_the_budget_comes_alone_and_is_told_of_once() -> None:
    arena = Arena(64, in_flight=DEPTH, budget=BATCH)
    consumer = Consumer(arena, lambda number: BATCH if number < 5 else 10 * BATCH)
    consumer.take(5)
    assert arena.overrun() is None
    consumer.take(20)
    text = arena.overrun()
    assert text is not None
    assert f"a batch of {10 * BATCH} bytes is larger than memory_budget={BATCH}" in text
    assert "\n" not in text
    consumer.most = 0
    consumer.take(20)
    assert arena.overrun() is None
    assert consumer.most == 1
    assert blocks(arena) <= 10 * BATCH
    consumer.let_go()
    arena.close()


@needs_memfd
def test_free_memory_goes_before_batches_are_copied() -> None:
    """Slots that are free and warm never take room from batches held."""
    arena = Arena(64, in_flight=DEPTH, budget=8 * BATCH)
    consumer = Consumer(arena, lambda _: BATCH, hold=3)
    for _ in range(20):
        consumer.take(7)
        assert arena.leased == 3
        consumer.let_go()
        for slot in [arena.acquire() for _ in range(4)]:
            arena.release(slot, used=False)
    assert consumer.peak <= 8 * BATCH * 1.1
    arena.close()


def test_what_was_out_at_a_fork_counts() -> None:
    """It is not used again, nor emptied."""
    arena = Arena(64, in_flight=DEPTH, slot_bytes=BATCH, budget=8 * BATCH)
    consumer = Consumer(arena, lambda _: BATCH, hold=3)
    consumer.take(3)
    slots = [reference.slot for reference in arena._leases]
    assert sorted(slot.memory[0] for slot in slots) == [0, 1, 2]
    if (child := os.fork()) == 0:
        os._exit(0)
    os.waitpid(child, 0)
    consumer.let_go()
    assert (arena.leased, arena.kept) == (3, 3 * BATCH)
    consumer.take(20)
    assert sorted(slot.memory[0] for slot in slots) == [0, 1, 2]
    consumer.let_go()
    arena.close()


# Slots beyond the first mapping ----------------------------------------------------------------


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_slots_made_on_demand_cost_no_descriptor() -> None:
    arena = Arena(64, in_flight=1, held=200, slot_bytes=BATCH)
    worker = ArenaMap(arena.fd, arena.mapped, 64)
    before = descriptors()
    held = []
    for number in range(100):
        slot = arena.acquire(2 * BATCH)
        worker.memory(slot.offset, slot.capacity)[:] = number
        held.append(arena.lease(slot, 2 * BATCH))
    assert descriptors() == before
    assert [int(batch.min()) for batch in held] == list(range(100))
    assert [int(batch.max()) for batch in held] == list(range(100))
    worker.board.release()
    del held
    arena.close()
    gc.collect()
    assert descriptors() < before


def test_what_lies_in_a_slot_made_on_demand_outlives_the_arena() -> None:
    arena = Arena(64, in_flight=1, held=1, slot_bytes=BATCH)
    slot = arena.acquire(3 * BATCH)
    slot.memory[:] = 7
    batch = arena.lease(slot, 3 * BATCH)
    address = batch.ctypes.data
    del slot
    arena.close()
    del arena
    gc.collect()
    assert (batch == 7).all()
    maps = Path("/proc/self/maps")
    assert f"{address:x}-" in maps.read_text()
    del batch
    assert f"{address:x}-" not in maps.read_text()  # and is unmapped with it


def test_batches_that_grow_little_by_little_need_few_slots() -> None:
    arena = Arena(64, in_flight=1, held=1, slot_bytes=BATCH)
    before = arena.slots
    for nbytes in range(BATCH, 64 * BATCH, PAGE):
        slot = arena.acquire(nbytes)
        assert slot.capacity >= nbytes
        arena.release(slot)
    assert arena.slots - before <= 4 * 6 + 1
    arena.close()


def test_a_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """No room for more: an error that says so; what is there stays usable."""
    monkeypatch.delattr(os, "memfd_create", raising=False)
    allocate = os.posix_fallocate

    def nearly_full(fd: int, offset: int, nbytes: int) -> None:
        if offset + nbytes > 20 * BATCH:
            os.ftruncate(fd, 20 * BATCH)  # as far as it went
            raise OSError(28, "No space left on device")
        allocate(fd, offset, nbytes)

    monkeypatch.setattr(os, "posix_fallocate", nearly_full)
    arena = Arena(64, in_flight=1, held=1, slot_bytes=8 * BATCH)
    with pytest.raises(LoaderError, match="No space left on device.*free space .*TMPDIR"):
        arena.acquire(16 * BATCH)
    assert os.fstat(arena.fd).st_size == arena.mapped
    assert len(arena._free) == 2
    arena.acquire(2 * BATCH).memory[:] = 1
    arena.close()
    with pytest.raises(LoaderError, match="mapping 60 parts.*No space left on device.*TMPDIR"):
        Arena(64, in_flight=30, held=30)


def test_no_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", refuse, raising=False)
    with pytest.raises(LoaderError, match=r"Too many open files.*raise the .*\(ulimit -n\)"):
        Arena(64, in_flight=1)


def test_the_bytes_of_a_slot_are_whole_pages() -> None:
    arena = Arena(64, in_flight=1, held=1, slot_bytes=BATCH)
    slot = arena.acquire(10 * BATCH + 1)
    assert slot.capacity % PAGE == 0
    lease = arena.lease(slot, 10)
    assert np.may_share_memory(lease, slot.memory)
    assert arena_module.round_up(1) == PAGE
    del slot, lease
    arena.close()
