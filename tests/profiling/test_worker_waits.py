"""Whether a process sleeps at a lock that it shares, seen from outside."""

import fcntl
import multiprocessing
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lit_loader.core.batch.progress import WorkerWaits

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
