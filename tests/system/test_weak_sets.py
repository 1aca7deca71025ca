"""What is in a weak set is found while another thread adds to it."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator

import pytest

from lit_loader.system.weak_sets import members
from tests.support.busy_threads import busy


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

    def add() -> None:
        there.update([Member() for _ in range(50)])

    with busy([add]):
        for _ in range(300):
            assert {*kept} <= {*members(there)}
