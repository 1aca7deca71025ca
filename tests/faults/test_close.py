"""Closing takes every step, whatever the one before raises and whoever else waits for children."""

import gc
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lit_loader import DataLoader
from lit_loader.core.executors.pipes import Pipes
from lit_loader.errors import LoaderError
from tests.faults.test_signals import finish, launch
from tests.support.samples import METHODS, Call, hang, usage


def nothing_is_left(before: tuple[int, int, int, set[str]]) -> None:
    """What a test before this one has left may have gone meanwhile."""
    gc.collect()
    after = usage()
    assert all(now <= then for now, then in zip(after, before, strict=True)), (before, after)


# Somebody else reaps ---------------------------------------------------------------------------

PROGRAM = """
import gc, os, signal, sys, threading, time, warnings
from lit_loader import DataLoader
from tests.support.samples import Call, usage

def sample(index):
    assert signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL
    if not index:
        assert os.waitstatus_to_exitcode(os.system("exit 3")) == 3  # it learns how they end
    return index

def reap(*_):
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass

def reap_always():
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            time.sleep(0.001)

def main(method, how):
    data, options = Call(sample, 12), {"num_workers": 2, "multiprocessing_context": method}
    list(DataLoader(data, **options))
    gc.collect()
    before = usage()
    if how == "ignored":
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    elif how == "handler":
        signal.signal(signal.SIGCHLD, reap)
    else:
        threading.Thread(target=reap_always, daemon=True).start()
    for turn in range(2):
        loader = DataLoader(data, persistent_workers=turn == 1, **options)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = []
            for batch in loader:
                if turn == 1 and not found:  # all: one alone may have had nothing left to do
                    for pid in loader._core.pool.workers.pids:
                        os.kill(pid, signal.SIGKILL)
                found.append(int(batch))
        assert found == list(range(12)), found
        loader.close()
        told = [str(warning.message) for warning in caught]
        causes = ("killed by SIGKILL", "its exit code is not known")
        print(len(told) > 0, all(any(cause in text for cause in causes) for text in told))
    del loader, batch
    gc.collect()
    after = usage()
    print(before[0] == after[0], after[2], after[3] - before[3])

if __name__ == "__main__":
    main(*sys.argv[2:])
"""


@pytest.mark.parametrize(
    ("method", "how"),
    [
        pytest.param(method, how, marks=() if default else pytest.mark.slow)
        for method in METHODS
        for how in ("ignored", "handler", "thread")
        for default in [method == "fork" and how != "handler"]
    ],
)
def test_children_that_others_reap(tmp_path: Path, method: str, how: str) -> None:
    told = finish(launch(PROGRAM, tmp_path, method, how))
    assert told == ("False True\nTrue True\nTrue 0 set()\n", "", 0)


def test_closing_and_starting_at_the_same_time() -> None:
    """Whoever starts a process reaps all that have ended: another thread's, too."""
    with DataLoader(range(4), num_workers=1) as loader:
        list(loader)
    before = usage()

    def work(_: int) -> None:
        for _ in range(12):
            with DataLoader(range(4), num_workers=1, persistent_workers=True) as loader:
                assert [int(batch) for batch in loader] == list(range(4))

    with ThreadPoolExecutor(4) as pool:
        assert len(list(pool.map(work, range(4)))) == 4
    nothing_is_left(before)


# Ctrl-C ----------------------------------------------------------------------------------------


def test_a_handler_that_closes_the_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the midst of next(), which waits for a batch that never comes."""
    before = usage()
    loader = DataLoader(Call(lambda index: hang() if index else index), num_workers=1)
    iterator = iter(loader)
    next(iterator)
    previous = signal.signal(signal.SIGUSR1, lambda *_: loader.close())
    main, waits = threading.main_thread().ident or 0, threading.Event()
    wait = Pipes.wait

    def waiting(pipes: Pipes, timeout: float | None) -> bool:
        waits.set()
        return wait(pipes, timeout)

    monkeypatch.setattr(Pipes, "wait", waiting)
    thread = threading.Thread(
        target=lambda: (waits.wait(), signal.pthread_kill(main, signal.SIGUSR1))
    )
    thread.start()
    with pytest.raises(LoaderError, match="closed"):
        next(iterator)
    thread.join()
    signal.signal(signal.SIGUSR1, previous)
    del iterator
    nothing_is_left(before)


# The program's end -----------------------------------------------------------------------------

DAEMON = """
import threading, sys
import torch
from lit_loader import DataLoader
from lit_loader.accelerator import pin_memory
from tests.support.samples import Call, hang

pin_memory.find_accelerator = lambda device="": 0
pin_memory.pin_tensor = torch.clone
torch.accelerator.set_device_index = lambda index: None
reached, where = threading.Event(), "WHERE"

def sample(index):
    if where == "waiting" and index >= 4:
        hang()
    return index

def read(options):
    while True:
        for batch in DataLoader(Call(sample, 1000), **options):
            if int(batch) == 3:
                reached.set()

if __name__ == "__main__":
    threading.Thread(target=read, args=(OPTIONS,), daemon=True).start()
    assert reached.wait(60)
"""


PERSISTENT = {"num_workers": 2, "persistent_workers": True, "prefetch_next_epoch": True}


@pytest.mark.parametrize(
    ("where", "options"),
    [
        ("working", {"num_workers": 2}),
        ("waiting", PERSISTENT),
        ("working", {"num_workers": 2, "pin_memory": True}),
        pytest.param("working", PERSISTENT, marks=pytest.mark.slow),
        pytest.param("waiting", {"num_workers": 2, "pin_memory": True}, marks=pytest.mark.slow),
        pytest.param("waiting", {"num_workers": 1, "timeout": 600}, marks=pytest.mark.slow),
        pytest.param(
            "waiting",
            {"num_workers": 1, "multiprocessing_context": "spawn"},
            marks=pytest.mark.slow,
        ),
    ],
    ids=str,
)
def test_a_daemons_thread_at_the_programs_end(
    tmp_path: Path, where: str, options: dict[str, Any]
) -> None:
    """It ends without a word, and so do the workers."""
    source = DAEMON.replace("WHERE", where).replace("OPTIONS", repr(options))
    assert finish(launch(source, tmp_path)) == ("", "", 0)


# Limits ----------------------------------------------------------------------------------------


def test_a_timeout_of_a_century() -> None:
    loader = DataLoader(range(6), num_workers=1, timeout=3e9, persistent_workers=True)
    for _ in range(2):
        assert [int(batch) for batch in loader] == list(range(6))
    loader.close()
