"""Soak: processes are killed all the time, for a long time, and nothing is lost and nothing grows.

    export LIT_LOADER_SOAK_SECONDS=1200
    pytest -m slow -n 0 -s -o faulthandler_timeout=0 tests/faults/test_soak.py

Several loaders run side by side, each of them epoch after epoch and in a thread of its own; what
they give is compared with what a single thread has got of ``num_workers=0`` before. A lane is:

- `Lane`: one loader, with workers or without; pieces of its batches are kept for a while.
- `Closed`: its loaders are closed by another thread, at any moment; the next one starts meanwhile.
- `Interrupted`: in the main thread, whose signal handlers raise in the midst of ``next()``.

Meanwhile another thread picks a victim every few hundred milliseconds: a worker, the launcher,
both, a launcher that has just been forked, the fork server. What is drawn comes from a seed, which
is printed (``LIT_LOADER_SOAK_SEED``); what it meets is the machine's affair. Memory, descriptors,
threads and processes of the first and the last quarter are compared.

Two deaths in a row over one batch are an error, by design. The schedule leaves workers alone that
are at a batch which was struck before; a signal may still come late and meet the next batch. Such
errors are counted, must say just that, and cost that batch and no other.
"""

from __future__ import annotations

import collections
import contextlib
import gc
import hashlib
import itertools
import os
import queue
import random
import re
import signal
import statistics
import sys
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import forkserver
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar, NamedTuple

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

import lit_loader
from lit_loader import DataLoader
from lit_loader.errors import (
    LoaderError,
    WorkerDiedError,
    WorkerRestartWarning,
    WorkerTimeoutError,
)
from lit_loader.pool.worker_pool import WorkerPool
from lit_loader.transport.status_board import Stage

SECONDS = float(os.environ.get("LIT_LOADER_SOAK_SECONDS", "1200"))
SEED = int(os.environ.get("LIT_LOADER_SOAK_SEED", "0"))

# By a thread: SIGALRM is ours here.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(SECONDS + 600, method="thread")]

SMOKE_SECONDS = 5.0

WORKERS = 2
EPOCHS = 3  # different ones, which come around again
TIMEOUT = 1.0
PAUSE = (0.1, 0.5)  # seconds between two strikes
SAMPLE_TIME = 0.001

STRIKES = {
    signal.SIGKILL: 35,
    signal.SIGSEGV: 15,
    signal.SIGTERM: 15,
    signal.SIGSTOP: 10,
    "launcher": 8,
    "launcher and workers": 8,
    "newborn launcher": 6,
    "fork server": 3,
}
"""What strikes how often, of a hundred; signals meet a worker, all others are killed by SIGKILL."""

CLOSED = "the loader was closed"
"""How the errors begin that may come out of a loader which another thread closes."""

SERVER_KILLED = "Python's fork server, which starts it, was killed"
"""An error that may come where the fork server is killed, and killed again."""


# What is loaded --------------------------------------------------------------------------------


def augmented(index: int, width: int) -> dict[str, Any]:
    """A sample that takes a moment, and depends on the index and on all global generators."""
    time.sleep(SAMPLE_TIME)
    return {
        "index": index,
        "noise": torch.rand(width),
        "jitter": np.random.rand(2, 3),
        "word": f"{index} {random.random()}",
    }


def fixed(index: int, width: int) -> dict[str, Any]:
    """A sample that depends on the index alone."""
    noise, jitter = torch.full((width,), float(index)), np.full((2, 3), float(index))
    return {"index": index, "noise": noise, "jitter": jitter, "word": str(index)}


class Images(Dataset):
    def __init__(self, length: int, width: int) -> None:
        self.length = length
        self.width = width

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        return augmented(index, self.width)


class Stream(IterableDataset):
    """The same with a state. Readers take turns batch by batch, so any number gives the same."""

    def __init__(self, length: int, batch_size: int, width: int) -> None:
        self.length = length
        self.batch_size = batch_size
        self.width = width

    def __iter__(self) -> Iterator[Any]:
        return Reader(self, *lit_loader.get_shard())


class Reader:
    def __init__(self, stream: Stream, reader: int, readers: int) -> None:
        self.stream = stream
        block = stream.batch_size
        starts = range(reader * block, stream.length, readers * block)
        self.indices = [index for start in starts for index in range(start, start + block)]
        self.position = 0

    def __iter__(self) -> Reader:
        return self

    def __next__(self) -> Any:
        if self.position == len(self.indices):
            raise StopIteration
        self.position += 1
        index = self.indices[self.position - 1]
        block = self.stream.batch_size
        if index % block == 0 and index // block < WORKERS:
            # A reader's first sample, if there are so many: what it draws is not its batch's.
            return fixed(index, self.stream.width)
        return augmented(index, self.stream.width)

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


def digest(batch: Any) -> str:
    """Name a batch by its types, shapes and bytes."""
    found = hashlib.blake2b(digest_size=8)
    for key, value in batch.items():
        if isinstance(value, torch.Tensor):
            found.update(f"{key} {value.dtype} {tuple(value.shape)}".encode())
            found.update(value.numpy().data)
        else:
            found.update(f"{key} {value!r}".encode())
    return found.hexdigest()


# Loaders under fire ----------------------------------------------------------------------------


class Pieces:
    """Parts of batches that are kept, each for a while, and must not change meanwhile.

    Args:
        rng: Decides what is kept, and for how long.
        longest: Batches that come meanwhile, at most; 0: nothing is kept.
    """

    KINDS: tuple[Callable[[Any], Any], ...] = (
        lambda batch: batch["index"],
        lambda batch: batch["noise"][1:, ::3],
        lambda batch: batch["noise"][0].view(-1).numpy(),
        lambda batch: batch["jitter"].numpy()[..., 1],
        lambda batch: batch["jitter"].select(0, -1),
    )

    def __init__(self, rng: random.Random, longest: int) -> None:
        self.rng = rng
        self.longest = longest
        self.checked = 0
        self._kept: dict[int, list[tuple[Any, bytes]]] = {}  # by when they are let go of
        self._now = 0

    def keep(self, batch: Any) -> None:
        """Keep a part of a batch, and let go of what has been kept for long enough."""
        if self.longest:
            piece = self.rng.choice(self.KINDS)(batch)
            until = self._now + self.rng.randrange(self.longest)
            self._kept.setdefault(until, []).append((piece, np.asarray(piece).tobytes()))
            self._check(self._kept.pop(self._now, []))
            self._now += 1

    def drop(self) -> None:
        """Let go of all."""
        while self._kept:
            self._check(self._kept.popitem()[1])

    def _check(self, entries: list[tuple[Any, bytes]]) -> None:
        for piece, before in entries:
            assert np.asarray(piece).tobytes() == before, "a piece that was kept has changed"
            self.checked += 1


class Lane:
    """A loader, and a thread that iterates it over and over and checks what it gets.

    Args:
        name: For the report.
        dataset: What it loads.
        hold: How many past batches are kept, at most, and checked again when they are let go of.
        pieces: For how many batches a piece of one is kept, at most.
        workers: How many it has.
        persistent: Whether its workers are.
        in_order: Whether batches come in order.
        prefetch_factor: Of the loader.
        method: How workers start.
        options: Of the loader, and of one without workers.
    """

    def __init__(
        self,
        name: str,
        dataset: Any,
        hold: int = 2,
        pieces: int = 0,
        workers: int = WORKERS,
        persistent: bool = True,
        in_order: bool = True,
        prefetch_factor: int = 2,
        method: str = "fork",
        **options: Any,
    ) -> None:
        self.name = name
        self.hold = hold
        self.in_order = in_order
        self.method = method
        self.options = {"batch_size": 4, "seed": 7, **options}
        self.with_workers: dict[str, Any] = {"num_workers": workers}
        if workers:
            self.with_workers |= {
                "persistent_workers": persistent,
                "in_order": in_order,
                "prefetch_factor": prefetch_factor,
                "multiprocessing_context": method,
                "timeout": TIMEOUT,
                "max_worker_restarts": 10**6,
            }
        self.dataset = dataset
        self.rng = random.Random(f"{SEED} {name}")
        self.pieces = Pieces(random.Random(f"{SEED} {name} pieces"), pieces)
        self.epochs = self.batches = self.left = self.restarts = self.lost = self.wrong = 0
        self.errors: collections.Counter[str] = collections.Counter()
        self.pool: Callable[[], WorkerPool | None] = lambda: None
        self.failure: str | None = None
        self.expected: list[list[str]] = []

    def prepare(self) -> None:
        """Note what every epoch should give."""
        loader = DataLoader(self.dataset, **self.options)
        for epoch in range(EPOCHS):
            loader.set_epoch(epoch)
            self.expected.append([digest(batch) for batch in loader])

    def run(self, until: Callable[[], bool]) -> None:
        """Iterate until told otherwise."""
        try:
            self._run(until)
            self.pieces.drop()
        except BaseException:
            self.failure = f"{self.name}: {traceback.format_exc()}"

    def _run(self, until: Callable[[], bool]) -> None:
        with DataLoader(self.dataset, **self.options, **self.with_workers) as loader:
            while not until():
                self._epoch(loader)
            self.restarts += loader.statistics().worker_restarts

    def _epoch(self, loader: Any) -> None:
        epoch = self.rng.randrange(EPOCHS)
        loader.set_epoch(epoch)
        expected = self.expected[epoch]
        # Now and then an epoch is left in the middle, and the next one begins at once.
        last = self.rng.randrange(len(expected)) if self.rng.random() < 0.2 else None
        held: collections.deque[tuple[Any, str]] = collections.deque()
        found: list[str] = []
        given_up: set[int] = set()
        iterator = iter(loader)
        while len(found) != last:
            try:
                batch = self._take(iterator)
            except StopIteration:
                break
            except LoaderError as error:
                if self._ends_epoch(str(error)):
                    last = len(found)
                    break
                number = self._expected_error(error)
                if number is not None:
                    given_up.add(number)
                continue
            finally:
                self._note_pool(iterator)
            found.append(digest(batch))
            self.pieces.keep(batch)
            held.append((batch, found[-1]))
            del batch
            while len(held) > self.rng.randint(0, self.hold):
                self._check_held(*held.popleft())
        while held:
            self._check_held(*held.popleft())
        self._compare(epoch, expected, found, given_up, complete=last is None)
        self.batches += len(found)
        self.epochs += 1
        self.left += last is not None

    def _take(self, iterator: Any) -> Any:
        return next(iterator)

    def _note_pool(self, iterator: Any) -> None:
        engine = getattr(iterator, "_session", None)
        if engine is not None and self.pool() is not engine.pool:
            self.pool = weakref.ref(engine.pool)

    def _check_held(self, batch: Any, before: str) -> None:
        assert digest(batch) == before, f"{self.name}: a batch that was held has changed"

    def _ends_epoch(self, text: str) -> bool:
        """Count an error that may occur, and after which the loader is to be iterated anew."""
        if SERVER_KILLED in text:
            self.errors["fork server killed twice"] += 1
        return SERVER_KILLED in text

    def _expected_error(self, error: LoaderError) -> int | None:
        """Count an error that may occur; returns the number of a batch that was given up."""
        text = str(error)
        given_up = re.search(r"Batch (\d+) has ended 2 workers in a row and is not tried", text)
        assert given_up and isinstance(error, (WorkerDiedError, WorkerTimeoutError)), text
        self.errors["batch struck twice in a row"] += 1
        # A reader of an iterable dataset is started again at the next next().
        return None if isinstance(self.dataset, IterableDataset) else int(given_up[1])

    def _compare(
        self, epoch: int, expected: list[str], found: list[str], given_up: set[int], complete: bool
    ) -> None:
        wanted = [entry for number, entry in enumerate(expected) if number not in given_up]
        if self.in_order and not complete:
            wanted = wanted[: len(found)]  # what was given up further on had no turn yet
        lost = collections.Counter(wanted) - collections.Counter(found)
        wrong = collections.Counter(found) - collections.Counter(wanted)
        self.lost += sum(lost.values()) if self.in_order or complete else 0
        self.wrong += sum(wrong.values())
        ordered = found == wanted or not self.in_order
        right = ordered and not wrong and (complete <= (not lost))
        where = f"epoch {epoch} (the {self.epochs}th that was begun)"
        assert right, f"{where}: {difference(expected, found)}"


class Later:
    """A thread that does things after a while, one after the other; for ``with``."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[float, Callable[[], object]] | None]
        self._jobs = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="later")
        self.failure = ""

    def __enter__(self) -> Later:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._jobs.put(None)
        self._thread.join()
        assert not self.failure, self.failure

    def do(self, seconds: float, function: Callable[[], object]) -> None:
        """Have something done when so much time has passed."""
        self._jobs.put((time.monotonic() + seconds, function))

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            time.sleep(max(0.0, job[0] - time.monotonic()))
            try:
                job[1]()
            except BaseException:
                self.failure += traceback.format_exc()
            del job  # and with it the loader


class Closed(Lane):
    """Another thread closes its loaders: while they are iterated, or the next one already is."""

    def _run(self, until: Callable[[], bool]) -> None:
        with Later() as later:
            while not until():
                options = dict(self.with_workers, persistent_workers=self.rng.random() < 0.5)
                loader = DataLoader(self.dataset, **self.options, **options)
                later.do(self.rng.choice([0.0, 0.1, 0.4]) * self.rng.random(), loader.close)
                for _ in range(self.rng.randint(1, 2)):
                    self._epoch(loader)
                # What was begun after the close ends here, or in the other thread.
                self.restarts += loader.statistics().worker_restarts
                del loader

    def _ends_epoch(self, text: str) -> bool:
        if text.startswith(CLOSED):
            self.errors["closed meanwhile"] += 1
            return True
        return super()._ends_epoch(text)


class Alarm(Exception):
    """What the handler of SIGALRM raises."""


class Interrupt(BaseException):
    """What the handler of SIGINT raises."""


class Interrupted(Lane):
    """In the main thread; ``next()`` is interrupted, and what it did not give comes again."""

    KINDS: ClassVar[dict[int, type[BaseException]]] = {
        signal.SIGALRM: Alarm,
        signal.SIGINT: Interrupt,
    }

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.interrupts: collections.Counter[str] = collections.Counter()
        self._armed = False

    def _run(self, until: Callable[[], bool]) -> None:
        self._until = until
        with self._handling(), Later() as self._later:
            for turn in itertools.count(1):
                if until():
                    break
                options: dict[str, Any] = {"num_workers": 0}
                if turn % 8:  # without, it takes turns with the lanes in process: that takes long
                    options = dict(self.with_workers, persistent_workers=self.rng.random() < 0.5)
                with DataLoader(self.dataset, **self.options, **options) as loader:
                    for _ in range(self.rng.randint(1, 3) if turn % 8 else 1):
                        self._epoch(loader)
                    self.restarts += loader.statistics().worker_restarts

    @contextlib.contextmanager
    def _handling(self) -> Iterator[None]:
        before = {number: signal.signal(number, self._handle) for number in self.KINDS}
        hook, sys.unraisablehook = sys.unraisablehook, self._note_lost
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            sys.unraisablehook = hook
            for number, handler in before.items():
                signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._armed:
            self._armed = False  # a second exception may break into what holds back the first
            raise self.KINDS[number]

    def _note_lost(self, unraisable: Any) -> None:
        """Count what Python itself drops: the handler ran in a finalizer, say."""
        assert issubclass(unraisable.exc_type, (Alarm, Interrupt)), unraisable
        self.interrupts["dropped by Python"] += 1

    def _take(self, iterator: Any) -> Any:
        while True:
            taken: list[Any] = []
            self._until()  # the main thread's other task
            self._send_signal()
            try:
                self._armed = True
                # Not ``next(iterator)``: an exception between its return and an assignment to a
                # name would lose the batch, whoever gives it.
                for batch in iterator:
                    taken.append(batch)
                    break
                self._armed = False
            except (Alarm, Interrupt) as raised:
                self.interrupts[type(raised).__name__] += 1
                if not taken:
                    continue
            finally:
                self._armed = False
            if not taken:
                raise StopIteration
            return taken[0]

    def _send_signal(self) -> None:
        """Let a signal come during the next call, now and then, or a little later."""
        if self.rng.random() < 0.3:
            seconds = 10 ** self.rng.uniform(-5, -1)
            if self.rng.random() < 0.5:
                signal.setitimer(signal.ITIMER_REAL, seconds)
            else:
                main = threading.main_thread().ident or 0
                self._later.do(seconds, lambda: signal.pthread_kill(main, signal.SIGINT))


def difference(expected: list[str], found: list[str]) -> str:
    """Found batches by their numbers; "?" for what is none of them."""
    numbers = {entry: number for number, entry in enumerate(expected)}
    return f"of {len(expected)} batches came {[numbers.get(entry, '?') for entry in found]}"


def lanes() -> list[Lane]:
    wide = 10_000_000 // 4 // 4  # four samples of float32 are 10 MB
    return [
        Lane("persistent", Images(160, 50), shuffle=True),
        Lane("fresh", Images(120, 50), shuffle=True, persistent=False, seeding="sample"),
        Lane("stream", Stream(160, 4, 50)),
        Lane("unordered", Images(160, 50), shuffle=True, in_order=False),
        Lane("large", Images(40, wide), shuffle=True),
        Lane("held", Images(160, 5_000), hold=30, shuffle=True, prefetch_factor=4),
        Lane("pieces", Images(160, 5_000), pieces=400, shuffle=True, prefetch_factor=4),
        Lane("in process", Images(80, 50), workers=0, pieces=20, shuffle=True),
        Lane("another in process", Stream(80, 4, 50), workers=0, pieces=20),
        Lane("fork server", Images(160, 50), shuffle=True, method="forkserver"),
        Closed("closed", Images(80, 50), shuffle=True, pieces=200),
        Closed("stream, closed", Stream(80, 4, 50), pieces=20),
    ]


# The chaos -------------------------------------------------------------------------------------


class Chaos:
    """Strikes processes until told otherwise; what and when is drawn from a seed."""

    def __init__(self, targets: list[Lane]) -> None:
        self.targets = [lane for lane in targets if lane.with_workers["num_workers"]]
        # Workers that begin as new interpreters take seconds to come up.
        self.weights = [1 if lane.method == "fork" else 0.2 for lane in self.targets]
        self.rng = random.Random(SEED)
        self.struck: collections.Counter[str] = collections.Counter()
        self.avoided = self.missed = 0
        self.failure: str | None = None
        self._struck_at: dict[tuple[str, int], int] = {}  # lane, batch: which of its epochs

    def run(self, stop: threading.Event) -> None:
        """Strike until told otherwise."""
        try:
            self._run(stop)
        except BaseException:
            self.failure = f"chaos: {traceback.format_exc()}"

    def _run(self, stop: threading.Event) -> None:
        kinds, weights = zip(*STRIKES.items(), strict=True)
        while not stop.wait(self.rng.uniform(*PAUSE)):
            [lane] = self.rng.choices(self.targets, self.weights)
            [kind] = self.rng.choices(kinds, weights)
            worker, order = self.rng.randrange(WORKERS), self.rng.random() < 0.5
            # A pool changes meanwhile, or ends: then there is nothing to strike.
            try:
                if kind == "newborn launcher":
                    done = self._strike_newborn(stop)
                elif kind == "fork server":
                    done = kill(lambda: forkserver._forkserver._forkserver_pid)
                else:
                    done = self._strike(lane, kind, worker, order)
            except (OSError, ValueError, IndexError, AttributeError, TypeError):
                done = False
            name = kind if isinstance(kind, str) else kind.name
            self.struck[name] += done
            self.missed += not done

    def _strike(self, lane: Lane, kind: Any, worker: int, order: bool) -> bool:
        """Strike what a lane's batches come from; returns whether it was there."""
        pool = lane.pool()
        if pool is None:
            return False
        if kind == "launcher":
            return kill(lambda: launcher_of(pool))
        if kind == "launcher and workers":
            finds = [lambda: launcher_of(pool)]
            finds += [lambda at=at: pool.pids[at] for at in pool.started]
            if not all([self._may_strike(lane, pool, at) for at in pool.started]):
                return False
            return all([kill(find) for find in (finds if order else reversed(finds))])
        return self._may_strike(lane, pool, worker) and kill(lambda: pool.pids[worker], kind)

    def _may_strike(self, lane: Lane, pool: WorkerPool, worker: int) -> bool:
        """Whether the batch that a worker is at was not struck before; notes that it is now."""
        row = pool.rows()[worker]
        if row.stage not in Stage.BUSY:
            return True
        key = (lane.name, row.number)
        if self._struck_at.get(key) == lane.epochs:
            self.avoided += 1
            return False
        self._struck_at[key] = lane.epochs
        return True

    def _strike_newborn(self, stop: threading.Event) -> bool:
        """Wait for the next launcher that is forked, and kill it before it has done much."""
        before, until = children(), time.monotonic() + 1
        while time.monotonic() < until and not stop.is_set():
            found = children()
            if found - before:
                victim = min(found - before)
                return kill(lambda pid=victim: pid)  # type: ignore[misc]
            before = found
            stop.wait(0.001)
        return False


def kill(find: Callable[[], int], number: signal.Signals = signal.SIGKILL) -> bool:
    """Send a signal to a process that is still the one that was meant."""
    pid = find()
    pidfd = os.pidfd_open(pid)
    try:
        if found := find() == pid:
            signal.pidfd_send_signal(pidfd, number)
    finally:
        os.close(pidfd)
    return found


def launcher_of(pool: WorkerPool) -> int:
    return pool._own.starter._launcher._process.pid or 0  # type: ignore[union-attr, no-any-return]


def children() -> set[int]:
    """The processes that this one has started: launchers, and multiprocessing's helpers."""
    found: set[int] = set()
    for file in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found.update(map(int, file.read_text().split()))
    return found


# What it costs ---------------------------------------------------------------------------------


class Usage(NamedTuple):
    """What all processes together have at one moment.

    Attributes:
        parent: Bytes of this process's own memory.
        workers: Bytes of memory of the launchers and workers, and their part of what is shared.
        arenas: Bytes of all arenas.
        descriptors: Of this process.
        threads: Of this process.
        processes: Launchers and workers.
    """

    parent: int
    workers: int
    arenas: int
    descriptors: int
    threads: int
    processes: int


def memory(pid: int | str, file: str, field: str) -> int:
    """Bytes that the kernel tells of a process; 0 if that has ended."""
    try:
        text = Path(f"/proc/{pid}/{file}").read_text()
    except OSError:
        return 0
    found = re.search(rf"^{field}:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def usage(targets: Iterable[Lane]) -> Usage:
    pids: set[int] = {child.pid for child in psutil.Process().children(recursive=True)}
    arenas = 0
    for lane in targets:
        pool = lane.pool()
        # Workers of a launcher that was killed are nobody's children any more.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            if pool is not None and not pool.closed:
                pids.update(pool.pids)
                arenas += os.fstat(pool._arena.fd).st_blocks * 512
    return Usage(
        memory("self", "status", "RssAnon"),
        sum(memory(pid, "smaps_rollup", "Pss") for pid in pids),
        arenas,
        len(os.listdir("/proc/self/fd")),
        threading.active_count(),
        len(pids),
    )


SLACK = Usage(64 << 20, 512 << 20, 128 << 20, 32, 2, 8)
"""By how much the median of the last quarter may be above that of the first. Workers of the fork
server have 100 MB each, and are there or not."""


# The test --------------------------------------------------------------------------------------


class Told:
    """What the loaders warn of: restarts by their cause, and starts that were made again."""

    def __init__(self) -> None:
        self.restarts: collections.Counter[str] = collections.Counter()
        self.starts: collections.Counter[str] = collections.Counter()

    def __call__(self, message: Any, category: type, *_: Any) -> None:
        text = str(message)
        assert category is WorkerRestartWarning, text
        first = text.splitlines()[0]
        if again := re.match(r"the process that starts workers(?: \(pid \d+\))? (.*)", first):
            assert text.endswith("Another one was forked, and nothing is lost."), text
            self.starts[re.sub(r" \(.*|, most likely.*", "", again[1])] += 1
            return
        killed = re.search(
            r"was killed by (\w+)|did not get on|exit code is not known|got stuck at its start",
            text,
        )
        assert killed and "nothing is lost" in text, text
        self.restarts[killed[1] or killed[0]] += 1


@contextlib.contextmanager
def counted_warnings() -> Iterator[Told]:
    """Count what is told."""
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = told = Told()  # type: ignore[assignment]
        yield told


class Watch:
    """Looks at what everything costs from time to time, and says when it is over."""

    def __init__(self, seconds: float, parts: list[Any], look: Callable[[], Usage]) -> None:
        self.parts = parts
        self.stop = threading.Event()
        self.found: list[Usage] = []
        self._end = time.monotonic() + seconds
        self._interval = min(10.0, seconds / 20)
        self._looked = time.monotonic()
        self._look = look

    def over(self) -> bool:
        """Whether the time is up, or something has failed; the main thread asks often."""
        now = time.monotonic()
        if now - self._looked > self._interval:
            self._looked = now
            self.found.append(self._look())
        if now > self._end or any(part.failure for part in self.parts):
            self.stop.set()
        return self.stop.is_set()


def test_smoke() -> None:
    soak(SMOKE_SECONDS)


def test_soak() -> None:
    found = soak(SECONDS)
    quarter = len(found) // 4
    for name, first, last in zip(
        Usage._fields, medians(found[1 : 1 + quarter]), medians(found[-quarter:]), strict=True
    ):
        slack = getattr(SLACK, name)
        assert last <= first + slack, f"{name} went from {first} to {last} (allowed: {slack} more)"


def soak(seconds: float) -> list[Usage]:
    """Let all lanes run, and see that nothing is lost and nothing left."""
    print(f"\nLIT_LOADER_SOAK_SEED={SEED}")
    interrupted = Interrupted("interrupted", Images(80, 50), shuffle=True, pieces=50)
    threaded = lanes()
    targets = [*threaded, interrupted]
    for lane in targets:
        lane.prepare()
    with DataLoader(range(2), num_workers=1, multiprocessing_context="forkserver") as loader:
        list(loader)  # the fork server stays
    gc.collect()
    before = left_over()
    chaos = Chaos(targets)
    watch = Watch(seconds, [chaos, *targets], lambda: usage(targets))
    threads = [
        threading.Thread(target=lane.run, args=(watch.stop.is_set,), name=lane.name)
        for lane in threaded
    ]
    threads.append(threading.Thread(target=chaos.run, args=(watch.stop,), name="chaos"))
    with counted_warnings() as told:
        for thread in threads:
            thread.start()
        interrupted.run(watch.over)
        watch.stop.set()
        for thread in threads:
            thread.join()
    report(targets, chaos, told, interrupted, watch.found)
    failures = [part.failure for part in watch.parts if part.failure]
    assert not failures, "\n".join(failures)
    assert all(lane.epochs for lane in targets)
    # An interrupt may come in the midst of telling.
    untold = sum(lane.restarts for lane in targets) - sum(told.restarts.values())
    assert 0 <= untold <= sum(interrupted.interrupts.values())
    # At most one strike in fifty may meet a batch that was struck before.
    unlucky = sum(lane.errors["batch struck twice in a row"] for lane in targets)
    assert unlucky <= 1 + sum(chaos.struck.values()) // 50
    # A worker whose launcher was killed is nobody's child; it ends by itself.
    end = time.monotonic() + 10
    gc.collect()
    while left_over() != before and time.monotonic() < end:
        os.sched_yield()
    assert left_over() == before
    return watch.found


def left_over() -> tuple[dict[str, int], int, set[int]]:
    """Descriptors and threads of this process, and all that were forked from it and live."""
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
    return kinds, threading.active_count(), forks


def medians(entries: list[Usage]) -> Usage:
    return Usage(*(int(statistics.median(column)) for column in zip(*entries, strict=True)))


def report(
    targets: list[Lane], chaos: Chaos, told: Told, interrupted: Interrupted, found: list[Usage]
) -> None:
    for lane in targets:
        print(
            f"  {lane.name}: {lane.epochs} epochs ({lane.left} left in the middle), "
            f"{lane.batches} batches, {lane.pieces.checked} pieces kept, {lane.restarts} restarts, "
            f"{lane.lost} lost, {lane.wrong} wrong, {dict(lane.errors)}"
        )
    print(f"  struck {dict(chaos.struck)} (left alone {chaos.avoided}, missed {chaos.missed})")
    print(f"  interrupts {dict(interrupted.interrupts)}")
    print(f"  told: restarts {dict(told.restarts)}, starts made again {dict(told.starts)}")
    print(
        f"  in all {sum(lane.batches for lane in targets)} batches, "
        f"{sum(chaos.struck.values()) + sum(interrupted.interrupts.values())} faults, "
        f"{sum(lane.lost for lane in targets)} lost, {sum(lane.wrong for lane in targets)} wrong"
    )
    quarter = max(1, len(found) // 4)
    if found:
        print(f"  first quarter {describe(found[:quarter])}")
        print(f"  last quarter  {describe(found[-quarter:])}", flush=True)


def describe(entries: list[Usage]) -> str:
    median = medians(entries)
    return (
        f"parent {median.parent >> 20} MiB, workers {median.workers >> 20} MiB, arenas "
        f"{median.arenas >> 20} MiB, {median.descriptors} descriptors, {median.threads} threads, "
        f"{median.processes} processes"
    )
