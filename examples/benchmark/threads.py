"""Threads or processes: the same samples by both, and by other libraries' threads.

    python examples/benchmark/threads.py [--rounds 3] [--start fork spawn] [--work pillow] [--quick]

Each loader has a process of its own, and as many workers, or threads. They take turns; medians.
Samples a second after the first batch; milliseconds of processor time a sample, of all processes;
MiB of memory (PSS) that they all have beyond the process before; seconds to the first batch; and
samples and processor time beside those of lit_loader's threads in the same round, with the range.
What is not installed is left out.
"""

import importlib.util
import io
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from common import parser, table
from torch.utils.data import DataLoader, Dataset

import lit_loader


class Work(Dataset):
    """So many samples, in batches of 8."""

    batch, length = 8, 400

    def __init__(self, folder):
        self.folder = folder

    def __len__(self):
        return self.length


class Pillow(Work):
    """A photo of 512 x 384 pixels, decoded and resized by Pillow"""

    def __init__(self, folder):
        from PIL import Image

        noise = np.random.default_rng(1).integers(0, 255, (48, 64, 3), np.uint8)
        file = io.BytesIO()
        Image.fromarray(noise).resize((512, 384)).save(file, "JPEG", quality=90)
        self.data = np.frombuffer(file.getvalue(), np.uint8)

    def __getitem__(self, index):
        from PIL import Image

        return torch.from_numpy(np.array(Image.open(io.BytesIO(self.data)).resize((224, 224))))


class Torchvision(Pillow):
    """… by torchvision"""

    def __getitem__(self, index):
        from torchvision.io import decode_jpeg
        from torchvision.transforms.v2 import functional

        image = decode_jpeg(torch.from_numpy(self.data.copy()))
        return functional.resize(image, [224, 224], antialias=True)


class OpenCV(Pillow):
    """… by OpenCV, turned, blurred, scaled"""

    def __getitem__(self, index):
        import cv2

        cv2.setNumThreads(0)
        image = cv2.resize(cv2.imdecode(self.data, cv2.IMREAD_COLOR), (256, 256))
        turn = cv2.getRotationMatrix2D((128, 128), index % 30, 1)
        image = cv2.GaussianBlur(cv2.warpAffine(image, turn, (256, 256))[16:240, 16:240], (5, 5), 0)
        return torch.from_numpy(image.astype(np.float32) / 255)


class Albumentations(Pillow):
    """… by OpenCV, augmented by albumentations"""

    def __init__(self, folder):
        import albumentations

        super().__init__(folder)
        self.augment = albumentations.Compose(
            [
                albumentations.RandomResizedCrop((224, 224), p=1),
                albumentations.HorizontalFlip(p=0.5),
                albumentations.ColorJitter(p=1),
                albumentations.Normalize(),
            ]
        )

    def __getitem__(self, index):
        import cv2

        cv2.setNumThreads(0)
        image = cv2.imdecode(self.data, cv2.IMREAD_COLOR)
        return torch.from_numpy(self.augment(image=image)["image"])


class Tokens(Work):
    """a text of 2,000 words, by tokenizers"""

    def __init__(self, folder):
        from tokenizers import Tokenizer, models, pre_tokenizers, trainers

        words = random.Random(1)
        known = ["".join(words.choices("etaoinshrdlu", k=words.randint(2, 9))) for _ in range(3000)]
        self.text = " ".join(words.choices(known, k=2000))
        self.tokenizer = Tokenizer(models.BPE())
        self.tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        trainer = trainers.BpeTrainer(vocab_size=1000, show_progress=False)
        self.tokenizer.train_from_iterator([self.text], trainer)

    def __getitem__(self, index):
        return torch.tensor(self.tokenizer.encode(self.text, is_pretokenized=False).ids)


class Hdf5(Work):
    """an array of 256 kB of an HDF5 file, by h5py"""

    file = None

    def __init__(self, folder):
        import h5py

        self.path = f"{folder}/data.h5"
        values = np.random.default_rng(1).integers(0, 9, (64, 256, 256)).astype(np.float32)
        with h5py.File(self.path, "w") as file:
            file.create_dataset("x", data=values, chunks=(1, 256, 256), compression="gzip")

    def __getitem__(self, index):
        import h5py

        if self.file is None:
            self.file = h5py.File(self.path)
        return torch.from_numpy(self.file["x"][index % 64])


class Parquet(Work):
    """a row group of 10,000 rows of a Parquet file, by pyarrow"""

    def __init__(self, folder):
        import pyarrow
        import pyarrow.parquet

        self.path = f"{folder}/data.parquet"
        values = np.random.default_rng(1).normal(size=(8, 640_000)).astype(np.float32)
        columns = pyarrow.table({str(number): each for number, each in enumerate(values)})
        pyarrow.parquet.write_table(columns, self.path, row_group_size=10_000)

    def __getitem__(self, index):
        import pyarrow.parquet

        with pyarrow.parquet.ParquetFile(self.path) as file:
            rows = file.read_row_group(index % 64, use_threads=False)
        return torch.from_numpy(np.stack([column.to_numpy() for column in rows.columns]))


class Python(Work):
    """words counted by Python, which holds the interpreter's lock"""

    def __init__(self, folder):
        self.words = random.Random(1).choices(range(1000), k=20_000)

    def __getitem__(self, index):
        counts = {}
        for word in self.words:
            counts[word] = counts.get(word, 0) + index
        return torch.tensor([*counts.values()])


class Latency(Work):
    """something that lies 20 ms away"""

    def __getitem__(self, index):
        time.sleep(0.02)
        return torch.full((3, 32, 32), float(index))


class One(Work):
    """batches of one small sample: what a batch costs"""

    batch, length = 1, 2000

    def __getitem__(self, index):
        return torch.full((16,), float(index))


WORKS = {
    "pillow": Pillow,
    "torchvision": Torchvision,
    "opencv": OpenCV,
    "albumentations": Albumentations,
    "tokens": Tokens,
    "hdf5": Hdf5,
    "parquet": Parquet,
    "python": Python,
    "latency": Latency,
    "one": One,
}
NEED = {
    "pillow": "PIL",
    "torchvision": "torchvision",
    "opencv": "cv2",
    "albumentations": "albumentations",
    "tokens": "tokenizers",
    "hdf5": "h5py",
    "parquet": "pyarrow",
    "SPDL": "spdl",
    "torchdata.nodes": "torchdata",
    "Grain": "grain",
}


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


def once(loader, work, workers, start, folder):
    """Measure one in this process."""
    torch.set_num_threads(1)
    dataset = WORKS[work](folder)
    WORKS[work](folder)[0]  # what it imports
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


OURS = "lit_loader, threads"
FIGURES = ("samples a second", "ms of processor time a sample", "MiB added", "s to the first batch")


def beside(found, name, column):
    """Give a figure beside that of our threads in the same round: median, and the range."""
    ratios = [a[column] / b[column] for a, b in zip(found[name], found[OURS], strict=True)]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def measure(work, names, workers, start, rounds):
    """Give the figures of all, round for round."""
    found = {name: [] for name in names}
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            with tempfile.TemporaryDirectory() as folder:
                asked = json.dumps([name, work, workers, start, folder])
                command = [sys.executable, __file__, "--once", asked]
                printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            found[name].append(json.loads(printed.stdout.splitlines()[-1]))
    return found


def main():
    options = parser(__doc__, 3)
    options.add_argument("--work", nargs="+", default=[*WORKS], choices=WORKS)
    options.add_argument("--start", nargs="+", default=["fork", "spawn"])
    options.add_argument("--once", help="measure one loader, in this process")
    given = options.parse_args()
    if given.once:
        print(json.dumps(once(*json.loads(given.once))))
        return

    def has(name):
        return importlib.util.find_spec(NEED.get(name, "torch")) is not None

    rounds = 1 if given.quick else given.rounds
    works = [work for work in given.work if has(work)]
    for start in given.start:
        names = [name for name in LOADERS if has(name) and (start == "fork" or name not in NEED)]
        found = {work: measure(work, names, given.workers, start, rounds) for work in works}
        titles = {work: WORKS[work].__doc__ for work in works}
        for column, figure in enumerate(FIGURES):
            print(f"\n{figure}, {given.workers} workers, by {start}")
            rows = [
                [
                    titles[work],
                    *(statistics.median(row[column] for row in each[name]) for name in names),
                ]
                for work, each in found.items()
            ]
            table(["", *names], rows)
        for column in (0, 1):
            print(f"\n{FIGURES[column]} beside lit_loader's threads, by {start}")
            rows = [
                [titles[work], *(beside(each, name, column) for name in names)]
                for work, each in found.items()
            ]
            table(["", *names], rows)


if __name__ == "__main__":
    main()
