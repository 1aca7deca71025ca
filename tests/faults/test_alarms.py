"""Exceptions of a program's own alarm that come while ``next()`` waits: nothing is lost."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from lit_loader import DataLoader
from lit_loader.workers.pipes import Pipes
from tests.support.samples import METHODS, Call, Rows, worker_pids

METHOD = pytest.mark.parametrize("method", METHODS)


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


def patient(iterator: Iterator[Any]) -> tuple[list[Any], int]:
    """Ask again whenever the alarm has rung; returns the batches, and how often it has."""
    found, rung = [], 0
    while True:
        try:
            found.append(next(iterator))
        except Late:
            rung += 1
        except StopIteration:
            return found, rung


@METHOD
def test_an_alarm_shorter_than_the_start(method: str) -> None:
    """The start goes on, with the same processes."""
    with DataLoader(
        Rows(300), 10, num_workers=2, persistent_workers=True, multiprocessing_context=method
    ) as loader:
        iterator, pids = iter(loader), set()
        first = None
        with alarm(0.1):
            while first is None:
                try:
                    first = next(iterator)
                except Late:
                    pids |= set(worker_pids(iterator)) if iterator.pool else set()
        rest = list(iterator)
        assert [row[0] for batch in (first, *rest) for row in batch.tolist()] == [*range(300)]
        assert pids <= set(worker_pids(iter_of(loader)))


def iter_of(loader: DataLoader[Any]) -> Any:
    """Begin another epoch, whose iterator has the same persistent workers."""
    iterator = iter(loader)
    next(iterator)
    return iterator


def slow(index: int) -> int:
    time.sleep(0.05)
    return index


@pytest.mark.parametrize("workers", [1, 3])
def test_an_alarm_shorter_than_a_batch(workers: int) -> None:
    """No batch is made twice, and no worker is started anew."""
    with DataLoader(Call(slow, 60), 4, num_workers=workers, persistent_workers=True) as loader:
        iterator = iter(loader)
        first = next(iterator)
        pids = worker_pids(iterator)
        with alarm(0.03):
            found, rung = patient(iterator)
        assert [int(index) for batch in (first, *found) for index in batch] == [*range(60)]
        assert rung > 0
        assert worker_pids(iter_of(loader)) == pids
