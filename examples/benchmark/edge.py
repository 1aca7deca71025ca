"""Epoch edge: how much longer the first batch of an epoch is waited for than others are.

    python examples/benchmark/edge.py [--rounds 5] [--workers 2] [--quick]

The consumer does nothing, the samples sleep for times that differ at random by up to a half, and
the workers persist. The wait at an edge begins when the last batch of the epoch before was given
out. Medians of both waits, and their ratio.
"""

import random
import statistics
import time

from common import LOADERS, in_turns, parser, table
from torch.utils.data import Dataset


class Jittering(Dataset):
    def __init__(self, length, seconds):
        self.length, self.seconds, self.dice = length, seconds, random.Random()

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        time.sleep(self.dice.uniform(0.5 * self.seconds, 1.5 * self.seconds))
        return index


def waits(loader, epochs):
    """Median microseconds waited at the edges, and within epochs."""
    edges, within, last = [], [], None
    for _ in range(epochs):
        first = True
        for _ in loader:
            now = time.perf_counter()
            if last is not None:
                (edges if first else within).append((now - last) * 1e6)
            last, first = time.perf_counter(), False
    return statistics.median(edges), statistics.median(within)


def main():
    args = parser(__doc__).parse_args()
    rows = []
    for batches, epochs, seconds in ((3, 40, 4e-3), (20 if args.quick else 1000, 5, 1e-3)):
        for name, kind in LOADERS.items():
            dataset = Jittering(batches, seconds)
            loader = kind(dataset, num_workers=args.workers, persistent_workers=True)
            found = []

            def turn(loader=loader, found=found, epochs=4 if args.quick else epochs):
                found.append(waits(loader, epochs))
                return found[-1][0] / found[-1][1]

            ratio = in_turns({name: turn}, 1 if args.quick else args.rounds)[name]
            edge, usual = (statistics.median(each) for each in zip(*found[1:], strict=True))
            rows.append([f"{batches} batches, {name}", ratio, edge, usual])
            del loader, turn
    table(["epochs of", "edge / median", "edge, µs", "median wait, µs"], rows)


if __name__ == "__main__":
    main()
