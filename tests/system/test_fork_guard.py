"""A batch that is held when user code forks stays what it is in the child."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest
import torch

import lit_loader
from lit_loader.system.fork_guard import unguarded_fork
from lit_loader.transport.arena import HELD_SLOTS


class Filled(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 4000

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((2048,), float(index))


def in_child(child: Any, *arguments: Any) -> int:
    """Fork, run ``child``, which returns whether all is well, and return the exit status."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if child(*arguments) else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.fixture
def loader() -> Any:
    with lit_loader.DataLoader(
        Filled(), batch_size=2, num_workers=2, persistent_workers=True
    ) as loader:
        yield loader


def fork_with(batch: torch.Tensor, go_on: int) -> int:
    """Fork a child that holds ``batch``, and in which it is looked at when the parent says so."""
    expected = batch.clone()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.read(go_on, 1)
            code = 0 if torch.equal(batch, expected) else 2
        finally:
            os._exit(code)
    return pid


def test_a_childs_batch_does_not_change_when_the_parent_lets_go(loader: Any) -> None:
    read_end, write_end = os.pipe()
    iterator = iter(loader)
    pids = []
    for _ in range(5):
        batch = next(iterator)
        pids.append(fork_with(batch, read_end))
        del batch
        for _ in range(200):  # every slot of the arena is written anew, but those
            next(iterator)
    os.write(write_end, b"x" * len(pids))
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    os.close(read_end)
    os.close(write_end)
    assert codes == [0] * len(pids)


def test_a_childs_batch_stays_when_the_loader_is_closed() -> None:
    read_end, write_end = os.pipe()
    with lit_loader.DataLoader(Filled(), batch_size=2, num_workers=1) as loader:
        batch = next(iter(loader))
        pid = fork_with(batch, read_end)
    del batch
    os.write(write_end, b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(read_end)
    os.close(write_end)


def test_forks_without_end(loader: Any) -> None:
    """No descriptor is left behind; and where too many slots are out, batches are copied."""
    iterator = iter(loader)
    batch = next(iterator)
    before = len(os.listdir("/proc/self/fd"))
    for number in range(1, HELD_SLOTS + 32):
        assert in_child(lambda: True) == 0
        batch = next(iterator)
        assert batch[0, 0] == 2 * number
    assert len(os.listdir("/proc/self/fd")) <= before + 1
    assert loader._core.pool._arena.leased <= HELD_SLOTS + 8


# Forks in several threads ----------------------------------------------------------------------


def test_a_worker_that_another_thread_starts_leaves_forks_guarded(loader: Any) -> None:
    """Only the thread that starts a worker forks without; whichever of several is done first."""
    read_end, write_end = os.pipe()
    iterator = iter(loader)
    batch = next(iterator)
    inside, leave = threading.Event(), threading.Event()

    def start() -> None:
        with unguarded_fork():
            inside.set()
            leave.wait()

    thread = threading.Thread(target=start)
    thread.start()
    inside.wait()
    pid = fork_with(batch, read_end)
    leave.set()
    thread.join()
    del batch
    for _ in range(200):
        next(iterator)
    os.write(write_end, b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(read_end)
    os.close(write_end)
