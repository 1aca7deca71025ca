"""Soak: processes are killed all the time, and nothing is lost, nothing is wrong, nothing grows.

    export LIT_LOADER_SOAK_SECONDS=1200
    pytest -m slow -n 0 -s -o faulthandler_timeout=0 tests/faults/test_soak.py

Loaders of every kind run at the same time, each in a thread of its own; they are resized, closed,
resumed. What they yield is compared with what they yielded before the first fault. Meanwhile
another thread strikes a worker or the fork server every few hundred milliseconds, and others take
locks, so that forks copy locks in any state. What is drawn comes from ``LIT_LOADER_SOAK_SEED``.
"""

import collections
import contextlib
import gc
import logging
import os
import pickle
import random
import re
import signal
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch.utils.data import IterableDataset

import lit_loader
from lit_loader import DataLoader
from lit_loader.errors import LoaderError, WorkerRestartWarning
from tests.support.faults import Noisy, StatefulStream, plain
from tests.support.remote_threads import ThreadWorkers

SECONDS = float(os.environ.get("LIT_LOADER_SOAK_SECONDS", "1200"))
SEED = int(os.environ.get("LIT_LOADER_SOAK_SEED", "0"))
WORKERS, EPOCHS, TIMEOUT = 2, 5, 1.0
STRIKES: dict[Any, int] = {
    **{signal.SIGKILL: 35, signal.SIGSEGV: 15, signal.SIGABRT: 9, signal.SIGSTOP: 10},
    **{signal.SIGTERM: 2, signal.SIGHUP: 2, signal.SIGTSTP: 2},  # these are the parent's affair
    "fork server": 3,
}
"""What strikes how often; signals meet a worker, the fork server is killed by SIGKILL."""

TWICE = r"Batch (\d+) has ended 2 workers in a row and is not tried again"
ALLOWED = re.compile(f"{TWICE}|fork server, which starts it, was killed|the loader was closed")
"""Errors that are right where faults follow each other; what comes after them goes on."""

LIBRARY = threading.Lock()
"""A library's, which other threads have now and then while workers are forked."""


class Own(Noisy):
    """Draws from `get_rng`, so that it is exact in threads too."""

    def __getitem__(self, index: int) -> Any:
        rng = lit_loader.get_rng()
        return {"index": index, "noise": torch.from_numpy(rng.random((self.width,)))}


class Decoded(Noisy):
    """Read by a library with a lock: forked at the wrong moment, a worker waits forever."""

    def __getitem__(self, index: int) -> Any:
        with LIBRARY:
            return super().__getitem__(index)


class Lane:
    """A loader after the other, each iterated for some epochs; compared with the first of all.

    Up to ``hold`` batches are kept, and looked at again when they are let go. ``act`` is done to
    the loader before one batch in twenty; before one in a hundred the position is saved and loaded,
    and another iterator goes on.
    """

    def __init__(
        self, name: str, dataset: Any, hold: int = 2,
        act: Callable[["Lane", Any], object] = lambda lane, loader: None, **options: Any,
    ) -> None:  # fmt: skip
        self.name, self.dataset, self.hold, self.act = name, dataset, hold, act
        self.options = {"batch_size": 4, "seed": 7, "num_workers": WORKERS, **options}
        if self.options["num_workers"] and "worker_method" not in options:
            self.options = {
                "persistent_workers": True, "multiprocessing_context": "fork", "timeout": TIMEOUT,
                "max_worker_restarts": 10**6, **self.options,
            }  # fmt: skip
        self.rng = random.Random(f"{SEED} {name}")
        self.count: collections.Counter[str] = collections.Counter()
        self.loader: Any = None
        self.failure = ""
        with self.made() as loader:  # what every epoch should give
            self.expected = []
            for epoch in range(EPOCHS):
                loader.set_epoch(epoch)
                self.expected.append([plain(batch) for batch in loader])

    @contextlib.contextmanager
    def made(self) -> Any:
        """A loader; each has remote workers of its own."""
        options = dict(self.options)
        with tempfile.TemporaryDirectory() as folder:
            if self.name == "remote":
                options |= {"remote": ThreadWorkers(folder, num_workers=2)}
            with DataLoader(self.dataset, **options) as loader:
                yield loader

    def run(self, over: threading.Event) -> None:
        """Iterate until the time is over."""
        try:
            while not over.is_set():
                with self.made() as self.loader:
                    for epoch in sorted(self.rng.sample(range(EPOCHS), 3)):
                        if not over.is_set():
                            self.epoch(self.loader, epoch, over)
        except BaseException:
            self.failure = f"{self.name}: {traceback.format_exc()}"
            over.set()
        self.loader = None

    def epoch(self, loader: Any, epoch: int, over: threading.Event) -> None:
        """Go through an epoch, or leave it in the middle."""
        loader.set_epoch(epoch)
        expected = self.expected[epoch]
        last = self.rng.randrange(len(expected)) if self.rng.random() < 0.2 else None
        found, held, given_up = [], collections.deque[tuple[Any, Any]](), set[int]()
        iterator = iter(loader)
        while len(found) != last and not over.is_set():
            if self.rng.random() < 0.05:
                self.act(self, loader)
            # One that has yielded a single batch may not count yet.
            if len(found) > 1 and self.rng.random() < 0.01:
                loader.load_state_dict(pickle.loads(pickle.dumps(loader.state_dict())))
                iterator = iter(loader)
            try:
                batch = next(iterator)
            except StopIteration:
                break
            except LoaderError as error:
                assert ALLOWED.search(str(error)), error
                if twice := re.findall(TWICE, str(error)):
                    given_up |= {*map(int, twice)}
                    self.count["struck twice"] += 1
                    continue
                last = len(found)
                break
            found.append(plain(batch))
            held.append((batch, found[-1]))
            while len(held) > self.rng.randint(0, self.hold):
                kept, before = held.popleft()
                assert plain(kept) == before, "what was kept has changed"
        # A stream begins its reader again at such a batch; of others it is left out.
        left_out = set() if isinstance(self.dataset, IterableDataset) else given_up
        wanted = [batch for number, batch in enumerate(expected) if number not in left_out]
        complete = last is None and not over.is_set()
        if self.options.get("in_order", True):
            right = found == (wanted if complete else wanted[: len(found)])
        else:
            more, less = (collections.Counter(map(repr, each)) for each in (found, wanted))
            right = not more - less and (not complete or more == less)
        assert right, f"epoch {epoch} is another: {len(found)} of {len(wanted)} batches"
        self.count["epochs"] += 1


def resize(lane: Lane, loader: Any) -> None:
    loader.resize(lane.rng.randint(1, 2 * WORKERS))


def close(lane: Lane, loader: Any) -> None:
    """By another thread, while it is iterated."""
    threading.Timer(0.1 * lane.rng.random(), loader.close).start()


def lanes(*names: str) -> list[Lane]:
    images, stream, shuffle = Noisy(160, 50), StatefulStream(160, 50), {"shuffle": True}
    made: dict[str, tuple[Any, dict[str, Any]]] = {
        "persistent": (images, shuffle),
        "fresh": (images, {"persistent_workers": False, "seeding": "sample", **shuffle}),
        "stream": (stream, {}),
        "unordered": (images, {"in_order": False, **shuffle}),
        "large": (Noisy(24, 625_000), shuffle),  # a batch is 10 MB
        "held": (Noisy(160, 5_000), {"hold": 30, "prefetch_factor": 4, **shuffle}),
        "in process": (images, {"num_workers": 0, "hold": 20, **shuffle}),
        "fork server": (images, {"multiprocessing_context": "forkserver", **shuffle}),
        "auto": (images, {"num_workers": "auto", **shuffle}),
        "resized": (images, {"act": resize, **shuffle}),
        "shards, resized": (stream, {"num_shards": 6, "act": resize}),
        "remote": (images, shuffle),
        "threads": (Own(160, 50), {"worker_method": "thread", "act": resize, **shuffle}),
        "a lock": (Decoded(160, 50), {"persistent_workers": False, **shuffle}),
        "closed": (images, {"act": close, **shuffle}),
    }
    return [Lane(name, made[name][0], **made[name][1]) for name in names or made]


def disturb(over: threading.Event) -> None:
    """What a training program's other threads may be at while workers are forked."""
    handler = logging.Handler()  # with a lock, as each has; what it writes is kept nowhere
    handler.emit = handler.format  # type: ignore[assignment, method-assign]
    log = logging.Logger("lit_loader.tests.soak")
    log.addHandler(handler)
    matrix = torch.ones(120, 120)  # a draw would be one of the lane in this process
    while not over.wait(0.001):
        matrix @ matrix
        log.warning("%s", "." * 500)
        with LIBRARY:
            sum(range(2_000))


def strike(targets: list[Lane], over: threading.Event) -> None:
    """Strike until the time is over."""
    rng = random.Random(SEED)
    kinds, weights = zip(*STRIKES.items(), strict=True)
    while not over.wait(rng.uniform(0.1, 0.5)):
        lane, [kind] = rng.choice(targets), rng.choices(kinds, weights)
        # A pool changes meanwhile, or ends: then there is nothing to strike.
        with contextlib.suppress(OSError, ValueError, LookupError, AttributeError, TypeError):
            if kind == "fork server":
                pid = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
                os.kill(pid, signal.SIGKILL)
            else:
                keeper = lane.loader._core.keeper
                pools = [run.workers for run in keeper.alive() if getattr(run, "workers", None)]
                process = rng.choice((pools or [keeper.pool])[0].processes)
                signal.pidfd_send_signal(process.sentinel, kind)


def left_over() -> collections.Counter[str]:
    """Descriptors of this process by their kind, and all that were forked from it and live."""
    kinds: collections.Counter[str] = collections.Counter()
    for file in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the folder's own
            kinds[re.sub(r"\d+", "", os.readlink(file))] += 1
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            ours = os.getpgid(pid) == os.getpgrp() and pid != os.getpid()
            if ours and "memfd:lit_loader " in Path(f"/proc/{pid}/maps").read_text():
                kinds[f"process {pid}"] += 1
    return kinds


def memory() -> int:
    """Bytes that this process has for itself, and those of the files in memory it has open."""
    anonymous = re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    shared = {}
    for file in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if os.readlink(file).startswith(("/memfd:", "/dev/shm")):
                shared[file.stat().st_ino] = file.stat().st_blocks * 512
    return (int(anonymous[1]) * 1024 if anonymous else 0) + sum(shared.values())


@pytest.fixture(autouse=True)
def own_group() -> Iterator[None]:
    """A process group of its own: the workers of tests that run meanwhile are not looked at."""
    forkserver._forkserver._stop()  # type: ignore[attr-defined]
    group = os.getpgrp()
    with contextlib.suppress(PermissionError):  # it leads a session
        os.setpgid(0, 0)
    yield
    with contextlib.suppress(PermissionError):  # it does, or that group is gone
        os.setpgid(0, group)


@pytest.mark.parametrize("name", ["resized", "shards, resized"])
def test_for_a_moment(name: str) -> None:
    soak(1.0, lanes(name))


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 900)
def test_soak() -> None:
    found = soak(SECONDS, lanes())
    quarter = len(found) // 4
    first, last = sorted(found[1 : 1 + quarter]), sorted(found[-quarter:])
    assert last[len(last) // 2] <= first[len(first) // 2] + (192 << 20)


def soak(seconds: float, targets: list[Lane]) -> list[int]:
    """Let lanes run, and see that nothing is lost and nothing left; return the memory in use."""
    print(f"\nLIT_LOADER_SOAK_SEED={SEED}")
    gc.collect()
    before, over, found = left_over(), threading.Event(), [memory()]
    end = time.monotonic() + seconds
    with_workers = [lane for lane in targets if "max_worker_restarts" in lane.options]
    threads = [threading.Thread(target=lane.run, args=(over,)) for lane in targets]
    threads.append(threading.Thread(target=strike, args=(with_workers, over)))
    threads.append(threading.Thread(target=disturb, args=(over,)))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for thread in threads:
            thread.start()
        while time.monotonic() < end and not over.wait(max(0.5, seconds / 100)):
            found.append(memory())
        over.set()
        for thread in threads:
            thread.join()
    failures = [lane.failure for lane in targets if lane.failure]
    assert not failures, "\n".join(failures)
    assert all(lane.count["epochs"] for lane in targets)
    # The lane in this process seeds the global generators while worker threads are waited for.
    # A position is also loaded where an epoch ends.
    meant = re.compile("LL333|LL334|LL418")
    others = [
        w for w in told if w.category is not WorkerRestartWarning and not meant.search(str(w))
    ]
    assert not others, "\n".join(map(str, others))
    # A worker whose fork server was killed is nobody's child; it ends by itself.
    end = time.monotonic() + 10
    gc.collect()
    while (left := left_over() - before) and time.monotonic() < end:
        os.sched_yield()
    assert not left
    return found
