"""`CachedDataset`: each sample is made once, whoever asks for it, and returned equal ever after."""

import copy
import os
from collections import OrderedDict, UserDict, namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset

from lit_loader import CachedDataset, DataLoader, OptionError
from lit_loader.data import cache_store
from lit_loader.data.cache_entry import pack, unpack
from tests.support.decoded import Augment, Decoded, Drawing, ManyAtOnce, all_equal, equal, labels
from tests.support.samples import METHODS, Call, Counting, Rows, uncollated

SIZE = len(pack(0, Decoded()[0]))
"""Bytes that each sample takes."""

Pair = namedtuple("Pair", "left right")
SHARED = torch.arange(6.0)

SAMPLES: list[Any] = [
    (1, 2.5, "three", b"four", None, True, 5j, -(10**30), np.float32(1.5), np.int64(3)),
    (torch.full((3, 8, 8), 7, dtype=torch.uint8), 3),
    {"x": np.arange(5.0), "y": torch.zeros(()), "name": "a\udcff", 1: torch.ones(1)},
    (),
    {"x": torch.empty(0, 3), "y": np.empty((2, 0)), "z": np.zeros((), np.int16)},
    {"boxes": [{"at": torch.ones(4), "class": 1}], "size": (3, 4)},
    Pair(torch.ones(2), OrderedDict(a=np.ones(3))),
    [np.array(["ab", "c"]), np.arange(4, dtype=">i4"), np.zeros(3, [("x", "f4"), ("y", "i8")])],
    [torch.arange(12).reshape(3, 4).T, np.asfortranarray(np.arange(6.0).reshape(2, 3))],
    torch.arange(100_000).to(torch.bfloat16),
]


def test_samples_come_back_as_they_are_and_are_the_readers_own() -> None:
    made = Call(lambda index: copy.deepcopy(SAMPLES[index]), len(SAMPLES))
    cached: Any = CachedDataset(made, "2 MB")
    for _ in range(3):
        samples = [cached[index] for index in range(len(SAMPLES))]
        assert all(map(equal, samples, SAMPLES))
        for sample in samples[1][0], samples[5]["boxes"][0]["at"], samples[8][0]:
            sample.fill_(99)
    assert cached.figures()[:2] == (2 * len(SAMPLES), len(SAMPLES))


@pytest.mark.parametrize("sample", [(SHARED, SHARED), (SHARED[:4], SHARED[2:])], ids=range(2))
def test_one_object_stays_one_and_parts_that_overlap_come_apart(sample: Any) -> None:
    one, other = unpack(0, pack(0, sample))
    other[...] = 50
    assert (50 in one) == (one is other) == (sample[0] is sample[1])


def test_indices() -> None:
    cached = CachedDataset(Decoded(), "1 MB")
    for index in (np.int64(3), torch.tensor(3)):
        assert type(cached[index]["label"]) is int
    assert len(cached) == 26 and cached.figures()[:2] == (1, 1)
    for index in (26, -1):  # the dataset's own answers
        with pytest.raises(IndexError, match=f"no sample {index}"):
            cached[index]
    named: Any = CachedDataset(UserDict(a=1, b=2), 1000)
    assert named["a"] == 1
    assert CachedDataset([5, 6, 7], 1000)[-1] == 7


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
    assert sorted(labels(loader)) == list(range(26))


def test_maps_of_maps() -> None:
    cached = CachedDataset(Rows(3), memory=1 << 20)
    twice = cached.map(lambda row: int(row[0]) + 1).map(lambda sample: sample * 10)
    assert [twice[index] for index in range(3)] == [10, 20, 30]
    for dataset in (cached, twice):
        with pytest.raises(OptionError, match="function must be a function"):
            dataset.map(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", METHODS)
def test_workers_share_it(method: str, tmp_path: Path) -> None:
    dataset = Decoded(notes=tmp_path)
    cached = CachedDataset(dataset, "1 MB")
    cached[7]  # in this process first
    with DataLoader(
        cached, 4, num_workers=2, multiprocessing_context=method, shuffle=True,
        persistent_workers=method != "spawn",
    ) as loader:  # fmt: skip
        for epoch in range(2):
            assert sorted(labels(loader)) == list(range(26))
            if epoch == 0:  # in which an idle worker may make what another one has begun
                made = dataset.made()
    assert {*made} == {*range(26)}
    assert equal(cached[3], Decoded()[3])  # in this process, too
    assert dataset.made() == made
    figures = loader.statistics().evidence.cache
    assert figures["cache_misses"] == len(made) and figures["cache_hits"] >= 26
    assert figures["cache_bytes"] == cached.figures().bytes > 0


def test_its_figures_are_found_in_what_wraps_it() -> None:
    first, second = (CachedDataset(Rows(8), 4000) for _ in range(2))
    mixed: Any = torch.utils.data.ConcatDataset([first, Subset(second, [1, 2]), first])
    loader = DataLoader(mixed, 3)
    assert len(list(loader)) == 6
    figures = loader.statistics().evidence.cache
    assert (figures["cache_hits"], figures["cache_misses"]) == (8, 10)
    assert DataLoader(Rows(3)).statistics().evidence.cache == {}


def test_a_full_cache(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    dataset = Decoded(notes=tmp_path)
    cached = CachedDataset(dataset, 10 * SIZE + 70)
    loader = DataLoader(cached, 2, num_workers=2, shuffle=True, seed=3)
    for _ in range(3):
        assert sorted(labels(loader)) == list(range(26))
    held = cached.figures()
    assert all_equal(cached)
    made = dataset.made()
    # Two workers may take the last room at the same moment: one of them keeps nothing then.
    assert 0 < held.bytes <= 10 * SIZE + 70
    kept = held.bytes // SIZE
    assert kept > 5 and sum(made.count(index) < 4 for index in range(26)) == kept
    assert held.bytes_missing == (26 - kept) * SIZE
    cached = CachedDataset(Decoded(), 7 * SIZE + 70)
    for _ in range(2):
        assert all_equal(cached)
    assert ["are kept" in record.message for record in caplog.records] == [True]


def test_little_memory_left(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cached = CachedDataset(Decoded(), "1 GB")
    cached[0]
    monkeypatch.setattr(cache_store, "_memory_left", lambda: (10**8, 2 * 10**8))
    cached._store._looked = 0
    for _ in range(2):
        assert all_equal(cached)
    assert cached.figures()[:2] == (2, 51)
    [record] = caplog.records
    assert "only 0.1 GB of memory are left" in record.message


def test_no_memory_while_it_is_written(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cached = CachedDataset(Decoded(), "1 GB")
    real, calls = os.write, []

    def full(fd: int, data: Any, *at: int) -> int:
        calls.append(fd)
        return real(fd, data[: len(data) // 2] if len(calls) > 3 else data, *at)

    monkeypatch.setattr(os, "write", full)
    for _ in range(2):
        assert all_equal(cached)
    assert cached.figures()[:2] == (3, 49)
    [record] = caplog.records
    assert "No space left on device: 3 of 26" in record.message


@pytest.mark.parametrize(
    ("source", "named"),
    [
        *(("random", "random"), ("numpy.random", "numpy.random"), ("torch", "torch")),
        *(("seeds", "torch"), ("rng", "Drawing.rng"), ("lazy", "Drawing.lazy")),
    ],
)
@pytest.mark.parametrize("first", [0, 4])
def test_random_numbers_are_refused(source: str, named: str, first: int) -> None:
    cached = CachedDataset(Drawing(source, first), "1 MB")
    for index in range(first):
        cached[index]
    if source == "lazy":  # which is made by the sample that draws first
        cached[first]
        first += 1
    for _ in range(1 if source == "seeds" else 2):
        with pytest.raises(OptionError, match=rf"seeds\) {named} in sample {first}.*LL109"):
            cached[first]
    assert cached.figures().bytes == 64 * 3 * first


@pytest.mark.parametrize("workers", [0, 2])
def test_random_numbers_are_refused_in_a_loader(workers: int) -> None:
    """Only those of generators that the loader would seed; and that is no bad sample."""
    cached: Any = CachedDataset(Drawing("nothing"), "1 MB")
    assert [int(cached[index]) for index in range(12)] == list(range(12))
    cached = CachedDataset(Drawing("torch", 5), "1 MB")
    with (
        DataLoader(cached, 4, num_workers=workers, on_sample_error="skip") as loader,
        pytest.raises(OptionError, match="LL109"),
    ):
        list(loader)


def test_the_epoch_is_refused() -> None:
    class Epochs(Rows):
        def set_epoch(self, epoch: int) -> None:
            pass

    with pytest.raises(OptionError, match=r"asks for lit_loader.get_epoch\(\)"):
        CachedDataset(Drawing("epoch"), "1 MB")[0]
    with pytest.raises(OptionError, match="got Epochs, which has set_epoch"):
        CachedDataset(Epochs(), "1 MB")


def test_bad_samples_are_not_kept() -> None:
    tries: list[int] = []

    def make(index: int) -> int:
        tries.append(index)
        if index == 3 and tries.count(3) < 3:
            raise OSError("not now")
        return index

    cached = CachedDataset(Call(make, 6), "1 MB")
    retry = {"times": 3, "backoff": 0}
    loader = DataLoader(cached, 2, sample_retries=retry, collate_fn=uncollated)
    for _ in range(2):
        assert [n for batch in loader for n in batch] == list(range(6))
    assert (tries.count(3), len(tries)) == (3, 8)


def test_what_cannot_be_kept_is_made_each_time(caplog: pytest.LogCaptureFixture) -> None:
    cached = CachedDataset(Call(lambda index: (lambda: index) if index % 2 else index, 6), 10_000)
    for _ in range(2):
        assert [cached[index]() if index % 2 else cached[index] for index in range(6)] == [
            *range(6)
        ]
    assert cached.figures()[:2] == (3, 9)
    [record] = caplog.records
    assert "not kept" in record.message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((Counting(), 1000), "to be cached, got Counting"),
        ((Dataset(), 1000), "__getitem__ and __len__"),
        ((Rows, 1000), "pass an instance of a dataset"),
        ((Rows(), "much"), "memory must be a number of bytes, or text such as '2 GB'"),
        ((Rows(), -1), "memory must be a whole number"),
        ((Rows(), 0), "memory=0 keeps nothing without a directory"),
        ((Rows(), 0, None, "v1"), "memory=0 keeps nothing without a directory"),
        ((Rows(), 1000, "."), "directory needs a key"),
        ((Rows(), 1000, 5, "v1"), "directory must be a string, got directory=5"),
        ((Rows(), 1000, None, ""), "key must be a string that is not empty"),
        ((Rows(), 0, __file__, "v1"), "directory cannot be made .FileExistsError"),
    ],
    ids=range(11),
)
def test_refused(arguments: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        CachedDataset(*arguments)
