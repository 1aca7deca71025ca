"""Exceptions of a program's own alarm that come while ``next()`` waits: nothing is lost."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from lit_loader import DataLoader
from lit_loader.core.executors.pipes import Pipes
from tests.support.samples import METHODS, Call, worker_pids


class Late(Exception):
    """The program has waited for long enough."""


@contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """Raise `Late` again and again, each after so long, wherever the loader waits.

    At any other instruction nothing is lost either, but workers may be started anew.
    """

    def ring(_: int, frame: FrameType | None) -> None:
        if frame is not None and frame.f_code is Pipes.wait.__code__:
            raise Late

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def patient(iterator: Any) -> tuple[list[Any], set[int]]:
    """Ask again whenever the alarm has rung; returns the batches, and the workers seen then."""
    found, pids = [], set[int]()
    while True:
        try:
            found.append(next(iterator))
        except Late:
            pids |= set(worker_pids(iterator)) if iterator.workers else set()
        except StopIteration:
            return found, pids


def slow(index: int) -> int:
    time.sleep(0.05)
    return index


@pytest.mark.parametrize("method", METHODS)
def test_an_alarm_shorter_than_the_start_and_than_a_batch(method: str) -> None:
    """The start goes on, with the same processes; no batch is made twice."""
    options: Any = {"persistent_workers": True, "multiprocessing_context": method}
    with DataLoader(Call(slow, 60), 4, num_workers=2, **options) as loader:
        with alarm(0.03):
            found, pids = patient(iter(loader))
        assert [int(index) for batch in found for index in batch] == [*range(60)]
        again = iter(loader)
        next(again)
        assert pids == set(worker_pids(again))
