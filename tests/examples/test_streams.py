"""Streams of the recipes: stopped, resumed with other workers and ranks, every sample compared."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lit_loader import MixtureStream
from tests.support.recipes import importable
from tests.support.stream_resumes import Stream, check_resumes

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore::lit_loader.WorkerRestartWarning"),
]


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
