"""`reads_ahead` over what people read from: the same samples, under torch's loader as well."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset

import lit_loader
from lit_loader import DataLoader

LENGTH = 50
LATENCY = 0.01
CONTENTS = [f"object {index} ".encode() * (1 + index % 3) for index in range(LENGTH)]


def sample(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data.ljust(40, b".")), dtype=torch.uint8)


class Base(Dataset[Tensor]):
    def __len__(self) -> int:
        return LENGTH

    def read(self, index: int) -> bytes:
        raise NotImplementedError

    def __getitem__(self, index: int) -> Tensor:
        return sample(self.read(index))


class Files(Base):
    def __init__(self, url: str) -> None:
        self.url = url

    @lit_loader.reads_ahead
    def read(self, index: int) -> bytes:
        import fsspec

        with fsspec.open(f"{self.url}/{index}", "rb") as file:
            return bytes(file.read())


class Http(Base):
    def __init__(self, url: str) -> None:
        self.url = url

    @lit_loader.reads_ahead
    def read(self, index: int) -> bytes:
        with urlopen(f"{self.url}/{index}") as response:
            return bytes(response.read())


class Boto3(Base):
    """A client for each thread; and for each process, which has other threads."""

    def __init__(self, address: str) -> None:
        self.address = address

    def client(self) -> Any:
        if not hasattr(_local, "s3"):
            import boto3

            keys = {"aws_access_key_id": "none", "aws_secret_access_key": "none"}
            _local.s3 = boto3.session.Session(region_name="us-east-1", **keys).client(
                "s3", endpoint_url=self.address
            )
        return _local.s3

    @lit_loader.reads_ahead
    def read(self, index: int) -> bytes:
        answer = self.client().get_object(Bucket="bucket", Key=f"{index}")
        return bytes(answer["Body"].read())


class Aiohttp(Http):
    """One client for each event loop, and so for each process: no dataset holds it."""

    @lit_loader.reads_ahead
    async def read(self, index: int) -> bytes:
        import aiohttp

        loop = asyncio.get_running_loop()
        if loop not in _clients:
            _clients[loop] = aiohttp.ClientSession(raise_for_status=True)
        async with _clients[loop].get(f"{self.url}/{index}") as response:
            return bytes(await response.read())


_clients: dict[asyncio.AbstractEventLoop, Any] = {}


class Sqlite(Base):
    """A connection for each thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with sqlite3.connect(path) as database:
            database.execute("CREATE TABLE samples (number INTEGER PRIMARY KEY, data BLOB)")
            database.executemany("INSERT INTO samples VALUES (?, ?)", enumerate(CONTENTS))
        database.close()

    @lit_loader.reads_ahead
    def read(self, index: int) -> bytes:
        database = vars(_local).setdefault(self.path, None) or sqlite3.connect(self.path)
        vars(_local)[self.path] = database
        (data,) = database.execute("SELECT data FROM samples WHERE number = ?", (index,)).fetchone()
        return bytes(data)


_local = threading.local()


class Parquet(Base):
    """A row group for each sample."""

    def __init__(self, path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.table({"data": CONTENTS}), path, row_group_size=1)
        self.path = path

    @lit_loader.reads_ahead
    def read(self, index: int) -> bytes:
        import pyarrow.parquet as pq

        with pq.ParquetFile(self.path) as file:
            return bytes(file.read_row_group(index)["data"][0].as_py())


class Hdf5(Base):
    """Its library reads one at a time, whatever the threads."""

    def __init__(self, path: Path) -> None:
        import h5py
        import numpy as np

        with h5py.File(path, "w") as file:
            for index, data in enumerate(CONTENTS):
                file[str(index)] = np.frombuffer(data, np.uint8)
        self.path = path

    @lit_loader.reads_ahead
    def read(self, index: int) -> bytes:
        import h5py

        with h5py.File(self.path) as file:
            return bytes(file[str(index)][:].tobytes())


class Lmdb(Base):
    _environment: Any = None

    def __init__(self, path: Path) -> None:
        import lmdb

        self.path = path
        with lmdb.open(str(path)) as environment, environment.begin(write=True) as transaction:
            for index, data in enumerate(CONTENTS):
                transaction.put(str(index).encode(), data)

    @lit_loader.reads_ahead
    def read(self, index: int) -> bytes:
        import lmdb

        if self._environment is None:
            with _opening:
                self._environment = self._environment or lmdb.open(str(self.path), readonly=True)
        with self._environment.begin() as transaction:
            return bytes(transaction.get(str(index).encode()))


_opening = threading.Lock()


class _Handler(BaseHTTPRequestHandler):
    """Takes its time, and counts how many ask at a time."""

    protocol_version = "HTTP/1.1"
    now = most = 0

    def do_GET(self) -> None:
        kind = type(self)
        kind.now += 1
        kind.most = max(kind.most, kind.now)
        time.sleep(LATENCY)
        kind.now -= 1
        data = CONTENTS[int(self.path[1:])]
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    _Handler.now = _Handler.most = 0
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def check(dataset: Any) -> None:
    expected = torch.stack([sample(data) for data in CONTENTS])
    for workers in (0, 2):
        with DataLoader(dataset, 8, num_workers=workers, reads=4) as loader:
            assert torch.equal(torch.cat([*loader]), expected)
            assert loader.statistics().read.total > 0
    assert torch.equal(torch.cat([*TorchLoader(dataset, 8, num_workers=1)]), expected)


def test_files(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    for index, data in enumerate(CONTENTS):
        (tmp_path / str(index)).write_bytes(data)
    check(Files(f"file://{tmp_path}"))


def test_memory_of_fsspec() -> None:
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    memory.pipe({f"/reads/{index}": data for index, data in enumerate(CONTENTS)})
    check(Files("memory://reads"))
    memory.rm("/reads", recursive=True)


@pytest.mark.parametrize("kind", [Http, Aiohttp])
def test_http(url: str, kind: Any) -> None:
    if kind is Aiohttp:
        pytest.importorskip("aiohttp")
    check(kind(url))
    assert _Handler.most > 2  # those of torch's one worker come one by one


@pytest.mark.slow
def test_s3() -> None:
    pytest.importorskip("boto3")
    server = pytest.importorskip("moto.server").ThreadedMotoServer(port=0, verbose=False)
    server.start()
    try:
        _, port = server.get_host_and_port()
        dataset = Boto3(f"http://127.0.0.1:{port}")
        dataset.client().create_bucket(Bucket="bucket")
        for index, data in enumerate(CONTENTS):
            dataset.client().put_object(Bucket="bucket", Key=f"{index}", Body=data)
        check(dataset)
    finally:
        server.stop()
        vars(_local).pop("s3", None)


@pytest.mark.parametrize(
    ("package", "make"),
    [
        ("sqlite3", lambda folder: Sqlite(folder / "data")),
        ("pyarrow", lambda folder: Parquet(folder / "data")),
        ("h5py", lambda folder: Hdf5(folder / "data")),
        ("lmdb", lambda folder: Lmdb(folder / "data")),
    ],
    ids=["sqlite", "parquet", "hdf5", "lmdb"],
)
def test_databases(package: str, make: Callable[[Path], Any], tmp_path: Path) -> None:
    pytest.importorskip(package)
    check(make(tmp_path))
