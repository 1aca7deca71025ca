"""How long the way of a batch is: files of the package that it passes, and calls of Python's.

``pytest -n 0 -s tests/project/test_way_of_a_batch.py`` prints it, as CI does. What is counted is
one ``next()`` in the midst of an epoch, and what a worker does for one batch, of a map-style
dataset with the default options. A function is counted as often as it is called.
"""

import os
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import lit_loader
from lit_loader import DataLoader

PACKAGE = str(Path(lit_loader.__file__).parent) + os.sep

MOST = {"parent": (14, 42), "worker": (12, 42)}
"""Files and calls that a batch may pass: a way that grows is a decision, not an accident."""

BATCHES, MEASURED = 60, 40


class Calls:
    """Counts the calls of the package's functions, by their file."""

    def __init__(self) -> None:
        self.files: Counter[str] = Counter()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            self.files[frame.f_code.co_filename.removeprefix(PACKAGE)] += 1


class Numbers(torch.utils.data.Dataset[torch.Tensor]):
    """Sample ``MEASURED`` begins to count in its worker, and the next one gives what was counted.

    In between there is the rest of one batch and the beginning of the next: one whole batch.
    """

    def __len__(self) -> int:
        return BATCHES

    def __getitem__(self, index: int) -> torch.Tensor:
        counted = torch.zeros(2)
        if index == MEASURED:
            self.calls = Calls()
            sys.setprofile(self.calls)
        elif index == MEASURED + 1:
            sys.setprofile(None)
            counted = torch.tensor([len(self.calls.files), self.calls.files.total()])
        return counted


def measured() -> dict[str, tuple[int, int]]:
    """Files and calls of one batch, in either process."""
    with DataLoader(Numbers(), num_workers=1, seed=1) as loader:
        iterator, here = iter(loader), []
        for number in range(BATCHES):
            calls = Calls()
            sys.setprofile(calls)
            batch = next(iterator)
            sys.setprofile(None)
            if number > 5:  # behind what is done once
                here.append((len(calls.files), calls.files.total()))
            if number == MEASURED + 1:
                files, times = batch[0].int().tolist()
    return {"parent": sorted(here)[len(here) // 2], "worker": (files, times)}


def test_it_does_not_grow() -> None:
    for where, found in measured().items():
        print(f"the way of a batch, {where}: {found[1]} calls in {found[0]} files")
        files, calls = MOST[where]
        assert found[0] <= files and found[1] <= calls
