"""Threads or processes: the same samples by both, and by other libraries' threads.

    python examples/benchmark/threads.py [--rounds 3] [--start fork spawn] [--work jpeg] [--quick]

Each loader has a process of its own, and as many workers, or threads. They take turns; medians.
Samples a second after the first batch; milliseconds of processor time a sample, of all processes;
MiB of memory (PSS) that they all have beyond the process before; seconds to the first batch.
"""

import importlib.util
import io
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
from common import parser, table
from torch.utils.data import DataLoader, Dataset

import lit_loader


class Jpeg(Dataset):
    """A photo of 512 x 384 pixels, decoded and resized by Pillow."""

    batch, length = 8, 160

    def __init__(self):
        from PIL import Image

        noise = np.random.default_rng(1).integers(0, 255, (48, 64, 3), np.uint8)
        file = io.BytesIO()
        Image.fromarray(noise).resize((512, 384)).save(file, "JPEG", quality=90)
        self.data = file.getvalue()

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        from PIL import Image

        return torch.from_numpy(np.array(Image.open(io.BytesIO(self.data)).resize((224, 224))))


class Python(Jpeg):
    """Words counted by Python, which holds the interpreter's lock."""

    def __init__(self):
        self.words = random.Random(1).choices(range(1000), k=20_000)

    def __getitem__(self, index):
        counts = {}
        for word in self.words:
            counts[word] = counts.get(word, 0) + index
        return torch.tensor([*counts.values()])


class Latency(Jpeg):
    """Something that lies 20 ms away."""

    batch, length = 8, 400

    def __init__(self):
        pass

    def __getitem__(self, index):
        time.sleep(0.02)
        return torch.full((3, 32, 32), float(index))


class One(Latency):
    """Batches of one small sample: what a batch costs."""

    batch, length = 1, 2000

    def __getitem__(self, index):
        return torch.full((16,), float(index))


WORKS = {"jpeg": Jpeg, "python": Python, "latency": Latency, "one": One}


def torchs(dataset, workers, start):
    return DataLoader(dataset, dataset.batch, num_workers=workers, multiprocessing_context=start)


def processes(dataset, workers, start):
    options = {"num_workers": workers, "multiprocessing_context": start}
    return lit_loader.DataLoader(dataset, dataset.batch, **options)


def threads(dataset, workers, start):
    options = {"num_workers": workers, "worker_method": "thread"}
    return lit_loader.DataLoader(dataset, dataset.batch, **options)


def spdls(dataset, workers, start):
    from spdl.pipeline import PipelineBuilder

    pipeline = (
        PipelineBuilder()
        .add_source(range(len(dataset)))
        .pipe(dataset.__getitem__, concurrency=workers)
        .aggregate(dataset.batch)
        .pipe(torch.stack)
        .add_sink(2 * workers)
        .build(num_threads=workers)
    )
    with pipeline.auto_stop():
        yield from pipeline


def nodes(dataset, workers, start):
    from torchdata.nodes import Batcher, IterableWrapper, Loader, ParallelMapper, Prefetcher

    samples = ParallelMapper(
        IterableWrapper(range(len(dataset))), dataset.__getitem__, workers, method="thread"
    )
    batches = ParallelMapper(Batcher(samples, dataset.batch), torch.stack, 1, method="thread")
    return Loader(Prefetcher(batches, 2 * workers))


def grains(dataset, workers, start):
    import grain

    grain.config.update("py_debug_mode", False)
    ahead = grain.ReadOptions(num_threads=workers, prefetch_buffer_size=2 * workers * dataset.batch)
    source = grain.MapDataset.source(dataset).to_iter_dataset(ahead)
    return source.batch(dataset.batch, batch_fn=torch.stack)


LOADERS = {
    "torch": torchs,
    "lit_loader, processes": processes,
    "lit_loader, threads": threads,
    "SPDL": spdls,
    "torchdata.nodes": nodes,
    "Grain": grains,
}
NEEDS = {"SPDL": "spdl", "torchdata.nodes": "torchdata", "Grain": "grain"}


def family(pid):
    """A process, and those below it."""
    yield pid
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            yield from family(child)


def pss():
    """MiB."""
    kb = 0
    for pid in family(os.getpid()):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        kb += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return kb / 1024


def once(loader, work, workers, start):
    """Measure one in this process."""
    torch.set_num_threads(1)
    dataset = WORKS[work]()
    dataset[0]  # what it imports
    before, cpu = pss(), time.process_time()
    began = time.perf_counter()
    batches = iter(LOADERS[loader](dataset, workers, start))
    next(batches)
    first, number = time.perf_counter() - began, 1
    half = len(dataset) // dataset.batch // 2
    began = time.perf_counter()
    for number, _ in enumerate(batches, 1):
        if number == half:
            looking = time.perf_counter()
            memory = pss() - before
            began += time.perf_counter() - looking
    took = time.perf_counter() - began
    del batches
    cpu = time.process_time() - cpu + sum(os.times()[2:4])  # of those that have ended
    return [number * dataset.batch / took, 1e3 * cpu / len(dataset), memory, first]


def main():
    options = parser(__doc__, 3)
    options.add_argument("--work", nargs="+", default=[*WORKS], choices=WORKS)
    options.add_argument("--start", nargs="+", default=["fork", "spawn"])
    options.add_argument("--once", help="measure one loader, in this process")
    given = options.parse_args()
    if given.once:
        print(json.dumps(once(*json.loads(given.once))))
        return
    known = [name for name in LOADERS if importlib.util.find_spec(NEEDS.get(name, "torch"))]
    rounds = 1 if given.quick else given.rounds
    for start in given.start:
        for work in given.work:
            names = [name for name in known if start == "fork" or name not in NEEDS]
            found = {name: [] for name in names}
            for number in range(rounds):
                for name in names[number % len(names) :] + names[: number % len(names)]:
                    asked = json.dumps([name, work, given.workers, start])
                    command = [sys.executable, __file__, "--once", asked]
                    printed = subprocess.run(command, check=True, capture_output=True, text=True)
                    found[name].append(json.loads(printed.stdout.splitlines()[-1]))
            print(f"\n{WORKS[work].__doc__} {given.workers} workers, by {start}.")
            rows = [
                [name, *(statistics.median(column) for column in zip(*figures, strict=True))]
                for name, figures in found.items()
            ]
            table(["", "samples/s", "ms processor", "MiB added", "s to the first batch"], rows)


if __name__ == "__main__":
    main()
