"""What tests of the viewer look at: a dataset that waits at a sample, and a training with it.

As a program: ``samples.py FOLDER`` trains until its end, and prints the digests of its batches. It
writes its page for viewers with every batch: all of them take no second.
"""

import os
import sys
from pathlib import Path

import torch
from torch.utils.data import Dataset

from lit_loader import DataLoader
from lit_loader.core.transport import viewer_page
from tests.support.exact import digests

BAD, DEADLY, SLOW = 3, 9, 37


class Samples(Dataset):
    """64 samples: one cannot be read, one ends its worker once, one waits for a gate (a FIFO)."""

    def __init__(self, folder: Path) -> None:
        self.gate, self.survived = folder / "gate", folder / "survived"

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == BAD:
            raise OSError("no such picture")
        if index == DEADLY and not self.survived.exists():
            self.survived.touch()
            os._exit(3)
        if index == SLOW and self.gate.exists():
            self.wait_for_storage()
        return torch.rand(4) + index

    def wait_for_storage(self) -> None:
        print("waiting", flush=True)
        with self.gate.open() as gate:
            gate.read()


def loader_of(folder: Path, num_workers: int = 2) -> DataLoader[torch.Tensor]:
    return DataLoader(
        Samples(folder), batch_size=4, num_workers=num_workers, seed=5, on_sample_error="replace"
    )


if __name__ == "__main__":
    viewer_page.EVERY = 0
    with loader_of(Path(sys.argv[1])) as loader:
        print("".join(digests(loader)), flush=True)
