"""Processes that fill one cache at the same time, and such as are killed while they do."""

import itertools
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lit_loader import CachedDataset
from lit_loader.core.system import linux
from tests.data.data import Decoded, equal
from tests.data.test_folder import all_equal, files
from tests.support.killing import Killer

CELLS = 40

WRITE = "write" if linux.HERE else "pwrite"
"""What entries in memory are written by."""


def in_child(do: Callable[[], object]) -> int:
    """Do something in a forked process; returns its status as `os.waitpid` gives it."""
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


def killer(at: int) -> Killer:
    return Killer("data/cache", at)


def read(cached: Any, index: int, killer: Killer) -> None:
    killer.during(lambda: cached[index])


@pytest.mark.parametrize("tier", ["memory", "disk"])
def test_killed_at_any_instruction(tier: str, tmp_path: Path) -> None:
    def new() -> Any:
        if tier == "memory":
            return CachedDataset(Decoded(), "1 MB")
        return CachedDataset(Decoded(), 0, tmp_path / "cache", "v1")

    counting = killer(0)
    read(new(), 25, counting)
    assert counting.count > 3 * CELLS
    cached = new()
    cached[0]
    killed = 0
    for cell, at in enumerate(range(1, counting.count, counting.count // CELLS)):
        index = cell % 25 + 1
        if cell == 25:
            for path in files(tmp_path / "cache"):
                path.unlink()
            cached = new()
            cached[0]
        pid = in_child(lambda index=index, at=at, it=cached: read(it, index, killer(at)))
        killed += os.WIFSIGNALED(status_of(pid))
        assert equal(cached[index], Decoded()[index])
    assert killed > 0.9 * CELLS
    assert all_equal(cached)
    assert cached._store._index.tolist().count(0) == (0 if tier == "memory" else 26)
    if tier == "disk":
        assert len(files(tmp_path / "cache")) == 26


@pytest.mark.parametrize("tier", ["memory", "disk"])
def test_killed_in_the_midst_of_a_write(tier: str, tmp_path: Path) -> None:
    if tier == "memory":
        cached = CachedDataset(Decoded(), "1 MB")
    else:
        cached = CachedDataset(Decoded(), 0, tmp_path / "cache", "v1")
    for index in range(13):

        def half_and_death(index: int = index) -> None:
            name = "write" if tier == "disk" else WRITE
            real = getattr(os, name)

            def strike(fd: int, data: Any, *at: int) -> int:
                real(fd, data[: len(data) * index // 13], *at)
                os.kill(os.getpid(), signal.SIGKILL)
                return 0

            setattr(os, name, strike)
            cached[index]

        assert os.WIFSIGNALED(status_of(in_child(half_and_death)))
    assert cached.figures().misses == 13
    assert all_equal(cached)
    assert cached.figures()[:2] == (0, 39)
    assert all_equal(cached)
    assert cached.figures()[:2] == (26, 39)


def test_many_fill_it_at_once(tmp_path: Path) -> None:
    """All of them every sample, each in another order, with small samples and large ones."""
    length = 300
    dataset = _Various(length)
    cached = CachedDataset(dataset, "50 MB", tmp_path / "cache", "v1")

    def fill(step: int) -> None:
        for number in range(length):
            index = number * step % length
            assert equal(cached[index], dataset[index])

    children = [in_child(lambda step=step: fill(step)) for step in (1, 7, 11, 299)]
    assert [status_of(pid) for pid in children] == [0] * 4
    assert all(equal(cached[index], dataset[index]) for index in range(length))
    hits, misses, _, _ = cached.figures()
    assert hits + misses == 5 * length
    words = cached._store._index.tolist()
    spans = sorted((word >> 28, (word >> 28) + (word & 0xFFFFFFF)) for word in words)
    assert len(spans) == length
    assert all(one[1] <= other[0] for one, other in itertools.pairwise(spans))
    again = CachedDataset(dataset, 0, tmp_path / "cache", "v1")
    assert all(equal(again[index], dataset[index]) for index in range(length))
    assert again.figures()[:2] == (length, 0)


class _Various(Decoded):
    def __getitem__(self, index: int) -> Any:
        sample = super().__getitem__(index)
        return {**sample, "more": bytes([index % 256]) * (index * index % 9000)}
