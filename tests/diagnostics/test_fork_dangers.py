"""Handles that forked workers must not share are named with the cure; no word if they may."""

# ruff: noqa: SIM115

import http.client
import io
import logging
import mmap
import multiprocessing
import os
import random
import socket
import sqlite3
import sys
import tarfile
import threading
import types
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset

from lit_loader import DataLoader
from lit_loader.diagnostics.fork_dangers import fork_dangers, thread_dangers
from tests.support.samples import OfLength

RECORDS, LENGTH = 400, 4096

pytestmark = [
    pytest.mark.usefixtures("by_fork"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of records, each of one number again and again."""
    path = tmp_path / "records.bin"
    np.repeat(np.arange(RECORDS, dtype=np.int64), LENGTH).tofile(path)
    return path


class Held(OfLength):
    """Holds something, and reads a record by it."""

    def __init__(self, held: Any, read: Callable[[Any, int], Any] = lambda held, index: 0) -> None:
        super().__init__(RECORDS)
        self.held, self.read = held, read

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(np.array(self.read(self.held, index), np.int64).reshape(-1))


def wrong(dataset: Any) -> int:
    """How many batches are not those that were asked for."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of random generators in zarr, say
        batches = list(DataLoader(dataset, None, num_workers=4))
    return sum(not bool((batch == n).all()) for n, batch in enumerate(batches))


def record(file: Any, index: int) -> Any:
    file.seek(8 * LENGTH * index)
    return np.frombuffer(file.read(8 * LENGTH).ljust(8 * LENGTH), np.int64)


# --- by a loader ---


class Records(Held):
    """Reads from a file that is opened once, as many datasets do."""

    def __init__(self, path: Path) -> None:
        super().__init__(open(path, "rb"), record)


class Cured(OfLength):
    """Does what the message says."""

    def __init__(self, path: Path) -> None:
        super().__init__(RECORDS)
        self.path, self.held, self._pid = path, None, -1

    def __getitem__(self, index: int) -> Any:
        if self._pid != os.getpid():  # -1 in __init__
            self.held = open(self.path, "rb")
            self._pid = os.getpid()
        return torch.from_numpy(record(self.held, index).copy())


def test_a_file_that_was_opened_before_the_fork(path: Path) -> None:
    data = Records(path)
    with pytest.warns(RuntimeWarning, match=r"^lit_loader: Records\.held is an open file") as told:
        list(DataLoader(data, None, num_workers=4))
    [warning] = told
    text = str(warning.message)
    assert f"self.held = open('{path}', 'rb')\n" in text and "os.getpid()" in text
    assert text.endswith("[LL021]") and warning.filename == __file__


@pytest.mark.parametrize("read_before", [False, True])
def test_the_cure(path: Path, read_before: bool) -> None:
    """Also if the training process has read a sample, and so has the file open."""
    data = Cured(path)
    if read_before:
        data[0]
    assert wrong(data) == 0


def test_where_there_is_one_worker_or_none_nothing_is_shared(path: Path) -> None:
    for workers in (0, 1):
        loader = DataLoader(Records(path), None, num_workers=workers)
        assert all(bool((batch == n).all()) for n, batch in enumerate(loader))


def test_a_worker_init_fn_may_open_it_again(path: Path) -> None:
    told = fork_dangers(Records(path), has_init_fn=True)
    assert "Ignore this warning if worker_init_fn opens it again" in told[0]


# --- what is dangerous ---


def archive(path: Path) -> zipfile.ZipFile:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("0", "x")
    return zipfile.ZipFile(path)


def tape(path: Path) -> tarfile.TarFile:
    with tarfile.open(path, "w") as file:
        file.add(__file__)
    return tarfile.open(path)


def npz(path: Path) -> Any:
    np.savez(path, x=np.zeros(3))
    return np.load(path)


def hdf5(path: Path, **options: Any) -> Any:
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        file["x"] = np.repeat(np.arange(RECORDS), LENGTH).reshape(RECORDS, LENGTH)
    return h5py.File(path, **options)


def stand_in(module: str, name: str) -> Any:
    """An object that is called as a library's that is not installed."""
    return type(name, (), {"__module__": module})()


DANGERS: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    "text": (lambda path: open(path), "an open file", "= open('{path}')"),
    "bytes in a list": (lambda path: [open(path, "rb")], "an open file", "self.file = open("),
    "written, too": (lambda path: open(path, "r+b"), "an open file", ", 'rb+')"),
    "zip": (lambda path: archive(path), "an open zipfile", "= zipfile.ZipFile('{path}')"),
    "tar": (lambda path: tape(path), "an open tarfile", "= tarfile.open('{path}')"),
    "npz": (
        lambda path: npz(path.with_suffix(".npz")), "an open .npz file",
        "= numpy.load('{path}.npz'",
    ),
    "HDF5 of a file object": (
        lambda path: hdf5(path, driver="stdio"), "an HDF5 file with a position", "= h5py.File("
    ),
    "SQLite": (
        lambda path: sqlite3.connect(path), "a connection to SQLite",
        "= sqlite3.connect('{path}')",
    ),
    "LMDB": (
        lambda path: pytest.importorskip("lmdb").open(str(path.with_suffix(".lmdb"))),
        "an open LMDB environment with locks", "readonly=True, lock=False)",
    ),
    "a pool of connections, as that of requests": (
        lambda _: OrderedDict(pool=[http.client.HTTPConnection("127.0.0.1")]),
        "a http.HTTPConnection", "= ...",
    ),
    "socket": (lambda _: socket.socket(), "a socket.socket", "get each other's answers"),
    "PyAV": (
        lambda _: stand_in("av.container.input", "InputContainer"), "its position",
        "= av.open(path)",
    ),
    "decord": (
        lambda _: stand_in("decord.video_reader", "VideoReader"), "which hangs",
        "= decord.VideoReader",
    ),
    "OpenCV": (lambda _: stand_in("cv2", "VideoCapture"), "which hangs", "= cv2.VideoCapture("),
}  # fmt: skip


@pytest.mark.parametrize("kind", DANGERS)
def test_what_workers_must_not_share(kind: str, tmp_path: Path) -> None:
    make, what, cure = DANGERS[kind]
    file = tmp_path / "x"
    if kind in ("text", "bytes in a list", "written, too"):
        file.write_text("a\nb\n")
    held = make(file)
    for data in (Held(held), Subset(Held(held), [0]), ConcatDataset([Held(1), Held(held)])):
        [text] = fork_dangers(data)
        assert "Held" in text or "ataset" in text or "Subset" in text
        assert what in text and cure.format(path=file) in text, text
        assert "if self._pid != os.getpid():" in text and text.endswith("[LL021]")
    assert len(fork_dangers(Held(held), several=False)) == (kind in ("decord", "OpenCV"))
    for each in held if isinstance(held, list) else [held]:
        getattr(each, "close", list)()


def test_worker_threads_share_a_files_position(path: Path) -> None:
    [text] = thread_dangers(Records(path))
    assert text.startswith("Records.held is an open file, and worker threads share its position")
    locked = Records(path)
    locked.lock = threading.Lock()  # type: ignore[attr-defined]
    assert thread_dangers(locked) == []
    assert thread_dangers(Held(archive(path.with_suffix(".zip")))) == []  # it has a lock itself


# --- what is harmless ---


def bytes_of(sample: bytes) -> Any:
    return np.frombuffer(sample, np.int64)


READ: dict[str, tuple[Callable[[Path], Any], Callable[[Any, int], Any]]] = {
    "HDF5": (lambda path: hdf5(path.with_suffix(".h5")), lambda file, index: file["x"][index]),
    "numpy.memmap": (
        lambda path: np.memmap(path, np.int64, "r"),
        lambda array, index: array[LENGTH * index : LENGTH * (index + 1)],
    ),
    "mmap": (
        lambda path: mmap.mmap(os.open(path, 0), 0, prot=mmap.PROT_READ),
        lambda memory, index: bytes_of(memory[8 * LENGTH * index : 8 * LENGTH * (index + 1)]),
    ),
}


@pytest.mark.parametrize("kind", READ)
def test_what_workers_may_share_gives_what_was_asked_for(kind: str, path: Path) -> None:
    make, read = READ[kind]
    data = Held(make(path), read)
    assert fork_dangers(data) == []
    assert wrong(data) == 0


class InTurn(Records):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.lock = multiprocessing.get_context("fork").Lock()


HARMLESS: dict[str, Callable[[Path], Any]] = {
    "no file": lambda path: Held(path),
    "a closed file": lambda path: Held(open(path, "rb").close()),
    "a lock of all processes": InTurn,
    "written only": lambda path: Held(open(path.with_suffix(".log"), "w")),
    "in memory": lambda path: Held([io.BytesIO(b"x"), io.StringIO("x")]),
    "a database in memory": lambda path: Held(sqlite3.connect(":memory:")),
    "a log": lambda path: Held(logging.getLogger("some")),
    "standard streams": lambda path: Held([sys.stdin, sys.stdout]),
    "a module": lambda path: Held(types),
    "arrays": lambda path: Held([np.zeros(9), torch.zeros(9), random.Random(1)]),
}


def test_what_is_harmless(path: Path) -> None:
    for kind, make in HARMLESS.items():
        assert fork_dangers(make(path)) == [], kind


# --- what it costs ---


class Many(OfLength):
    """Has very much of everything."""

    def __init__(self, count: int) -> None:
        super().__init__(8)
        self.samples = [{"path": str(n), "box": [n, n + 1]} for n in range(count)]
        self.parts = [Held(Held(n)) for n in range(count // 100)]
        self.table = dict.fromkeys(range(count), "x")


def test_the_look_does_not_grow_with_the_dataset() -> None:
    """It takes a fraction of a millisecond."""

    def calls(count: int) -> int:
        made, data = 0, Many(count)

        def count_call(*_: Any) -> None:
            nonlocal made
            made += 1

        sys.setprofile(count_call)
        try:
            assert fork_dangers(data) == []
        finally:
            sys.setprofile(None)
        return made

    assert calls(100_000) < 1.1 * calls(10_000) < 20_000
