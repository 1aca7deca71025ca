"""Data of which some samples cannot be read."""

import random
from collections.abc import Iterable, Iterator

import numpy as np
from torch import Tensor
from torch.utils.data import IterableDataset

from tests.support.exact import Augmented
from tests.support.samples import share

BAD = (3, 7, 8, 9)


class CannotRead(Exception):
    """What a bad sample raises here."""


class Choosy(Augmented):
    """`Augmented`, of which the samples in ``bad`` raise after having drawn from everything."""

    def __init__(self, bad: Iterable[int] = BAD, length: int = 26) -> None:
        super().__init__(length)
        self.bad = frozenset(bad)
        # Not seeded by the loader where it seeds its workers only.
        self.numpy_rng = np.random.default_rng(1)
        self.python_rng = random.Random(2)
        self.torch_rng.manual_seed(3)

    def __getitem__(self, index: int) -> Tensor:
        sample = super().__getitem__(index)
        if index in self.bad:
            raise CannotRead(f"no sample {index}")
        return sample


class Stream(IterableDataset):
    """0, 1, 2, ... below ``length``, shared out; its iterator continues after the bad ones."""

    def __init__(self, bad: Iterable[int] = BAD, length: int = 14) -> None:
        self.bad, self.length = frozenset(bad), length

    def __iter__(self) -> Iterator[int]:
        return map(self.item, share(range(self.length)))

    def item(self, number: int) -> int:
        if number in self.bad:
            raise CannotRead(f"no sample {number}")
        return number
