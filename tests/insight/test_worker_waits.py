"""What a process sleeps at, as it is seen from outside."""

import fcntl
import multiprocessing
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lit_loader.core.system import worker_waits
from lit_loader.core.system.worker_waits import PAUSE, WorkerWaits

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


def asleep(lock: Any, file: Path) -> None:
    time.sleep(1000)


@pytest.mark.process
@pytest.mark.parametrize(
    ("target", "locked"),
    [(at_a_lock, 3), (at_a_locked_file, 3), (at_a_locked_range, 3), (at_its_own_thread, 0),
     (asleep, 0)],
)  # fmt: skip
def test_what_a_process_waits_for(
    target: Callable[..., None], locked: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_waits, "PAUSE", 0)
    lock, path = FORK.Lock(), tmp_path / "file"
    with lock, path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        fcntl.lockf(file, fcntl.LOCK_EX)
        process = FORK.Process(target=target, args=(lock, path))
        process.start()
        assert process.pid is not None
        state, end = Path(f"/proc/{process.pid}/stat"), time.monotonic() + 60
        calm = 0
        while calm < 3:  # it sleeps, and goes on to
            assert time.monotonic() < end
            calm = calm + 1 if state.read_text().rpartition(")")[2].split()[0] == "S" else 0
            time.sleep(0.05)
        waits = WorkerWaits()
        for _ in range(3):
            waits.look(1, [process.pid])
        process.kill()
        process.join()
        process.close()
    assert (waits.looks, waits.locked, waits.paging) == (3, locked, 0)


def test_looks_have_pauses_and_gone_processes_count_as_not_waiting() -> None:
    waits = WorkerWaits()
    for now in (1, PAUSE, PAUSE + 1, 3 * PAUSE):
        waits.look(now, [0, 2**22 + 1])
    assert (waits.looks, waits.locked) == (6, 0)
