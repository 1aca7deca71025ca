"""What the arena costs: memory of a past peak goes back."""

import gc
import itertools
import mmap
import os
import random
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from lit_loader.core.transport import arena as arena_module
from lit_loader.core.transport.arena import Arena, Slot
from tests.support.samples import given

PAGE = mmap.PAGESIZE
BATCH = 64 << 10
DEPTH = 4
EPOCH = 128

needs_memfd = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="no memfd here")


class Consumer:
    """A loader in miniature: tasks are sent, made at once, given out in order.

    ``size`` says how many bytes a batch has, by its number; the last ``hold`` batches are kept, and
    compared with what they should be when they are let go of.
    """

    def __init__(self, arena: Arena, size: Callable[[int], int], hold: int = 2) -> None:
        self.arena, self.size, self.hold = arena, size, hold
        self.held: deque[tuple[int, Any]] = deque()
        self.flight: deque[tuple[int, Slot]] = deque()
        self.numbers = itertools.count()

    def take(self, count: int) -> None:
        for _ in range(count):
            while len(self.flight) < DEPTH:
                number, slot = next(self.numbers), self.arena.acquire(8)
                slot.memory[: self.size(number)] = number % 251
                self.flight.append((number, slot))
            number, slot = self.flight.popleft()
            self.let_go(self.hold - 1)
            self.held.append((number, given(self.arena, slot, self.size(number))))

    def epochs(self, count: int) -> None:
        for _ in range(count):
            self.arena.trim(DEPTH + 2)
            self.take(EPOCH)

    def let_go(self, keep: int = 0) -> None:
        while len(self.held) > keep:
            number, batch = self.held.popleft()
            assert len(batch) == self.size(number)
            assert (batch == number % 251).all()


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
    watch(arena_module, "map_part")
    monkeypatch.setattr(mmap, "mmap", Watched)
    return made


@pytest.mark.parametrize("hold", [1, 3])
def test_nothing_is_mapped_or_given_back_while_nothing_changes(calls: list[str], hold: int) -> None:
    arena = Arena(64, in_flight=DEPTH)
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
def test_threads_and_the_collector_never_meet_a_slot_in_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Parts of batches die anywhere, in cycles too, while memory is given back all the time."""
    monkeypatch.setattr("lit_loader.core.transport.arena.HELD_SLOTS", 20)
    arena = Arena(64, in_flight=8)
    mixed: list[int] = []

    def use(seed: int) -> None:
        dice = random.Random(seed)
        held: deque[Any] = deque(maxlen=6)
        for number in range(400):
            value, nbytes = (number + seed) % 251, dice.choice([PAGE, BATCH, 4 * BATCH])
            slot = arena.acquire()
            slot.memory[:nbytes] = value
            middle, lease = nbytes // 2 - 100, arena.lease(slot, nbytes)  # on no page
            divided = arena.divide(lease, [(0, middle), (middle, nbytes)])
            parts: list[Any] = [lease[:middle], lease[middle:]]
            if divided is not None:
                parts = [memory[start - first :] for start, memory, first in divided]
            cycle: list[Any] = [parts.pop(dice.randrange(2))]
            cycle.append(cycle)
            held.append((parts, value))
            del lease, divided, cycle
            mixed.extend(v for [part], v in held if part[0] != v or part[99] != v)
            if dice.random() < 0.1:
                arena.trim(1)

    before = gc.get_threshold()
    gc.set_threshold(20)
    try:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(use, range(4)))
    finally:
        gc.set_threshold(*before)
    gc.collect()
    assert not mixed
    assert (len(arena._leased), arena.in_flight) == (0, 0)
    arena.close()
