"""Which loaders give way to the one that is iterated: on loaders that only note it."""

from __future__ import annotations

import os

import pytest

from lit_loader.tuning import turns
from lit_loader.tuning.turns import BATCHES, FORKED, MOST, Turn, Turns

SECOND = 1_000_000_000


class Noting(Turn):
    """A loader that notes what is asked of it."""

    def __init__(self, auto: bool = True) -> None:
        super().__init__()
        self.auto, self.busy, self.leaving = auto, False, 0
        self.told: list[str] = []

    def park(self, now: int) -> bool:
        if not self.auto or self.busy:
            return False
        self.parked, self.leaving = now, 2
        self.told.append("park")
        return True

    def settle(self) -> bool:
        self.leaving -= 1
        return self.leaving <= 0

    def unpark(self) -> None:
        self.told.append("unpark")


class Process:
    """Some loaders, the time, and batches every 10 ms."""

    def __init__(self, *loaders: Noting) -> None:
        self.turns, self.loaders, self.now = Turns(), loaders, 100 * SECOND
        self.looks = 0

    def batch(self, loader: Noting) -> None:
        self.now += SECOND // 100
        if self.turns.whose is not loader or self.now >= self.turns.due:
            self.looks += 1
            self.turns.look(loader, self.now)

    def batches(self, loader: Noting, count: int) -> None:
        for _ in range(count):
            self.batch(loader)


def test_one_loader_is_never_looked_at() -> None:
    loader = Noting()
    process = Process(loader)
    process.batches(loader, 10_000)
    assert not loader.told and process.looks <= BATCHES + 3


def test_training_and_validation_hand_over() -> None:
    train, val = Noting(), Noting()
    process = Process(train, val)
    process.batches(val, 2)  # Lightning's sanity check
    process.batches(train, 500)
    assert val.told == ["park"] and not train.told
    process.batches(val, 100)
    assert val.told == ["park", "unpark"] and not train.told  # not so long yet
    process.batches(val, BATCHES + 1)
    assert train.told == ["park"] and train.leaving == 2
    process.batches(val, 300)
    assert train.leaving == 0
    process.batch(train)  # validation was parked long: this time at once
    assert train.told == ["park", "unpark"]
    assert val.told == ["park", "unpark", "park"]
    process.batches(train, 500)
    process.batch(val)
    assert train.told == ["park", "unpark", "park"]
    assert process.looks < 60


@pytest.mark.parametrize("several", [1, 5])
def test_loaders_that_are_zipped_keep_their_workers(several: int) -> None:
    one, other = Noting(), Noting()
    process = Process(one, other)
    for _ in range(500):
        process.batches(one, several)
        process.batch(other)
        process.now += 3 * SECOND
    assert not one.told and not other.told


def test_who_was_wanted_soon_is_given_more_time() -> None:
    one, other = Noting(), Noting(auto=False)
    process = Process(one, other)
    seconds = []
    for _ in range(12):
        process.batch(one)
        began = process.now
        while not one.parked:
            process.batch(other)
        seconds.append(round((process.now - began) / SECOND))
    assert seconds == [min(FORKED << n, MOST) // SECOND for n in range(12)]
    process.batches(other, 200)  # long, this time
    process.batch(one)
    process.batches(other, BATCHES)
    assert not one.parked  # whose turn was short
    process.batches(one, 200)
    process.batch(other)
    assert one.parked


def test_one_that_is_at_work_in_another_thread_is_asked_again() -> None:
    one, other = Noting(), Noting()
    process = Process(one, other)
    process.batch(one)
    one.busy = True
    process.batches(other, 1000)
    assert not one.told and process.looks < 30
    one.busy = False
    process.batches(other, 200)
    assert one.told == ["park"]


def test_a_loader_that_is_gone_is_forgotten() -> None:
    process = Process()
    process.batch(Noting())
    process.batches(Noting(), 2)
    kept = Noting()
    process.batches(kept, 1000)
    assert list(process.turns._known) == [kept]


def test_a_forked_process_knows_none_of_its_parents(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = Noting(), Noting()
    process = Process(one, other)
    process.batch(one)
    process.turns._lock.acquire()  # by another thread, at the fork
    mine = os.getpid()
    monkeypatch.setattr(turns.os, "getpid", lambda: mine + 1)
    process.batches(other, 1000)
    assert not one.told and list(process.turns._known) == [other]


def test_it_breaks_in_on_itself() -> None:
    """A signal's handler iterates a loader while another one's is looked at."""
    one, other = Noting(), Noting()
    process = Process(one, other)
    process.batch(one)
    process.batches(other, 200)
    with process.turns._lock:
        process.batch(one)  # comes back all the same
    assert one.told == ["park", "unpark"] and process.turns.whose is other
