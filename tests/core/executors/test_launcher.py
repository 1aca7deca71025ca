"""Where workers come from: what starts them is killed, too, or cannot be used."""

import gc
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import psutil
import pytest

from lit_loader import DataLoader
from lit_loader.core.executors import launcher
from lit_loader.core.system.processors import usable_processors
from lit_loader.errors import LoaderError
from tests.core.executors.test_recovery import dying
from tests.parity.tools import wait_gone
from tests.support.faults import told
from tests.support.programs import run_program
from tests.support.samples import Call, Rows, ints

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs a launcher"),
    pytest.mark.timeout(120),
    pytest.mark.usefixtures("by_fork"),
]


def descriptors() -> list[str]:
    """What is open."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the one that the folder is read by
            found.append(re.sub("[0-9]+", "", os.readlink(entry)))
    return sorted(found)


def opened_since(before: list[str]) -> list[str]:
    gc.collect()
    return sorted((Counter(descriptors()) - Counter(before)).elements())


POINTS: dict[str, tuple[Any, str, bool]] = {
    "rehearsing": (launcher, "rehearse", False),
    "asked": (launcher._Server, "_start", False),
    "forked": (launcher._Server, "_start", True),
}
"""Where the launcher is killed: module, function, and whether behind it."""


@pytest.mark.parametrize("point", POINTS)
def test_the_launcher_is_killed_while_it_starts_workers(
    point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one is forked; of no worker there are two, or none. The third time is an error."""
    module, name, behind = POINTS[point]
    function, times, before = getattr(module, name), 1, descriptors()

    def struck(*arguments: Any) -> Any:
        found = function(*arguments) if behind else None
        for turn in range(times):
            with suppress(FileExistsError):
                (tmp_path / str(turn)).touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)
        return found if behind else function(*arguments)

    monkeypatch.setattr(module, name, struck)
    with told() as texts, DataLoader(Rows(20, 1), num_workers=3, timeout=30) as loader:
        assert ints(loader) == list(range(20))
    assert len([*tmp_path.iterdir()]) == 1
    [text] = texts
    assert re.match(
        r"lit_loader: the process that starts workers \(pid \d+\) was killed by SIGKILL \(.*\)\n"
        r"Another one was forked, and nothing is lost\.$",
        text,
    ), text
    times = 100
    with pytest.raises(
        LoaderError,
        match=r"^lit_loader: workers cannot be forked, for the 3rd time in a row: start .*='fork"
        r"server' .LL016.; the process that starts workers .* was killed by SIGKILL \(.*\)$",
    ):
        list(DataLoader(Rows(4, 1), num_workers=1, max_worker_restarts=0))
    assert len([*tmp_path.iterdir()]) == 1 + launcher.ATTEMPTS
    assert opened_since(before) == []


@pytest.mark.parametrize("order", ["launcher first", "workers first"])
@pytest.mark.parametrize("persistent", [False, True], ids=["", "persistent"])
def test_launcher_and_workers_are_killed_at_the_same_instant(order: str, persistent: bool) -> None:
    before = descriptors()
    with told() as texts, DataLoader(
        Rows(200, 1), num_workers=2, persistent_workers=persistent, prefetch_next_epoch=False
    ) as loader:  # fmt: skip
        for _ in range(2):
            iterator = iter(loader)
            found = [int(next(iterator)) for _ in range(5)]
            pool = iterator.pool  # type: ignore[attr-defined]
            victims = [pool.workers.starter.pid, *pool.workers.pids]
            if order == "workers first":
                victims.reverse()
            for pid in victims:
                os.kill(pid, signal.SIGKILL)
            found += ints(iterator)
            assert found == list(range(200))
            wait_gone(victims)
    del iterator, pool
    workers = r"lit_loader: Worker \d \(pid \d+\) (is gone|was killed by SIGKILL)"
    assert sum(bool(re.match(workers, text)) for text in texts) == 4
    # Where the launcher was not seen to be dead when it was asked for a worker.
    others = [text for text in texts if not re.match(workers, text)]
    assert all(text.startswith("lit_loader: the process that starts workers") for text in others)
    assert opened_since(before) == []


STUCK = """
import os
import threading
from lit_loader import DataLoader
from lit_loader.core.executors import launcher

def stuck(*_):
    print(os.getpid(), flush=True)
    held = threading.Lock()
    held.acquire()
    held.acquire()

launcher.DEADLINE, launcher._STUCK = 10**5, 5
launcher.rehearse = stuck
list(DataLoader(range(99), num_workers=1, multiprocessing_context="fork"))
"""


def test_a_launcher_that_is_stuck_when_its_parent_is_killed_is_not_left_behind() -> None:
    """It has not come to look at its parent yet: the kernel ends it."""
    with subprocess.Popen([sys.executable, "-c", STUCK], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        launcher = os.pidfd_open(int(parent.stdout.readline()))
        try:
            parent.kill()
            ended = select.poll()
            ended.register(launcher, select.POLLIN)
            assert ended.poll(60_000)
        finally:
            os.close(launcher)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def test_a_loader_is_closed_soon_whose_launcher_is_stopped() -> None:
    with DataLoader(Rows(40, 1), num_workers=2, persistent_workers=True) as loader:
        iterator = iter(loader)
        next(iterator)
        pool = iterator.pool  # type: ignore[attr-defined]
        pids, starter = pool.workers.pids, pool.workers.starter.pid
        with stopped(starter):
            begun = time.monotonic()
            loader.close()
            assert time.monotonic() - begun < 10  # it was twice as long, and more
            wait_gone([*pids, starter])


def test_a_worker_dies_while_its_launcher_is_stopped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Another launcher takes the place of that one."""
    monkeypatch.setattr(launcher, "DEADLINE", 2.0)
    dataset = Call(dying([20], tmp_path), 40)
    with told() as texts, DataLoader(dataset, num_workers=2) as loader:
        iterator = iter(loader)
        found = [int(next(iterator))]
        with stopped(iterator.pool.workers.starter.pid):  # type: ignore[attr-defined]
            found += ints(iterator)
    assert found == list(range(40))
    assert len(texts) == 1
    assert "exit code is not known" in texts[0]


# Python's fork server --------------------------------------------------------------------------


def test_a_fork_server_that_is_killed_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    server: Any = forkserver._forkserver  # type: ignore[attr-defined]
    ensure_running = server.ensure_running

    def killed() -> None:
        ensure_running()
        os.kill(server._forkserver_pid, signal.SIGKILL)
        wait_gone([server._forkserver_pid])

    monkeypatch.setattr(server, "ensure_running", killed)
    loader = DataLoader(Rows(4, 1), num_workers=1, multiprocessing_context="forkserver")
    with pytest.raises(
        LoaderError,
        match=r"^lit_loader: Worker 0 cannot be started: Python's fork server, which starts it, "
        r"was killed or does not answer \(\w+Error: .*\); if there .* iterate the loader again, or",
    ):
        list(loader)
    monkeypatch.undo()
    assert ints(loader) == list(range(4))


UNGUARDED = """
from lit_loader import DataLoader

print(list(DataLoader(range(4), num_workers=1, multiprocessing_context="forkserver")))
"""


def test_a_script_that_a_fork_server_runs_again(tmp_path: Path) -> None:
    """The server itself ends of it in Python 3.14, and the worker in those before."""
    script = tmp_path / "script.py"
    script.write_text(UNGUARDED)
    printed = run_program(script, code=1, stderr=subprocess.STDOUT)
    last = printed.splitlines()[-1]
    assert last.startswith("lit_loader."), printed
    assert 'put what a script does under `if __name__ == "__main__":`' in last


def test_a_fork_server_in_a_process_that_was_forked() -> None:
    """By the user, from one that uses it: the server is not its child."""
    loader = DataLoader(Rows(4, 1), num_workers=1, multiprocessing_context="forkserver")
    assert ints(loader) == list(range(4))
    if (child := os.fork()) == 0:
        code = 1
        try:
            with pytest.raises(
                LoaderError,
                match="^lit_loader: workers cannot come from Python's fork server, for it is no c",
            ):
                list(loader)
            loader = DataLoader(Rows(4, 1), num_workers=1, multiprocessing_context="fork")
            code = 0 if ints(loader) == list(range(4)) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert ints(loader) == list(range(4))


# Processors ------------------------------------------------------------------------------------


def test_a_sandbox_does_not_tell_the_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(pid: int) -> set[int]:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_getaffinity", refused)
    assert 0 < usable_processors() <= (psutil.cpu_count() or 1)
    assert ints(DataLoader(Rows(4, 1), num_workers=2)) == list(range(4))
