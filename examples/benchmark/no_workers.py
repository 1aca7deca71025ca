"""What a batch, a pass and a new loader cost without workers.

    python examples/benchmark/no_workers.py [--rounds 15] [--quick]

Samples cost next to nothing, and nothing is trained, so what is measured is the loaders. They take
turns. Medians, in microseconds.
"""

from __future__ import annotations

import time
from functools import partial

import torch
from common import LOADERS, clocked, in_turns, parser, table
from torch.utils.data import IterableDataset

ROW = torch.zeros(16)


class Rows:
    """One tensor, again and again."""

    def __init__(self, length=32_000):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return ROW


class Noise(Rows):
    """Samples that draw."""

    def __getitem__(self, index):
        return torch.randn(16)


class Lines(IterableDataset):
    """A stream of texts."""

    def __iter__(self):
        for number in range(64_000):
            yield f"line {number} of a text"


def of_a_batch(loader, dataset, size):
    """Return the microseconds of a batch in the middle of a pass."""
    return clocked(loader(dataset, size), 40, 400)


def of_a_pass(loader, again):
    """Return those of a pass of four batches, by a new loader or by one that was iterated."""
    made = loader(Rows(8), 2)
    for _ in range(5 * again):
        list(made)
    began = time.perf_counter()
    list(made if again else loader(Rows(8), 2))
    return (time.perf_counter() - began) * 1e6


CASES = {
    "a batch of one sample": (of_a_batch, Rows(), 1),
    "a batch of 32": (of_a_batch, Rows(), 32),
    "a batch of 32 that draw": (of_a_batch, Noise(), 32),
    "a batch of 64 lines of a stream": (of_a_batch, Lines(), 64),
    "a pass of four batches": (of_a_pass, True),
    "the same by a new loader": (of_a_pass, False),
}


def main():
    """Print a table."""
    args = parser(__doc__, 15).parse_args()
    torch.set_num_threads(1)
    rows = []
    for name, (measure, *arguments) in CASES.items():
        rounds = 1 if args.quick else args.rounds * (20 if measure is of_a_pass else 1)
        subjects = {each: partial(measure, loader, *arguments) for each, loader in LOADERS.items()}
        rows.append([name, *in_turns(subjects, rounds).values()])
    table(["microseconds", *LOADERS], rows)


if __name__ == "__main__":
    main()
