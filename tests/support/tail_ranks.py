"""Run as a script: real ranks of a job go through a stream in stages, each of some ranks.

Arguments: a folder, the number of ranks, and the cases as JSON: lists of the stream's kind, what
becomes of its end, the workers, and its stages. A stage is the ranks that take part, and how many
batches each takes (None: all there are); the next one goes on from there. What each rank was given
goes to ``<folder>/<rank>.json``, by case and stage: its batches' reader and digest.

With "killed" and the workers: two ranks, one of which is killed; the other says what it met.
"""

import itertools
import json
import multiprocessing
import os
import signal
import sys
import warnings
from datetime import timedelta
from pathlib import Path
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
    """Readers' shares that differ in length."""

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


def run(rank: int, port: int, ranks: int, folder: Path, cases: list[Any]) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=600))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    found = [case(*each, rank) for each in cases]
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.barrier()


def killed(rank: int, port: int, workers: int) -> None:
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    store.set_timeout(timedelta(seconds=1))
    with loader("iterator", "pad", workers, 2, rank) as batches:
        steps = 0
        try:
            for steps, _ in enumerate(batches, 1):
                if rank == 1 and steps == 2:
                    os.kill(os.getpid(), signal.SIGKILL)
        except LoaderError as error:
            print(steps, error)


def exit_codes(ranks: int, target: Any, *arguments: Any) -> list[int | None]:
    """Run ``target(rank, the store's port, ...)`` in so many forks, to their ends."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context = multiprocessing.get_context("fork")
    started = [
        context.Process(target=target, args=(rank, store.port, *arguments)) for rank in range(ranks)
    ]
    for process in started:
        process.start()
    for process in started:
        process.join()
    return [process.exitcode for process in started]


def main(folder: Path, ranks: int, cases: list[Any]) -> None:
    sys.exit(max(code or 0 for code in exit_codes(ranks, run, ranks, folder, cases)))


if __name__ == "__main__":
    if sys.argv[1] == "killed":
        print(exit_codes(2, killed, int(sys.argv[2])))
        sys.exit()
    main(Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3]))
