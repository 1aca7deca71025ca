"""Streams of the recipes: stopped, resumed with other workers and ranks, every sample compared.

The reference is one process that reads the whole epoch. Then it is read in legs, each by other
ranks with other workers, from the merged state of all ranks before; one worker is killed meanwhile.
Ranks are loaders in one process, which go in step.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import hashlib
import itertools
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from torch import Tensor

import lit_loader
from lit_loader import DataLoader, MixtureStream
from tests.support.exact import through_file
from tests.support.recipes import importable
from tests.support.samples import worker_pids

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore::lit_loader.WorkerRestartWarning"),
]


Batch = tuple[int, list[str]]
"""The reader, and its samples by their names."""


class Leg(NamedTuple):
    """A run of some rounds."""

    workers: int  # of each rank
    ranks: int  # loaders that go in step
    rounds: int | None  # batches of each rank; None: all that are left
    strike: bool = False  # whether a worker of the first rank is killed on the way


LEGS = (Leg(2, 2, 3), Leg(3, 1, 5, strike=True), Leg(0, 4, 1), Leg(1, 2, None))


class Stream(NamedTuple):
    """What is read."""

    make: Callable[[], Any]  # makes the dataset; can be pickled
    size: int  # samples of a batch
    shards: int
    epoch: int = 1

    def loader(self, workers: int, ranks: int = 1, rank: int = 0) -> DataLoader[Any]:
        """Read it by workers, as a rank."""
        return DataLoader(
            self.make(),
            self.size,
            num_workers=workers,
            num_shards=self.shards,
            shard_tail="keep",
            num_replicas=ranks,
            rank=rank,
            seed=5,
            collate_fn=named,
        )


def named(samples: Sequence[Any]) -> Batch:
    """A collate_fn: names the reader and each sample, by all that there is of it."""
    return lit_loader.get_shard()[0], [name(sample) for sample in samples]


def name(sample: Any) -> str:
    """An id is its own name, anything larger goes by its bytes."""
    if isinstance(sample, (int, str)):
        return str(sample)
    if isinstance(sample, dict):
        return ",".join(f"{key}={name(sample[key])}" for key in sorted(sample))
    if isinstance(sample, (tuple, list)):
        return f"({','.join(map(name, sample))})"
    data = sample.numpy() if isinstance(sample, Tensor) else np.asarray(sample)
    if data.ndim == 0:
        return str(data)
    return hashlib.blake2b(data.tobytes(), digest_size=8).hexdigest()


def whole(stream: Stream) -> list[Batch]:
    """The epoch, in one process that is not interrupted."""
    with stream.loader(0) as loader:
        loader.set_epoch(stream.epoch)
        return list(loader)


def rounds(stream: Stream, leg: Leg, state: Any) -> Iterator[tuple[list[Batch], Any]]:
    """Give, round by round, what all ranks are given and the state behind it."""
    with contextlib.ExitStack() as stack:
        loaders = [
            stack.enter_context(stream.loader(leg.workers, leg.ranks, rank))
            for rank in range(leg.ranks)
        ]
        for loader in loaders:
            loader.set_epoch(stream.epoch)
            if state is not None:
                loader.load_state_dict(state)
        iterators = [iter(loader) for loader in loaders]
        for number in itertools.count(1):
            found = [next(iterator, None) for iterator in iterators]
            given = [batch for batch in found if batch is not None]
            if not given:
                return
            if leg.strike and number == 2:
                os.kill(worker_pids(iterators[0])[0], signal.SIGKILL)
            # A rank that has come to its end has no state that could be merged with others'.
            states = [loader.state_dict() for loader in loaders] if len(given) == len(found) else []
            yield given, states and through_file(lit_loader.merge_states(states))
            if number == leg.rounds:
                return


def check_resumes(stream: Stream, legs: Sequence[Leg] = LEGS) -> list[Batch]:
    """Go through an epoch in legs, and compare it with one that was left alone, which is given."""
    expected = whole(stream)
    found, state = list[Batch](), None
    for leg in legs:
        for given, after in rounds(stream, leg, state):
            found += given
            state = after
    for reader in range(stream.shards):
        mine, wanted = ([b for b in some if b[0] == reader] for some in (found, expected))
        assert mine == wanted, f"reader {reader}"
    assert len(found) == len(expected)
    # What a library leaves open is closed here, and not in another test, which may not ignore it.
    gc.collect()
    return expected


@pytest.fixture(autouse=True)
def examples(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with importable(monkeypatch):
        yield


# Text: packed, and mixed -------------------------------------------------------------------------

DOCUMENTS, LENGTH, SHARDS = 90, 24, 4


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small corpus of three kinds, whose documents have 1 to 150 bytes."""
    from text import corpus

    def documents(kind: int) -> Iterator[tuple[str, bytes]]:
        for number in range(20 * DOCUMENTS):  # one of twenty files is for another split
            yield (
                f"{kind}/{number % DOCUMENTS}",
                bytes([65 + kind, 97 + number % 26]) * (number % 7),
            )

    small = {name: functools.partial(documents, n) for n, name in enumerate("abc")}
    monkeypatch.setattr(corpus, "_DOCUMENTS", small)
    for kind in small:
        corpus.write(tmp_path / "corpus", kind)
    return tmp_path / "corpus"


def packed_text(directory: Path) -> Any:
    from text.stream import packed

    return packed(str(directory), "a", "train", LENGTH, seed=3)


def mixed_text(directory: Path) -> Any:
    from text.stream import packed

    def source(number: int) -> Any:
        return packed(str(directory), "abc"[number], "train", LENGTH, number, seed=3)

    return MixtureStream(
        [source(number) for number in range(3)],
        weights=[5, 3, 2],
        epoch_length=1024 * SHARDS,  # each reader's weights hold after 1,024 draws
        exhausted="repeat",
        seed=3,
    )


def test_packed_text(directory: Path) -> None:
    expected = check_resumes(Stream(functools.partial(packed_text, directory), 5, SHARDS))
    assert len(expected) > 40


@pytest.mark.slow
def test_mixed_text(directory: Path) -> None:
    stream = Stream(functools.partial(mixed_text, directory), 64, SHARDS)
    expected = check_resumes(stream)
    drawn = Counter(sample.partition(",")[0] for _, samples in expected for sample in samples)
    assert drawn.total() == 1024 * SHARDS
    for number, weight in enumerate([0.5, 0.3, 0.2]):  # over the global stream
        assert abs(drawn[f"source={number}"] - weight * drawn.total()) < SHARDS


# Parquet by row groups ---------------------------------------------------------------------------


def row_groups(path: Path) -> Any:
    from tabular.row_groups import RowGroups

    return RowGroups(path, "id", shuffle=True, seed=5)


def test_row_groups(tmp_path: Path) -> None:
    """23 groups of unequal length, which go evenly into nothing."""
    parquet, arrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    numbers, path = np.arange(300), tmp_path / "rows.parquet"
    table = arrow.table({"x": numbers.astype(np.float32), "id": numbers})
    parquet.write_table(table, path, row_group_size=13)
    expected = check_resumes(Stream(functools.partial(row_groups, path), 7, SHARDS))
    ids = [int(sample.strip("()").split(",")[1]) for _, samples in expected for sample in samples]
    assert ids != sorted(ids) == [*range(300)]


# Other libraries' --------------------------------------------------------------------------------


def hugging_face(root: Path) -> Any:
    from hf.stream import stream

    return stream(root, "train", seed=5, buffer_size=16)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*leaves out what is in its shuffle buffer")
def test_hugging_face(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parquet files as an IterableDataset, shuffled through a buffer."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    pytest.importorskip("datasets")
    parquet, arrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    (root := tmp_path / "parquet").mkdir()
    for file in range(8):
        table = arrow.table({"id": [*range(30 * file, 30 * file + 30 - file)]})
        parquet.write_table(table, root / f"train-{file}.parquet", row_group_size=7)
    expected = check_resumes(Stream(functools.partial(hugging_face, root), 7, SHARDS))
    every_id_once(expected, {number for number in range(240) if number % 30 < 30 - number // 30})


def web_dataset(root: Path) -> Any:
    from webshards.shards import pipeline

    return pipeline(root, "train", 5, "pillow")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # webdataset leaves them so
@pytest.mark.filterwarnings("ignore:.*resuming reads again")  # it has no state
def test_web_dataset(tmp_path: Path) -> None:
    """Tar shards, shuffled through a buffer, decoded and augmented."""
    pytest.importorskip("webdataset")
    from webshards.shards import write

    (root := tmp_path / "tars").mkdir()
    write(root)
    expected = check_resumes(Stream(functools.partial(web_dataset, root), 32, SHARDS))
    samples = [sample for _, batch in expected for sample in batch]
    assert len(set(samples)) == len(samples) == 1078


def torchdata_nodes(root: Path) -> Any:
    from nodes.pipeline import Pipeline

    return Pipeline(root, "train", seed=5, augment_with="pillow", threads=2)


@pytest.mark.slow
def test_torchdata_nodes(tmp_path: Path) -> None:
    """Nodes that read JPEG files ahead, in threads."""
    pytest.importorskip("torchdata.nodes")
    from images.files import write

    write(root := tmp_path / "images")
    expected = check_resumes(Stream(functools.partial(torchdata_nodes, root), 32, SHARDS))
    samples = [sample for _, batch in expected for sample in batch]
    assert len(set(samples)) == len(samples) == 1078


def every_id_once(batches: list[Any], numbers: set[int]) -> None:
    ids = [int(sample.removeprefix("id=")) for _, batch in batches for sample in batch]
    assert ids != sorted(ids) == sorted(numbers)
