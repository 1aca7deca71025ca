"""Growth: what a batch costs against its bytes, its tensors, the workers, the dataset's length.

    python examples/benchmark/growth.py [--lines bytes,tensors,workers,samples] [--torch]
                                        [--rounds 3] [--workers 2] [--quick]

Microseconds a batch, medians over rounds that take turns, and `growth.png` in this directory. The
limit is making the batch in this process, over the processors. The steepest growth is the exponent
e of cost ~ x**e between neighbours: 0 is a cost that stays, 1 one that grows in proportion.
"""

import itertools
import math
import os
import time

import torch
from common import LOADERS, Block, clocked, in_turns, parser, table
from torch.utils.data import Dataset, default_collate

AHEAD = 2


class Tensors(Dataset):
    """Small tensors that lie in memory; `many` to a sample."""

    def __init__(self, length, numbers, many=0):
        self.length = length
        self.sample = [torch.ones(numbers) for _ in range(many)] or torch.ones(numbers)

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return self.sample


def of_bytes(x, workers, few):
    batches = few or max(4, min(300, 10**9 // x))
    return Block(batches + 2 * AHEAD * workers, x), None, workers, batches


def of_tensors(x, workers, few):
    batches = few or max(4, min(300, 20_000 // x))
    return Tensors(batches + 2 * AHEAD * workers, 8, x), None, workers, batches


def of_workers(x, workers, few):
    batches = few or 1000
    return Tensors((batches + 2 * AHEAD * x) * 32, 16), 32, x, batches


def of_samples(x, workers, few):
    return Tensors(x, 16), 32, workers, few or min(x // 32 - 1, 300)


LINES = {
    "bytes": ([10**e for e in range(3, 10)], of_bytes),
    "tensors": ([1, 10, 100, 1_000, 10_000], of_tensors),
    "workers": ([1, 2, 4, 8, 16, 32, 64], of_workers),
    "samples": ([10**e for e in range(3, 10)], of_samples),
}


def left_early(loader, batches):
    """Microseconds a batch of an epoch that is begun anew, and left: that is part of the cost."""
    began = time.perf_counter()
    for _ in itertools.islice(iter(loader), batches):
        pass
    return (time.perf_counter() - began) / batches * 1e6


def point(line, x, args):
    """Microseconds a batch, by who makes it."""
    dataset, size, workers, batches = LINES[line][1](x, args.workers, 4 if args.quick else 0)

    def limit():
        began = time.perf_counter()
        for _ in range(max(1, batches // 10)):
            if size is None:
                dataset[0]
            else:
                default_collate([dataset[index] for index in range(size)])
        cores = min(len(os.sched_getaffinity(0)), workers)
        return (time.perf_counter() - began) / max(1, batches // 10) / cores * 1e6

    subjects = {"limit": limit}
    for name in LOADERS if args.torch else ["lit_loader"]:
        loader = LOADERS[name](
            dataset, size, shuffle=line == "samples", num_workers=workers, prefetch_factor=AHEAD,
            persistent_workers=True,
        )  # fmt: skip
        if line == "samples":
            subjects[name] = lambda loader=loader: left_early(loader, batches)
        else:
            subjects[name] = lambda loader=loader: clocked(loader, AHEAD * workers, batches)
    return in_turns(subjects, 1 if args.quick else args.rounds)


def steepest(points):
    """The largest exponent between neighbouring points."""
    pairs = itertools.pairwise(points)
    return max(math.log(d / b) / math.log(c / a) for (a, b), (c, d) in pairs)


def plot(found):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 1 + 3.6 * math.ceil(len(found) / 2)), layout="constrained")
    panels = figure.subplots(math.ceil(len(found) / 2), 2, squeeze=False).flat
    for axes, (line, rows) in zip(panels, found.items(), strict=False):
        for name in next(iter(rows.values())):
            style = {"color": "black", "ls": "--"} if name == "limit" else {}
            ys = [figures[name] for figures in rows.values()]
            axes.plot(list(rows), ys, marker="o", ms=4, label=name, **style)
        axes.set(xscale="log", yscale="log", xlabel=line, ylabel="µs/batch")
        axes.grid(color="0.88")
        axes.legend()
    figure.savefig("growth.png", dpi=120)


def main():
    options = parser(__doc__, rounds=3)
    options.add_argument("--lines", default=",".join(LINES))
    options.add_argument("--torch", action="store_true", help="torch's loader beside it")
    args = options.parse_args()
    found = {}
    for line in args.lines.split(","):
        xs = LINES[line][0]
        rows = {x: point(line, x, args) for x in (xs[:2] if args.quick else xs)}
        names = list(next(iter(rows.values())))
        table([line, *names], [[x, *figures.values()] for x, figures in rows.items()])
        growth = steepest([(x, figures["lit_loader"]) for x, figures in rows.items()])
        print(f"steepest growth: {growth:.2f}\n")
        found[line] = rows
    plot(found)


if __name__ == "__main__":
    main()
