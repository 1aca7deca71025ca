"""Whether a process sleeps at a lock that it shares, seen from outside."""

import fcntl
import multiprocessing
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lit_loader.core.batch import progress
from lit_loader.core.batch.progress import PAUSE, WorkerWaits

try:
    Path("/proc/self/syscall").read_text()
except OSError:
    pytest.skip("the system does not show in which call a process is", allow_module_level=True)

FORK = multiprocessing.get_context("fork")


def at_a_lock(lock: Any, file: Path) -> None:
    lock.acquire()


def at_a_locked_file(lock: Any, file: Path) -> None:
    with file.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)


def at_a_locked_range(lock: Any, file: Path) -> None:
    with file.open("w") as held:
        fcntl.lockf(held, fcntl.LOCK_EX)


def at_its_own_thread(lock: Any, file: Path) -> None:
    threading.Event().wait()


@pytest.mark.parametrize(
    ("target", "locked"),
    [(at_a_lock, 3), (at_a_locked_file, 3), (at_a_locked_range, 3), (at_its_own_thread, 0)],
)
def test_what_a_process_waits_for(target: Callable[..., None], locked: int, tmp_path: Path) -> None:
    lock, path = FORK.Lock(), tmp_path / "file"
    with lock, path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        fcntl.lockf(file, fcntl.LOCK_EX)
        process = FORK.Process(target=target, args=(lock, path))
        process.start()
        assert process.pid is not None
        waits, end = WorkerWaits(), time.monotonic() + 60
        while [*waits.looks][-3:] != [bool(locked)] * 3:  # until it sleeps there
            assert time.monotonic() < end
            waits.look([process.pid])
            time.sleep(0.02)
        process.kill()
        process.join()
        process.close()


def test_gone_processes_count_as_not_waiting() -> None:
    waits = WorkerWaits()
    waits.look([0, 2**22 + 1])
    assert list(waits.looks) == [False, False]


def test_pauses_between_looks_are_uneven(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that no loop keeps in time with them."""
    now = 10**12
    monkeypatch.setattr(progress.time, "monotonic_ns", lambda: now)
    waits, pauses = WorkerWaits(), set[int]()
    for _ in range(20):
        left = waits.left()
        assert PAUSE / 2 <= 1e9 * left <= 1.5 * PAUSE
        now += int(1e9 * left) // 2
        assert waits.left() < left  # until then it is the same look
        now += int(1e9 * left)
        pauses.add(round(20 * 1e9 * left / PAUSE))
    assert len(pauses) > 10
