"""Soak: processes are killed all the time, and nothing is lost, nothing is wrong, nothing grows.

    export LIT_LOADER_SOAK_SECONDS=1200
    pytest -m slow -n 0 -s -o faulthandler_timeout=0 tests/faults/test_soak.py

Loaders of every kind run at the same time, each in a thread of its own; they are resized, closed,
resumed. What they yield is compared with what they yielded before the first fault. Meanwhile
another thread strikes a worker or the fork server every few hundred milliseconds. Others never
rest, so that forks copy locks in any state. What is drawn comes from a seed
(``LIT_LOADER_SOAK_SEED``); what it meets is the machine's affair.
"""

import collections
import contextlib
import functools
import gc
import importlib
import json
import logging
import os
import pickle
import random
import re
import signal
import statistics
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import forkserver
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import IterableDataset

import lit_loader
from lit_loader import DataLoader, WorkerDiedError, WorkerTimeoutError
from lit_loader.errors import LoaderError, WorkerRestartWarning
from tests.support.faults import Noisy, StatefulStream, plain
from tests.support.remote_threads import ThreadWorkers

SECONDS = float(os.environ.get("LIT_LOADER_SOAK_SECONDS", "1200"))
SEED = int(os.environ.get("LIT_LOADER_SOAK_SEED", "0"))
WORKERS = 2
EPOCHS = 5  # different ones
TIMEOUT = 1.0
PAUSE = (0.1, 0.5)  # seconds between two strikes
STRIKES = {
    signal.SIGKILL: 35,
    signal.SIGSEGV: 15,
    signal.SIGABRT: 9,
    signal.SIGTERM: 2,  # these five are the parent's affair
    signal.SIGHUP: 2,
    signal.SIGTSTP: 2,
    signal.SIGQUIT: 1,
    signal.SIGXCPU: 1,
    signal.SIGSTOP: 10,
    "fork server": 3,
}
"""What strikes how often; signals meet a worker, the fork server is killed by SIGKILL."""

ALLOWED = {
    "batch struck twice": r"Batch \d+ has ended 2 workers in a row and is not tried again",
    "fork server killed twice": r"Python's fork server, which starts it, was killed",
    "closed meanwhile": r"^lit_loader: the loader was closed",
}
"""Errors that are right where faults follow each other; what is behind them goes on."""


# Loaders under fire ----------------------------------------------------------------------------


class Own(Noisy):
    """Draws from its own generator, so that it is exact in threads too."""

    def __getitem__(self, index: int) -> Any:
        rng = lit_loader.get_rng()
        return {
            "index": index,
            "noise": torch.from_numpy(rng.random((self.width,))),
            "jitter": rng.random((2, 3)),
        }


LIBRARY = threading.Lock()
"""A library's, which other threads have now and then while workers are forked."""


class Decoded(Noisy):
    """Read by a library with a lock: forked at the wrong moment, a worker waits for ever."""

    def __getitem__(self, index: int) -> Any:
        with LIBRARY:
            return super().__getitem__(index)


def decode() -> None:
    with LIBRARY:
        sum(range(2_000))


class Alarm(Exception):
    """What the handler of SIGALRM raises, in the main thread's lane."""


PIECES: tuple[Callable[[Any], Any], ...] = (
    lambda batch: batch,
    lambda batch: batch["noise"][1:, ::3],
    lambda batch: batch["noise"][0].view(-1).numpy(),
)
"""What a consumer keeps of a batch."""


class Lane:
    """A loader after the other, each iterated for some epochs; compared with the first of all.

    Up to ``hold`` batches, or pieces of them, are kept, and looked at again when they are let go.
    ``act`` is done to the loader before one batch in twenty; and one in a hundred is where the
    position is saved and loaded, and another iterator goes on.
    """

    def __init__(
        self, name: str, dataset: Any, *, hold: int = 2,
        act: Callable[["Lane", Any], object] | None = None, **options: Any,
    ) -> None:  # fmt: skip
        self.name, self.dataset, self.hold, self.act = name, dataset, hold, act
        self.options = {"batch_size": 4, "seed": 7, "num_workers": WORKERS, **options}
        if self.options["num_workers"] and "worker_method" not in options:
            self.options = {
                "persistent_workers": True, "multiprocessing_context": "fork", "timeout": TIMEOUT,
                "max_worker_restarts": 10**6, **self.options,
            }  # fmt: skip
        self.in_order = self.options.get("in_order", True)
        self.rng = random.Random(f"{SEED} {name}")
        self.count: collections.Counter[str] = collections.Counter()
        self.loader: Any = None
        self.over: Callable[[], bool] = lambda: False
        self.failure = ""
        self.expected: list[list[Any]] = []

    @contextlib.contextmanager
    def made(self) -> Iterator[DataLoader[Any]]:
        """A loader; each has remote workers of its own."""
        options, dataset = dict(self.options), self.dataset
        with tempfile.TemporaryDirectory() as folder:
            if self.name == "remote":
                options |= {"remote": ThreadWorkers(folder), "num_remote_workers": 2}
            with DataLoader(dataset, **options) as loader:
                yield loader

    def prepare(self) -> None:
        """Note what every epoch should give."""
        with self.made() as loader:
            for epoch in range(EPOCHS):
                loader.set_epoch(epoch)
                self.expected.append([plain(batch) for batch in loader])

    def run(self, over: Callable[[], bool]) -> None:
        """Iterate until told otherwise."""
        self.over = over
        try:
            while not over():
                with self.made() as self.loader:
                    some = self.rng.sample(range(EPOCHS), self.rng.randint(1, EPOCHS))
                    for epoch in sorted(some):  # one that comes again draws otherwise
                        if not over():
                            self.epoch(self.loader, epoch)
                    self.count["restarts"] += self.loader.statistics().worker_restarts
        except BaseException:
            self.failure = f"{self.name}: {traceback.format_exc()}"

    def epoch(self, loader: Any, epoch: int) -> None:
        """Go through an epoch, or leave it in the middle."""
        loader.set_epoch(epoch)
        expected = self.expected[epoch]
        last = self.rng.randrange(len(expected)) if self.rng.random() < 0.2 else None
        found, held, given_up = [], collections.deque[tuple[Any, Any]](), set[int]()
        resumed: list[int] = []
        iterator = iter(loader)
        while len(found) != last:
            if self.over():  # on a busy machine an epoch may take a while
                last = len(found)
                break
            if self.act and self.rng.random() < 0.05:
                self.act(self, loader)
            # Its first batch alone may be a look, which moves no position.
            if len(found) > 1 and self.rng.random() < 0.01:
                loader.load_state_dict(pickle.loads(pickle.dumps(loader.state_dict())))
                iterator = iter(loader)
                self.count["resumes"] += 1
                resumed.append(len(found))
            try:
                batch = self.take(iterator)
            except StopIteration:
                break
            except LoaderError as error:
                if self.allow(error) != "batch struck twice":
                    last = len(found)
                    break
                if number := re.search(r"Batch (\d+) has ended", str(error)):
                    given_up.add(int(number[1]))
                continue
            found.append(plain(batch))
            piece = self.rng.choice(PIECES)(batch)
            held.append((piece, plain(piece)))
            del batch, piece
            while len(held) > self.rng.randint(0, self.hold):
                self.let_go(*held.popleft())
        while held:
            self.let_go(*held.popleft())
        # A stream begins its reader again at such a batch; of others it is left out.
        left_out = set() if isinstance(self.dataset, IterableDataset) else given_up
        wanted = [batch for number, batch in enumerate(expected) if number not in left_out]
        complete = last is None
        if self.in_order:
            right = found == (wanted if complete else wanted[: len(found)])
        else:
            more, less = (collections.Counter(map(repr, each)) for each in (found, wanted))
            right = not more - less and (not complete or more == less)
        told = f"epoch {epoch} is not what it was: {len(found)} of {len(wanted)} batches"
        assert right, f"{told}, resumed at {resumed}"
        self.count.update(epochs=1, batches=len(found))

    def take(self, iterator: Any) -> Any:
        return next(iterator)

    def let_go(self, kept: Any, before: Any) -> None:
        assert plain(kept) == before, "what was kept has changed"

    def allow(self, error: LoaderError) -> str:
        """Count an error that may come where faults follow each other."""
        [name] = [name for name, text in ALLOWED.items() if re.search(text, str(error))]
        assert name != "batch struck twice" or isinstance(
            error, (WorkerDiedError, WorkerTimeoutError)
        )
        self.count[name] += 1
        return name

    def pool(self) -> Any:
        """What its batches come from at the moment."""
        core = self.loader._core
        return next((run.workers for run in core.runs if getattr(run, "workers", None)), core.pool)


class Interrupted(Lane):
    """In the main thread, which an alarm's handler interrupts; what was not given comes again."""

    armed = False

    def handle(self, *_: object) -> None:
        if self.armed:
            self.armed = False  # a second exception may break into what holds back the first
            raise Alarm

    def take(self, iterator: Any) -> Any:
        before = signal.signal(signal.SIGALRM, self.handle)
        try:
            while True:
                taken: list[Any] = []
                if self.rng.random() < 0.3:
                    signal.setitimer(signal.ITIMER_REAL, 10 ** self.rng.uniform(-5, -1))
                try:
                    self.armed = True
                    # Not ``next(iterator)``: between its return and an assignment to a name an
                    # exception would lose the batch, whoever gives it.
                    for batch in iterator:
                        taken.append(batch)
                        break
                    self.armed = False
                except Alarm:
                    self.count["interrupts"] += 1
                    if not taken:
                        continue
                if not taken:
                    raise StopIteration
                return taken[0]
        finally:
            self.armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


def resize(lane: Lane, loader: Any) -> None:
    loader.resize(lane.rng.randint(1, 2 * WORKERS))
    lane.count["resizes"] += 1


def close(lane: Lane, loader: Any) -> None:
    """By another thread, while it is iterated."""
    threading.Timer(0.1 * lane.rng.random(), loader.close).start()


def lanes() -> list[Lane]:
    images, stream, own = Noisy(160, 50), StatefulStream(160, 50), Own(160, 50)
    shuffled: dict[str, Any] = {"shuffle": True}
    return [
        Lane("persistent", images, **shuffled),
        Lane("fresh", images, persistent_workers=False, seeding="sample", **shuffled),
        Lane("stream", stream),
        Lane("unordered", images, in_order=False, **shuffled),
        Lane("large", Noisy(24, 625_000), **shuffled),  # a batch is 10 MB
        Lane("held", Noisy(160, 5_000), hold=30, prefetch_factor=4, **shuffled),
        Lane("in process", images, num_workers=0, hold=20, **shuffled),
        Lane("fork server", images, multiprocessing_context="forkserver", **shuffled),
        Lane("shards", stream, num_shards=5),
        Lane("auto", images, num_workers="auto", **shuffled),
        Lane("resized", images, act=resize, **shuffled),
        Lane("shards, resized", stream, num_shards=6, act=resize),
        Lane("remote", images, **shuffled),
        Lane("threads, resized", own, worker_method="thread", act=resize, **shuffled),
        Lane("a library's lock", Decoded(160, 50), persistent_workers=False, **shuffled),
        Lane("closed", images, act=close, **shuffled),
        Lane("stream, closed", stream, act=close),
        Interrupted("interrupted", images, **shuffled),
    ]


# Threads that never rest -----------------------------------------------------------------------


def deeds() -> list[Callable[[], object]]:
    """What a training program's other threads may be at while workers are forked."""
    log = logging.getLogger("lit_loader.tests.soak")
    log.propagate = False
    handler = logging.Handler()  # with a lock, as each has; what it writes is kept nowhere
    handler.emit = handler.format  # type: ignore[assignment, method-assign]
    log.handlers = [handler]
    matrix = torch.rand(120, 120)

    def imported() -> None:
        sys.modules.pop("wave", None)
        importlib.import_module("wave")

    return [
        lambda: matrix @ matrix,
        lambda: np.ones(20_000).sum(),
        lambda: log.warning("%s", "." * 500),
        imported,
        decode,
        lambda: [bytearray(1 << 18) for _ in range(20)],
        lambda: json.loads(json.dumps({"numbers": list(range(200))})),
    ]


def repeat(deed: Callable[[], object], over: threading.Event) -> None:
    while not over.wait(0.001):
        deed()


# The chaos -------------------------------------------------------------------------------------

Find = Callable[[], int]
"""Gives the id of a process that is meant; asked again before it is struck."""


def strike(targets: list[Lane], over: threading.Event) -> collections.Counter[str]:
    """Strike until told otherwise; returns what has struck how often."""
    rng, struck = random.Random(SEED), collections.Counter[str]()
    kinds, weights = zip(*STRIKES.items(), strict=True)
    while not over.wait(rng.uniform(*PAUSE)):
        lane, [kind] = rng.choice(targets), rng.choices(kinds, weights)
        # A pool changes meanwhile, or ends: then there is nothing to strike.
        with contextlib.suppress(OSError, ValueError, LookupError, AttributeError, TypeError):
            number = kind if isinstance(kind, signal.Signals) else signal.SIGKILL
            kill(victim(kind, lane, rng), number)
            struck[str(getattr(kind, "name", kind))] += 1
    return struck


def victim(kind: Any, lane: Lane, rng: random.Random) -> Find:
    """What is to be struck."""
    if kind == "fork server":
        return lambda: forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    workers = lane.pool().workers
    at = rng.randrange(len(workers.pids))
    return lambda: workers.pids[at]  # type: ignore[no-any-return]


def kill(find: Find, number: signal.Signals) -> None:
    """Send a signal to a process that is still the one that was meant; LookupError: it is not."""
    pid = find()
    pidfd = os.pidfd_open(pid)
    try:
        if find() != pid:
            raise LookupError("another one has taken its place")
        signal.pidfd_send_signal(pidfd, number)
    finally:
        os.close(pidfd)


# What it costs ---------------------------------------------------------------------------------


class Usage(NamedTuple):
    """What there is at one moment."""

    parent: int  # its own memory, in bytes
    below: int  # the memory of all processes below, and their part of what is shared
    processes: int
    shared: int  # bytes of the files in memory that it has open
    descriptors: int
    threads: int  # all that the kernel knows


SLACK = Usage(64 << 20, 512 << 20, 30, 128 << 20, 128, 8)
"""By how much the median of the last quarter may be above that of the first."""


def usage() -> Usage:
    """Ask the kernel."""
    below, this = 0, psutil.Process()
    children = this.children(recursive=True)
    for child in children:
        with contextlib.suppress(psutil.Error):
            below += child.memory_full_info().pss
    shared = {}
    for file in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if os.readlink(file).startswith(("/memfd:", "/dev/shm")):
                shared[file.stat().st_ino] = file.stat().st_blocks * 512
    status = Path("/proc/self/status").read_text()
    anonymous = re.search(r"RssAnon:\s+(\d+) kB", status)
    parent = int(anonymous[1]) * 1024 if anonymous else 0
    return Usage(
        parent, below, len(children), sum(shared.values()), len(os.listdir("/proc/self/fd")),
        this.num_threads(),
    )  # fmt: skip


def medians(entries: list[Usage]) -> Usage:
    return Usage(*(int(statistics.median(column)) for column in zip(*entries, strict=True)))


def left_over() -> tuple[collections.Counter[str], set[int]]:
    """Descriptors of this process by their kind, and all that were forked from it and live."""
    kinds: collections.Counter[str] = collections.Counter()
    for file in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the folder's own
            kinds[re.sub(r"\d+", "", os.readlink(file))] += 1
    forks = set()
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            ours = os.getpgid(pid) == os.getpgrp() and pid != os.getpid()
            if ours and "memfd:lit_loader " in Path(f"/proc/{pid}/maps").read_text():
                forks.add(pid)
    return kinds, forks


def more_than(before: tuple[collections.Counter[str], set[int]]) -> list[Any]:
    """What there is more than there was."""
    kinds, forks = left_over()
    return [*(kinds - before[0]), *(forks - before[1])]


# The test --------------------------------------------------------------------------------------


@pytest.mark.timeout(method="thread")  # SIGALRM is ours here
@pytest.mark.parametrize("name", ["resized", "shards, resized", "interrupted"])
def test_for_a_moment(name: str) -> None:
    soak(1.0, [lane for lane in lanes() if lane.name == name])


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 600, method="thread")  # SIGALRM is ours here
def test_soak() -> None:
    found = soak(SECONDS, lanes())
    quarter = len(found) // 4
    first, last = medians(found[1 : 1 + quarter]), medians(found[-quarter:])
    print(f"  first quarter {first}\n  last quarter  {last}")
    for name, then, now, slack in zip(Usage._fields, first, last, SLACK, strict=True):
        assert now <= then + slack, f"{name} went from {then} to {now} (allowed: {slack} more)"


def soak(seconds: float, targets: list[Lane]) -> list[Usage]:
    """Let lanes run, and see that nothing is lost and nothing left; returns what it cost."""
    print(f"\nLIT_LOADER_SOAK_SEED={SEED}")
    for lane in targets:
        lane.prepare()
    if any("forkserver" in lane.options.values() for lane in targets):
        with DataLoader(range(2), num_workers=1, multiprocessing_context="forkserver") as loader:
            list(loader)  # the fork server stays
    gc.collect()
    before, over, found = left_over(), threading.Event(), [usage()]
    end, interval = time.monotonic() + seconds, max(0.5, seconds / 100)

    def watched() -> bool:
        """Whether the time is up, or something has failed."""
        with contextlib.ExitStack() as at_end:
            at_end.callback(over.set)
            while time.monotonic() < end and not any(lane.failure for lane in targets):
                over.wait(interval)
                found.append(usage())
        return True

    mains = [lane for lane in targets if isinstance(lane, Interrupted)]
    # Not of a ThreadPoolExecutor: what is forked in its threads cannot end with exit code 0.
    threads = [
        threading.Thread(target=lane.run, args=(over.is_set,))
        for lane in targets
        if lane not in mains
    ]
    threads += [threading.Thread(target=repeat, args=(deed, over)) for deed in deeds()]
    with warnings.catch_warnings(record=True) as told, ThreadPoolExecutor(2) as pool:
        warnings.simplefilter("always")
        with_workers = [lane for lane in targets if "max_worker_restarts" in lane.options]
        striking, watching = pool.submit(strike, with_workers, over), pool.submit(watched)
        for thread in threads:
            thread.start()
        for lane in mains:
            lane.run(over.is_set)
        for thread in threads:
            thread.join()
        over.set()
        for lane in targets:
            lane.loader = None
        struck = striking.result()
        assert watching.result()
    for lane in targets:
        print(f"  {lane.name}: {dict(lane.count)}")
    total = functools.reduce(lambda one, lane: one + lane.count, targets, collections.Counter())
    print(f"  struck {dict(struck)}\n  in all {dict(total)}")
    failures = [lane.failure for lane in targets if lane.failure]
    assert not failures, "\n".join(failures)
    assert all(lane.count["epochs"] for lane in targets)
    # The lane in this process seeds the global generators while worker threads are waited for.
    meanwhile = "draws from, or seeds, a global generator, which threads share"
    others = [
        warning
        for warning in told
        if warning.category is not WorkerRestartWarning and meanwhile not in str(warning.message)
    ]
    assert not others, "\n".join(map(str, others))
    # A batch may be struck twice by chance, if seldom.
    assert total["batch struck twice"] <= 1 + struck.total() // 20
    # A worker whose fork server was killed is nobody's child; it ends by itself.
    end = time.monotonic() + 10
    gc.collect()
    while (left := more_than(before)) and time.monotonic() < end:
        os.sched_yield()
    assert not left
    return found
