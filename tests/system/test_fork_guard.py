"""A batch that is held when user code forks stays what it is in the child."""

from __future__ import annotations

import errno
import os
import threading
from typing import Any

import pytest
import torch

import lit_loader
from lit_loader.memory.arena import Arena
from lit_loader.system import fork_guard
from lit_loader.system.fork_guard import ForkGuard, unguarded_fork


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


def fork_with(batch: torch.Tensor, go_on: int, told: int) -> int:
    """Fork a child that holds ``batch``, and in which it is looked at when the parent says so."""
    expected = batch.clone()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.read(go_on, 1)
            code = 0 if torch.equal(batch, expected) and batch.add_(1) is batch else 2
        finally:
            os._exit(code)
    return pid


def none_left() -> tuple[int, int]:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


@pytest.mark.parametrize("pipe", [os.pipe, none_left], ids=["", "no descriptor is left"])
def test_a_childs_batch_does_not_change_when_the_parent_lets_go(
    loader: Any, pipe: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_end, write_end = os.pipe()
    iterator = iter(loader)
    pids = []
    for _ in range(5):
        batch = next(iterator)
        with monkeypatch.context() as patch:
            patch.setattr(os, "pipe", pipe)
            pids.append(fork_with(batch, read_end, write_end))
        del batch
        for _ in range(200):  # every slot of the arena is written anew
            next(iterator)
    os.write(write_end, b"x" * len(pids))
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    os.close(read_end)
    os.close(write_end)
    assert codes == [0] * len(pids)


def test_no_slot_is_used_again_while_a_child_has_not_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not by another thread either, while the one that forks waits for the child's byte."""
    arena = Arena(64, in_flight=2)
    held = arena.lease(arena.acquire(), 8)
    guard = arena._guard
    monkeypatch.setattr(os, "pipe", none_left)
    guard.before()
    assert guard.pending()
    [byte] = guard._bytes.values()
    byte[0] = 1
    guard.in_parent()
    assert not guard.pending()
    monkeypatch.setattr(fork_guard, "_LONGEST", 0.01)
    guard.before()
    with pytest.warns(UserWarning, match="has not said within"):
        guard.in_parent()
    assert not guard.pending()
    del held
    arena.close()


def test_a_childs_batch_stays_when_the_loader_is_closed() -> None:
    read_end, write_end = os.pipe()
    with lit_loader.DataLoader(Filled(), batch_size=2, num_workers=1) as loader:
        batch = next(iter(loader))
        pid = fork_with(batch, read_end, write_end)
    del batch
    os.write(write_end, b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(read_end)
    os.close(write_end)


def test_the_parents_batch_does_not_change_when_the_child_writes(loader: Any) -> None:
    batch = next(iter(loader))
    expected = batch.clone()
    assert in_child(lambda: batch.fill_(-1).eq(-1).all()) == 0
    assert torch.equal(batch, expected)


def test_forking_leaves_no_descriptor_and_no_slot_behind(loader: Any) -> None:
    iterator = iter(loader)
    batch = next(iterator)
    before = len(os.listdir("/proc/self/fd"))
    slots = set()
    for _ in range(120):
        assert in_child(lambda: True) == 0
        batch = next(iterator)
        slots.add(batch.data_ptr())
    assert len(os.listdir("/proc/self/fd")) <= before + 1
    assert len(slots) < 40


class Emptied(list[Any]):
    """A list that another thread empties between a look at it and what is done then."""

    def pop(self, index: Any = -1) -> Any:
        self.clear()
        return super().pop(index)

    def remove(self, item: Any) -> None:
        self.clear()
        super().remove(item)


def test_two_threads_may_free_and_look_at_the_same_time() -> None:
    arena = Arena(64, in_flight=2, held=1)
    slot = arena.acquire()
    arena._parked = Emptied([slot])
    arena.release(arena.acquire())
    read_end, write_end = os.pipe()
    os.close(write_end)
    arena._guard._waiting = Emptied([read_end])
    assert not arena._guard.pending()
    os.close(read_end)  # the other thread's to close: this one must not have
    arena.close()


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
    pid = fork_with(batch, read_end, write_end)
    leave.set()
    thread.join()
    del batch
    for _ in range(200):
        next(iterator)
    os.write(write_end, b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(read_end)
    os.close(write_end)


def test_a_start_that_is_over_leaves_another_threads_unguarded(loader: Any) -> None:
    def start() -> None:
        with unguarded_fork():
            pass

    batch = next(iter(loader))
    guard = loader._internals.workers.pool._arena._guard
    with unguarded_fork():
        thread = threading.Thread(target=start)
        thread.start()
        thread.join()
        assert in_child(lambda: True) == 0
        assert not guard._waiting
    assert in_child(lambda: True) == 0
    assert guard._waiting
    del batch


class Holder:
    """Holds something, as far as a guard can see; what is there is never looked at."""

    def held(self) -> list[tuple[int, int]]:
        return [(0, 0)]


def test_threads_that_fork_at_the_same_time() -> None:
    """None closes the pipe of another's child; and each child closes all."""
    holder = Holder()
    guard = ForkGuard(holder.held)
    guard.before()
    thread = threading.Thread(target=lambda: (guard.before(), guard.in_parent()))
    thread.start()
    thread.join()
    assert guard.pending()  # this thread's, whose fork is to come
    assert len(guard._waiting) == 1
    guard.in_parent()
    assert not guard.pending()


def test_an_arena_that_is_let_go_of_while_another_thread_forks() -> None:
    before = len(os.listdir("/proc/self/fd"))
    holder = Holder()
    guard = ForkGuard(holder.held)
    guard.before()
    del guard
    assert len(os.listdir("/proc/self/fd")) == before
