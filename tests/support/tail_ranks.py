"""Ranks go through a stream in stages, each of some ranks; or one is killed.

A case is a list of the stream's kind, what becomes of its end, the workers, and its stages. A
stage is the ranks that take part, and how many batches each takes (None: all there are); the next
one goes on from there.
"""

import itertools
import os
import signal
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import lit_loader
from lit_loader import DataLoader, LoaderError
from tests.support import shard_data
from tests.support.exact import digest

LENGTHS = (20, 5, 13, 16)
"""Samples of each reader."""

SHARDS, SIZE = len(LENGTHS), 2


class Uneven:
    def share(self) -> list[int]:
        shard, count = lit_loader.get_shard()
        assert count == SHARDS
        return self.order()[shard::count][: LENGTHS[shard]]  # type: ignore[attr-defined, no-any-return]


class Generator(Uneven, shard_data.Generator):
    pass


class WithIteratorState(Uneven, shard_data.WithIteratorState):
    pass


class WithBothStates(Uneven, shard_data.WithBothStates):
    pass


KINDS = {"generator": Generator, "iterator": WithIteratorState, "both": WithBothStates}


def loader(kind: str, tail: str, workers: int, ranks: int = 1, rank: int = 0) -> DataLoader[Any]:
    stream = KINDS[kind](SHARDS * max(LENGTHS), "torch", kind == "iterator")
    return DataLoader(
        stream,
        SIZE,
        num_workers=workers,
        seed=3,
        num_shards=SHARDS,
        uneven_ranks=tail,
        num_replicas=ranks,
        rank=rank,
    )


def case(kind: str, tail: str, workers: int, stages: list[Any], rank: int) -> list[Any]:
    """Go through the stages; every step waits for all ranks, as a training step does."""
    found, state, own, before = [], None, None, 0
    for ranks, taken in stages:
        mine: list[Any] = []
        group = dist.new_group(list(range(ranks)))
        if rank < ranks:
            with loader(kind, tail, workers, ranks, rank) as batches:
                if state is not None:  # on as many ranks as before, each one's own will do
                    batches.load_state_dict(own if ranks == before and own else state)
                for batch in itertools.islice(batches, taken):
                    mine.append([int(batch[0, 0]), digest(batch[:, 7:-1])])
                    steps = torch.tensor([len(mine), -len(mine)])
                    dist.all_reduce(steps, dist.ReduceOp.MAX, group)
                    assert steps.sum() == 0
                own = batches.state_dict()
        else:
            own = None
        before = ranks
        states = [None] * dist.get_world_size()
        dist.all_gather_object(states, own)
        state = lit_loader.merge_states(each for each in states if each is not None)
        found.append(mine)
    return found


def run(rank: int, cases: list[Any]) -> list[Any]:
    """By case and stage: the reader and the digest of each batch that this rank was given."""
    return [case(*each, rank) for each in cases]


def killed(rank: int, workers: int) -> str:
    """Be killed, if this is rank 1; or return what the other one is told."""
    dist.distributed_c10d._get_default_store().set_timeout(timedelta(seconds=1))
    said = ""
    with loader("iterator", "pad", workers, 2, rank) as batches:
        try:
            for steps, _ in enumerate(batches, 1):
                if rank == 1 and steps == 2:
                    os.kill(os.getpid(), signal.SIGKILL)
        except LoaderError as error:
            said = str(error)
    return said
