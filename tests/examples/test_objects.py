"""The recipe for object storage: objects and ranges, failing requests, S3, no secrets anywhere."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lit_loader import DataLoader

fsspec: Any = pytest.importorskip("fsspec")

SECRET = "not-for-anybody-else"


@pytest.fixture(params=["objects", "ranges"])
def made(request: pytest.FixtureRequest, examples: None, tmp_path: Path) -> Callable[..., Any]:
    """Gives the dataset, over this url."""
    from objects.dataset import Objects, write
    from objects.storage import Storage

    write(Storage(str(tmp_path)), request.param, ["val"])

    def make(url: str = str(tmp_path), **options: Any) -> Any:
        return Objects(Storage(url, **options), "val", request.param)

    return make


def batches(dataset: Any, **options: Any) -> list[tuple[bytes, list[int]]]:
    with DataLoader(dataset, 64, shuffle=True, seed=1, **options) as loader:
        return [(images.numpy().tobytes(), labels.tolist()) for images, labels in loader]


def test_objects_and_ranges_are_the_images_that_were_written(made: Callable[..., Any]) -> None:
    import numpy as np
    from images.files import rendered
    from PIL import Image

    dataset = made()
    expected = [jpeg for jpeg, _ in rendered("val")]
    assert len(dataset) == len(expected)
    for index in (0, 1, 255, 256, len(expected) - 1):
        image, _ = dataset[index]
        with Image.open(io.BytesIO(expected[index])) as file:
            assert np.array_equal(image[0].numpy(), np.array(file))
    assert batches(dataset, num_workers=1) == batches(dataset)


def test_credentials_are_refused_where_they_would_be_seen(examples: None) -> None:
    from objects.storage import Storage

    with pytest.raises(ValueError, match=r"credentials do not belong into a dataset \(secret\)"):
        Storage("s3://bucket", secret=SECRET)
    with pytest.raises(ValueError, match="in the url"):
        Storage(f"ftp://me:{SECRET}@host/folder")
