"""Ends: every step is taken, streams are closed first, and whoever else waits for children may."""

import gc
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import IterableDataset

from lit_loader import DataLoader
from lit_loader.errors import LoaderError
from tests.support.samples import Call, Rows, hang, share, usage, worker_pids
from tests.support.sessions import end_all, finish, launch
from tests.support.tools import wait_gone

SLOW = pytest.mark.slow
PERSISTENT = pytest.mark.parametrize("persistent", [False, True], ids=["fresh", "persistent"])


@pytest.fixture(autouse=True)
def programs_end() -> Iterator[None]:
    yield
    end_all()


@PERSISTENT
def test_close(persistent: bool) -> None:
    before = usage()
    loader = DataLoader(Rows(50), num_workers=2, persistent_workers=persistent)
    loader.close()  # before anything was started
    fresh, used, done = iter(loader), iter(loader), iter(loader)
    batch = next(used)
    assert len(list(done)) == 50
    pids = worker_pids(used) if used.workers else []
    loader.close()
    loader.close()
    wait_gone(pids)
    assert batch.tolist() == [[0] * 4]
    for iterator in (used, used, fresh):
        with pytest.raises(LoaderError, match="terate the loader again"):
            next(iterator)
    assert next(done, None) is None
    del used, fresh, done, batch, iterator
    gc.collect()
    assert usage() == before
    assert len(list(loader)) == 50  # iterating it begins again
    loader.close()
    assert usage() == before


@PERSISTENT
@pytest.mark.parametrize("in_cycle", [False, True], ids=["plain", "in a cycle"])
def test_dropping_everything_ends_the_workers(persistent: bool, in_cycle: bool) -> None:
    loader = DataLoader(range(100), num_workers=2, persistent_workers=persistent)
    iterator = iter(loader)
    next(iterator)
    pids = worker_pids(iterator)
    if in_cycle:
        loader.itself = [loader, iterator]  # type: ignore[attr-defined]
    del loader, iterator
    gc.collect()
    wait_gone(pids)


@pytest.mark.usefixtures("by_fork")
def test_a_handler_closes_the_loader_while_a_batch_is_awaited() -> None:
    before = usage()
    loader = DataLoader(Call(lambda index: hang() if index else index), num_workers=1)
    iterator = iter(loader)
    next(iterator)
    previous = signal.signal(signal.SIGALRM, lambda *_: loader.close())
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(LoaderError, match="closed"):
            next(iterator)
    finally:
        signal.signal(signal.SIGALRM, previous)
    del iterator
    gc.collect()
    assert all(now <= then for now, then in zip(usage(), before, strict=True))


# Streams ---------------------------------------------------------------------------------------


class Producing(IterableDataset[int]):
    """A thread and a helper process make its samples; a file says that both were ended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __iter__(self) -> Iterator[int]:
        numbers, stop = share(range(100)), threading.Event()
        name = f"{os.getpid()} {numbers.start}"
        thread = threading.Thread(target=stop.wait)
        thread.start()
        (self.folder / name).touch()
        with subprocess.Popen(["sleep", "1000"]) as helper:
            try:
                yield from numbers
            finally:
                helper.kill()
                stop.set()
                thread.join()
                (self.folder / name).unlink()


@PERSISTENT
@pytest.mark.parametrize(("method", "shards"), [("fork", None), ("fork", 2), ("forkserver", 2)])
def test_a_stream_that_is_left_is_closed(
    tmp_path: Path, shards: int | None, method: Any, persistent: bool
) -> None:
    """After ``break``, at the next epoch, by ``close()``: its ``finally`` and ``with`` run."""
    options: Any = {"num_shards": shards, "multiprocessing_context": method}
    with DataLoader(
        Producing(tmp_path), num_workers=2, persistent_workers=persistent, **options
    ) as loader:
        for _ in range(2):
            for batch in loader:
                if int(batch) == 1:
                    break
            assert len([*tmp_path.iterdir()]) == 2 * persistent
    assert [*tmp_path.iterdir()] == []


# Somebody else reaps ---------------------------------------------------------------------------

PROGRAM = """
import gc, os, signal, sys, threading, time, warnings
from lit_loader import DataLoader
from tests.support.samples import Call, pool_of, usage

def sample(index):
    assert signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL
    if not index:
        assert os.waitstatus_to_exitcode(os.system("exit 3")) == 3  # it learns how they end
    return index

def reap_always():
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            time.sleep(0.001)

def main(method, *hows):
    for how in hows:
        reaped(method, how)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)

def reaped(method, how):
    data, options = Call(sample, 12), {"num_workers": 2, "multiprocessing_context": method}
    list(DataLoader(data, **options))
    gc.collect()
    before = usage()
    if how == "ignored":
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    else:
        threading.Thread(target=reap_always, daemon=True).start()
    for persistent in (False, True):
        loader = DataLoader(data, persistent_workers=persistent, **options)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = []
            for batch in loader:
                if persistent and not found:  # all: one alone may have had nothing left to do
                    for pid in pool_of(loader).workers.pids:
                        os.kill(pid, signal.SIGKILL)
                found.append(int(batch))
        assert found == list(range(12)), found
        loader.close()
        causes = ("killed by SIGKILL", "its exit code is not known")
        told = [str(warning.message) for warning in caught]
        print(len(told) > 0, all(any(cause in text for cause in causes) for text in told))
    del loader, batch
    gc.collect()
    after = usage()
    print(before[0] == after[0], after[2], after[3] - before[3])

if __name__ == "__main__":
    main(*sys.argv[2:])
"""


@pytest.mark.parametrize(
    "how", [["fork", "ignored", "thread"], pytest.param(["forkserver", "thread"], marks=SLOW)]
)
def test_children_that_others_reap(tmp_path: Path, how: list[str]) -> None:
    """Where SIGCHLD is ignored, and where a thread waits for all children."""
    told = finish(launch(PROGRAM, tmp_path, *how, forked=True))
    assert told == ((len(how) - 1) * "False True\nTrue True\nTrue 0 set()\n", "", 0)


# The program's end -----------------------------------------------------------------------------

DAEMON = """
import threading
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


@pytest.mark.parametrize(
    ("where", "options"),
    [
        ("waiting", {"num_workers": 2, "persistent_workers": True}),
        ("working", {"num_workers": 2, "pin_memory": True}),
    ],
    ids=str,
)
def test_a_daemons_thread_at_the_programs_end(
    tmp_path: Path, where: str, options: dict[str, Any]
) -> None:
    """It ends without a word, and so do the workers."""
    source = DAEMON.replace("WHERE", where).replace("OPTIONS", repr(options))
    assert finish(launch(source, tmp_path)) == ("", "", 0)
