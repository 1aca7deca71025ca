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
def test_what_a_process_waits_for(target: Callable[..., None], locked: int, tmp_path: Path) -> None:
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
            waits.look([process.pid])
        process.kill()
        process.join()
        process.close()
    assert (waits.looks, waits.locked, waits.paging) == (3, locked, 0)


def test_gone_processes_count_as_not_waiting() -> None:
    waits = WorkerWaits()
    waits.look([0, 2**22 + 1])
    assert (waits.looks, waits.locked) == (2, 0)


def test_looks_have_pauses_which_no_loop_keeps_in_time_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 10**12
    monkeypatch.setattr(worker_waits.time, "monotonic_ns", lambda: now)
    waits, pauses = WorkerWaits(), set[int]()
    for _ in range(20):
        left = waits.left()
        assert PAUSE / 2 <= 1e9 * left <= 1.5 * PAUSE
        now += int(1e9 * left) // 2
        assert waits.left() < left  # until then it is the same look
        now += int(1e9 * left)
        pauses.add(round(20 * 1e9 * left / PAUSE))
    assert len(pauses) > 10
