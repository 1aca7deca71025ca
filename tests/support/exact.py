"""Datasets whose samples tell which random numbers they were made with, and digests of batches."""

import copy
import hashlib
import io
import itertools
import random
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Sampler, get_worker_info

from lit_loader import DataLoader
from tests.support.datasets import Augmented as Augmented
from tests.support.samples import Counting
from tests.support.stateful_data import SAMPLERS


def noisy_collate(samples: list[Tensor]) -> Tensor:
    """Stack, with a draw of each global generator in a column of its own."""
    noise = [random.random(), np.random.random(), float(torch.rand((), dtype=torch.float64))]
    columns = torch.tensor(noise, dtype=torch.float64).expand(len(samples), 3)
    return torch.cat([torch.stack(samples), columns], dim=1)


class StripedByWorkerInfo(Counting):
    """As programs written for torch's loader do it."""

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        assert info is not None
        return iter(range(info.id, self.length, info.num_workers))


class Unshared(Counting):
    """Gives all to everybody."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.length))


class EveryOther(Sampler[int]):
    """A stateless sampler of the user's: draws from the global generators."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        for _ in range(self.length):
            yield random.randrange(self.length)


StatefulSampler = SAMPLERS["both"]
"""Its place and its past are its own, and its iterator's, to remember."""

SamplerWithStatefulIterator = SAMPLERS["iterator"]


class Pairs(Sampler[list[int]]):
    """A batch sampler of the user's: batches of one and two, in random order."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return -(-self.length // 3) * 2

    def __iter__(self) -> Iterator[list[int]]:
        starts = list(range(0, self.length, 3))
        random.shuffle(starts)
        for start in starts:
            yield [start]
            yield [(start + 1) % self.length, (start + 2) % self.length]


def digest(batch: Any) -> str:
    """Name a batch by its bytes."""
    if isinstance(batch, Tensor):
        data = batch.numpy().tobytes() + str((batch.shape, batch.dtype)).encode()
    else:
        data = "".join(map(digest, batch)).encode()
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def digests(batches: Iterable[Any]) -> list[str]:
    return [digest(batch) for batch in batches]


def taken(loader: DataLoader[Any], count: int) -> tuple[list[str], Iterator[Any]]:
    """Take the first batches, and the iterator that has given them."""
    iterator = iter(loader)
    return digests(itertools.islice(iterator, count)), iterator


def loaded(loader: Any, state: dict[str, Any]) -> Any:
    """Load a state into a loader, which is given back."""
    loader.load_state_dict(state)
    return loader


def state_behind(loader: Any, count: int) -> dict[str, Any]:
    """Take so many batches; give the state there."""
    iterator = iter(loader)
    for _ in range(count):
        next(iterator)
    state: dict[str, Any] = loader.state_dict()
    return state


def with_states(loader: DataLoader[Any]) -> tuple[list[str], list[dict[str, Any]]]:
    """Go through an epoch; also give the state before it, and those behind each batch."""
    states, found = [through_file(loader.state_dict())], []
    for batch in loader:
        found += digests([batch])
        states.append(through_file(loader.state_dict()))
    return found, states


def through_file(state: dict[str, Any]) -> dict[str, Any]:
    """Save and load a state as a checkpoint is."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    assert loaded == state
    return copy.deepcopy(loaded)
