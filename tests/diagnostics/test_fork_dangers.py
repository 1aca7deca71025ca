"""What forked workers would share is told when they start, with the cure; no word if it is safe."""

# ruff: noqa: SIM115

import io
import logging
import mmap
import multiprocessing
import os
import random
import sqlite3
import sys
import tarfile
import threading
import types
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset, get_worker_info
from torch.utils.data import DataLoader as TorchLoader

from lit_loader import DataLoader
from lit_loader.diagnostics.fork_dangers import fork_dangers, thread_dangers
from tests.support.samples import OfLength

RECORDS, LENGTH = 3000, 64

pytestmark = pytest.mark.usefixtures("by_fork")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of records, each of one number again and again."""
    path = tmp_path / "records.bin"
    np.repeat(np.arange(RECORDS, dtype=np.int64), LENGTH).tofile(path)
    return path


class Records(OfLength):
    """Reads records from a file that is opened once, as many datasets do."""

    def __init__(self, path: Path) -> None:
        super().__init__(RECORDS)
        self.file = open(path, "rb")

    def __getitem__(self, index: int) -> Any:
        self.file.seek(8 * LENGTH * index)
        read = self.file.read(8 * LENGTH).ljust(8 * LENGTH)  # what is shared may be at its end
        return torch.frombuffer(bytearray(read), dtype=torch.int64)

    def __del__(self) -> None:
        self.file.close()


class Cured(Records):
    """Does what the message says."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.path, self._opened_by = path, -1

    def __getitem__(self, index: int) -> Any:
        if self._opened_by != os.getpid():
            self.file.close()
            self.file = open(self.path, "rb")
            self._opened_by = os.getpid()
        return super().__getitem__(index)


class Held(OfLength):
    """Holds something, and uses it for its samples."""

    def __init__(self, held: Any) -> None:
        super().__init__(8)
        self.held = held

    def __getitem__(self, index: int) -> int:
        return index if self.held else 0


def wrong(loader: Any) -> int:
    """How many batches are not those that were asked for."""
    return sum(not bool((batch == n).all()) for n, batch in enumerate(loader))


def test_a_file_that_was_opened_before_the_fork(path: Path) -> None:
    """torch's loader says nothing, and gives other bytes; the cure costs four lines."""
    data = Records(path)
    with pytest.warns(RuntimeWarning, match=r"^lit_loader: Records\.file is open, and ") as caught:
        list(DataLoader(data, None, num_workers=4))
    [warning] = caught
    assert f"    self.file = open('{path}', 'rb')\n" in str(warning.message)
    assert "os.getpid()" in str(warning.message)
    assert warning.filename == __file__
    with DataLoader(Cured(path), None, num_workers=4) as loader:
        assert wrong(loader) == 0


RECORDS_FILE: Any = None


class OfModule(OfLength):
    """Reads from a file that its module has opened."""

    def __getitem__(self, index: int) -> Any:
        RECORDS_FILE.seek(8 * LENGTH * index)
        return torch.frombuffer(bytearray(RECORDS_FILE.read(8 * LENGTH)), dtype=torch.int64)


def of_closure(file: Any) -> Any:
    class OfClosure(OfLength):
        def __getitem__(self, index: int) -> Any:
            file.seek(8 * LENGTH * index)
            return file.read(8 * LENGTH)

    return OfClosure(RECORDS)


def test_a_file_of_the_module_or_a_closure(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open(path, "rb") as file:
        monkeypatch.setattr(sys.modules[__name__], "RECORDS_FILE", file)
        for data, name in ((OfModule(RECORDS), "RECORDS_FILE"), (of_closure(file), "file")):
            [told] = fork_dangers(data, None)
            assert told.startswith(f"lit_loader: {name} is open, and its file has one position")
            [by_threads] = thread_dangers(data, None)
            assert "worker threads" in by_threads
    assert fork_dangers(OfModule(RECORDS), None) == []  # it is closed


def test_as_the_message_says_torchs_loader_has_no_wrong_bytes_either(path: Path) -> None:
    assert wrong(TorchLoader(Cured(path), None, num_workers=2)) == 0


def test_where_there_is_one_worker_or_none_nothing_is_shared(path: Path) -> None:
    for workers in (0, 1):
        assert wrong(DataLoader(Records(path), None, num_workers=workers)) == 0


# What is told ----------------------------------------------------------------------------------


@pytest.fixture
def text(path: Path) -> Path:
    text = path.with_suffix(".txt")
    text.write_text("a\nb\n")
    return text


def archive(path: Path) -> zipfile.ZipFile:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("0", "x")
    return zipfile.ZipFile(path)


def tape(path: Path) -> tarfile.TarFile:
    with tarfile.open(path, "w") as file:
        file.add(__file__)
    return tarfile.open(path)


def decoder(_: Path) -> Any:
    return type("InputContainer", (), {"__module__": "av.container.input"})()


DANGERS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "text": (lambda path: open(path), "= open('{path}')"),
    "in a list": (lambda path: [open(path, "rb")], "self.file = open('{path}', 'rb')"),
    "written, too": (lambda path: open(path, "r+b"), "= open('{path}', 'rb+')"),
    "zip": (lambda path: archive(path.with_suffix(".zip")), "= zipfile.ZipFile("),
    "tar": (lambda path: tape(path.with_suffix(".tar")), "= tarfile.open("),
    "database": (lambda path: sqlite3.connect(path.with_suffix(".db")), "= sqlite3.connect("),
    "decoder": (decoder, "self.held = ..."),
}


@pytest.mark.parametrize("kind", DANGERS)
def test_what_workers_would_share(kind: str, text: Path) -> None:
    make, cure = DANGERS[kind]
    held = make(text)
    for data in (Held(held), Subset(Held(held), [0]), ConcatDataset([Held(1), Held(held)])):
        [told] = fork_dangers(data, None)
        assert "Held" in told or "ataset" in told or "Subset" in told
        assert cure.format(path=text) in told
        assert "os.getpid()" in told
    for each in held if isinstance(held, list) else [held]:
        getattr(each, "close", list)()


@pytest.mark.parametrize("runs", [True, False], ids=["its threads run", "they do not"])
def test_a_library_whose_threads_do_not_come_along(runs: bool) -> None:
    """An object of polars, whose thread pool a fork leaves in the middle of something."""
    frame = type("DataFrame", (), {"__module__": "polars.dataframe.frame"})()
    done = threading.Event()
    thread = threading.Thread(target=done.wait, name="polars-0" if runs else "another")
    thread.start()
    told = fork_dangers(Held({"table": frame}), None)
    done.set()
    thread.join()
    assert [text.partition(", whose threads run")[0] for text in told] == (
        ["lit_loader: Held.held['table'] is 'DataFrame' of polars"] * runs
    )


# What is harmless ------------------------------------------------------------------------------


class AtOnce(Held):
    """Reads all of a file in the beginning."""

    def __init__(self, path: Path) -> None:
        self.file = open(path, "rb")
        super().__init__(self.file.read())


class ByPread(Records):
    def __getitem__(self, index: int) -> Any:
        return os.pread(self.file.fileno(), 8, index)


class InTurn(Records):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.lock = multiprocessing.get_context("fork").Lock()

    def __getitem__(self, index: int) -> Any:
        with self.lock:
            return super().__getitem__(index)


def reopen(_: int) -> None:
    info = get_worker_info()
    assert info is not None
    info.dataset.file = open(info.dataset.file.name, "rb")


HARMLESS: dict[str, Callable[[Path], Any]] = {
    "no file": lambda path: Held(path),
    "read in __init__": AtOnce,
    "pread": ByPread,
    "a lock of all processes": InTurn,
    "written only": lambda path: Held(open(path.with_suffix(".log"), "w")),
    "in memory": lambda path: Held([io.BytesIO(b"x"), io.StringIO("x")]),
    "a memory map": lambda path: Held(np.memmap(path, np.int64, "r")),
    "a memory map's own": lambda path: Held(mmap.mmap(os.open(path, 0), 0, prot=mmap.PROT_READ)),
    "a database in memory": lambda path: Held(sqlite3.connect(":memory:")),
    "a log": lambda path: Held(logging.getLogger("some")),
    "standard streams": lambda path: Held([sys.stdin, sys.stdout]),
    "a module": lambda path: Held(types),
    "generators": lambda path: Held([random.Random(1), np.random.default_rng(1)]),
}


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.parametrize("kind", HARMLESS)
def test_what_is_harmless(kind: str, path: Path) -> None:
    data = HARMLESS[kind](path)
    assert fork_dangers(data, None) == []
    getattr(getattr(data, "file", None), "close", list)()


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_a_worker_init_fn_that_opens_it_again(path: Path) -> None:
    data = Records(path)
    assert fork_dangers(data, reopen) == []
    assert wrong(DataLoader(data, None, num_workers=2, worker_init_fn=reopen)) == 0
    data.file.close()


def test_a_worker_init_fn_that_knows_the_dataset(path: Path) -> None:
    data = Records(path)

    def opened(worker: int) -> None:
        data.file = open(path, "rb")

    assert fork_dangers(data, None) != [] == fork_dangers(data, opened)
    assert wrong(DataLoader(data, None, num_workers=2, worker_init_fn=opened)) == 0
    data.file.close()


def test_h5py_reads_by_pread(path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(path.with_suffix(".h5"), "w") as file:
        file["x"] = np.repeat(np.arange(RECORDS), LENGTH).reshape(RECORDS, LENGTH)
    with h5py.File(path.with_suffix(".h5")) as file:
        assert fork_dangers(Held(file), None) == []


# What it costs ---------------------------------------------------------------------------------


class Many(OfLength):
    """Has very much of everything."""

    names: ClassVar[list[str]] = ["name"]

    def __init__(self, count: int) -> None:
        super().__init__(8)
        self.samples = [{"path": str(n), "box": [n, n + 1]} for n in range(count)]
        self.parts = [Held(Held(n)) for n in range(count // 100)]
        self.table = dict.fromkeys(range(count), "x")


def test_the_look_does_not_grow_with_the_dataset() -> None:
    """It takes a millisecond."""

    def calls(count: int) -> int:
        made, data = 0, Many(count)

        def count_call(*_: Any) -> None:
            nonlocal made
            made += 1

        sys.setprofile(count_call)
        try:
            assert fork_dangers(data, None) == []
        finally:
            sys.setprofile(None)
        return made

    assert calls(100_000) < 1.1 * calls(10_000) < 20_000
