"""Sharing out groups of items to ranks; and what decides where the next epoch begins."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from lit_loader.checkpoint.position import Position
from lit_loader.sampling.epoch_batches import stripe
from lit_loader.sampling.epochs import Epochs, EpochStart
from lit_loader.sampling.shard import Shard
from lit_loader.seeding.seeds import BaseSeed

# --- stripe ---


@pytest.mark.parametrize("tail", ["pad", "drop", "keep"])
@pytest.mark.parametrize("replicas", [1, 2, 3, 5])
@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("length", [0, 1, 2, 5, 12, 13])
def test_striped_groups_are_the_striped_stream(
    length: int, size: int, replicas: int, tail: Any
) -> None:
    step = size * replicas
    groups = [list(range(at, min(at + step, length))) for at in range(0, length, step)]
    for rank in range(replicas):
        shard = Shard(rank, replicas, tail)
        mine = [item for part in stripe(groups, shard, []) for item in part]
        assert mine == shard.positions(0, shard.share(length), length).tolist()


def test_a_stream_that_is_gone_on_with_needs_its_first_items() -> None:
    shard = Shard(2, 3)
    assert list(stripe([[9]], shard, [0, 1])) == [[1]]
    head: list[Any] = []
    assert next(stripe([[4, 5, 6, 7]], shard, head)) == [6, 5]
    assert head == [4, 5]


# --- Epochs ---


def fresh() -> Epochs:
    return Epochs(None, BaseSeed(7, None))


def loaded(epochs: Epochs | None = None) -> Epochs:
    epochs = epochs or fresh()
    epochs.load(Position(3, 7, 2))
    return epochs


def running(batches: int = 2, ended: bool = False) -> Epochs:
    epochs = fresh()
    epochs.set_epoch(3)
    position = epochs.begin(1).position
    for _ in range(batches):
        position.read(0, None)
    if ended:
        position.end()
    return epochs


MADE = {
    "fresh": fresh,
    "loaded": loaded,
    "loaded while running": lambda: loaded(running()),
    "running": running,
    "ended": lambda: running(ended=True),
}

BEGUN = {
    ("fresh", None): (0, 0), ("fresh", 3): (3, 0), ("fresh", 5): (5, 0),
    ("loaded", None): (3, 2), ("loaded", 3): (3, 2), ("loaded", 5): (5, 0),
    ("loaded while running", None): (3, 2), ("loaded while running", 3): (3, 2),
    ("loaded while running", 5): (5, 0),
    ("running", None): (4, 0), ("running", 3): (3, 0), ("running", 5): (5, 0),
    ("ended", None): (4, 0), ("ended", 3): (3, 0), ("ended", 5): (5, 0),
}  # fmt: skip
"""State, and the epoch asked for: the epoch and the batch at which the next iterator begins."""


@pytest.mark.parametrize(("state", "requested"), BEGUN)
def test_where_the_next_epoch_begins(state: str, requested: int | None) -> None:
    epochs = MADE[state]()
    if requested is not None:
        epochs.set_epoch(requested)
    now = epochs.now()
    begun: EpochStart = epochs.begin(1)
    start = begun.position.start
    assert (begun.epoch, start.batches) == (start.epoch, start.batches) == BEGUN[state, requested]
    if state == "running":
        assert (now.epoch, now.batches) == (3, 2)  # where it is, whatever comes next
    else:
        assert dataclasses.replace(now, requested=start.requested) == start


@pytest.mark.parametrize("within", [False, True])
def test_what_was_committed_is_what_a_state_has(within: bool) -> None:
    epochs = running(batches=0)
    epochs.commit()
    position = epochs.begin(1).position
    assert not epochs.begun_without_commits
    position.read(0, None)
    assert epochs.now() == position.start
    epochs.commit()
    assert epochs.now().batches == 1
    position.read(0, None)
    assert epochs.now().batches == 1
    position.end()
    assert epochs.now().batches == 1
    epochs.commit(within=within)
    assert (epochs.now().epoch, epochs.now().batches) == ((4, 2) if within else (5, 0))
    loaded(epochs)
    epochs.commit(within=True)  # says nothing about the position that was loaded
    assert (epochs.now().epoch, epochs.now().batches) == (3, 2)
