"""Processes that are strangers, and have the same key, share what is in memory."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lit_loader import CachedDataset
from lit_loader.data import cache_store as shared_store
from tests.data.data import Decoded
from tests.data.test_folder import all_equal
from tests.node.conftest import all_children_are_ended  # noqa: F401  a fixture
from tests.node.data import Child

KEY = f"a test's {os.getpid()}"


def cache(dataset: Any = None, memory: Any = "1 MB", key: str = KEY, **options: Any) -> Any:
    return CachedDataset(Decoded() if dataset is None else dataset, memory, key=key, **options)


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
    assert dataset.made() == list(range(26))
    assert mine.figures()[:2] == (78, 26)
    for child in others:
        child.kill()
    del mine
    assert all_equal(cache(dataset))  # the last one has taken it along
    assert len(dataset.made()) == 52


def test_what_counts_as_the_same(tmp_path: Path) -> None:
    dataset = Decoded(notes=tmp_path)
    kept = [
        cache(dataset),
        cache(dataset, memory=2_000_000),
        cache(dataset, key=KEY + " v2"),
        cache(Decoded(27, tmp_path)),
        CachedDataset(dataset, "1 MB"),
    ]
    assert all(all_equal(cached) for cached in kept)
    assert len(dataset.made()) == 5 * 26
    assert all_equal(cache(dataset)) and all_equal(cache(dataset, directory=tmp_path / "cache"))
    assert len(dataset.made()) == 5 * 26


def test_it_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    cached = cache(memory=3000)
    assert all_equal(cached) and all_equal(cached)
    child = Child(lambda say: all_equal(cache(memory=3000)))
    assert child.line() == "True"
    child.end()
    assert cached.figures().bytes <= 3000
    assert "are full" in caplog.text


def test_no_lock_is_to_be_had(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "not permitted")

    monkeypatch.setattr(shared_store.memory_files, "lock", refuse)
    assert all_equal(cache())
    assert "each process has a cache of its own: [Errno 1] not permitted" in caplog.text
