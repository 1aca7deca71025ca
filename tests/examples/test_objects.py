"""The recipe for object storage: objects and ranges, failing requests, S3, no secrets anywhere."""

import io
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

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


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Address of an S3 server in this process, with an empty bucket."""
    pytest.importorskip("s3fs")
    server = pytest.importorskip("moto.server").ThreadedMotoServer(port=0, verbose=False)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, SECRET)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    server.start()
    try:
        _, port = server.get_host_and_port()
        address = f"http://127.0.0.1:{port}"
        urlopen(Request(f"{address}/moto-api/reset", method="POST")).close()
        client = fsspec.filesystem("s3", endpoint_url=address, skip_instance_cache=True)
        client.mkdir("bucket")
        yield address
    finally:
        server.stop()


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["objects", "ranges"])
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_s3(examples: None, s3: str, layout: str, method: str, tmp_path: Path) -> None:
    from objects.dataset import Objects, write
    from objects.storage import Storage

    there, here = Storage("s3://bucket/data", endpoint_url=s3), Storage(str(tmp_path))
    for storage in (there, here):
        write(storage, layout, ["val"])
    dataset = Objects(there, "val", layout)
    # A client that the training process has used is not the workers'.
    expected = batches(Objects(here, "val", layout))
    assert batches(dataset, num_workers=2, multiprocessing_context=method) == expected
    with DataLoader(dataset, 64, seed=1) as loader:
        next(iter(loader))
        shown = [pickle.dumps(dataset), repr(loader).encode(), repr(loader.state_dict()).encode()]
    assert not [text for text in shown if SECRET.encode() in text]
