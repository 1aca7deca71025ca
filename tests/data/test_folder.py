"""The tier on disk: outlives the run, is nobody else's, and gives nothing that is torn."""

import os
import pickle
import time
from pathlib import Path
from typing import Any

import pytest

from lit_loader import CachedDataset, DataLoader, OptionError
from lit_loader.data import cache_folder as folder
from tests.data.data import Decoded, equal
from tests.support.samples import Call


def files(root: Path) -> list[Path]:
    """The entries."""
    return sorted(path for path in root.glob("*/0*/*"))


def all_equal(cached: Any) -> bool:
    plain = Decoded()
    return all(equal(cached[index], plain[index]) for index in range(26))


@pytest.mark.parametrize("memory", [0, "1 MB", 2000])
def test_it_outlives_the_run(memory: Any, tmp_path: Path) -> None:
    dataset = Decoded(notes=tmp_path)
    first = CachedDataset(dataset, memory, tmp_path / "cache", "v1")
    for _ in range(2):
        assert all_equal(first)
    assert dataset.made() == list(range(26))
    del first  # and with it what it has in memory
    second = CachedDataset(dataset, memory, tmp_path / "cache", "v1")
    loader = DataLoader(second, 4, num_workers=2)
    for _ in range(2):
        assert [n for batch in loader for n in batch["label"].tolist()] == list(range(26))
    assert all_equal(second)
    assert dataset.made() == list(range(26))
    hits, misses = second.figures()[:2]
    assert hits >= 78 and not misses  # a straggling batch is read by two
    assert (second.figures().bytes > 0) == (memory != 0)
    [about] = tmp_path.glob("cache/v1-*/about.txt")
    assert about.read_text() == "v1\ntests.data.data.Decoded of 26 samples\n"
    assert not os.listdir(about.parent / "new")


def test_spawned_workers_fill_it(tmp_path: Path) -> None:
    dataset = Decoded(notes=tmp_path)
    cached = CachedDataset(dataset, 0, tmp_path / "cache", "v1")
    loader = DataLoader(cached, 4, num_workers=2, multiprocessing_context="forkserver")
    assert [n for batch in loader for n in batch["label"].tolist()] == list(range(26))
    made = dataset.made()
    assert {*made} == {*range(26)}
    again = pickle.loads(pickle.dumps(cached))
    assert all_equal(again)
    assert dataset.made() == made


@pytest.mark.parametrize("damage", ["cut", "hole", "bit", "empty", "other", "zeros"])
def test_a_damaged_entry_is_made_again(damage: str, tmp_path: Path) -> None:
    dataset = Decoded(notes=tmp_path)
    assert all_equal(CachedDataset(dataset, 0, tmp_path / "cache", "v1"))
    paths = files(tmp_path / "cache")
    assert len(paths) == 26
    path = paths[7]
    data = bytearray(path.read_bytes())
    if damage == "cut":
        del data[len(data) // 2 :]
    elif damage == "hole":
        data[128:192] = bytes(64)
    elif damage == "bit":
        data[200] ^= 4
    elif damage == "other":
        data = bytearray(paths[8].read_bytes())
    else:
        data = bytearray(0 if damage == "empty" else len(data))
    path.write_bytes(data)
    for _ in range(2):
        assert all_equal(CachedDataset(dataset, 0, tmp_path / "cache", "v1"))
    assert len(dataset.made()) == 27
    assert dataset.made().count(int(path.name)) == 2


def test_a_folder_in_the_place_of_an_entry(tmp_path: Path) -> None:
    dataset = Decoded(notes=tmp_path)
    assert all_equal(CachedDataset(dataset, 0, tmp_path / "cache", "v1"))
    path = files(tmp_path / "cache")[7]
    path.unlink()
    path.mkdir()
    assert all_equal(CachedDataset(dataset, 0, tmp_path / "cache", "v1"))
    assert len(dataset.made()) == 27


def test_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = Decoded(notes=tmp_path)
    cached = CachedDataset(dataset, 0, tmp_path / "cache", "v1")
    real, calls = os.write, []

    def full(fd: int, data: Any) -> int:
        if not isinstance(data, memoryview):
            return real(fd, data)
        calls.append(fd)
        if len(calls) > 10:
            raise OSError(28, "No space left on device")
        return real(fd, data[: len(data) // 2] if len(calls) % 2 else data)

    monkeypatch.setattr(folder.os, "write", full)
    assert all_equal(cached)
    monkeypatch.undo()
    assert len(files(tmp_path / "cache")) == 5
    assert not list(tmp_path.glob("cache/*/new/*"))
    [record] = caplog.records
    assert "takes no more samples (No space left on device)" in record.message
    assert all_equal(cached)
    assert len(dataset.made()) == 26 + 21


def test_others_may_not_write_into_it(tmp_path: Path) -> None:
    cached = CachedDataset(Decoded(), 0, tmp_path / "cache", "a key / of mine")
    [path] = (tmp_path / "cache").iterdir()
    assert path.name.startswith("a_key_of_mine-")
    assert path.stat().st_mode & 0o777 == 0o700
    os.chmod(path, 0o777)
    with pytest.raises(OptionError, match="which others may write into"):
        CachedDataset(Decoded(), 0, tmp_path / "cache", "a key / of mine")
    assert equal(cached[3], Decoded()[3])


def test_it_is_not_followed_elsewhere(tmp_path: Path) -> None:
    dataset = Decoded(notes=tmp_path)
    cached = CachedDataset(dataset, 0, tmp_path / "cache", "v1")
    cached[1], cached[2]
    one, two = files(tmp_path / "cache")
    one.unlink()
    one.symlink_to(two)
    assert equal(cached[1], Decoded()[1])
    assert dataset.made() == [1, 1, 2]


def test_what_was_not_finished_is_removed(tmp_path: Path) -> None:
    CachedDataset(Decoded(), 0, tmp_path / "cache", "v1")
    [new] = tmp_path.glob("cache/*/new")
    for name, age in {"old": 2 * folder._STALE, "recent": 60}.items():
        (new / name).write_bytes(b"half")
        os.utime(new / name, (time.time() - age,) * 2)
    CachedDataset(Decoded(), 0, tmp_path / "cache", "v1")
    assert os.listdir(new) == ["recent"]


def test_what_cannot_be_rebuilt_is_made_anew(tmp_path: Path) -> None:
    """A class of a sample may have moved since."""
    made = CachedDataset(Call(_Point, 3), 0, tmp_path, "v1")
    assert [made[index].at for index in range(3)] == [0, 1, 2]
    _Point.broken = True
    try:
        again = CachedDataset(Call(_Point, 3), "1 MB", tmp_path, "v1")
        assert [again[index].at for index in range(3)] == [0, 1, 2]
        assert again.figures()[:2] == (0, 3)
    finally:
        _Point.broken = False


class _Point:
    broken = False

    def __init__(self, at: int) -> None:
        self.at = at

    def __setstate__(self, state: dict[str, int]) -> None:
        if self.broken:
            raise LookupError
        self.__dict__.update(state)
