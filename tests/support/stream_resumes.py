"""A stream that is stopped, and resumed with other workers and ranks: every sample is compared.

The reference is one process that reads the whole epoch. Then it is read in legs, each by other
ranks with other workers, from the merged state of all ranks before; one worker is killed meanwhile.
Ranks are loaders in one process, which go in step.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import itertools
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

import lit_loader
from lit_loader import DataLoader
from tests.support.exact import through_file
from tests.support.samples import worker_pids

__all__ = ["Leg", "Stream", "check_resumes"]

Batch = tuple[int, list[str]]
"""The reader, and its samples by their names."""


class Leg(NamedTuple):
    """A run of some rounds."""

    workers: int  # of each rank
    ranks: int  # loaders that go in step
    rounds: int | None  # batches of each rank; None: all that are left
    strike: bool = False  # whether a worker of the first rank is killed on the way


LEGS = (Leg(2, 2, 3), Leg(3, 1, 5, strike=True), Leg(0, 4, 1), Leg(1, 2, None))


class Stream(NamedTuple):
    """What is read."""

    make: Callable[[], Any]  # makes the dataset; can be pickled
    size: int  # samples of a batch
    shards: int
    epoch: int = 1

    def loader(self, workers: int, ranks: int = 1, rank: int = 0) -> DataLoader[Any]:
        """Read it by workers, as a rank."""
        return DataLoader(
            self.make(),
            self.size,
            num_workers=workers,
            num_shards=self.shards,
            shard_tail="keep",
            num_replicas=ranks,
            rank=rank,
            seed=5,
            collate_fn=named,
        )


def named(samples: Sequence[Any]) -> Batch:
    """A collate_fn: names the reader and each sample, by all that there is of it."""
    return lit_loader.get_shard()[0], [name(sample) for sample in samples]


def name(sample: Any) -> str:
    """An id is its own name, anything larger goes by its bytes."""
    if isinstance(sample, (int, str)):
        return str(sample)
    if isinstance(sample, dict):
        return ",".join(f"{key}={name(sample[key])}" for key in sorted(sample))
    if isinstance(sample, (tuple, list)):
        return f"({','.join(map(name, sample))})"
    data = sample.numpy() if isinstance(sample, Tensor) else np.asarray(sample)
    if data.ndim == 0:
        return str(data)
    return hashlib.blake2b(data.tobytes(), digest_size=8).hexdigest()


def whole(stream: Stream) -> list[Batch]:
    """The epoch, in one process that is not interrupted."""
    with stream.loader(0) as loader:
        loader.set_epoch(stream.epoch)
        return list(loader)


def rounds(stream: Stream, leg: Leg, state: Any) -> Iterator[tuple[list[Batch], Any]]:
    """Give, round by round, what all ranks are given and the state behind it."""
    with contextlib.ExitStack() as stack:
        loaders = [
            stack.enter_context(stream.loader(leg.workers, leg.ranks, rank))
            for rank in range(leg.ranks)
        ]
        for loader in loaders:
            loader.set_epoch(stream.epoch)
            if state is not None:
                loader.load_state_dict(state)
        iterators = [iter(loader) for loader in loaders]
        for number in itertools.count(1):
            found = [next(iterator, None) for iterator in iterators]
            given = [batch for batch in found if batch is not None]
            if not given:
                return
            if leg.strike and number == 2:
                os.kill(worker_pids(iterators[0])[0], signal.SIGKILL)
            # A rank that has come to its end has no state that could be merged with others'.
            states = [loader.state_dict() for loader in loaders] if len(given) == len(found) else []
            yield given, states and through_file(lit_loader.merge_states(states))
            if number == leg.rounds:
                return


def check_resumes(stream: Stream, legs: Sequence[Leg] = LEGS) -> list[Batch]:
    """Go through an epoch in legs, and compare it with one that was left alone, which is given."""
    expected = whole(stream)
    found, state = list[Batch](), None
    for leg in legs:
        for given, after in rounds(stream, leg, state):
            found += given
            state = after
    for reader in range(stream.shards):
        mine, wanted = ([b for b in some if b[0] == reader] for some in (found, expected))
        assert mine == wanted, f"reader {reader}"
    assert len(found) == len(expected)
    # What a library leaves open is closed here, and not in another test, which may not ignore it.
    gc.collect()
    return expected
