"""Measures remote workers beside Ray Data and bare ``ray.get``, on a cluster of this machine.

    python -m lit_loader.bench.cluster [--workers 2] [--rounds 2] [--cases small,large,jpeg,text]

The same dataset, batches and number of processors for each; the loaders take turns, each round in a
process of its own:

- ``lit_loader``: ``remote_workers``, none on this side.
- ``bare``: actors that make the same batches, two in flight each; ``ray.get`` and one copy.
- ``ray_data``: ``iter_torch_batches`` of ``map_batches`` over the indices, by a pool of actors.
- ``ray_data, ordered``: the same with ``preserve_order``.

Medians over the rounds: milliseconds a batch in epochs after the second; seconds from making the
loader to its first batch; the wait between the first two epochs; processor milliseconds a batch of
all processes, Ray's own among them.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import torch

from lit_loader.bench.data.datasets import Block
from lit_loader.bench.data.decoders import JpegImages, Texts

__all__ = ["main"]

LOADERS: Final = ("lit_loader", "bare", "ray_data", "ray_data, ordered")
CASES: Final[dict[str, tuple[str, Callable[[int], Any], int, int]]] = {
    "small": ("2 kB", lambda length: Block(length, 2048), 400, 1),
    "large": ("19 MB", lambda length: Block(length, 19 << 20), 60, 1),
    "jpeg": ("16 JPEG files 500x375", JpegImages, 800, 16),
    "text": ("16 texts of 512 tokens", lambda length: Texts(length, 512), 3200, 16),
}
"""What it is called, its dataset of so many samples, these, samples a batch."""

_EPOCHS: Final = 3

FIGURES: Final = ("ms a batch", "first batch, s", "epoch edge, ms", "processor, ms a batch")


def collated(dataset: Any, indices: Any) -> dict[str, Any]:
    """Make a batch as the default collate does; arrays by name."""
    batch = torch.utils.data.default_collate([dataset[int(index)] for index in indices])
    parts = batch if isinstance(batch, (tuple, list)) else [batch]
    return {str(place): part.numpy() for place, part in enumerate(parts)}


class Making:
    """What an actor of the others is: it makes batches."""

    def __init__(self, case: str) -> None:
        torch.set_num_threads(1)
        _, make, length, self._size = CASES[case]
        self._dataset = make(length)

    def make(self, number: int) -> dict[str, Any]:
        """Make the batch with this number."""
        return collated(self._dataset, range(number * self._size, (number + 1) * self._size))

    def __call__(self, rows: dict[str, Any]) -> dict[str, Any]:
        """Make the batch of these rows, for Ray Data."""
        return collated(self._dataset, rows["id"])


def ours(case: str, workers: int, address: str) -> Iterator[Iterator[Any]]:
    """Give epochs of `lit_loader.DataLoader`."""
    from lit_loader.config.ray_workers import RayWorkers
    from lit_loader.loader import DataLoader

    _, make, length, size = CASES[case]
    options: dict[str, Any] = {"remote_workers": workers, "remote": RayWorkers(address=address)}
    with DataLoader(make(length), size, persistent_workers=True, **options) as loader:
        while True:
            yield iter(loader)


def bare(case: str, workers: int, address: str) -> Iterator[Iterator[Any]]:
    """Give epochs of actors, ``ray.get`` and a copy."""
    import ray

    ray.init(address=address, log_to_driver=False)
    _, _, length, size = CASES[case]
    actors = [ray.remote(num_cpus=1)(Making).remote(case) for _ in range(workers)]

    def epoch() -> Iterator[Any]:
        numbers = iter(range(length // size))
        waiting: collections.deque[Any] = collections.deque()
        for number in numbers:
            waiting.append(actors[number % workers].make.remote(number))
            if len(waiting) == 2 * workers:
                yield _copied(ray.get(waiting.popleft()))
        while waiting:
            yield _copied(ray.get(waiting.popleft()))

    while True:
        yield epoch()


def _copied(batch: dict[str, Any]) -> dict[str, Any]:
    return {name: torch.from_numpy(np.array(part)) for name, part in batch.items()}


def ray_data(case: str, workers: int, address: str, ordered: bool) -> Iterator[Iterator[Any]]:
    """Give epochs of Ray Data."""
    import ray

    ray.init(address=address, log_to_driver=False)
    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = ordered
    context.enable_progress_bars = False
    _, _, length, size = CASES[case]
    data = ray.data.range(length).map_batches(
        Making,
        fn_constructor_args=(case,),
        batch_size=size,
        compute=ray.data.ActorPoolStrategy(size=workers),
        num_cpus=1,
    )
    while True:
        yield iter(data.iter_torch_batches(batch_size=size))


def measured(loader: str, case: str, workers: int, address: str, head: int) -> dict[str, float]:
    """Measure a loader once."""
    began = time.perf_counter()
    if loader == "lit_loader":
        epochs = ours(case, workers, address)
    elif loader == "bare":
        epochs = bare(case, workers, address)
    else:
        epochs = ray_data(case, workers, address, loader.endswith("ordered"))
    batches = next(epochs)
    next(batches)
    first = time.perf_counter() - began
    for _ in batches:
        pass
    ended = time.perf_counter()
    batches = next(epochs)
    next(batches)
    edge = time.perf_counter() - ended
    for _ in batches:  # the relay compares a first batch, for which it imports torch
        pass
    times, count, processor = [], 0, _processor(head)
    for _ in range(_EPOCHS):
        began, before = time.perf_counter(), count
        for _ in next(epochs):
            count += 1
        times.append((time.perf_counter() - began) / (count - before))
    used = _processor(head) - processor
    figures = (1e3 * statistics.median(times), first, 1e3 * edge, 1e3 * used / count)
    return dict(zip(FIGURES, figures, strict=True))


def _processor(head: int) -> float:
    """Processor seconds of this process and the cluster's, with all below them."""
    import psutil

    seconds = 0.0
    for root in (os.getpid(), head):
        process = psutil.Process(root)
        for each in (process, *process.children(recursive=True)):
            try:
                times = each.cpu_times()
            except psutil.Error:
                continue
            seconds += times.user + times.system
    return seconds


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=2, help="remote workers of each loader (2)")
    parser.add_argument("--rounds", type=int, default=2, help="rounds (2)")
    parser.add_argument("--cases", default=",".join(CASES), help="names, with commas (all)")
    parser.add_argument("--loaders", default=";".join(LOADERS), help="names, with semicolons (all)")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        loader, case, address, head = args.one
        figures = measured(loader, case, args.workers, address, int(head))
        print(json.dumps(figures), flush=True)
        os._exit(0)  # Ray Data's threads need not be waited for
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        command = ["ray", "start", "--head", "--block", f"--port={address.rpartition(':')[2]}"]
        command += ["--node-ip-address=127.0.0.1", f"--num-cpus={args.workers + 1}"]
        command += ["--object-store-memory=1000000000", "--include-dashboard=false"]
        command += ["--disable-usage-stats", f"--temp-dir={folder}"]
        head = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            _wait_for(address)
            _compare(args, address, head.pid)
        finally:
            head.terminate()
            head.wait()


def _wait_for(address: str) -> None:
    command = [sys.executable, "-c", "import ray, sys; ray.init(sys.argv[1])", address]
    for _ in range(20):
        if subprocess.run(command, capture_output=True, check=False).returncode == 0:
            return
    sys.exit("the cluster did not come up: ray start --head")


def _compare(args: argparse.Namespace, address: str, head: int) -> None:
    print(f"| {args.workers} workers | " + " | ".join(FIGURES) + " |")
    print("| --- | " + " | ".join(["---:"] * len(FIGURES)) + " |")
    for case in args.cases.split(","):
        found: dict[str, list[dict[str, float]]] = collections.defaultdict(list)
        for _ in range(args.rounds):
            for loader in args.loaders.split(";"):
                command = [sys.executable, "-m", "lit_loader.bench.cluster", "--workers"]
                command += [str(args.workers), "--one", loader, case, address, str(head)]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode:
                    lines = done.stderr.strip().splitlines()
                    print(f"{case}, {loader}: {lines[-1] if lines else 'failed'}", file=sys.stderr)
                    continue
                found[loader].append(json.loads(done.stdout.strip().splitlines()[-1]))
        for loader, rounds in found.items():
            medians = (statistics.median(each[name] for each in rounds) for name in FIGURES)
            cells = " | ".join(f"{median:,.3g}" for median in medians)
            print(f"| {CASES[case][0]}: {loader} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
