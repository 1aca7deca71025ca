"""Processes that fill one cache at the same time, and such as are killed while they do."""

import itertools
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lit_loader import CachedDataset
from tests.support.decoded import Decoded, all_equal, entries, equal
from tests.support.killing import Killer

CELLS = 40

TIERS = pytest.mark.parametrize("tier", ["memory", "disk"])


def new(tier: str, folder: Path) -> Any:
    if tier == "memory":
        return CachedDataset(Decoded(), "1 MB")
    return CachedDataset(Decoded(), 0, folder / "cache", "v1")


def in_child(do: Callable[[], object]) -> int:
    """Do something in a forked process; returns its number."""
    pid = os.fork()
    if pid == 0:
        try:
            do()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return pid


def status_of(pid: int) -> int:
    return os.waitpid(pid, 0)[1]


def read(cached: Any, index: int, at: int) -> int:
    """Read a sample, and be killed at so manyth an instruction; returns their number."""
    killer = Killer("data/cache", at)
    killer.during(lambda: cached[index])
    return killer.count


@TIERS
def test_killed_at_any_instruction(tier: str, tmp_path: Path) -> None:
    cached = new(tier, tmp_path)
    count = read(cached, 24, 0)
    assert count > 3 * CELLS
    killed = 0
    for cell, at in enumerate(range(1, count, count // CELLS)):
        index = cell % 22 + 1
        if cell == 22:
            for path in entries(tmp_path / "cache"):
                path.unlink()
            cached = new(tier, tmp_path)
        child = in_child(lambda index=index, at=at, it=cached: read(it, index, at))
        killed += os.WIFSIGNALED(status_of(child))
        assert equal(cached[index], Decoded()[index])
    assert killed > 0.9 * CELLS
    assert all_equal(cached)
    if tier == "disk":
        assert len(entries(tmp_path / "cache")) == 26
    else:
        assert cached._store._index.tolist().count(0) == 0


@TIERS
def test_killed_during_a_write(tier: str, tmp_path: Path) -> None:
    cached = new(tier, tmp_path)
    for index in range(1, 12):

        def half_and_death(index: int = index) -> None:
            real = os.write

            def strike(fd: int, data: Any, *at: int) -> int:
                real(fd, data[: len(data) * index // 13], *at)
                os.kill(os.getpid(), signal.SIGKILL)
                return 0

            os.write = strike
            cached[index]

        assert os.WIFSIGNALED(status_of(in_child(half_and_death)))
    before = cached.figures()
    assert all_equal(cached) and all_equal(cached)
    assert cached.figures().hits == before.hits + (26 if tier == "memory" else 3 + 26)


class Various(Decoded):
    def __getitem__(self, index: int) -> Any:
        sample = super().__getitem__(index)
        return {**sample, "more": bytes([index % 256]) * (index * index % 9000)}


def test_many_fill_it_at_once(tmp_path: Path) -> None:
    """All of them every sample, each in another order, with small samples and large ones."""
    length = 300
    dataset = Various(length)
    cached = CachedDataset(dataset, "50 MB", tmp_path / "cache", "v1")

    def fill(step: int) -> None:
        for number in range(length):
            index = number * step % length
            assert equal(cached[index], dataset[index])

    children = [in_child(lambda step=step: fill(step)) for step in (1, 7, 11, 299)]
    assert [status_of(pid) for pid in children] == [0] * 4
    assert all(equal(cached[index], dataset[index]) for index in range(length))
    hits, misses, _, _ = cached.figures()
    assert hits + misses == 5 * length + 3
    words = cached._store._index.tolist()
    spans = sorted((word >> 28, (word >> 28) + (word & 0xFFFFFFF)) for word in words)
    assert len(spans) == length
    assert all(one[1] <= other[0] for one, other in itertools.pairwise(spans))
    again = CachedDataset(dataset, 0, tmp_path / "cache", "v1")
    assert all(equal(again[index], dataset[index]) for index in range(length))
    assert again.figures()[:2] == (length, 0)
