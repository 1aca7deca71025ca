"""Batches that are held in part: what the consumer has dropped of them is free."""

from __future__ import annotations

import gc
import itertools
import mmap
import os
import random
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lit_loader import DataLoader
from lit_loader.memory import held_tensors
from lit_loader.memory.arena import Arena
from lit_loader.memory.leases import PATIENCE
from tests.support.programs import run_program
from tests.support.samples import Call

KB, MB = 1 << 10, 1 << 20
PAGE = mmap.PAGESIZE

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="no memfd here")


def sample(index: int) -> dict[str, Any]:
    """A batch of 8 of these takes 1.8 MB."""
    return {
        "image": torch.full((128 * KB,), index % 251, dtype=torch.uint8),
        "label": torch.tensor(index),
        "mask": torch.full((96 * KB,), index % 13, dtype=torch.uint8),
        "box": torch.full((4 * KB,), index % 7, dtype=torch.uint8),
    }


def as_arrays(samples: list[dict[str, Any]]) -> dict[str, Any]:
    return {key: np.stack([each[key].numpy() for each in samples]) for key in samples[0]}


def with_aliases(samples: list[dict[str, Any]]) -> dict[str, Any]:
    batch = torch.utils.data.default_collate(samples)
    return {**batch, "label": (batch["label"], batch["label"][::2], batch["label"].numpy())}


def blocks(loader: DataLoader[Any]) -> int:
    """Bytes that the arena's file takes."""
    assert loader._internals.workers.pool is not None
    return os.fstat(loader._internals.workers.pool._arena.fd).st_blocks * 512


def private() -> int:
    """Bytes of memory that are this process's alone."""
    with open("/proc/self/status") as status:
        [line] = [line for line in status if line.startswith("RssAnon")]
    return int(line.split()[1]) * KB


def check(kept: list[Any], keep: str) -> None:
    """Hold what was kept of the batches against what was sent."""
    for number, part in enumerate(kept):
        indices = np.arange(8 * number, 8 * number + 8)
        if keep == "label":
            if isinstance(part, tuple):
                part, every_other, array = part
                assert every_other.tolist() == indices[::2].tolist()
                part[1] = -1
                assert array[1] == -1
                part[1] = indices[1]
            assert part.tolist() == indices.tolist()
        else:
            values = indices % {"image": 251, "mask": 13, "box": 7}[keep]
            assert np.asarray(part)[:, ::997].tolist() == [
                [value] * len(np.asarray(part)[0, ::997]) for value in values
            ]


def cells() -> Iterator[Any]:
    """Each kind of part with and without a budget, and of each collation one; the rest is slow."""
    for keep, budget, collate in itertools.product(
        ["label", "box", "mask"], [None, 30 * MB], [None, as_arrays, with_aliases]
    ):
        name = f"{keep}-{'budget' if budget else 'unlimited'}-{getattr(collate, '__name__', '')}"
        few = collate is None or (keep == "label" and budget is None)
        yield pytest.param(keep, budget, collate, id=name, marks=[] if few else pytest.mark.slow)


@pytest.mark.parametrize(("keep", "budget", "collate"), list(cells()))
def test_what_is_not_kept_is_free(
    keep: str, budget: int | None, collate: Callable[..., Any] | None
) -> None:
    """Also of as many batches as no arena has slots for."""
    batches = 200
    with DataLoader(
        Call(sample, 8 * batches), batch_size=8, num_workers=2, persistent_workers=True,
        memory_budget=budget, collate_fn=collate,
    ) as loader:  # fmt: skip
        kept, before = [], private()
        for batch in loader:
            kept.append(batch[keep])
            if budget is not None:
                assert blocks(loader) <= budget * 1.1
        del batch
        check(kept, keep)
        size = {"label": 64, "box": 32 * KB, "mask": 768 * KB}[keep]
        # What is kept, a page or two for each, and the batches that are under way or just dropped.
        assert blocks(loader) + private() - before <= batches * size * 1.1 + 40 * 2 * MB
        if keep == "mask" and budget is None:
            assert blocks(loader) >= 100 * size  # they lie in the arena still


SMALL_BATCHES = """
import torch
from lit_loader import DataLoader
from tests.memory.test_held_tensors import private

class Pairs:
    def __len__(self):
        return 6000
    def __getitem__(self, index):
        return torch.full((500,), index), index

kept = []
with DataLoader(Pairs(), num_workers=1, multiprocessing_context="fork") as loader:
    for _, label in loader:
        kept.append(label)
        if len(kept) == 1000:
            before = private()
    taken = private() - before
print([int(label) for label in kept] == list(range(6000)))
print({label.untyped_storage().nbytes() for label in kept})
print(taken // 5000)
"""


def test_of_small_batches_too(tmp_path: Path) -> None:
    """Beyond the slots that may be held, each tensor is a copy of its own.

    In a program of its own, whose free memory is not in pieces.
    """
    program = tmp_path / "program.py"
    program.write_text(SMALL_BATCHES)
    right, sizes, each = run_program(program).splitlines()
    assert (right, sizes) == ("True", "{8}")
    assert int(each) < 1600  # bytes, objects included: about 810; with its batch 4,800


def test_what_is_kept_for_a_moment_keeps_its_memory() -> None:
    """A few batches, of which only parts are held, cost no system call."""
    arena, held = Arena(64, in_flight=2), deque[Any](maxlen=PATIENCE - 2)
    for number in range(4 * PATIENCE):
        held.append(give(arena, number).pop())
        assert not any(reference.slot.holes for reference in arena._leases)
    held.clear()
    arena.close()


def give(arena: Arena, value: int, nbytes: int = MB) -> list[Any]:
    """Make a batch of two parts, and give it out."""
    slot = arena.acquire()
    slot.memory[:nbytes] = value % 251
    middle = nbytes // 2 - 100  # on no page
    lease = arena.lease(slot, nbytes)
    held = arena.divide(lease, [(0, middle), (middle, nbytes)])
    assert held is not None
    return [held.at(0)[0], held.at(middle)[0]]


def used(arena: Arena) -> int:
    return os.fstat(arena.fd).st_blocks * 512


@pytest.mark.parametrize("which", [0, 1])
def test_a_dropped_part_goes_after_some_batches(which: int) -> None:
    arena = Arena(64, in_flight=2)
    held = []
    for number in range(100):
        parts = give(arena, number)
        held.append(parts[which])
        del parts
    assert arena.leased == 100
    assert used(arena) <= 100 * (MB // 2 + 2 * PAGE) + (PATIENCE + 3) * MB
    assert arena.resident >= used(arena)
    assert all((part == number % 251).all() for number, part in enumerate(held))
    held.clear()
    assert arena.leased == 0
    # What had given memory back is used again, and is whole.
    for number in range(100, 230):
        parts = give(arena, number)
        assert all((part == number % 251).all() for part in parts)
    del parts
    arena.close()


def test_all_of_it_goes_with_the_arena() -> None:
    """Held past the end of the epoch, and of the workers: no more than what is held."""
    arena = Arena(64, in_flight=2)
    fd = os.dup(arena.fd)
    kept = [give(arena, number) for number in range(6)]
    second = [parts.pop() for parts in kept]
    del kept[:3]
    arena.close()
    assert os.fstat(fd).st_blocks * 512 <= 9 * (MB // 2 + PAGE) + PAGE
    kept.clear()
    assert os.fstat(fd).st_blocks * 512 <= 6 * (MB // 2 + PAGE) + PAGE
    assert [int(part[-1]) for part in second] == list(range(6))
    second.clear()
    assert os.fstat(fd).st_blocks * 512 <= PAGE
    os.close(fd)


def test_a_fork_keeps_what_its_parent_drops() -> None:
    arena = Arena(64, in_flight=2)
    first, second = give(arena, 7)
    read_end, write_end = os.pipe()
    if (child := os.fork()) == 0:
        os.close(write_end)
        os.read(read_end, 1)  # until the parent has dropped its part, and gone on
        os._exit(0 if (first == 7).all() and (second == 7).all() else 1)
    del first
    for number in range(3 * PATIENCE):
        give(arena, number)
    os.close(write_end)
    assert os.waitpid(child, 0)[1] == 0
    assert (second == 7).all()
    for number in range(PATIENCE):
        give(arena, number)
    slots = [reference.slot for reference in arena._leases]
    assert [slot.holes for slot in slots] == [((0, MB // 2 - PAGE),)]
    before = used(arena)
    if (child := os.fork()) == 0:  # what is a hole is not copied
        os._exit(0 if (second == 7).all() else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert used(arena) == before
    os.close(read_end)
    del second, slots
    arena.close()


def test_threads_and_the_collector_drop_parts() -> None:
    """Nothing is given back of a slot that has a new batch meanwhile."""
    arena = Arena(64, in_flight=8, held=20)
    mixed: list[int] = []

    def use(seed: int) -> None:
        dice = random.Random(seed)
        held: deque[Any] = deque(maxlen=12)
        for number in range(150):
            value = (number + seed) % 251
            parts = give(arena, value, 512 * KB)
            cycle: list[Any] = [parts.pop(dice.randrange(2))]
            cycle.append(cycle)
            held.append((parts, value))
            del cycle
            mixed.extend(v for [part], v in held if not (part == v).all())
            if dice.random() < 0.1:
                arena._leases.thin(0)

    threads = [threading.Thread(target=use, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    assert not mixed
    assert (arena.leased, arena._budget.in_flight) == (0, 0)
    arena.close()


def test_where_each_part_comes_to_lie() -> None:
    memory = np.arange(4 * MB, dtype=np.uint8)
    small = [(start, start + 100) for start in range(0, 200 * 128, 128)]
    large = [(MB, 2 * MB), (2 * MB, 4 * MB)]
    watched: list[tuple[int, int]] = []
    held = held_tensors.divided(
        memory, [*small, *large], lambda _, *stretch: watched.append(stretch)
    )
    assert watched == large
    for start, end in [*small, *large]:
        piece, first = held.at(start)
        assert bytes(piece[start - first : end - first]) == bytes(memory[start:end])
    apart = [not np.may_share_memory(held.at(start)[0], memory) for start, _ in small]
    assert apart == [True] * 16 + [False] * 184
    # Many small ones are watched in rows, for what is kept of them is to be little.
    many = [(start, start + 3 * KB) for start in range(0, 4 * MB, 4 * KB)]
    watched.clear()
    held_tensors.divided(memory, many, lambda _, *stretch: watched.append(stretch))
    assert 55 <= len(watched) <= 64
    assert max(end - start for start, end in watched) <= 68 * KB
