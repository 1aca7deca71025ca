"""Threads, processes and torch's loader on what samples are made of: where each wins.

    python examples/benchmark/threads.py [--rounds 3] [--start fork spawn] [--work jpeg] [--quick]

Each measurement is a process of its own, and the loaders take turns. Figures are samples per
second, CPU time, the memory that all processes add (PSS), and the time to the first batch.
``read_threads`` are 16 in each worker. HTTP is a local server that answers after 20 ms.
"""

import functools
import http.client
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import torch
from common import parser, table
from torch.utils.data import DataLoader, Dataset

import lit_loader

SHAPE = 3, 64, 64


class Work(Dataset):
    """Samples of some kind, in a folder."""

    batch, length = 32, 640

    def __init__(self, folder):
        self.folder = folder

    def __len__(self):
        return self.length


class Jpeg(Work):
    """JPEG of 512 x 384, decoded and resized by Pillow"""

    def __init__(self, folder):
        from PIL import Image

        file = io.BytesIO()
        Image.effect_noise((512, 384), 64).convert("RGB").save(file, "JPEG")
        self.data = file.getvalue()

    def __getitem__(self, index):
        from PIL import Image

        with Image.open(io.BytesIO(self.data)) as image:
            return torch.from_numpy(np.array(image.resize(SHAPE[1:])))


class Hdf5(Work):
    """HDF5, chunks of 256 kB with gzip, by h5py"""

    def __init__(self, folder):
        import h5py

        self.path, self.opened = f"{folder}/data.h5", {}
        with h5py.File(self.path, "w") as file:
            data = np.random.default_rng(0).integers(0, 9, (64, 4, 64, 256), np.int32)
            file.create_dataset("data", data=data, chunks=(1, 4, 64, 256), compression="gzip")

    def __getitem__(self, index):
        import h5py

        if os.getpid() not in self.opened:
            self.opened[os.getpid()] = h5py.File(self.path)["data"]
        return torch.from_numpy(self.opened[os.getpid()][index % 64])


class Memmap(Work):
    """NumPy memmap, samples of 48 kB"""

    length = 6400

    def __init__(self, folder):
        self.data = np.memmap(f"{folder}/data.bin", np.uint8, "w+", shape=(1024, *SHAPE, 4))

    def __getitem__(self, index):
        return torch.from_numpy(np.array(self.data[index * 37 % 1024]))


class Http(Work):
    """HTTP, 12 kB from a server 20 ms away"""

    def __init__(self, folder):
        self.port = int(Path(folder, "port").read_text())

    def __getitem__(self, index):
        kept = vars(_connections).setdefault("kept", {})
        if os.getpid() not in kept:
            kept[os.getpid()] = http.client.HTTPConnection("127.0.0.1", self.port)
        kept[os.getpid()].request("GET", f"/{index}")
        return torch.frombuffer(bytearray(kept[os.getpid()].getresponse().read()), dtype=torch.int8)


class Python(Work):
    """words counted by Python, which holds the GIL"""

    def __getitem__(self, index):
        counts = {}
        for number in range(20_000):
            counts[number % 997] = counts.get(number % 997, 0) + index
        return torch.tensor([*counts.values()])


_connections = threading.local()
WORKS = {kind.__name__.lower(): kind for kind in (Jpeg, Hdf5, Memmap, Http, Python)}
THREADS, READS = {"worker_method": "thread"}, {"read_threads": 16}
LOADERS = {
    "torch": DataLoader,
    "processes": lit_loader.DataLoader,
    "threads": functools.partial(lit_loader.DataLoader, **THREADS),
    "processes, read_threads": functools.partial(lit_loader.DataLoader, **READS),
    "threads, read_threads": functools.partial(lit_loader.DataLoader, **THREADS, **READS),
}


class Server(BaseHTTPRequestHandler):
    """Answers after 20 ms."""

    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # one packet, and no wait for its acknowledgement

    def do_GET(self):
        time.sleep(0.02)
        self.send_response(200)
        self.send_header("Content-Length", "12288")
        self.end_headers()
        self.wfile.write(bytes(12288))

    def log_message(self, *_):
        pass


def family(pid):
    """Return the ids of a process and those below it."""
    children = [Path(task, "children") for task in Path(f"/proc/{pid}/task").iterdir()]
    found = [int(child) for task in children for child in task.read_text().split()]
    return [pid, *(each for child in found for each in family(child))]


def pss():
    """Return MiB of memory; pages that processes share are divided among them."""
    lines = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in family(os.getpid())]
    return sum(int(each.partition("\nPss:")[2].split()[0]) for each in lines) / 1024


def once(loader, work, workers, start, folder):
    """Measure one loader, in this process."""
    torch.set_num_threads(1)
    dataset = WORKS[work](folder)
    dataset[0]  # what it imports
    options = {"num_workers": workers}
    options |= {} if loader.startswith("threads") else {"multiprocessing_context": start}
    before, cpu, began = pss(), time.process_time(), time.perf_counter()
    batches = iter(LOADERS[loader](dataset, dataset.batch, **options))
    next(batches)
    first = time.perf_counter() - began
    began, half = time.perf_counter(), len(dataset) // dataset.batch // 2
    for number, _ in enumerate(batches, 1):
        if number == half:
            looking = time.perf_counter()
            memory = pss() - before
            began += time.perf_counter() - looking
    took = time.perf_counter() - began
    del batches
    cpu = time.process_time() - cpu + sum(os.times()[2:4])  # of those that have ended
    return [number * dataset.batch / took, 1e3 * cpu / len(dataset), memory, first]


def measure(work, workers, start, rounds):
    """Return each loader's figures, round for round."""
    found = {name: [] for name in LOADERS}
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for number in range(rounds):
        names = [*LOADERS]
        for name in names[number % len(names) :] + names[: number % len(names)]:
            with tempfile.TemporaryDirectory() as folder:
                Path(folder, "port").write_text(str(server.server_port))
                asked = json.dumps([name, work, workers, start, folder])
                command = [sys.executable, __file__, "--once", asked]
                printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            found[name].append(json.loads(printed.stdout.splitlines()[-1]))
    server.shutdown()
    return found


def main():
    options = parser(__doc__, 3)
    options.add_argument("--work", nargs="+", default=[*WORKS], choices=WORKS)
    options.add_argument("--start", nargs="+", default=["fork"])
    options.add_argument("--once", help="measure one loader, in this process")
    given = options.parse_args()
    if given.once:
        print(json.dumps(once(*json.loads(given.once))))
        return
    head = ["", "samples/s", "times torch's", "ms CPU a sample", "MiB added", "s to first batch"]
    for start in given.start:
        for work in ["memmap"] if given.quick else given.work:
            found = measure(work, given.workers, start, 1 if given.quick else given.rounds)
            print(f"\n{WORKS[work].__doc__}; {given.workers} workers, by {start}")
            pairs = {name: zip(rows, found["torch"], strict=True) for name, rows in found.items()}
            ratio = {
                n: statistics.median(a[0] / b[0] for a, b in each) for n, each in pairs.items()
            }
            rows = {name: [*map(statistics.median, zip(*each))] for name, each in found.items()}  # noqa: B905
            table(head, [[n, each[0], ratio[n], *each[1:]] for n, each in rows.items()])


if __name__ == "__main__":
    main()
