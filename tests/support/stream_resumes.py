"""A stream that is killed, and resumed with other workers and ranks: every sample is compared.

The reference is one process that reads the whole epoch. Then a program reads the same epoch on some
ranks, saves the merged state of all of them after each round of batches, and is killed. What was
saved last is gone on with here: on other ranks, with other workers, of which one is killed.

Run as a script it is that program. Ranks are loaders in one process, which go in step.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import itertools
import os
import pickle
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

import lit_loader
from lit_loader import DataLoader
from tests.support.exact import through_file
from tests.support.programs import default_environment, start_program
from tests.support.samples import worker_pids

__all__ = ["Leg", "Stream", "check_resumes"]

PATH, TASK, SAVED = "path.pickle", "task.pickle", "saved.pickle"

Batch = tuple[int, list[str]]
"""The reader, and its samples by their names."""


class Leg(NamedTuple):
    """A run of some rounds.

    Attributes:
        workers: Of each rank.
        ranks: Loaders that go in step.
        rounds: Batches of each rank; None: all that are left.
        strike: Whether a worker of the first rank is killed on the way.
    """

    workers: int
    ranks: int
    rounds: int | None
    strike: bool = False


LEGS = (Leg(2, 2, 3), Leg(3, 1, 5, strike=True), Leg(0, 4, 1), Leg(1, 2, None))
"""The first one is the program that is killed."""


class Stream(NamedTuple):
    """What is read.

    Attributes:
        make: Makes the dataset; can be pickled.
        size: Samples of a batch.
        shards: Readers.
        epoch: The epoch that is gone through.
    """

    make: Callable[[], Any]
    size: int
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


def killed(stream: Stream, leg: Leg, folder: Path) -> tuple[list[Batch], Any]:
    """Have a program read and be killed; give what it had been given when it saved last."""
    (folder / PATH).write_bytes(pickle.dumps(sys.path))
    (folder / TASK).write_bytes(pickle.dumps((stream, leg)))
    with start_program(
        Path(__file__), folder, environment=default_environment(), stdout=subprocess.DEVNULL
    ) as program:
        try:
            _, err = program.communicate(timeout=250)
        except subprocess.TimeoutExpired:
            os.killpg(program.pid, signal.SIGKILL)
            raise
    assert program.returncode == -signal.SIGKILL, err
    batches, state = pickle.loads((folder / SAVED).read_bytes())
    return batches, state


def check_resumes(stream: Stream, folder: Path, legs: Sequence[Leg] = LEGS) -> list[Batch]:
    """Go through an epoch in legs, and compare it with one that was left alone, which is given."""
    expected = whole(stream)
    found, state = killed(stream, legs[0], folder)
    assert len(found) == legs[0].ranks * (legs[0].rounds or 0)
    for leg in legs[1:]:
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


def main(folder: Path) -> None:
    """Read as told, save after each round, and end by SIGKILL, with all workers at work."""
    warnings.simplefilter("ignore")
    sys.path[:] = pickle.loads((folder / PATH).read_bytes())
    stream, leg = pickle.loads((folder / TASK).read_bytes())
    found: list[Batch] = []
    for given, state in rounds(stream, leg._replace(rounds=None), None):
        found += given
        scratch = folder / "scratch"
        scratch.write_bytes(pickle.dumps((found, state)))
        scratch.replace(folder / SAVED)
        if len(found) == leg.ranks * (leg.rounds or 0):
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    from tests.support import stream_resumes  # pickles name it so, and not __main__

    stream_resumes.main(Path(sys.argv[1]))
