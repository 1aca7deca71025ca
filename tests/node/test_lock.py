"""The lock among processes: one has it, and it is free when that one ends."""

from __future__ import annotations

import os
import threading

import pytest

from lit_loader.node.lock import NodeLock
from tests.node.data import Child


@pytest.fixture
def lock() -> NodeLock:
    return NodeLock(f"a test's {os.getpid()} {threading.get_ident()}")


def takes(lock: NodeLock) -> Child:
    child = Child(lambda say: lock.take())
    assert child.line() == "True"
    return child


def test_one_has_it(lock: NodeLock) -> None:
    child = takes(lock)
    assert not lock.take()
    assert not lock.wait(0)
    assert lock.holder == child.pid
    child.end()
    with lock:
        assert lock.take()
        other = NodeLock(lock._address.rpartition("/")[2])
        assert not other.take()
    assert other.take()
    other.release()


@pytest.mark.parametrize("end", ["kill", "end"])
def test_who_waits_is_told(lock: NodeLock, end: str) -> None:
    """However its holder ends; also if a process that it has forked lives on."""
    held, hold = os.pipe()

    def hold_and_fork(say: object) -> bool:
        assert lock.take()
        if os.fork() == 0:
            os.close(hold)
            os.read(held, 1)  # until the test ends
            os._exit(0)
        os.close(hold)
        return True

    child = Child(hold_and_fork)
    assert child.line() == "True"
    waiting = Child(lambda say: (say("waits"), lock.wait(100))[1])
    assert waiting.line() == "waits"
    getattr(child, end)()
    assert waiting.line() == "True"
    waiting.end()
    assert lock.wait(100)  # nobody has it
    assert lock.take()
    lock.release()
    os.close(hold)
    os.close(held)


def test_another_users_name(lock: NodeLock, monkeypatch: pytest.MonkeyPatch) -> None:
    child = takes(lock)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(PermissionError, match="a process of user"):
        lock.wait(100)
    child.end()
