"""Processes that are strangers, and have the same key, share a cache in memory."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lit_loader import CachedDataset
from lit_loader.data import cache_store
from tests.support.bulk import Child
from tests.support.decoded import Decoded, all_equal

KEY = f"a test's {os.getpid()}"


def cache(dataset: Any = None, memory: Any = "1 MB", key: str = KEY) -> Any:
    return CachedDataset(Decoded() if dataset is None else dataset, memory, key=key)


def fills(dataset: Any) -> Callable[[object], Any]:
    def do(say: object) -> Any:
        cached = cache(dataset)
        return all_equal(cached), cached

    return do


def test_what_one_has_made_all_have(tmp_path: Path) -> None:
    dataset = Decoded(notes=tmp_path)
    first = Child(fills(dataset))
    assert first.line() == "True"
    others = [Child(fills(dataset)) for _ in range(2)]
    assert [child.line() for child in others] == ["True"] * 2
    first.kill()
    mine = cache(dataset)
    assert all_equal(mine)
    assert dataset.made() == sorted([*range(26), *[0, 13, 25] * 3])  # compared by each
    for child in others:
        child.kill()
    del mine
    assert all_equal(cache(dataset))  # the last one has taken it along
    assert len(dataset.made()) == 26 + 9 + 26


def test_what_counts_as_the_same(tmp_path: Path) -> None:
    dataset = Decoded(notes=tmp_path)
    kept = [
        *(cache(dataset), cache(dataset, 2_000_000), cache(dataset, key=KEY + " v2")),
        CachedDataset(dataset, "1 MB"),
    ]
    assert all(map(all_equal, kept))
    assert len(dataset.made()) == 4 * 26
    assert all_equal(cache(dataset))
    assert len(dataset.made()) == 4 * 26 + 3


def test_it_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    cached = cache(memory=3000)
    assert all_equal(cached)
    child = Child(lambda say: all_equal(cache(memory=3000)))
    assert child.line() == "True"
    child.end()
    assert cached.figures().bytes <= 3000
    assert "are full" in caplog.text


def test_without_locks(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "not permitted")

    monkeypatch.setattr(cache_store.memory_files, "lock", refuse)
    assert all_equal(cache())
    assert "each process has a cache of its own: [Errno 1] not permitted" in caplog.text
