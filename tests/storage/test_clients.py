"""`reads_ahead` over what people read from: the same samples, under torch's loader as well."""

import asyncio
import sqlite3
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader as TorchLoader

import lit_loader
from lit_loader import DataLoader
from tests.support.samples import OfLength

LENGTH = 50
LATENCY = 0.01
CONTENTS = [f"object {index} ".encode() * (1 + index % 3) for index in range(LENGTH)]


def sample(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data.ljust(40, b".")), dtype=torch.uint8)


class Base(OfLength):
    length = LENGTH

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


class Http(Files):
    @lit_loader.reads_ahead
    def read(self, index: int) -> bytes:
        with urlopen(f"{self.url}/{index}") as response:
            return bytes(response.read())


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
        database = vars(_local).setdefault(self.path, None) or sqlite3.connect(
            self.path, check_same_thread=False, factory=_Connection
        )
        vars(_local)[self.path] = database
        (data,) = database.execute("SELECT data FROM samples WHERE number = ?", (index,)).fetchone()
        return bytes(data)


class _Connection(sqlite3.Connection):
    """Closed with its thread's end; from Python 3.13 on, one that is not is warned of."""

    def __del__(self) -> None:
        self.close()


_local = threading.local()


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
        with DataLoader(dataset, 8, num_workers=workers, concurrent_reads=4) as loader:
            assert torch.equal(torch.cat([*loader]), expected)
    assert torch.equal(torch.cat([*TorchLoader(dataset, 8, num_workers=1)]), expected)


@pytest.mark.usefixtures("by_fork")  # which has what lies in memory
@pytest.mark.parametrize("system", ["file", "memory"])
def test_fsspec(system: str, tmp_path: Path) -> None:
    files = pytest.importorskip("fsspec").filesystem(system)
    files.pipe({f"{tmp_path}/{index}": data for index, data in enumerate(CONTENTS)})
    check(Files(f"{system}://{tmp_path}"))
    files.rm(str(tmp_path), recursive=True)


@pytest.mark.parametrize("kind", [Http, Aiohttp])
def test_http(url: str, kind: Any) -> None:
    if kind is Aiohttp:
        pytest.importorskip("aiohttp")
    check(kind(url))
    assert _Handler.most > 2  # those of torch's one worker come one by one
    for loop, client in _clients.items():  # this process's own
        asyncio.run_coroutine_threadsafe(client.close(), loop).result()
    _clients.clear()


def test_sqlite(tmp_path: Path) -> None:
    check(Sqlite(tmp_path / "data"))
