"""`CachedDataset`: each sample is made once, whoever asks for it, and given equal ever after."""

import os
import random
from collections import UserDict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hydra.utils import instantiate
from torch.utils.data import Dataset, Subset

from lit_loader import CachedDataset, DataLoader, OptionError
from lit_loader.core.system import linux
from lit_loader.data import cache_store as shared_store
from lit_loader.data.cache_entry import pack
from tests.data.data import Augment, Decoded, Drawing, ManyAtOnce, equal
from tests.support.samples import METHODS, Call, Counting, Rows, uncollated

SIZE = len(pack(0, Decoded()[0]))
"""Bytes that each sample takes."""


def test_indices() -> None:
    cached = CachedDataset(Decoded(), "1 MB")
    assert len(cached) == 26
    for index in (np.int64(3), torch.tensor(3)):
        assert type(cached[index]["label"]) is int
    assert cached.figures()[:2] == (1, 1)
    for index in (26, -1):  # the dataset's own answers
        with pytest.raises(IndexError, match=f"no sample {index}"):
            cached[index]
    named: Any = CachedDataset(UserDict(a=1, b=2), 1000)
    assert named["a"] == 1
    assert named.figures()[:2] == (0, 0)
    assert CachedDataset([5, 6, 7], 1000)[-1] == 7


def test_attributes_are_the_datasets() -> None:
    cached = CachedDataset(Decoded(width=9), "1 MB")
    assert cached.width == 9
    with pytest.raises(AttributeError, match="nothing"):
        cached.nothing  # noqa: B018
    assert cached.__getitems__ is None
    assert isinstance(cached, Dataset)
    assert repr(cached) == "CachedDataset(Decoded, 0 of 26 samples in 0.0 of 1.0 MB)"


def test_many_at_once(tmp_path: Path) -> None:
    dataset = ManyAtOnce(notes=tmp_path)
    cached = CachedDataset(dataset, "1 MB")
    many: Any = cached.__getitems__
    plain = Decoded()
    for indices in ([1, 2, 3], [3, 2, 9, 9, np.int64(1)], [1, 2, 3, 9]):
        assert equal(many(indices), [plain[int(index)] for index in indices])
    assert dataset.made() == [1, 2, 3, 9, 9]
    with pytest.raises(IndexError, match="no sample 26"):
        many([1, 26])
    loader = DataLoader(cached.map(Augment()), 4, num_workers=2, shuffle=True, seed=1)
    assert sorted(n for batch in loader for n in batch["label"].tolist()) == list(range(26))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("persistent", [False, True], ids=["", "persistent"])
def test_workers_share_it(method: str, persistent: bool, tmp_path: Path) -> None:
    dataset = Decoded(notes=tmp_path)
    cached = CachedDataset(dataset, "1 MB")
    cached[7]  # in this process first
    with DataLoader(
        cached, 4, num_workers=2, multiprocessing_context=method, persistent_workers=persistent,
        # Two that make the same sample at once both make it: the first epoch is to be over first.
        prefetch_next_epoch=False, shuffle=True,
    ) as loader:  # fmt: skip
        for epoch in range(2 if method == "spawn" else 3):
            labels = [n for batch in loader for n in batch["label"].tolist()]
            assert sorted(labels) == list(range(26))
            if epoch == 0:  # in which an idle worker may make what another one has begun
                made = dataset.made()
    assert {*made} == {*range(26)}
    assert equal(cached[3], Decoded()[3])  # in this process, too
    assert dataset.made() == made
    figures = loader.statistics().evidence.cache
    assert figures["cache_misses"] == len(made)
    assert figures["cache_hits"] >= 26
    assert figures["cache_bytes"] == cached.figures().bytes > 0


def test_a_full_cache(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    dataset = Decoded(notes=tmp_path)
    cached = CachedDataset(dataset, 10 * SIZE + 70)
    loader = DataLoader(cached, 2, num_workers=2, shuffle=True, seed=3)
    for _ in range(3):
        labels = [n for batch in loader for n in batch["label"].tolist()]
        assert sorted(labels) == list(range(26))
    held = cached.figures()
    assert all(equal(cached[index], Decoded()[index]) for index in range(26))
    made = dataset.made()
    # Two workers may take the last room at the same moment: one of them keeps nothing then.
    assert 0 < held.bytes <= 10 * SIZE + 70
    kept = held.bytes // SIZE
    assert kept > 5
    assert sum(made.count(index) < 4 for index in range(26)) == kept
    assert held.bytes_missing == (26 - kept) * SIZE
    cached = CachedDataset(Decoded(), 7 * SIZE + 70)
    for index in [*range(26)] * 2:
        cached[index]
    assert [record.message for record in caplog.records] == [
        f"CachedDataset: memory={7 * SIZE + 70} bytes are full: 7 of 26 samples are kept "
        "(0.0 MB), the others are made again each time [LL108]"
    ]


def test_what_finds_no_room_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    sizes = [8, 8, 8, 8, 4000, 4000, 8, 8]
    data = [torch.full((size,), float(n)) for n, size in enumerate(sizes)]
    cached = CachedDataset(data, 8000)
    for _ in range(2):
        assert all(torch.equal(cached[n], data[n]) for n in range(len(data)))
    assert cached.figures()[:2] == (6, 10)
    (text,) = [record.message for record in caplog.records]
    assert text.startswith("CachedDataset: a sample of 0.0 MB finds no room in memory=8000 bytes: ")


def test_little_memory_left(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cached = CachedDataset(Decoded(), "1 GB")
    cached[0]
    monkeypatch.setattr(shared_store, "_memory_left", lambda: (10**8, 2 * 10**8))
    cached._store._looked = 0
    for _ in range(2):
        assert all(equal(cached[index], Decoded()[index]) for index in range(26))
    assert cached.figures()[:2] == (2, 51)
    [record] = caplog.records
    assert record.message.startswith("CachedDataset: only 0.1 GB of memory are left here: 1 of 26")


def test_no_memory_while_it_is_written(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cached = CachedDataset(Decoded(), "1 GB")
    name = "write" if linux.HERE else "pwrite"
    real, calls = getattr(os, name), []

    def full(fd: int, data: Any, *at: int) -> int:
        calls.append(fd)
        return real(fd, data[: len(data) // 2] if len(calls) > 3 else data, *at)

    monkeypatch.setattr(os, name, full)
    for _ in range(2):
        assert all(equal(cached[index], Decoded()[index]) for index in range(26))
    assert cached.figures()[:2] == (3, 49)
    [record] = caplog.records
    assert record.message.startswith("CachedDataset: No space left on device: 3 of 26")


@pytest.mark.parametrize("missing", ["memfd", "proc"])
def test_in_an_ordinary_file(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS; without ``/proc`` all processes have one position in it."""
    if missing == "memfd":
        monkeypatch.delattr(os, "memfd_create")
    else:
        monkeypatch.setattr(shared_store, "_OPENED", "/no/such/folder")
    cached = CachedDataset(Decoded(), "1 MB")
    loader = DataLoader(cached, 4, num_workers=2)
    for _ in range(2):
        assert [n for batch in loader for n in batch["label"].tolist()] == list(range(26))
    hits, misses = cached.figures()[:2]
    assert hits >= 26 and misses >= 26  # a straggling batch is read by two
    assert all(equal(cached[index], Decoded()[index]) for index in range(26))
    assert cached.figures()[1] == misses


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("random", "random"),
        ("gauss", "random"),
        ("numpy.random", "numpy.random"),
        ("numpy.random normal", "numpy.random"),
        ("torch", "torch"),
        ("seeds", "torch"),
        ("rng", "Drawing.rng"),
        ("lazy", "Drawing.lazy"),
    ],
)
@pytest.mark.parametrize("first", [0, 4])
def test_random_numbers_are_refused(source: str, named: str, first: int) -> None:
    np.random.seed(1)
    np.random.standard_normal()  # one is in reserve
    random.seed(1)
    random.gauss(0, 1)
    cached = CachedDataset(Drawing(source, first), "1 MB")
    for index in range(first):
        cached[index]
    for _ in range(1 if source == "seeds" else 2):
        with pytest.raises(OptionError, match=rf"Drawing draws from \(or seeds\) {named}") as error:
            cached[first]
        assert f"in sample {first}" in str(error.value)
    assert cached.figures().bytes == 64 * 3 * first


def test_the_epoch_is_refused() -> None:
    with pytest.raises(OptionError, match="asks for lit_loader.get_epoch"):
        CachedDataset(Drawing("epoch"), "1 MB")[0]
    with pytest.raises(OptionError, match="got _Told, which has set_epoch"):
        CachedDataset(_Told(), "1 MB")


class _Told(Rows):
    def set_epoch(self, epoch: int) -> None:
        pass


@pytest.mark.parametrize("workers", [0, 2])
def test_random_numbers_are_refused_in_a_loader(workers: int) -> None:
    """Only those of generators that the loader would seed; and that is no bad sample."""
    cached: Any = CachedDataset(Drawing("nothing"), "1 MB")
    assert [int(cached[index]) for index in range(12)] == list(range(12))
    cached = CachedDataset(Drawing("torch", 5), "1 MB")
    with (
        DataLoader(cached, 4, num_workers=workers, on_sample_error="skip") as loader,
        pytest.raises(OptionError, match="move it behind the cache"),
    ):
        list(loader)


def test_bad_samples_are_not_kept() -> None:
    tries: list[int] = []

    def make(index: int) -> int:
        tries.append(index)
        if index == 3 and tries.count(3) < 3:
            raise OSError("not now")
        return index

    cached = CachedDataset(Call(make, 6), "1 MB")
    loader = DataLoader(cached, 2, sample_retries=3, retry_backoff=0, collate_fn=uncollated)
    assert [n for batch in loader for n in batch] == list(range(6))
    assert [n for batch in loader for n in batch] == list(range(6))
    assert tries.count(3) == 3
    assert len(tries) == 8


def test_what_cannot_be_kept_is_made_each_time(caplog: pytest.LogCaptureFixture) -> None:
    cached = CachedDataset(Call(lambda index: (lambda: index) if index % 2 else index, 6), 10_000)
    for _ in range(2):
        assert [cached[index]() if index % 2 else cached[index] for index in range(6)] == [
            *range(6)
        ]
    assert cached.figures()[:2] == (3, 9)
    [record] = caplog.records
    assert "samples that hold such a thing are not kept [LL110]: batch: <function" in record.message


def test_refusals(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for arguments, message in {
        (Counting(), 1000): "to be cached, got Counting",
        (Rows(), "much"): "memory must be a number of bytes, or text such as '2 GB'",
        (Rows(), -1): "memory must be a whole number",
        (Rows(), 0): "memory=0 keeps nothing without a directory",
        (Rows(), 1000, tmp_path): "directory needs a key",
        (Rows(), 1000, 5, "v1"): "directory must be a string, got directory=5",
        (Rows(), 1000, "", "v1"): "directory must be a string that is not empty",
        (Rows(), 1000, None, ""): "key must be a string that is not empty",
        (Rows(), 0, None, "v1"): "memory=0 keeps nothing without a directory",
        (
            Rows(),
            0,
            tmp_path / "file",
            "v1",
        ): "^lit_loader: directory cannot be made .FileExistsError: .*file'",
        (Rows, 1000): "got the class Rows itself",
    }.items():
        with pytest.raises(OptionError, match=message):
            CachedDataset(*arguments)
    with pytest.raises(OptionError, match="__getitem__ and __len__"):
        CachedDataset(Dataset(), 1000)


def test_made_by_hydra() -> None:
    decoded = {"_target_": "tests.data.data.Decoded", "length": 3}
    target = {"_target_": "lit_loader.CachedDataset", "memory": "1 MB", "dataset": decoded}
    cached = instantiate(target)
    assert type(cached) is CachedDataset
    assert equal(cached[2], Decoded()[2])


def test_threads() -> None:
    cached = CachedDataset(Decoded(200), "1 MB")

    def is_right(_: int) -> bool:
        return all(equal(cached[i], Decoded(200)[i]) for i in range(200))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(is_right, range(4)))
    assert is_right(5)


def test_maps_of_maps_and_what_is_no_function() -> None:
    cached = CachedDataset(Rows(3), memory=1 << 20)
    twice = cached.map(lambda row: int(row[0]) + 1).map(lambda sample: sample * 10)
    assert [twice[index] for index in range(3)] == [10, 20, 30]
    for dataset in (cached, twice):
        with pytest.raises(OptionError, match="function must be a function, to be called"):
            dataset.map(3)  # type: ignore[arg-type]


def test_found_in_what_wraps_it() -> None:
    first, second = (CachedDataset(Rows(8), 4000) for _ in range(2))
    mixed: Any = torch.utils.data.ConcatDataset([first, Subset(second, [1, 2]), first])
    loader = DataLoader(mixed, 3)
    assert len(list(loader)) == 6
    figures = loader.statistics().evidence.cache
    assert (figures["cache_hits"], figures["cache_misses"]) == (8, 10)
    assert DataLoader(Rows(3)).statistics().evidence.cache == {}
    other: Any = _Wrapping({"all": [first]})
    assert DataLoader(other).statistics().evidence.cache == {}  # in no dataset's attribute
    other = _Wrapping([_Wrapping(first)])
    assert DataLoader(other).statistics().evidence.cache["cache_misses"] == 8


class _Wrapping(list[int]):
    """A dataset, though not by its class."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
