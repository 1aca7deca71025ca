"""The lock among processes: one has it, and it is free when that one ends."""

from __future__ import annotations

import os
import threading

import pytest

from lit_loader.data.memory_files import lock
from tests.node.data import Child


@pytest.fixture
def label() -> str:
    return f"a test's {os.getpid()} {threading.get_ident()}"


def is_taken(label: str) -> bool:
    try:
        lock(label, 0).close()
    except TimeoutError:
        return True
    return False


def test_one_has_it(label: str) -> None:
    held: list[object] = []
    child = Child(lambda say: bool(held.append(lock(label, 0)) or True))
    assert child.line() == "True"
    with pytest.raises(TimeoutError, match=f"process {child.pid} "):
        lock(label, 0)
    child.end()
    with lock(label, 0):
        assert is_taken(label)
    assert not is_taken(label)


@pytest.mark.parametrize("end", ["kill", "end"])
def test_who_waits_is_told(label: str, end: str) -> None:
    """However its holder ends; also if a process that it has forked lives on."""
    held, hold = os.pipe()
    locks: list[object] = []

    def hold_and_fork(say: object) -> bool:
        locks.append(lock(label, 0))
        if os.fork() == 0:
            os.close(hold)
            os.read(held, 1)  # until the test ends
            os._exit(0)
        os.close(hold)
        return True

    child = Child(hold_and_fork)
    assert child.line() == "True"
    waiting = Child(lambda say: (say("waits"), bool(lock(label, 100)))[1])
    assert waiting.line() == "waits"
    getattr(child, end)()
    assert waiting.line() == "True"
    waiting.end()
    assert not is_taken(label)
    os.close(hold)
    os.close(held)


def test_another_users_name(label: str, monkeypatch: pytest.MonkeyPatch) -> None:
    held = lock(label, 0)
    user = os.geteuid()
    # It is asked for once for the name, and then to compare.
    users = iter([user, user + 1])
    monkeypatch.setattr(os, "geteuid", lambda: next(users))
    with held, pytest.raises(PermissionError, match="a process of user"):
        lock(label, 100)
