"""Caches with a key: on disk from run to run, and refused where another dataset has made them."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Subset

from lit_loader import CachedDataset, DataLoader, OptionError
from lit_loader.data import cache_folder
from lit_loader.data.cache_identity import sample_digest
from tests.support.decoded import Decoded, all_equal, entries, equal, labels
from tests.support.samples import Call


def cache(dataset: Any, folder: Path, memory: Any = 0, key: str = "v1") -> Any:
    return CachedDataset(dataset, memory, folder / "cache", key)


# --- on disk ---


@pytest.mark.parametrize("memory", [0, "1 MB", 2000])
def test_it_outlives_the_run(memory: Any, tmp_path: Path) -> None:
    dataset = Decoded(notes=tmp_path)
    first = cache(dataset, tmp_path, memory)
    for _ in range(2):
        assert all_equal(first)
    assert dataset.made() == list(range(26))  # also those by which it is checked
    assert first.figures()[:2] == (29, 26)
    del first  # and with it what it has in memory
    second = cache(dataset, tmp_path, memory)
    loader = DataLoader(second, 4, num_workers=2)
    for _ in range(2):
        assert labels(loader) == list(range(26))
    assert all_equal(second)
    hits, misses, nbytes, _ = second.figures()
    assert hits >= 78 and not misses  # a straggling batch is read by two
    assert (nbytes > 0) == (memory != 0)
    assert dataset.made() == sorted([*range(26), 0, 13, 25])  # compared
    [new] = tmp_path.glob("cache/v1-*/new")
    assert not os.listdir(new)


@pytest.mark.parametrize("damage", ["cut", "bit", "empty", "other", "folder", "link"])
def test_a_damaged_entry_is_rebuilt(damage: str, tmp_path: Path) -> None:
    dataset = Decoded(notes=tmp_path)
    cached = cache(dataset, tmp_path)
    assert all_equal(cached)
    paths = entries(tmp_path / "cache")
    assert len(paths) == 26
    path, data = paths[7], bytearray(paths[7].read_bytes())
    path.unlink()
    if damage == "folder":
        path.mkdir()
    elif damage == "link":  # which is not followed
        path.symlink_to(paths[8])
    elif damage == "bit":
        data[200] ^= 4
        path.write_bytes(data)
    else:
        other = paths[8].read_bytes()
        path.write_bytes({"cut": data[: len(data) // 2], "empty": b"", "other": other}[damage])
    assert all_equal(cached) and all_equal(cached)
    assert dataset.made().count(int(path.name)) == (3 if damage == "folder" else 2)


def test_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = Decoded(notes=tmp_path)
    cached = cache(dataset, tmp_path)
    real, calls = os.write, []

    def full(fd: int, data: Any) -> int:
        if not isinstance(data, memoryview):
            return real(fd, data)
        calls.append(fd)
        if len(calls) > 10:
            raise OSError(28, "No space left on device")
        return real(fd, data[: len(data) // 2] if len(calls) % 2 else data)

    monkeypatch.setattr(cache_folder.os, "write", full)
    assert all_equal(cached)
    monkeypatch.undo()
    assert len(entries(tmp_path / "cache")) == 3 + 5
    assert not list(tmp_path.glob("cache/*/new/*"))
    [record] = caplog.records
    assert "takes no more samples (No space left on device)" in record.message
    assert all_equal(cached)
    assert len(dataset.made()) == 26 + 18


def test_others_may_not_write_into_it(tmp_path: Path) -> None:
    cached = cache(Decoded(), tmp_path, key="a key / of mine")
    [path] = (tmp_path / "cache").iterdir()
    assert path.name.startswith("a_key_of_mine-") and path.stat().st_mode & 0o777 == 0o700
    os.chmod(path, 0o777)
    with pytest.raises(OptionError, match="which others may write into"):
        cache(Decoded(), tmp_path, key="a key / of mine")
    assert equal(cached[3], Decoded()[3])


class Point:
    broken = False

    def __init__(self, at: int) -> None:
        self.at = at

    def __setstate__(self, state: dict[str, int]) -> None:
        if self.broken:
            raise LookupError
        self.__dict__.update(state)


def test_what_cannot_be_rebuilt_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A class of a sample may have moved since."""
    made = cache(Call(Point, 4), tmp_path)
    assert [made[index].at for index in range(4)] == list(range(4))
    monkeypatch.setattr(Point, "broken", True)
    again = cache(Call(Point, 4), tmp_path, "1 MB")
    assert [again[index].at for index in range(4)] == list(range(4))


# --- another dataset ---

OTHERS: dict[str, Callable[[], Any]] = {
    "length": lambda: Decoded(27),
    "fold": lambda: Subset(Decoded(52), range(0, 52, 2)),
    "transform": lambda: Decoded(width=51),
    "code": lambda: Call(lambda index: {**Decoded()[index], "label": index + 1}, 26),
}


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("memory", [0, "1 MB"])
def test_another_dataset_of_the_same_key_has_a_cache_of_its_own(
    memory: Any, other: str, tmp_path: Path
) -> None:
    directory = None if memory else tmp_path
    first = CachedDataset(Decoded(), memory, directory, f"{tmp_path}")
    assert all_equal(first)
    second = CachedDataset(OTHERS[other](), memory, directory, f"{tmp_path}")
    assert equal(second[3], OTHERS[other]()[3]) and all_equal(first)


@pytest.mark.parametrize("key", ["v2", "v/1", "v:1"])
def test_another_key_has_a_cache_of_its_own(key: str, tmp_path: Path) -> None:
    changed: dict[int, int] = {}
    dataset = Call(lambda index: changed.get(index, index), 26)
    first = cache(dataset, tmp_path, key="v 1")
    assert [first[index] for index in range(26)] == list(range(26))
    changed[3] = -1  # which is not compared
    assert cache(dataset, tmp_path, key="v 1")[3] == 3
    assert cache(dataset, tmp_path, key=key)[3] == -1


def test_a_sample_that_cannot_be_read_is_not_compared(tmp_path: Path) -> None:
    fails = {0}

    def read(index: int) -> int:
        if index in fails:
            raise OSError(f"no sample {index}")
        return index

    first = cache(Call(read, 5), tmp_path)
    with pytest.raises(OSError, match="no sample 0"):
        first[0]
    fails.clear()
    assert [first[index] for index in range(5)] == list(range(5))
    for length in range(3):
        short = cache(Call(read, length), tmp_path, key=f"of {length}")
        assert [short[index] for index in range(length)] == list(range(length))


def test_equal_samples_have_equal_digests() -> None:
    """Whatever order a set has, and whether or not two parts are one object."""

    def sample(order: int) -> Any:
        names = [str(number) for number in range(1000)][::order]
        point = Point(1)
        point.names = {*names}  # type: ignore[attr-defined]
        return [point, {"t": torch.ones(3), "a": np.arange(4)}, names[0] if order > 0 else "0"]

    one, other = sample(1), sample(-1)
    assert [*one[0].names] != [*other[0].names]
    assert sample_digest(one) == sample_digest(other) == sample_digest([*one[:2], "".join("0")])
