"""What the datasets of examples/ promise: the same images, whole batches, files written once.

That a stream gives each sample once, and resumes, is in test_streams.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch


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
