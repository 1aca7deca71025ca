"""The job whose samples wait for storage.

A file of its own: it imports lit_loader, which is not to cost torch's spawned workers time.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import numpy as np
import torch
from jobs import Job, pixels
from torch.utils.data import DataLoader, Dataset


class Objects(Job):
    """Objects of 48 kB, each 20 ms away, as in a store; lit_loader reads 16 at a time a worker."""

    own_options: ClassVar[dict[str, Any]] = {"read_threads": 16}
    beside = "torch, 16 threads by hand"

    def make(self) -> None:
        self.content = pixels(16, 3, 128, 128).reshape(16, -1)

    def read(self, index: int) -> bytes:
        time.sleep(0.02)
        return bytes(self.content[index % 16])

    def __getitem__(self, index: int) -> Any:
        pixels = np.frombuffer(bytearray(self.read(index)), np.uint8)
        return torch.from_numpy(pixels).view(3, 128, 128), index % 1000

    def loader_beside(self, num_workers: int) -> Any:
        return DataLoader(ByHand(self), self.batch_size, num_workers=num_workers, **self.options)


class ByHand(Dataset):
    """Threads in `__getitems__`, as people write them."""

    pool: ThreadPoolExecutor | None = None

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitems__(self, indices: list[int]) -> list[Any]:
        self.pool = self.pool or ThreadPoolExecutor(16)
        return [*self.pool.map(self.dataset.__getitem__, indices)]
