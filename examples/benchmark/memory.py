"""Memory: all processes together, over three epochs of ten million strings, and with an array.

    python examples/benchmark/memory.py [--workers 2] [--quick]

A forked worker shares a list's memory with its parent only until it touches a record, for that
changes the record's reference count and with it the page. Where workers begin with a new
interpreter, what counts is whether each unpickles its own copy: an array of which all is read, by
sizes, start methods and workers. Each loader is measured in a process of its own, which looks at
the proportional set size (PSS) of itself and its workers; the peak is the figure, in MB.
"""

import contextlib
import multiprocessing

import numpy as np
import psutil
from common import LOADERS, parser, table
from torch.utils.data import Dataset

import lit_loader


class Records(Dataset):
    def __init__(self, records):
        self.records = records

    def __len__(self):
        return len(self.records)

    def __getitem__(self, index):
        return len(self.records[index])


class WholeArray(Dataset):
    """An array of so many megabytes, all of which is read for each sample."""

    def __init__(self, megabytes):
        self.array = np.ones(megabytes * 125_000, np.int64)

    def __len__(self):
        return 32

    def __getitem__(self, index):
        return int(self.array.sum()) + index


def pss():
    """Megabytes of this process and all below it; a page that n share counts 1/n for each."""
    total, me = 0, psutil.Process()
    for process in (me, *me.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            total += process.memory_full_info().pss
    return total / 1e6


def dataset_of(kind, size):
    if kind == "array":
        return WholeArray(size)
    names = [f"image/{number:010d}.jpg" for number in range(size)]
    return Records(lit_loader.SharedSequence(names) if kind == "SharedSequence" else names)


def peak(pipe, loader, kind, size, options):
    """What the new process does."""
    try:
        dataset, most = dataset_of(kind, size), 0.0
        opened = LOADERS[loader](dataset, persistent_workers=True, **options)
        batches = len(opened)
        for _ in range(3):
            for number, _ in enumerate(opened, 1):
                if number % max(1, batches // 4) == 0:
                    most = max(most, pss())
        pipe.send(most)
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {error}")


def measured(*args):
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=peak, args=(theirs, *args))
    process.start()
    theirs.close()
    try:
        return ours.recv()
    except EOFError:
        return "its process was ended"
    finally:
        process.join()


def main():
    args = parser(__doc__).parse_args()
    size, rows = 20_000 if args.quick else 10**7, []
    of_list = {"batch_size": 1024, "num_workers": args.workers}
    for name, kind, options in (
        ("list, shuffled", "list", {"shuffle": True}),
        ("list, in order", "list", {}),
        ("SharedSequence, shuffled", "SharedSequence", {"shuffle": True}),
    ):
        figures = [measured(loader, kind, size, {**of_list, **options}) for loader in LOADERS]
        rows.append([f"{size:,} records in a {name}", *figures])
    for method in ["fork"] if args.quick else multiprocessing.get_all_start_methods():
        for megabytes in (2,) if args.quick else (50, 350):
            for workers in (1,) if args.quick else (1, 4):
                options = {"num_workers": workers, "multiprocessing_context": method}
                figures = [measured(loader, "array", megabytes, options) for loader in LOADERS]
                rows.append([f"array of {megabytes} MB, {method}, {workers} workers", *figures])
    table(["MB", *LOADERS], rows)


if __name__ == "__main__":
    main()
