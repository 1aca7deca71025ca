"""The recipe for object storage: objects and ranges, failing requests, S3, no secrets anywhere."""

import io
import os
import pickle
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar
from urllib.request import Request, urlopen

import pytest

from lit_loader import DataLoader
from tests.support.recipes import EXAMPLES, TRAIN, run

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


class Flaky(fsspec.get_filesystem_class("file")):  # type: ignore[misc]
    """A third of the first requests fails, and every request draws how long it would wait."""

    protocol = "flaky"
    asked: ClassVar[set[str]] = set()

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.removeprefix("flaky://")))

    def cat_file(self, path: str, start: Any = None, end: Any = None, **_: Any) -> bytes:
        import random

        random.random()
        what = f"{path.rpartition('/')[2]} {start}"
        first = what not in self.asked
        self.asked.add(what)
        if first and ".json" not in what and zlib.crc32(what.encode()) % 3 == 0:
            raise ConnectionResetError("the storage hung up")
        return bytes(super().cat_file(path, start=start, end=end))


@pytest.mark.usefixtures("by_fork")
@pytest.mark.filterwarnings("ignore:.*something drew from random:UserWarning")  # it does
@pytest.mark.parametrize("num_workers", [0, 1])
def test_failing_requests_change_no_byte(
    num_workers: int, made: Callable[..., Any], tmp_path: Path
) -> None:
    fsspec.register_implementation("flaky", Flaky, clobber=True)
    retried = {"sample_retries": {"times": 2, "backoff": 0}, "num_workers": num_workers}
    Flaky.asked.clear()
    flaky = made(f"flaky://{tmp_path}")
    with DataLoader(flaky, 64, shuffle=True, seed=1, **retried) as loader:
        found = [(images.numpy().tobytes(), labels.tolist()) for images, labels in loader]
        assert loader._core.log.counts["sample_retries"] > 100
    assert found == batches(made())


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


@pytest.mark.slow
def test_a_training_on_s3_writes_its_credentials_nowhere(s3: str, tmp_path: Path) -> None:
    options = ["experiment=objects", "trainer.max_epochs=1", "hydra.run.dir=run"]
    options += ["data.url=s3://bucket/data", f"data.client.endpoint_url={s3}"]
    options += ["data.layout=ranges", "loader.num_workers=1", "loader.batch_size=8"]
    options += ["data.val.batch_size=8", "data.test.batch_size=8", "+trainer.limit_train_batches=2"]
    options += ["+trainer.limit_val_batches=1", "+trainer.limit_test_batches=1"]
    keys = {name: SECRET for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
    printed = run(tmp_path, TRAIN, *options, **keys, PYTHONPATH=str(EXAMPLES.parent))
    assert "test/acc" in printed and SECRET not in printed
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.suffix == ".ckpt" for path in written)
    assert not [path for path in written if SECRET.encode() in path.read_bytes()]
    assert os.environ["AWS_SECRET_ACCESS_KEY"] == SECRET
