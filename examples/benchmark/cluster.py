"""Measures remote workers beside Ray Data and bare ``ray.get``, on a cluster of this machine.

    python examples/benchmark/cluster.py [--workers 2] [--rounds 1] [--parts speed,resume,killed]
                                         [--cases small,large,jpeg,text]

The same dataset, batches and number of processors for each; the loaders take turns, each round in a
process of its own:

- ``lit_loader``: ``RayWorkers``, none on this side.
- ``bare``: actors that make the same batches, two in flight each; ``ray.get`` and one copy.
- ``ray_data``: ``iter_torch_batches`` of ``map_batches`` over the indices, by a pool of actors.
- ``ray_data, ordered``: the same with ``preserve_order``.

What a loader cannot do is done as its users would: bare actors are asked for the batches behind the
position that was noted, and Ray Data, which has no state, makes an epoch from its beginning, of
which what was seen is thrown away. Parts, medians over the rounds:

- ``speed``: milliseconds a batch in epochs after the second, behind an epoch's first; seconds from
  making the loader to its first batch; the wait between the first two epochs; processor
  milliseconds a batch of all processes of the machine, Ray's own among them, so that nothing else
  may run there; what went through object stores for each batch, and was spilled.
- ``resume``: the program ends at the half of an epoch of 200 batches, and another goes on. Counted
  is what the training would have seen: samples it never got (*lost*), got again (*twice*).
- ``killed``, ``silent``: of two nodes with processors one is killed at the half of such an epoch,
  all its processes at once; or it stops to answer, as without power. Bare actors are restarted by
  Ray here, as those of Ray Data are. ``silent`` takes minutes: Ray waits that long.

Needs the extra ray, ``pip install 'ray[data]' pydantic`` for Ray Data, and ``pip install grpcio``:
Ray tells by that what its object stores hold.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pickle
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter, defaultdict, deque
from itertools import islice
from pathlib import Path

import numpy as np
import psutil
import torch
from common import Block, table
from samples import augmented, jpeg_files
from torch.utils.data import Dataset, default_collate

import lit_loader

LONGEST = 150.0  # seconds that a measurement may take
UP = 60.0  # seconds that nodes have to come up
ACTORS = ("RemoteWorker", "MapWorker", "Making")  # Ray Data has others besides
WARM, EPOCHS = 2, 3


class Images(Dataset):
    """JPEG images, decoded and augmented, each behind its index."""

    def __init__(self, length):
        self.length, self.files = length, jpeg_files()

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return index, augmented(self.files[index % len(self.files)])


class Texts(Dataset):
    """Text of Python's standard library; a word or sign is a token."""

    def __init__(self, length):
        self.length = length
        text = Path(argparse.__file__).read_text(encoding="utf-8")
        self.texts = [text[i : i + 3000] for i in range(0, len(text) - 3000, 3000)]

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        words = re.findall(r"\w+|[^\w\s]", self.texts[index % len(self.texts)].lower())[:512]
        found = [1 + zlib.crc32(word.encode()) % 50_000 for word in words]
        return torch.tensor(found + [0] * (512 - len(found)))


# What it is called, its dataset of so many samples, these, samples a batch.
CASES = {
    "small": ("2 kB", lambda length: Block(length, 2048), 400, 1),
    "large": ("19 MB", lambda length: Block(length, 19 << 20), 60, 1),
    "jpeg": ("16 JPEG files 500x375", Images, 800, 16),
    "text": ("16 texts of 512 tokens", Texts, 3200, 16),
    "numbered": ("the JPEG files of resume and killed", Images, 3200, 16),
}
NUMBERED = "numbered"


def ids(batch):
    """The indices of a batch of the case "numbered", of any loader."""
    return [int(index) for index in (batch["0"] if isinstance(batch, dict) else batch[0])]


# --- the loaders: epoch, state, resume ---


def collated(dataset, indices):
    """Make a batch as the default collate does; arrays by name."""
    batch = default_collate([dataset[int(index)] for index in indices])
    parts = batch if isinstance(batch, (tuple, list)) else [batch]
    return {str(place): part.numpy() for place, part in enumerate(parts)}


class Making:
    """What an actor of the others is: it makes batches."""

    def __init__(self, case):
        torch.set_num_threads(1)
        _, make, length, self.size = CASES[case]
        self.dataset = make(length)

    def make(self, number):
        return collated(self.dataset, range(number * self.size, (number + 1) * self.size))

    def __call__(self, rows):  # for Ray Data
        return collated(self.dataset, rows["id"])


class Ours:
    """`lit_loader.DataLoader`: remote workers, none on this side."""

    def __init__(self, case, workers, address):
        _, make, length, size = CASES[case]
        self.loader = lit_loader.DataLoader(
            make(length), size, persistent_workers=True,
            remote=lit_loader.RayWorkers(num_workers=workers, address=address),
        )  # fmt: skip

    def epoch(self):
        return iter(self.loader)

    def state(self, batches):
        return self.loader.state_dict()

    def resume(self, state):
        self.loader.load_state_dict(state)


class Counted:
    """A loader without a state: its user keeps how many batches there were."""

    def __init__(self, address):
        import ray

        ray.init(address=address, log_to_driver=False)
        self.first = 0

    def state(self, batches):
        return batches

    def resume(self, state):
        self.first = state

    def begin(self):
        first, self.first = self.first, 0
        return first


class Bare(Counted):
    """Actors that make the same batches, two in flight each; ``ray.get`` and a copy."""

    def __init__(self, case, workers, address, survives):
        import ray

        super().__init__(address)
        _, _, length, size = CASES[case]
        self.batches = length // size
        again = -1 if survives else 0
        actor = ray.remote(
            num_cpus=1, max_restarts=again, max_task_retries=again, scheduling_strategy="SPREAD"
        )(Making)
        self.actors = [actor.remote(case) for _ in range(workers)]

    def epoch(self):
        import ray

        waiting = deque()
        numbers = iter(range(self.begin(), self.batches))
        for number in numbers:
            waiting.append(self.actors[number % len(self.actors)].make.remote(number))
            if len(waiting) == 2 * len(self.actors):
                yield copied(ray.get(waiting.popleft()))
        while waiting:
            yield copied(ray.get(waiting.popleft()))


def copied(batch):
    return {name: torch.from_numpy(np.array(part)) for name, part in batch.items()}


class RayData(Counted):
    """``iter_torch_batches`` of ``map_batches`` over the indices, by a pool of actors."""

    def __init__(self, case, workers, address, ordered):
        import ray

        super().__init__(address)
        context = ray.data.DataContext.get_current()
        context.execution_options.preserve_order = ordered
        context.enable_progress_bars = False
        _, _, length, self.size = CASES[case]
        self.data = ray.data.range(length).map_batches(
            Making,
            fn_constructor_args=(case,),
            batch_size=self.size,
            compute=ray.data.ActorPoolStrategy(size=workers),
            num_cpus=1,
        )

    def epoch(self):
        return islice(iter(self.data.iter_torch_batches(batch_size=self.size)), self.begin(), None)


LOADERS = {
    "lit_loader": lambda case, workers, address, survives: Ours(case, workers, address),
    "bare": Bare,
    "ray_data": lambda case, workers, address, survives: RayData(case, workers, address, False),
    "ray_data, ordered": lambda case, workers, address, _: RayData(case, workers, address, True),
}


# --- what is measured, each time in a process of its own ---


def speed(loader, workers, address, case):
    """The first two epochs are not counted but for their beginnings."""
    began = time.perf_counter()
    used = LOADERS[loader](case, workers, address, False)
    batches = used.epoch()
    next(batches)
    first = time.perf_counter() - began
    deque(batches, maxlen=0)
    ended = time.perf_counter()
    batches = used.epoch()
    next(batches)
    edge = time.perf_counter() - ended
    deque(batches, maxlen=0)  # the relay compares a first batch, for which it imports torch
    times, count, processor = [], 0, processor_seconds()
    for _ in range(EPOCHS):
        batches = used.epoch()
        next(batches)
        began = time.perf_counter()
        others = sum(1 for _ in batches)
        times.append((time.perf_counter() - began) / others)
        count += 1 + others
    spent = processor_seconds() - processor
    return {
        "ms a batch": 1e3 * statistics.median(times),
        "first batch, s": first,
        "epoch edge, ms": 1e3 * edge,
        "processor, ms a batch": 1e3 * spent / count,
    }


def tally(seen):
    """What is wrong with an epoch in order."""
    length, count = CASES[NUMBERED][2], Counter(seen)
    return {
        "lost": sum(index not in count for index in range(length)),
        "twice": len(seen) - len(count),
        "in order": "yes" if seen == sorted(seen) else "no",
    }


def begin(loader, workers, address, file):
    """Have half of an epoch, and write down what is needed to go on."""
    _, _, length, size = CASES[NUMBERED]
    half = length // size // 2
    used = LOADERS[loader](NUMBERED, workers, address, False)
    seen = [index for batch in islice(used.epoch(), half) for index in ids(batch)]
    Path(file).write_bytes(pickle.dumps((seen, used.state(half))))
    return {}


def go_on(loader, workers, address, file):
    """Have the other half, in another process."""
    seen, state = pickle.loads(Path(file).read_bytes())
    began = time.perf_counter()
    used = LOADERS[loader](NUMBERED, workers, address, False)
    used.resume(state)
    batches = used.epoch()
    seen += ids(next(batches))
    first = time.perf_counter() - began
    waits(batches, seen)
    return {"next batch, s": first, **tally(seen)}


def node_lost(loader, workers, address, silent, *nodes):
    """Lose one of these nodes, that with most actors, at the half of the second epoch."""
    _, _, length, size = CASES[NUMBERED]
    used = LOADERS[loader](NUMBERED, workers, address, True)
    before = max(waits(used.epoch(), [])[1:])
    seen, batches = [], used.epoch()
    for batch in islice(batches, length // size // 2):
        seen += ids(batch)
    victim = max(map(int, nodes), key=actors_of)
    had, ended = actors_of(victim), "-"
    lose(victim, silent == "silent")
    try:
        stall = max(waits(batches, seen))
    except Exception as error:
        stall, ended = float("nan"), type(error).__name__
    return {
        "actors on it": had,
        "longest wait before, s": before,
        "longest wait after, s": stall,
        **tally(seen),
        "ended by": ended,
    }


def waits(batches, seen):
    """Take batches of the case "numbered"; the seconds that each was waited for."""
    found, since = [], time.perf_counter()
    for batch in batches:
        found.append(time.perf_counter() - since)
        seen += ids(batch)
        since = time.perf_counter()
    return [*found, time.perf_counter() - since]


ONE = {"speed": speed, "begin": begin, "go on": go_on, "lost": node_lost}


# --- a cluster of nodes on this machine, and what they have used ---


class Node:
    """``ray start --block``, with all below it."""

    def __init__(self, *options):
        command = [str(Path(sys.executable).with_name("ray")), "start", "--block", *options]
        self.process = subprocess.Popen(
            [*command, "--object-store-memory=1000000000", "--disable-usage-stats"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.pid = self.process.pid

    def end(self):
        """End it, whatever has become of it, and all that it has started."""
        lose(self.pid, silent=False)
        self.process.wait()


def processes_of(pid):
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return []


def actors_of(pid):
    """How many processes of a node make batches."""
    count = 0
    for each in processes_of(pid):
        with contextlib.suppress(psutil.Error):
            name = (each.cmdline() or [""])[0]
            count += name.startswith("ray::") and any(actor in name for actor in ACTORS)
    return count


def lose(pid, silent):
    """Kill all processes of a node at once; or only stop them, so that nothing answers."""
    found = processes_of(pid)
    # Stopped first: none of them is to see the others die, and say so.
    for number in (signal.SIGSTOP,) if silent else (signal.SIGSTOP, signal.SIGKILL):
        for each in found:
            with contextlib.suppress(psutil.Error):
                each.send_signal(number)


def processor_seconds():
    """Processor seconds of all processes of this machine since it began.

    Not of a node's alone: those that have ended are counted nowhere else, and Ray Data's actors end
    with each epoch.
    """
    times = psutil.cpu_times()
    return sum(getattr(times, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq"))


def store_of(address):
    """Bytes that object stores have taken in, and spilled for want of room, since they began.

    By functions of Ray's own, those of ``ray memory``: there are no public ones that give numbers.
    """
    from ray._private.internal_api import node_stats

    created = spilled = 0
    for node in alive(address):
        place = node["NodeManagerAddress"], node["NodeManagerPort"]
        stats = node_stats(*place, include_memory_info=False).store_stats
        created += stats.cumulative_created_bytes
        spilled += stats.spilled_bytes_total
    return created, spilled


def alive(address):
    from ray._private.internal_api import get_state_from_address

    state = get_state_from_address(address)
    try:
        return [node for node in state.node_table() if node["Alive"]]
    finally:
        state.disconnect()


@contextlib.contextmanager
def cluster(folder, cpus, *others):
    """Have a cluster: its address, and its nodes, the head first.

    `folder` is where Ray keeps its files, a short path; the rest are processors of head and nodes.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"127.0.0.1:{port}"
    head = ("--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={folder}")
    nodes = [Node(*head, "--node-ip-address=127.0.0.1", f"--num-cpus={cpus}")]
    try:
        wait_for(address, 1)
        for each in others:  # one after the other: at once, two of them may choose the same names
            nodes.append(Node(f"--address={address}", f"--num-cpus={each}"))
            wait_for(address, len(nodes))
        yield address, nodes
    finally:
        for node in reversed(nodes):
            node.end()


def wait_for(address, count):
    """Wait until so many nodes are there."""
    host, _, port = address.rpartition(":")
    until = time.monotonic() + UP
    while time.monotonic() < until:
        # Ray's own client of the head would wait for one that is not there.
        with contextlib.suppress(OSError):
            socket.create_connection((host, int(port)), 1).close()
            with contextlib.suppress(Exception):
                if len(alive(address)) >= count:
                    return
        time.sleep(0.2)
    sys.exit(f"a cluster of {count} nodes did not come up in {UP:.0f} s: try ray start --head")


# --- the program ---


def measure(args, what, loader, *rest):
    """Measure once, in a process of its own; None: it failed, which is said."""
    command = [sys.executable, __file__, "--workers", str(args.workers), "--one", what, loader]
    try:
        done = subprocess.run(
            [*command, *rest], capture_output=True, text=True, check=False, timeout=LONGEST
        )
    except subprocess.TimeoutExpired:
        print(f"{what}, {loader}: not over after {LONGEST:.0f} s", file=sys.stderr)
        return None
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        print(f"{what}, {loader}: {lines[-1] if lines else 'failed'}", file=sys.stderr)
        return None
    return json.loads(done.stdout.strip().splitlines()[-1])


def show(title, found):
    """Print a table: a row a loader, medians of numbers, and all that differs of words."""
    names = list(dict.fromkeys(name for rounds in found.values() for one in rounds for name in one))
    rows = []
    for loader, rounds in found.items():
        columns = [[one[name] for one in rounds] for name in names]
        words = [isinstance(values[0], str) for values in columns]
        cells = zip(columns, words, strict=True)
        rows.append(
            [
                loader,
                *("; ".join(dict.fromkeys(v)) if w else statistics.median(v) for v, w in cells),
            ]
        )
    print()
    table([title, *names], rows)


def part_speed(args, folder):
    with cluster(folder, args.workers + 1) as (address, _):
        for case in args.cases.split(","):
            found = defaultdict(list)
            for _ in range(args.rounds):
                for loader in args.loaders.split(";"):
                    before = store_of(address)
                    one = measure(args, "speed", loader, address, case)
                    if one is None:
                        continue
                    created, spilled = (
                        b - a for a, b in zip(before, store_of(address), strict=True)
                    )
                    _, _, length, size = CASES[case]
                    batches = (WARM + EPOCHS) * (length // size)
                    one["objects, MB a batch"] = created / 1e6 / batches
                    one["spilled, MB"] = spilled / 1e6
                    found[loader].append(one)
            show(CASES[case][0], found)


def part_resume(args, folder):
    found = defaultdict(list)
    with cluster(folder, args.workers + 1) as (address, _):
        for _ in range(args.rounds):
            for loader in args.loaders.split(";"):
                file = str(Path(folder) / "state")
                if measure(args, "begin", loader, address, file) is not None:
                    one = measure(args, "go on", loader, address, file)
                    found[loader] += [] if one is None else [one]
    show("resumed at the half", found)


def part_lost(args, folder, what):
    found = defaultdict(list)
    for turn in range(args.rounds):
        for place, loader in enumerate(args.loaders.split(";")):
            own = Path(folder) / f"{turn}{place}"
            own.mkdir()
            with cluster(str(own), 0, args.workers, args.workers) as (address, nodes):
                pids = [str(node.pid) for node in nodes[1:]]
                one = measure(args, "lost", loader, address, what, *pids)
                found[loader] += [] if one is None else [one]
    show(f"a node is {what} at the half", found)


PARTS = {
    "speed": part_speed,
    "resume": part_resume,
    "killed": lambda args, folder: part_lost(args, folder, "killed"),
    "silent": lambda args, folder: part_lost(args, folder, "silent"),
}


def main():
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--workers", type=int, default=2, help="remote workers of each loader (2)")
    options.add_argument("--rounds", type=int, default=1, help="rounds (1)")
    options.add_argument("--parts", default="speed,resume,killed")
    options.add_argument("--cases", default=",".join(case for case in CASES if case != NUMBERED))
    options.add_argument("--loaders", default=";".join(LOADERS))
    options.add_argument("--one", nargs="+", help=argparse.SUPPRESS)
    args = options.parse_args()
    if args.one:
        what, loader, address, *rest = args.one
        print(json.dumps(ONE[what](loader, args.workers, address, *rest)), flush=True)
        os._exit(0)  # Ray Data's threads need not be waited for
    os.environ["RAY_AUTH_MODE"] = "disabled"  # or a token of the user's is asked for
    here = str(Path(__file__).parent)  # where actors find what is pickled by its name
    os.environ["PYTHONPATH"] = os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])
    for part in args.parts.split(","):
        with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
            PARTS[part](args, folder)


if __name__ == "__main__":
    from cluster import main  # so that what is pickled is not in __main__

    main()
