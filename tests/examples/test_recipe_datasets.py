"""What the datasets of examples/ promise: each sample once, exact resume, files written once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset

from lit_loader import DataLoader
from tests.support.recipes import importable


@pytest.fixture(scope="module")
def examples() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch, importable(patch):
        yield


def stream(make: Callable[[], IterableDataset[Any]], ranks: int, workers: int) -> list[Any]:
    """Every batch of two epochs, of all ranks, as nested lists."""
    found = []
    for rank in range(ranks):
        with DataLoader(
            make(), batch_size=16, num_workers=workers, seed=3, num_replicas=ranks, rank=rank
        ) as loader:
            found.append([[part.tolist() for part in b] for _ in range(2) for b in loader])
    return found


@pytest.fixture(scope="module")
def parquet(
    examples: None, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[], IterableDataset[Any]]:
    pytest.importorskip("pyarrow")
    from tabular.files import TARGET, write
    from tabular.row_groups import RowGroups

    folder = tmp_path_factory.mktemp("parquet")
    write(folder)
    return lambda: RowGroups(folder / "train.parquet", TARGET, shuffle=True, seed=5)


@pytest.mark.parametrize(("ranks", "workers"), [(1, 0), (1, 3), (2, 2)])
def test_each_row_comes_once(
    ranks: int, workers: int, parquet: Callable[[], IterableDataset[Any]]
) -> None:
    of_ranks = stream(parquet, ranks, workers)
    assert len({len(batches) for batches in of_ranks}) == 1
    half = len(of_ranks[0]) // 2
    epochs = []
    for epoch in (slice(half), slice(half, None)):
        rows = [tuple(row) for batches in of_ranks for x, _ in batches[epoch] for row in x]
        assert len(rows) == len(set(rows)) == 384
        epochs.append(rows)
    assert sorted(epochs[0]) == sorted(epochs[1])
    assert epochs[0] != epochs[1]


@pytest.fixture(scope="module")
def tars(
    examples: None, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[], IterableDataset[Any]]:
    pytest.importorskip("webdataset")
    from webshards.shards import pipeline, write

    folder = tmp_path_factory.mktemp("tars")
    write(folder)
    return lambda: pipeline(folder, "train", 5, "pillow")


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # webdataset leaves them so
@pytest.mark.parametrize(("ranks", "workers"), [(1, 0), (2, 2)])
def test_each_sample_of_the_shards_comes_once(
    ranks: int, workers: int, tars: Callable[[], IterableDataset[Any]]
) -> None:
    from images.files import rendered

    of_ranks = stream(tars, ranks, workers)
    labels = [label for batches in of_ranks for _, y in batches for label in y]
    # Augmented images are all different; the classes are as often as they should be.
    expected = 2 * np.bincount([label for _, label in rendered("train")])
    assert np.bincount(labels).tolist() == expected.tolist()
    if ranks == 1:
        assert stream(tars, ranks, 1) == of_ranks


def test_a_cache_changes_no_image(examples: None, tmp_path: Path) -> None:
    """What is decoded is kept, what is augmented is drawn anew: by the same numbers as without."""
    pytest.importorskip("PIL")
    from images.data import ImagesData

    def batches(cache: str | None) -> list[list[tuple[bytes, list[int]]]]:
        loader = {"batch_size": 200, "num_workers": 2, "seed": 5}
        data = ImagesData(str(tmp_path / "images"), "pillow", cache, loader=loader)
        data.prepare_data()
        data.setup("fit")
        train, val = data.train_dataloader(), data.val_dataloader()
        given = [
            [(images.numpy().tobytes(), labels.tolist()) for images, labels in each]
            for each in (train, train, val)
        ]
        if cache is not None:
            statistics = train.statistics()
            assert statistics.cache_misses <= len(train.dataset) <= statistics.cache_hits
        data.close()
        return given

    assert batches("200 MB") == batches(None)


def test_a_hugging_face_dataset_is_asked_for_whole_batches(
    examples: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("datasets")
    from digits.dataset import Digits
    from hf.data import HuggingFaceData

    data = HuggingFaceData(
        str(tmp_path / "digits"), loader={"batch_size": 100}, test={"batch_size": 50}
    )
    data.prepare_data()
    data.setup("test")
    dataset = data.dataset("test")
    asked: list[int] = []
    many = type(dataset).__getitems__
    monkeypatch.setattr(
        type(dataset),
        "__getitems__",
        lambda self, keys: asked.append(len(keys)) or many(self, keys),
    )
    images = torch.cat([batch["image"] for batch in data.test_dataloader()])
    assert torch.equal(images, Digits("test").images)
    assert asked == [50] * 7 + [10]
    data.close()


# --- data sets that are written once ---


def test_data_are_written_once_and_as_a_whole(examples: None, tmp_path: Path) -> None:
    from digits.once import write_once

    place = tmp_path / "below" / "data"

    def fail(scratch: Path) -> None:
        (scratch / "half").write_text("")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_once(place, fail)
    assert list(place.parent.iterdir()) == []

    def write(scratch: Path) -> None:
        (scratch / "file").write_text("first")
        # Another node is quicker, at this very moment.
        if not place.exists():
            write_once(place, lambda other: (other / "file").write_text("other"))  # type: ignore[func-returns-value]

    write_once(place, write)
    assert (place / "file").read_text() == "other"
    write_once(place, fail)
    assert [path.name for path in place.parent.iterdir()] == ["data"]
