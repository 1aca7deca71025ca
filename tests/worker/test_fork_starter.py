"""Where workers come from: what starts them is killed, too, or cannot be used."""

from __future__ import annotations

import gc
import multiprocessing
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import forkserver
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from lit_loader import DataLoader
from lit_loader.errors import LoaderError, WorkerDiedError, WorkerRestartWarning
from lit_loader.system.processors import usable_processors
from lit_loader.system.watchdog import Watchdog
from lit_loader.worker import fork_starter, launcher_process
from lit_loader.worker.launcher import Launcher
from tests.parity.tools import wait_gone
from tests.support.programs import run_program
from tests.support.samples import Call, Rows, ints

TESTS = str(Path(__file__).parents[1])

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs a launcher"),
    pytest.mark.timeout(120),
    pytest.mark.usefixtures("by_fork"),
]


@contextmanager
def told() -> Iterator[list[str]]:
    """Gives the texts of all warnings, which are of restarts."""
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield texts
    assert {warning.category for warning in caught} <= {WorkerRestartWarning}
    assert all(warning.filename.startswith(TESTS) for warning in caught)
    texts += [str(warning.message) for warning in caught]


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


class Killed:
    """Lets launchers kill themselves at a point.

    Args:
        folder: Where it is noted how often it has happened.
        times: How often it is to happen.
    """

    def __init__(self, folder: Path, times: int = 1) -> None:
        self.folder = folder
        self.times = times

    def __call__(self) -> None:
        for turn in range(self.times):
            try:
                os.close(os.open(self.folder / str(turn), os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            os.kill(os.getpid(), signal.SIGKILL)

    @property
    def done(self) -> int:
        return len(list(self.folder.iterdir()))


def first(deed: Callable[[], None], function: Any) -> Any:
    """``deed``, then ``function``."""

    def both(*arguments: Any) -> Any:
        deed()
        return function(*arguments)

    return both


def then(function: Any, deed: Callable[[], None]) -> Any:
    def both(*arguments: Any) -> Any:
        found = function(*arguments)
        deed()
        return found

    return both


POINTS = {
    "rehearsing": (launcher_process, "rehearse", first),
    "asked": (launcher_process, "_fork_worker", first),
    "forked": (socket, "send_fds", first),
    "answered": (socket, "send_fds", lambda deed, function: then(function, deed)),
    "permitted": (launcher_process, "_fork_worker", lambda deed, function: then(function, deed)),
}
"""Where the launcher is killed: module, function, and whether before or after it."""


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_launcher_that_nobody_listens_to_any_more_ends_quietly(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its parent has closed its end without reading what stands there: an interrupted start."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with open(tmp_path / "stacks", "wb") as stacks:
        links: Any = SimpleNamespace(stacks=SimpleNamespace(fd=stacks.fileno()))
        payload: Any = SimpleNamespace(open=lambda: None)
        origin = launcher_process.Origin(os.getpid(), ours, True, False)
        process = multiprocessing.get_context("fork").Process(
            target=launcher_process.launcher_main,
            args=(origin, theirs, links, payload, print),
        )
        process.start()
    theirs.close()
    assert select.select([ours], [], [], 60)[0]  # it is ready
    ours.close()
    process.join(60)
    assert process.exitcode == 0
    assert capfd.readouterr() == ("", "")


def kill_at(point: str, killed: Killed, monkeypatch: pytest.MonkeyPatch) -> None:
    module, name, when = POINTS[point]
    monkeypatch.setattr(module, name, when(killed, getattr(module, name)))


@pytest.mark.parametrize("point", POINTS)
def test_the_launcher_is_killed_while_it_starts_workers(
    point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one is forked; of no worker there are two, or none."""
    killed, before = Killed(tmp_path), descriptors()
    kill_at(point, killed, monkeypatch)
    with told() as texts, DataLoader(Rows(20, 1), num_workers=3, timeout=30) as loader:
        assert ints(loader) == list(range(20))
    assert killed.done == 1
    assert 1 <= len(texts) <= 2
    assert sum(
        bool(re.match(
            r"the process that starts workers \(pid \d+\) was killed by SIGKILL \(.*\)\n"
            r"Another one was forked, and nothing is lost\.$", text
        ))
        for text in texts
    ) == 1, texts  # fmt: skip
    assert len(texts) == 1 or "gone, and its exit code is not known" in "".join(texts)
    assert opened_since(before) == []


def slowly(index: int) -> int:
    time.sleep(0.002)
    return index


@pytest.mark.parametrize("point", POINTS)
def test_the_launcher_is_killed_while_it_replaces_a_worker(
    point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = Killed(tmp_path)
    # Not too quick: a worker that dies is seen when there is no result to take in.
    with told() as texts, DataLoader(Call(slowly, 200), num_workers=2, timeout=30) as loader:
        iterator: Any = iter(loader)
        found = [int(next(iterator)) for _ in range(5)]
        pool = iterator._session.pool
        kill_at(point, killed, monkeypatch)
        starter = pool._own.starter
        os.kill(starter._launcher._process.pid, signal.SIGKILL)  # the next one has the fault
        os.kill(pool.pids[0], signal.SIGKILL)
        while not iterator.recovery.restarts:
            found.append(int(next(iterator)))
        while not killed.done:  # the launcher may end after it has replaced the worker
            os.sched_yield()
        found += ints(iterator)
    assert found == list(range(200))
    assert killed.done == 1
    assert sum("exit code is not known" in text for text in texts) >= 1


@pytest.mark.parametrize("point", ["rehearsing", "asked", "forked"])
def test_launchers_that_are_killed_again_and_again(
    point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forking is given up; a fork server has not died of it."""
    killed = Killed(tmp_path, times=100)
    kill_at(point, killed, monkeypatch)
    with told() as texts, DataLoader(
        Rows(4, 1), num_workers=1, max_worker_restarts=0
    ) as loader:  # fmt: skip
        assert ints(loader) == list(range(4))
    assert killed.done == fork_starter.ATTEMPTS == len(texts)
    assert re.match(
        r"Forking workers was given up after 5 attempts: the process that starts workers "
        r"\(pid \d+\) was killed by SIGKILL \(.*\)\nThey come from Python's fork server now, and "
        "nothing is lost. Start the loader before such threads, or set multi",
        texts[-1],
    ), texts[-1]


def test_workers_that_end_with_their_launcher_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is a worker's death, and there is a budget of those."""
    killed = Killed(tmp_path, times=100)
    kill_at("answered", killed, monkeypatch)
    with (
        told() as texts,
        DataLoader(Rows(4, 1), num_workers=1, max_worker_restarts=3) as loader,
        pytest.raises(
            WorkerDiedError, match=r"gone, too, or .*\. It was starting\.\nmax_worker_res"
        ),
    ):
        list(loader)
    assert killed.done == 4
    assert sum("nothing is lost (restart" in text for text in texts) == 3


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
            pool = iterator._session.pool  # type: ignore[attr-defined]
            victims = [pool._own.starter._launcher._process.pid, *pool.pids]
            if order == "workers first":
                victims.reverse()
            for pid in victims:
                os.kill(pid, signal.SIGKILL)
            found += ints(iterator)
            assert found == list(range(200))
            wait_gone(victims)
    del iterator, pool
    workers = r"DataLoader worker \d \(pid \d+\) (is gone|was killed by SIGKILL)"
    assert sum(bool(re.match(workers, text)) for text in texts) == 4
    # Where the launcher was not seen to be dead when it was asked for a worker.
    others = [text for text in texts if not re.match(workers, text)]
    assert all(text.startswith("the process that starts workers") for text in others)
    assert opened_since(before) == []


STUCK = """
import os
import threading
from lit_loader import DataLoader
from lit_loader.worker import launcher, launcher_process

def stuck(*_):
    print(os.getpid(), flush=True)
    held = threading.Lock()
    held.acquire()
    held.acquire()

launcher.PATIENCE = 10**9
launcher_process.rehearse = stuck
list(DataLoader(range(4), num_workers=1, multiprocessing_context="fork"))
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


def test_what_a_launcher_is_that_does_not_live() -> None:
    """Its workers are the parent's in no other way than before: they end with the loader."""
    with DataLoader(Rows(40, 1), num_workers=2, persistent_workers=True) as loader:
        iterator = iter(loader)
        assert int(next(iterator)) == 0
        pool = iterator._session.pool  # type: ignore[attr-defined]
        pids = pool.pids
        os.kill(pool._own.starter._launcher._process.pid, signal.SIGKILL)
        assert ints(iterator) == list(range(1, 40))
        assert pool.pids == pids
    wait_gone(pids)


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Who is put here is let go on after 40 looks of watchdogs, which must find nobody stuck."""
    looks: list[bool] = []
    stuck, pids = Watchdog.stuck, list[int]()

    def look(self: Any) -> bool:
        looks.append(stuck(self))
        if len(looks) == 40:
            os.kill(pids[0], signal.SIGCONT)
        return looks[-1]

    monkeypatch.setattr(Watchdog, "stuck", look)
    with told() as texts:
        yield pids
    assert not texts
    assert len(looks) >= 40
    assert not any(looks)


def test_a_launcher_that_is_stopped_is_not_taken_to_be_stuck(
    stopped: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As all processes of a job are by Ctrl-Z; it goes on when it is let."""
    await_answer = Launcher._await_answer

    def stopping(self: Any) -> None:
        if not stopped:
            stopped.append(self._process.pid)
            os.kill(stopped[0], signal.SIGSTOP)
        await_answer(self)

    monkeypatch.setattr(Launcher, "_await_answer", stopping)
    with DataLoader(Rows(4, 1), num_workers=1) as loader:
        assert ints(loader) == list(range(4))


def test_a_launcher_that_is_slow_to_let_its_worker_begin(
    stopped: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker is asleep until then, and not stuck."""
    fork, send_fds = Launcher._fork, socket.send_fds

    def stopping(*args: Any) -> int:  # in the launcher
        sent = send_fds(*args)
        os.kill(os.getpid(), signal.SIGSTOP)
        return sent

    def noted(self: Any) -> None:
        monkeypatch.setattr(socket, "send_fds", stopping)
        fork(self)
        monkeypatch.setattr(socket, "send_fds", send_fds)
        stopped.append(self._process.pid)

    monkeypatch.setattr(Launcher, "_fork", noted)
    with DataLoader(Rows(4, 1), num_workers=1) as loader:
        assert ints(loader) == list(range(4))


SCRIPT = """
import threading, warnings
import torch
from lit_loader import DataLoader
from lit_loader.worker import fork_starter
from lit_loader.worker import launcher, launcher_process, main

print("run as", __name__, flush=True)
warnings.simplefilter("ignore")
fork_starter.PATIENCE = launcher.PATIENCE = 1
lock, seed_worker = threading.Lock(), main.seed_worker

def seed_with_lock(seed):
    with lock:
        seed_worker(seed)

main.seed_worker = launcher_process.seed_worker = seed_with_lock

class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return index**2

taken, done = threading.Event(), threading.Event()

def hold():
    with lock:
        taken.set()
        done.wait()

thread = threading.Thread(target=hold)
thread.start()
taken.wait()
try:
    loader = DataLoader(Squares(), num_workers=2, multiprocessing_context="fork")
    print([int(x) for x in loader], flush=True)
finally:
    done.set()
"""


def test_a_script_that_does_not_expect_to_be_imported(tmp_path: Path) -> None:
    """As it need not where workers are forked: nor does the fork server import it, in the end."""
    pytest.importorskip("cloudpickle")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    assert run_program(script).splitlines() == ["run as __main__", "[0, 1, 4, 9]"]


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
        match=r"^DataLoader worker 0 cannot be started: Python's fork server, which starts it, was "
        r"killed or does not answer \(\w+Error: .*\); if there .* iterate the loader anew, or set",
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
                match="^workers cannot come from Python's fork server, for it is no child",
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
