"""What is in a weak set is found while another thread adds to it."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Iterator

import pytest

from lit_loader.system.weak_sets import members


class Member:
    pass


@pytest.fixture(autouse=True)
def _quick_turns() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_members_while_others_come() -> None:
    there, kept = weakref.WeakSet[Member](), [Member() for _ in range(500)]
    there.update(kept)
    stop = threading.Event()

    def add() -> None:
        while not stop.is_set():
            for _ in [there.add(Member()) for _ in range(50)]:
                pass

    thread = threading.Thread(target=add)
    thread.start()
    try:
        for _ in range(300):
            assert {*kept} <= {*members(there)}
    finally:
        stop.set()
        thread.join()
