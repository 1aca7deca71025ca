"""A pass of four batches with a new loader, for the counts of ``test_small_passes.py``.

    python small_pass.py lit_loader|torch 0,2 calls  # prints Python calls: of this process, all
    python small_pass.py lit_loader|torch 0,2 marks  # marks each pass for strace

For each number of workers: a first loader, which is not counted, imports what is imported once.
Then come three passes, each of a new loader from its construction to the end of its workers.
"""

import multiprocessing
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch

MARK = "/begin-or-end-of-a-pass"
PASSES = 3


class Samples(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((8,), float(index)), index % 3


class Calls:
    """Count calls of Python functions, also in workers, which inherit the profile function."""

    def __init__(self) -> None:
        self.counts = multiprocessing.RawArray("q", 100)  # one place for each process
        self.place = self.forks = 0
        os.register_at_fork(before=self._before, after_in_child=self._in_child)

    def _before(self) -> None:
        self.forks += 1

    def _in_child(self) -> None:
        self.place = self.forks

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            self.counts[self.place] += 1

    @contextmanager
    def counting(self) -> Iterator[None]:
        before = list(self.counts)
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)
            of_each = [now - then for now, then in zip(self.counts, before, strict=True)]
            print(of_each[0], sum(of_each), flush=True)


@contextmanager
def marking() -> Iterator[None]:
    os.access(MARK, os.F_OK)
    yield
    os.access(MARK, os.F_OK)


def one_pass(loader_class: Any, workers: int) -> None:
    loader = loader_class(Samples(), batch_size=4, shuffle=True, num_workers=workers)
    assert sum(len(labels) for _, labels in loader) == 16


def main() -> None:
    name, what = sys.argv[1], sys.argv[3]
    if name == "torch":
        from torch.utils.data import DataLoader
    else:
        from lit_loader import DataLoader
    around = Calls().counting if what == "calls" else marking
    for workers in map(int, sys.argv[2].split(",")):
        one_pass(DataLoader, workers)
        for _ in range(PASSES):
            with around():
                one_pass(DataLoader, workers)


if __name__ == "__main__":
    main()
