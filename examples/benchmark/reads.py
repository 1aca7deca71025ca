"""Samples that wait for storage: one at a time, and many, beside other loaders.

    python examples/benchmark/reads.py [--rounds 1] [--latency 5 20] [--processes 1 2] [--quick]

Samples a second in the midst of an epoch; the memory of the other processes (PSS of workers and
what starts them); what all have beyond the one process that there was before; processor time. A
read sleeps for the latency; a sample is 12 KiB. Threads by hand are 16 in ``__getitems__``, torch's
usual way. Others are measured where they are installed: Grain with 16 read threads in each worker;
SPDL with 16 at a time for each worker asked for, in a thread pool of one process; LitData's
StreamingRawDataset with 16 downloads at a time in each of torch's workers.
"""

import asyncio
import gc
import importlib.util
import os
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from common import parser, table
from torch.utils.data import DataLoader, Dataset

import lit_loader

BATCH, READS = 32, 16


class Stored(Dataset):
    """What a sample is made of lies so many seconds away."""

    def __init__(self, length, latency):
        self.length, self.latency = length, latency

    def __len__(self):
        return self.length

    @lit_loader.reads_ahead
    def read(self, index):
        time.sleep(self.latency)
        return index

    def __getitem__(self, index):
        return torch.full((3, 32, 32), float(self.read(index)))


class ByHand(Stored):
    """Threads in ``__getitems__``, as people write them."""

    pool = None

    def __getitems__(self, indices):
        self.pool = self.pool or ThreadPoolExecutor(READS)
        return [*self.pool.map(self.__getitem__, indices)]


def torchs(dataset, workers):
    return DataLoader(dataset, BATCH, shuffle=True, num_workers=workers)


def ours(dataset, workers, reads):
    return lit_loader.DataLoader(
        dataset, BATCH, shuffle=True, num_workers=workers, concurrent_reads=reads
    )


def grains(dataset, workers):
    import grain

    grain.config.update("py_debug_mode", False)
    return (
        grain.MapDataset.source(dataset)
        .shuffle(seed=1)
        .to_iter_dataset(grain.ReadOptions(num_threads=READS, prefetch_buffer_size=2 * BATCH))
        .batch(BATCH, batch_fn=torch.stack)
        .mp_prefetch(grain.MultiprocessingOptions(num_workers=workers))
    )


def spdls(dataset, workers):
    from spdl.pipeline import PipelineBuilder

    threads = READS * workers
    pipeline = (
        PipelineBuilder()
        .add_source(torch.randperm(len(dataset)).tolist())
        .pipe(dataset.__getitem__, concurrency=threads)
        .aggregate(BATCH)
        .pipe(torch.stack)
        .add_sink(2 * workers)
        .build(num_threads=threads + 1)
    )
    with pipeline.auto_stop():
        yield from pipeline


def litdatas(dataset, workers):
    from litdata.raw.dataset import StreamingRawDataset
    from litdata.raw.indexer import BaseIndexer, FileMetadata
    from litdata.streaming.downloader import LocalDownloader

    class Names(BaseIndexer):
        def discover_files(self, input_dir, storage_options):
            return [FileMetadata(f"{input_dir}/{i}", 12_288) for i in range(len(dataset))]

        def build_or_load_index(self, input_dir, cache_dir, *_):
            return self.discover_files(input_dir, None)

    class Raw(StreamingRawDataset):
        def __getitem__(self, index):
            return made(super().__getitem__(index))

        def __getitems__(self, indices):
            return [*map(made, super().__getitems__(indices))]

    def made(data):
        return torch.full((3, 32, 32), float(data))

    async def download(self, path):
        await asyncio.sleep(dataset.latency)
        return path.rpartition("/")[2].encode()

    LocalDownloader.adownload_fileobj = download
    with tempfile.TemporaryDirectory() as folder:
        raw = Raw(folder, indexer=Names(), max_concurrent_downloads=READS)
        yield from DataLoader(raw, BATCH, shuffle=True, num_workers=workers)


SUBJECTS = {
    "torch": (torchs, Stored, 1),
    "torch, threads by hand": (torchs, ByHand, READS),
    "lit_loader, concurrent_reads=0": (lambda d, w: ours(d, w, 0), Stored, 1),
    "lit_loader, concurrent_reads=16": (lambda d, w: ours(d, w, READS), Stored, READS),
    "Grain, 16 threads": (grains, Stored, READS),
    "SPDL, 16 threads a worker": (spdls, Stored, READS),
    "LitData, 16 downloads": (litdatas, Stored, READS),
}
NEEDS = {
    "Grain, 16 threads": "grain",
    "SPDL, 16 threads a worker": "spdl",
    "LitData, 16 downloads": "litdata",
}


def measured(subject, latency, workers, seconds):
    """Samples a second; MiB of other processes, and of all beyond before; processor ms a batch."""
    begin, kind, at_once = SUBJECTS[subject]
    skip = 2 * workers + 2
    batches = skip + max(2 * workers, int(seconds * workers * at_once / latency / BATCH))
    gc.collect()
    alone = pss(os.getpid())
    for number, _ in enumerate(begin(kind(batches * BATCH, latency), workers), 1):
        if number == skip:
            began, computed = time.perf_counter(), processor()
        if number == batches - 1:
            ended, others = time.perf_counter(), sum(map(pss, children()))
            added = pss(os.getpid()) + others - alone
            computed = processor() - computed
    made = batches - 1 - skip
    return made * BATCH / (ended - began), others / 1024, added / 1024, 1e3 * computed / made


def children(of=None):
    """The processes below this one."""
    found = []
    for task in Path(f"/proc/{of or os.getpid()}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            found += [child, *children(child)]
    return found


def pss(pid):
    """KiB of memory, shared pages divided among those that have them."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def processor():
    """Seconds of processor time of this process and those below it."""
    ticks = 0
    for pid in [os.getpid(), *children()]:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def main():
    options = parser(__doc__, rounds=1)
    options.add_argument("--latency", type=float, nargs="+", default=[5, 20, 100], help="in ms")
    options.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4], help="of workers")
    options.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    options = options.parse_args()
    if options.quick:
        options.latency, options.processes, options.seconds = [5], [2], 0.2
    subjects = [s for s in SUBJECTS if importlib.util.find_spec(NEEDS.get(s, "torch"))]
    rows = []
    for latency in options.latency:
        cases = [(s, w) for w in options.processes for s in subjects]
        if not options.quick:
            cases.append(("lit_loader, concurrent_reads=0", 32))
        for subject, workers in cases:
            found = [
                measured(subject, latency / 1e3, workers, options.seconds)
                for _ in range(options.rounds)
            ]
            rows.append(
                [
                    f"{subject}, {workers}",
                    f"{latency:g}",
                    *map(statistics.median, zip(*found, strict=True)),
                ]
            )
    table(
        [
            "loader, workers",
            "latency, ms",
            "samples/s",
            "MiB of workers",
            "MiB added",
            "ms processor",
        ],
        rows,
    )


if __name__ == "__main__":
    main()
