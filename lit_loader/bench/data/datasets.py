"""The datasets of most cases: samples cost next to nothing, or a given time. All can be pickled."""

from __future__ import annotations

import random
import time
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

__all__ = [
    "Arrays",
    "Block",
    "Costing",
    "Jittering",
    "LargeObject",
    "ManyTensors",
    "Ragged",
    "Records",
    "Sleeping",
    "Slices",
    "Strings",
    "Tensors",
    "keep",
    "stack_arrays",
]

_POOL = 64  # different samples that a dataset holds: fetching stays cheap, memory stays small


class Tensors(Dataset[Any]):
    """Tensors that lie in memory; with a label or without.

    Args:
        length: Number of samples.
        shape: Of each sample, float32.
        labelled: Whether a sample is (tensor, int).
        pool: Different samples.
    """

    def __init__(
        self, length: int, shape: tuple[int, ...], labelled: bool = False, pool: int = _POOL
    ) -> None:
        self._length = length
        self._labelled = labelled
        self._pool = torch.arange(pool, dtype=torch.float32).view(-1, *[1] * len(shape))
        self._pool = self._pool.expand(pool, *shape).contiguous()

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        tensor = self._pool[index % len(self._pool)]
        return (tensor, index) if self._labelled else tensor


class ManyTensors(Dataset[Any]):
    """Samples of many small float32 tensors.

    Args:
        length: Number of samples.
        tensors: Tensors a sample.
        numbers: Numbers a tensor.
        keyed: Whether a sample is a dict, else it is a list.
    """

    def __init__(self, length: int, tensors: int, numbers: int = 4, keyed: bool = True) -> None:
        self._length = length
        made = [torch.full((numbers,), float(key)) for key in range(tensors)]
        self._sample: Any = (
            {f"feature_{key}": tensor for key, tensor in enumerate(made)} if keyed else made
        )

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        return self._sample


class Arrays(Dataset[NDArray[Any]]):
    """NumPy structured arrays, such as hits of a detector.

    Args:
        length: Number of samples.
        records: Records of each sample's array.
    """

    def __init__(self, length: int, records: int) -> None:
        self._length = length
        kind = [("cell", np.int64), ("position", np.float32, 3), ("charge", np.float32)]
        self._sample: NDArray[Any] = np.zeros(records, kind)
        self._sample["cell"] = np.arange(records)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> NDArray[Any]:
        return self._sample


class Strings(Dataset[str]):
    """Text of 60 to 140 characters."""

    def __init__(self, length: int) -> None:
        self._length = length
        dice = random.Random(0)
        self._pool = ["x" * dice.randint(60, 140) for _ in range(_POOL)]

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> str:
        return self._pool[index % _POOL]


class Ragged(Dataset[list[int]]):
    """Lists of 10 to 100 integers."""

    def __init__(self, length: int) -> None:
        self._length = length
        dice = random.Random(0)
        self._pool = [list(range(dice.randint(10, 100))) for _ in range(_POOL)]

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> list[int]:
        return self._pool[index % _POOL]


class Block(Dataset[torch.Tensor]):
    """One tensor of so many bytes, made anew each time.

    One that is always the same object would be handed over once: torch's worker moves its storage
    into shared memory, and from then on sends a handle.

    Args:
        length: Number of samples.
        nbytes: Bytes of the sample, uint8.
    """

    def __init__(self, length: int, nbytes: int) -> None:
        self._length = length
        self._block = torch.zeros(nbytes, dtype=torch.uint8)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._block.clone()


class Sleeping(Dataset[int]):
    """Samples that take a time without taking the processor, as waiting for storage does.

    Args:
        length: Number of samples.
        seconds: What a sample takes.
        vary: Part of `seconds` by which samples differ, evenly up and down.
        slow: Part of the samples, at places that are always the same, that take longer.
        times: How many times as long those take.
    """

    def __init__(
        self,
        length: int,
        seconds: float,
        vary: float = 0.0,
        slow: float = 0.0,
        times: float = 1.0,
    ) -> None:
        dice = random.Random(0)
        costs = [seconds * (1 + vary * dice.uniform(-1, 1)) for _ in range(length)]
        for index in dice.sample(range(length), round(slow * length)):
            costs[index] *= times
        self.seconds = costs
        """What each sample takes."""

    def __len__(self) -> int:
        return len(self.seconds)

    def __getitem__(self, index: int) -> int:
        time.sleep(self.seconds[index])
        return index


class Costing(Dataset[int]):
    """Samples that take a processor for a while, and wait for a while; others later on.

    Args:
        length: Number of samples.
        before: Seconds of processor time and of waiting, of the first samples.
        after: The same, of the others.
        at: The first of these.
    """

    def __init__(
        self, length: int, before: tuple[float, float], after: tuple[float, float], at: int
    ) -> None:
        self._length, self._costs, self._at = length, (before, after), at

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> int:
        computing, waiting = self._costs[index >= self._at]
        if waiting:
            time.sleep(waiting)
        end = time.thread_time() + computing
        while time.thread_time() < end:
            pass
        return index


class Jittering(Dataset[int]):
    """Samples that take a time which differs from reading to reading, and not from index to index.

    Args:
        length: Number of samples.
        seconds: What a sample takes.
        vary: Part of `seconds` by which readings differ, evenly up and down.
    """

    def __init__(self, length: int, seconds: float, vary: float) -> None:
        self._length = length
        self._range = (seconds * (1 - vary), seconds * (1 + vary))
        self._dice = random.Random()

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> int:
        time.sleep(self._dice.uniform(*self._range))
        return index


class LargeObject(Dataset[int]):
    """A dataset that is itself large: an array and many strings, all of which travel to workers.

    Args:
        length: Number of samples.
        megabytes: Of the array, in units of 10**6 bytes.
        strings: Number of strings.
    """

    def __init__(self, length: int, megabytes: int, strings: int) -> None:
        self._length = length
        self._array = np.zeros(megabytes * 125_000, np.float64)
        self._array[:] = 1  # else its pages would not be there
        self._names = [f"images/{number:09d}.jpg" for number in range(strings)]

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> int:
        return index + int(self._array[index]) + len(self._names[index % len(self._names)])


class WholeArray(Dataset[int]):
    """An array of so many megabytes, all of which is read for each sample.

    Args:
        megabytes: Its size, in 10**6 bytes.
    """

    def __init__(self, megabytes: int) -> None:
        self.array = np.ones(megabytes * 125_000, np.int64)

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> int:
        return int(self.array.sum()) + index


class Records(Dataset[int]):
    """Reads one record of a sequence of strings for each sample, as a list of files is read.

    Args:
        records: The sequence.
    """

    def __init__(self, records: Any) -> None:
        self._records = records

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> int:
        return len(self._records[index])


class Slices(Dataset[Any]):
    """A tensor with labels, read by ``__getitems__``.

    Args:
        data: Float32 of shape (samples, width).
        labels: Of shape (samples,).
        whole: Whether ``__getitems__`` gives the batch itself, which then only needs to be passed
            on (`keep`); else the list of samples, which is to be collated.
    """

    def __init__(self, data: torch.Tensor, labels: torch.Tensor, whole: bool) -> None:
        self._data, self._labels, self._whole = data, labels, whole

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> Any:
        return self._data[index], self._labels[index]

    def __getitems__(self, indices: list[int]) -> Any:
        data, labels = self._data[indices], self._labels[indices]
        return (data, labels) if self._whole else list(zip(data, labels, strict=True))


def keep(samples: Any) -> Any:
    """A ``collate_fn`` that changes nothing."""
    return samples


def stack_arrays(samples: list[NDArray[Any]]) -> NDArray[Any]:
    """A ``collate_fn`` for structured arrays, which torch has no rule for."""
    return np.stack(samples)
