"""`Watchdog` over a made-up /proc, and over processes that sleep, compute and are stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lit_loader.system import watchdog
from lit_loader.system.watchdog import PATIENCE, Watchdog


class Processes:
    """A /proc whose threads do what a test says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def does(self, thread: int, state: str, ran: int = 0, pid: int = 1) -> None:
        """Say in which state a thread is, and how often it has been run."""
        folder = self.folder / str(pid) / "task" / str(thread)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "stat").write_text(f"{thread} (a (odd) name) {state} " + "7 " * 40)
        (folder / "schedstat").write_text(f"{ran * 1000} 0 {ran}")


@pytest.fixture
def processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Processes:
    monkeypatch.setattr(watchdog, "_PROCESSES", tmp_path)
    return Processes(tmp_path)


def looks(watched: Watchdog, most: int = 3 * PATIENCE) -> int | None:
    """The look that finds it stuck; None: not one of so many."""
    return next((look for look in range(1, most + 1) if watched.stuck()), None)


def test_one_that_is_asleep_and_at_nothing(processes: Processes) -> None:
    processes.does(1, "S")
    processes.does(2, "S")
    assert looks(Watchdog(1)) == PATIENCE + 1
    assert looks(Watchdog(1, patience=2)) == 3


def test_one_whose_other_thread_waits_to_be_run(processes: Processes) -> None:
    """The first one is asleep until that has begun; on a crowded machine it takes a while."""
    processes.does(1, "S")
    processes.does(2, "R")
    watched = Watchdog(1)
    assert looks(watched) is None
    processes.does(2, "S", ran=1)
    assert looks(watched) == PATIENCE + 1


def test_one_that_is_run_for_less_than_a_tick(processes: Processes) -> None:
    watched = Watchdog(1)
    for ran in range(3 * PATIENCE):
        processes.does(1, "S", ran)
        assert not watched.stuck()


def test_one_that_waits_for_another(processes: Processes) -> None:
    processes.does(1, "S", pid=1)
    processes.does(2, "R", pid=2)
    watched = Watchdog(1, 2)
    assert looks(watched) is None
    processes.does(2, "S", pid=2)
    assert looks(watched) is not None


def test_one_that_is_gone(processes: Processes) -> None:
    """Others notice."""
    assert looks(Watchdog(1)) is None
    assert looks(Watchdog(1), most=1000) is not None


PROGRAM = """
import sys, threading
lock = threading.Lock()
lock.acquire()
if sys.argv[1] == "computes":
    threading.Thread(target=lambda: [None for _ in iter(int, 1)], daemon=True).start()
print("begun", flush=True)
lock.acquire()
"""


@pytest.mark.parametrize("deed", ["sleeps", "computes", "is stopped"])
def test_a_process(deed: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, deed], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        watched = Watchdog(process.pid)
        if deed == "is stopped":
            os.kill(process.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        if deed == "sleeps":
            assert looks(watched, 1000) is not None
        else:
            assert looks(watched) is None
        process.kill()
