"""`check_determinism`: reads a loader's first batches again, and compares."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from lit_loader.core.epoch.loader_checkpoint import state_of
from lit_loader.core.sampling.batch_plan import ComputedBatches
from lit_loader.core.seeding.held_generators import find_generators, tape
from lit_loader.describe import public
from lit_loader.errors import DeterminismError, OptionError
from lit_loader.loader import DataLoader
from lit_loader.profiling.digest import Digest, digest, first_difference

__all__ = ["check_determinism"]


@public
def check_determinism(loader: DataLoader[object], batches: int = 8) -> None:
    """Check that the batches of a loader follow from its seed.

    It reads the first batches of the next pass by copies of the loader: twice as they are; from a
    state in the middle of them; and with one worker more, unless there are no workers, or their
    number is part of the data (an IterableDataset without ``num_shards``).

    The loader and the random generators are as before afterwards. Your dataset, sampler and
    ``collate_fn`` are called as in training. Use it in a test, or once before a long run.

    Args:
        loader: What to check.
        batches: How many batches to compare, at least 1; of a stream, from each shard.

    Raises:
        DeterminismError: A batch differs. The message names the batch, the place in it, the sample
            where that is known, and what was done otherwise.
        OptionError: ``loader`` is no DataLoader of lit_loader's, or ``batches`` is refused.

    Examples:
        >>> import random
        >>> from lit_loader import DataLoader, check_determinism
        >>> check_determinism(DataLoader(range(100), 10, shuffle=True))
        >>> hidden = random.SystemRandom()  # nothing can seed it
        >>> class Noise:
        ...     def __len__(self):
        ...         return 100
        ...     def __getitem__(self, index):
        ...         return hidden.random()
        >>> check_determinism(DataLoader(Noise(), 10))
        Traceback (most recent call last):
        lit_loader.DeterminismError: ...
    """
    if not isinstance(loader, DataLoader):
        raise OptionError(
            f"check_determinism needs a lit_loader.DataLoader, got {type(loader).__name__}"
        )
    if type(batches) is not int or batches < 1:
        raise OptionError(f"batches must be a whole number of at least 1, got {batches!r}")
    if loader._core.iterable:
        batches *= loader._core.readers
    with _generators_kept(loader):
        first = _read(loader, batches)
        if not first.made:
            return
        begin = min(first.states)  # a sampler of the user's has no state before the first batch
        start = first.states[begin]
        _compare(first, _read(loader, batches, start), begin, "the second time")
        # As late as a stream's own state is used, and not replayed from its start.
        middle = max(begin, 3 * len(first.made) // 4)
        _compare(first, _read(loader, batches, first.states[middle]), middle, "after a resume")
        workers = loader.num_workers
        if workers and (loader._core.shards is not None or not loader._core.iterable):
            how = f"with num_workers={workers + 1} instead of {workers}"
            _compare(first, _read(loader, batches, start, workers + 1), begin, how)


class _Batches:
    """What was read: by the numbers of the batches."""

    def __init__(self) -> None:
        self.epoch = 0
        self.made: dict[int, Digest] = {}
        self.indices: dict[int, Any] = {}  # of orders that are computed
        self.states: dict[int, Mapping[str, object]] = {}  # before the batch of this number


def _read(
    loader: DataLoader[object],
    end: int,
    state: Mapping[str, object] | None = None,
    workers: int | None = None,
) -> _Batches:
    """Read the batches up to ``end`` by a copy of the loader, from a state on."""
    found = _Batches()
    with copy.copy(loader) as reader:
        reader.in_order = True
        if workers is not None:
            reader.num_workers = workers
        if state is not None:
            reader.load_state_dict(state)
        iterator = iter(reader)
        for number in range(0 if state is None else reader.position.batches, end):
            try:
                batch: object = next(iterator)
            except StopIteration:
                break
            except Exception as error:
                if state is None:
                    raise
                batch = error
            made = iterator.made
            assert made is not None
            found.epoch = made.epoch
            computed = made.batches is None or made.batches.computed
            if computed and not found.states:
                found.states[number] = state_of(reader._core, made.position.start)
            if isinstance(made.batches, ComputedBatches):
                found.indices[number] = made.batches.at(number)
            found.made[number] = digest(batch, np.size(found.indices.get(number, ())))
            found.states[number + 1] = reader.state_dict()
    return found


def _compare(first: _Batches, again: _Batches, begin: int, how: str) -> None:
    """Raise an error that names the first place in which two readings differ."""
    for number in range(begin, len(first.made)):
        difference = first_difference(first.made[number], again.made.get(number, {}))
        if difference is None:
            continue
        text, sample = difference
        if sample is not None:
            text += f" in sample {sample}, dataset[{first.indices[number][sample]}]"
        raise DeterminismError(
            f"batch {number} of epoch {first.epoch} differs {how}: {text}. Something there does "
            "not follow from the seed, such as a generator that lit_loader does not find, a "
            "counter, the time, or the order of a set. Draw from lit_loader.get_rng(), or seed it "
            "in reseed_fn(dataset, seed) [LL408]"
        )


@contextlib.contextmanager
def _generators_kept(loader: DataLoader[object]) -> Iterator[None]:
    """Put generators back where they were: torch's, the loader's, and those that the data holds."""
    roots = loader.dataset, loader.collate_fn, loader.worker_init_fn, loader.generator
    found = [torch.default_generator, *(each for _, each in find_generators(*roots).generators)]
    tapes = [each for each in map(tape, found) if each is not None]
    states = [each.read() for each in tapes]
    try:
        yield
    finally:
        for each, state in zip(tapes, states, strict=True):
            each.write(state)
