"""Epochs of a few batches: their workers are forks of the training process itself, as torch's are.

No third process is started beside them, which would hold a copy of the dataset for workers to come.
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tqdm._monitor import TMonitor

from lit_loader import DataLoader
from lit_loader.core.executors import launcher, worker_set
from lit_loader.core.executors.launcher import FEW_BATCHES
from tests.support.faults import told
from tests.support.programs import run_program
from tests.support.samples import Call, OfLength

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs a launcher"),
    pytest.mark.usefixtures("by_fork"),
]

OPTIONS: dict[str, Any] = {"batch_size": 1, "num_workers": 2}


@pytest.fixture(autouse=True)
def ordinary(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a program on two processors, which has no thread of pytest's or of other tests."""
    monkeypatch.setattr(worker_set, "usable_processors", lambda: 2.0)
    threads = {type(thread).__module__ for thread in threading.enumerate()}
    monkeypatch.setattr(launcher, "_HARMLESS", launcher._HARMLESS | threads)


PROGRAM = """
import os

import torch.utils.data

import lit_loader


class Levels:
    level = 0

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return index, self.level, os.getppid()


for loaders in torch.utils.data, lit_loader:
    dataset = Levels()
    loader = loaders.DataLoader(dataset, num_workers=2, multiprocessing_context="fork")
    for dataset.level in range(3):
        print([(int(i), int(level), int(parent) == os.getpid()) for i, level, parent in loader])
"""


def test_the_ordinary_program_of_many_short_epochs(tmp_path: Path) -> None:
    """Its workers are its children, as with torch's loader, and have what it changes in between."""
    (program := tmp_path / "program.py").write_text(PROGRAM)
    lines = run_program(program).splitlines()
    expected = [[(index, level, True) for index in range(4)] for level in range(3)]
    assert lines == 2 * [*map(str, expected)]


def parent(_: int) -> int:
    return os.getppid()


def are_forks_of_this(length: int = 4, **options: Any) -> bool:
    """Whether an epoch's workers are children of this process."""
    with told(0), DataLoader(Call(parent, length), **OPTIONS | options) as loader:
        [found] = {int(batch) for batch in loader}
    return found == os.getpid()


def test_a_copy_is_kept_where_it_is_of_use() -> None:
    assert are_forks_of_this(FEW_BATCHES)
    assert not are_forks_of_this(FEW_BATCHES + 1)
    assert not are_forks_of_this(persistent_workers=True)
    assert not are_forks_of_this(num_workers=3)  # the third is forked when another one is up


class Waiting(threading.Thread):
    """Waits for its end."""

    def __init__(self) -> None:
        super().__init__()
        self.done = threading.Event()

    def run(self) -> None:
        self.done.wait()


@contextmanager
def waiting() -> Iterator[None]:
    thread = Waiting()
    thread.start()
    try:
        yield
    finally:
        thread.done.set()
        thread.join()


@contextmanager
def progress_bar() -> Iterator[None]:
    """The thread of one."""
    thread = TMonitor(type("tqdm", (), {"_instances": ()}), 10_000)
    try:
        yield
    finally:
        thread.exit()


def test_a_thread_may_hold_a_lock_that_of_a_progress_bar_does_not() -> None:
    with progress_bar():
        assert are_forks_of_this()
        with waiting():
            assert not are_forks_of_this()


class Levels(OfLength):
    """What a program sets, which its workers have as it was when they were started."""

    level = 0

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, self.level


@pytest.mark.parametrize("length", [8, 2 * FEW_BATCHES], ids=["few", "many"])
def test_a_worker_is_killed_when_the_program_has_changed_the_dataset(length: int) -> None:
    """The new one has the dataset of the epoch's start, or else the message says so."""
    dataset = Levels(length)
    with told(1) as texts, DataLoader(dataset, 1, num_workers=1, prefetch_factor=1) as loader:
        iterator = iter(loader)
        found = [next(iterator)]
        dataset.level = 1
        [pid] = iterator.pool.workers.pids  # type: ignore[attr-defined]
        os.kill(pid, signal.SIGKILL)
        found += iterator
    assert [int(index) for index, _ in found] == list(range(length))
    assert "MiB at most" in texts[0]
    late = (
        "what you have changed in the dataset since the epoch began is in its batches" in texts[0]
    )
    assert [late, int(found[-1][1])] == ([True, 1] if length == 8 else [False, 0])
