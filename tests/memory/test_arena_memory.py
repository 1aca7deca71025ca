"""The arena under threads and the garbage collector: no slot is used twice at a time."""

import gc
import mmap
import os
import random
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from lit_loader.core.transport.arena import Arena

PAGE = mmap.PAGESIZE
BATCH = 64 << 10


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="no memfd here")
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
