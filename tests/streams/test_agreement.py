"""What ranks make of each other's words; ranks that end, leave, or say nothing."""

from __future__ import annotations

import itertools
import random
from datetime import timedelta
from typing import Literal

import pytest
import torch
from torch.distributed import HashStore, distributed_c10d

from lit_loader import LoaderError
from lit_loader.streams.agreement import Agreement
from lit_loader.streams.job_store import JobStore, Talks


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch) -> HashStore:
    """Pretend that this process is each one of a job, whose store it has."""
    made = HashStore()
    made.set_timeout(timedelta(seconds=0.02))
    monkeypatch.setattr(distributed_c10d, "_get_default_store", lambda: made)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 3)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)  # it does not wait at the end
    return made


Tail = Literal["drop", "pad"]


def agreements(tail: Tail, ranks: int, subject: str = "a") -> list[Agreement]:
    jobs = [JobStore(subject, rank, ranks) for rank in range(ranks)]
    return [
        Agreement(tail, rank, [0] * ranks, False, job, "epoch 3") for rank, job in enumerate(jobs)
    ]


@pytest.mark.parametrize("tail", ["drop", "pad"])
def test_all_come_to_the_same_answer_whenever_they_read(tail: Tail) -> None:
    drawn = random.Random(4)
    for trial in range(30):
        lengths = [drawn.randrange(5) for _ in range(3)]
        ends = agreements(tail, 3, str(trial))
        words = [
            (rank, count, count == length)
            for rank, length in enumerate(lengths)
            for count in range(length + 1)
        ]
        drawn.shuffle(words)
        told = [-1] * 3
        answers: list[list[bool]] = [[], [], []]
        for rank, count, final in sorted(words, key=lambda word: word[1] + drawn.random()):
            ends[rank].tell(count, final)
            told[rank] = count
        assert told == lengths
        for rank, number in itertools.product(range(3), range(1, 7)):
            answers[rank].append(ends[rank].admits(number))
        count = min(lengths) if tail == "drop" else max(lengths)
        assert answers == [[True] * count + [False] * (6 - count)] * 3


def test_a_rank_that_is_not_heard_of() -> None:
    one, _ = agreements("drop", 2)
    one.tell(1)
    text = r"rank 1 has not said for \d+ s \(the job's timeout\) whether it has a batch 1 in epoch"
    with pytest.raises(LoaderError, match=text):
        one.admits(1)


def test_a_rank_that_leaves() -> None:
    one, other = agreements("pad", 2)
    one.tell(2, final=True)
    other.tell(3)
    del other
    assert one.admits(3)
    with pytest.raises(LoaderError, match="it has ended, is late, has left the epoch, or iterates"):
        one.admits(4)


def test_a_store_that_is_gone(store: HashStore, monkeypatch: pytest.MonkeyPatch) -> None:
    one, _ = agreements("drop", 2)
    one.tell(1)

    def lost(*_: object) -> None:
        raise RuntimeError("Connection reset by peer")

    monkeypatch.setattr(JobStore, "read", lost)
    with pytest.raises(LoaderError, match="store, in the first rank's process, is lost in epoch 3"):
        one.admits(1)


@pytest.mark.parametrize(("tail", "given"), [("drop", 2), ("pad", 5)])
def test_what_is_known_is_not_asked_for(tail: Tail, given: int) -> None:
    one = Agreement(tail, 0, [5, 2], True, None, "epoch 3")
    assert one.admits(given) and not one.admits(given + 1)
    one.tell(5, final=True)
    with pytest.raises(LoaderError, match=r"rank 0 has 4 batches in epoch 3, but shard_length of"):
        one.tell(4, final=True)


def test_subjects(store: HashStore) -> None:
    """One name for an epoch of a loader, and none twice; the last but one is forgotten."""
    mine, theirs = Talks(), Talks()
    for epoch in (0, 1, 0, 2):
        mine.begin("Stream", epoch, object(), 0, 2).write("1  0")
        theirs.begin("Stream", epoch, object(), 0, 2).write("1  0")
    assert store.num_keys() == 4


def test_a_beginning_that_was_interrupted(store: HashStore) -> None:
    """It is made once more, and is the same subject: other ranks count no other."""
    talks, start = Talks(), object()
    first = talks.begin("Stream", 0, start, 0, 2)
    assert talks.begin("Stream", 0, start, 0, 2) is first
    assert talks.begin("Stream", 0, object(), 0, 2) is not first


def test_fewer_processes_than_ranks() -> None:
    with pytest.raises(
        LoaderError, match="the job of torch.distributed, and this one has 3 processes"
    ):
        Talks().begin("Stream", 0, object(), 0, 4)


def test_read_before_all_have_written() -> None:
    jobs = [JobStore("b", rank, 3) for rank in range(3)]
    assert jobs[0].read() == [None, None, None]
    jobs[1].write("4 f")
    assert jobs[0].read() == [None, "4 f", None]
    jobs[0].write("1 ")
    jobs[2].write("2 ")
    assert jobs[0].read() == ["1 ", "4 f", "2 "]
