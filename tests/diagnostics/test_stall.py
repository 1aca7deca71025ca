"""The loop waits, and no worker sends a batch: a warning says, once, what each worker does."""

import contextlib
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lit_loader import DataLoader, StallWarning
from tests.support.remote_threads import ThreadWorkers
from tests.support.samples import Call, Rows, ints
from tests.support.tools import Gate

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="looks into /proc"),
    pytest.mark.timeout(60),
]

lock = threading.Lock()


def decode(index: int) -> int:
    """As a library does that has a lock of its own."""
    with lock:
        return index


@contextlib.contextmanager
def held() -> Iterator[None]:
    """A thread of the program has the library's lock just now."""
    taken, done = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            taken.set()
            done.wait()

    thread = threading.Thread(target=hold, name="decoder")
    thread.start()
    taken.wait()
    try:
        yield
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("pin", [False, True], ids=["", "pin"])
def test_a_lock_that_was_copied(pin: bool, pinned: None) -> None:
    """Without ``timeout`` such a program waits forever. (Warnings are errors here, so it ends.)"""
    loader = DataLoader(
        Call(decode, 4), num_workers=2, stall_warning=2, pin_memory=pin,
        multiprocessing_context="fork",
    )  # fmt: skip
    with held(), pytest.raises(StallWarning, match="LL008") as caught:
        list(loader)
    text = str(caught.value)
    for worker in (0, 1):
        assert f"Worker {worker} (pid " in text
    assert "fetching index 0 (sample 0 of batch 0, indices [0]), for " in text, text
    assert "sleeps at a lock (futex), got 0.0 s of CPU time" in text, text
    assert ", in decode" not in text and "in decode" in text
    assert "forked next to other threads (" in text and "decoder" in text
    assert "timeout=…" in text and "'forkserver'" in text


def slow(index: int) -> int:
    time.sleep(0.1)
    return index


@pytest.mark.parametrize("method", ["multiprocessing", "thread"])
def test_slow_is_not_stuck(method: Any) -> None:
    """One warning, though it goes on for longer; and the batches come."""
    # Looked at once per second.
    options: dict[str, Any] = {"num_workers": 1, "worker_method": method}
    loader = DataLoader(Call(slow, 50), 25, stall_warning=1.5, **options)
    with pytest.warns(StallWarning, match="slow but make progress") as caught:
        assert [len(batch) for batch in loader] == [25, 25]
    [warning] = caught
    assert warning.filename == __file__


@pytest.mark.usefixtures("by_fork")
def test_a_file_from_which_nothing_comes(tmp_path: Path) -> None:
    path = tmp_path / "samples"
    os.mkfifo(path)
    file = os.open(path, os.O_RDWR)

    def sample(index: int) -> int:
        return len(os.read(file, 1))

    with pytest.raises(StallWarning, match=f"sleeps at a read of {path}, got 0.0 s") as caught:
        list(DataLoader(Call(sample, 1), num_workers=1, stall_warning=0.5))
    os.close(file)
    assert "With timeout=… (seconds) lit_loader replaces" in str(caught.value)
    assert "forked next to" not in str(caught.value)


BLOCKED = """
import sys
if "--multiprocessing-fork" in sys.orig_argv:
    open({path!r}).read()
"""


def test_a_worker_that_is_still_starting_is_not_stuck(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its interpreter waits for a file that nobody writes."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "sitecustomize.py").write_text(BLOCKED.format(path=str(tmp_path / "pipe")))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    loader = DataLoader(
        Call(decode, 4), num_workers=1, stall_warning=0.5, multiprocessing_context="spawn"
    )
    with pytest.raises(StallWarning, match="still starting") as caught:
        list(loader)
    assert "stuck" not in str(caught.value)


def loop(index: int) -> int:
    while True:
        pass


@pytest.mark.parametrize(
    ("method", "seconds"), [("fork", 2), pytest.param("spawn", 20, marks=pytest.mark.slow)]
)
def test_a_loop_without_end(method: str, seconds: int) -> None:
    data, options = Call(loop, 1), {"multiprocessing_context": method}
    with pytest.raises(StallWarning, match=r"in loop\n") as caught:
        list(DataLoader(data, num_workers=1, stall_warning=seconds, **options))
    assert "sleeps at" not in str(caught.value)


def test_a_worker_that_somebody_has_stopped() -> None:
    loader = DataLoader(Rows(100, 1), num_workers=1, stall_warning=1, prefetch_factor=1)
    iterator = iter(loader)
    next(iterator)
    [pid] = iterator.workers.workers.pids  # type: ignore[attr-defined]
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(StallWarning, match="it is stopped by a signal"):
        ints(iterator)


@pytest.mark.usefixtures("forked_relays")
def test_workers_on_other_machines(tmp_path: Path) -> None:
    folder, mark = tmp_path / "remote", tmp_path / "hang"
    folder.mkdir()

    def sample(index: int) -> int:
        while mark.exists():
            time.sleep(0.1)
        return index

    remote = ThreadWorkers(str(folder), num_workers=2, patience=60)
    options: dict[str, Any] = {"remote": remote, "stall_warning": 0}
    with DataLoader(Call(sample, 12), persistent_workers=True, **options) as loader:
        assert ints(loader) == list(range(12))  # they are up
        mark.touch()
        loader._core.keeper.pool._stall._limits = [0.5]  # type: ignore[union-attr]
        with pytest.raises(StallWarning, match="LL008") as caught:
            list(loader)
        mark.unlink()
    text = str(caught.value)
    assert re.search(r"Remote worker [01]: at batch \d+, for \d", text), text


def test_threads_that_hang(gate: Gate) -> None:
    def sample(index: int) -> int:
        gate.wait()
        return index

    loader = DataLoader(Call(sample, 4), num_workers=2, worker_method="thread", stall_warning=1)
    with pytest.raises(StallWarning, match="LL008") as caught:
        list(loader)
    gate.open()
    for thread in threading.enumerate():
        if thread.name.startswith("lit_loader worker"):
            thread.join(5)
    text = str(caught.value)
    doing = r"Worker thread 0: fetching index \d \(sample 0 of batch \d, indices \[\d\]\)"
    assert re.search(rf"{doing}, for [\d.]+ m?s, sleeps at ", text), text
    assert "got 0.0 s of CPU time" in text
    assert "in sample" in text and "a thread cannot be ended" in text


@pytest.mark.usefixtures("by_fork")
def test_it_comes_once_more_after_ten_times_as_long(gate: Gate) -> None:
    told: list[str] = []

    def note(message: Any, *_: Any, **__: Any) -> None:
        told.append(str(message))
        if len(told) == 2:
            gate.open()

    def sample(index: int) -> int:
        gate.wait()
        return index

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warnings.warn", note)
        loader = DataLoader(Call(sample, 1), num_workers=1, stall_warning=0.3)
        assert ints(loader) == [0]
    assert len(told) == 2
