"""Data in memory: an epoch of small rows, shuffled, against slicing the tensors by hand.

    python examples/benchmark/in_memory.py [--rounds 5] [--workers 2] [--quick]

By hand is ``x[order[i : i + n]], y[order[i : i + n]]`` in this process, its permutation included.
Microseconds a batch of 256 rows of 64 numbers, medians over rounds that take turns.
"""

import time
from functools import partial

import torch
from common import LOADERS, clocked, in_turns, parser, table
from torch.utils.data import Dataset, TensorDataset

BATCH = 256


class Slices(Dataset):
    """``__getitems__`` gives the batch itself (`whole`), or the list of its samples."""

    def __init__(self, data, labels, whole):
        self.data, self.labels, self.whole = data, labels, whole

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.data[index], self.labels[index]

    def __getitems__(self, indices):
        data, labels = self.data[indices], self.labels[indices]
        return (data, labels) if self.whole else list(zip(data, labels, strict=True))


def keep(batch):
    return batch


KINDS = {
    "TensorDataset": (TensorDataset, None),
    "__getitems__, collated": (lambda data, labels: Slices(data, labels, False), None),
    "__getitems__, whole batches": (lambda data, labels: Slices(data, labels, True), keep),
}


def main():
    args = parser(__doc__).parse_args()
    batches, rows = 4 if args.quick else 400, []
    for kind, (make, collate_fn) in KINDS.items():
        for workers in (0, args.workers):
            skip = 2 * workers
            samples = (batches + 2 * skip) * BATCH
            data, labels = torch.rand(samples, 64), torch.arange(samples)

            def by_hand(data=data, labels=labels, samples=samples):
                began = time.perf_counter()
                order = torch.randperm(samples)
                for first in range(0, samples, BATCH):
                    chosen = order[first : first + BATCH]
                    data[chosen], labels[chosen]
                return (time.perf_counter() - began) / (samples // BATCH) * 1e6

            subjects = {"by hand": by_hand}
            for name, loader in LOADERS.items():
                opened = loader(
                    make(data, labels), BATCH, shuffle=True, num_workers=workers,
                    collate_fn=collate_fn, persistent_workers=workers > 0,
                )  # fmt: skip
                subjects[name] = partial(clocked, opened, max(1, skip), batches - 1)
            found = in_turns(subjects, 1 if args.quick else args.rounds)
            rows.append([f"{kind}, {workers} workers", *found.values()])
    table(["µs/batch", "by hand", *LOADERS], rows)


if __name__ == "__main__":
    main()
