"""Forks by the program: memory that a forked process looks into is not written again.

A forked child shares the arena with its parent. So slots that were out at a fork are not used
again: `user_forks` tells of one. Workers of our own never look at what the consumer holds.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

user_forks = 0
"""Another number after each fork of the user's own."""

_unguarded: set[int] = set()
"""The threads that fork a process of our own just now; the others' forks count meanwhile."""


@contextlib.contextmanager
def unguarded_fork() -> Iterator[None]:
    """Fork a process of our own, which needs no batches of the consumer's."""
    thread = threading.get_ident()
    _unguarded.add(thread)
    try:
        yield
    finally:
        _unguarded.discard(thread)


def _count() -> None:
    global user_forks
    if threading.get_ident() not in _unguarded:
        user_forks += 1


# Both before and after: what another thread is given in between is out at the fork, too.
os.register_at_fork(before=_count, after_in_parent=_count, after_in_child=_unguarded.clear)
