"""Loaders that the soak (`tests/faults/test_soak.py`) iterates while processes are killed.

A lane is a loader, or one after the other, in a thread of its own; what it gives is compared with
what a single thread has got of ``num_workers=0`` before.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import hashlib
import itertools
import os
import random
import re
import signal
import sys
import tempfile
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import FrameType
from typing import Any, ClassVar

import numpy as np
import torch
from torch.utils.data import IterableDataset

import lit_loader
from lit_loader import CachedDataset, DataLoader
from lit_loader.errors import LoaderError, WorkerDiedError, WorkerTimeoutError
from lit_loader.workers.worker_pool import WorkerPool
from tests.support.remote_threads import ThreadWorkers
from tests.support.samples import Call, Cursor

__all__ = ["WORKERS", "Interrupted", "Lane", "interrupted_lane", "lanes"]

SEED = int(os.environ.get("LIT_LOADER_SOAK_SEED", "0"))

WORKERS = 2
SIZE = 4  # samples of a batch
EPOCHS = 3  # different ones, which come around again
TIMEOUT = 1.0
SAMPLE_TIME = 0.001

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


def kept(index: int, width: int) -> dict[str, Any]:
    """One that may be kept in a cache, and takes a moment, too."""
    time.sleep(SAMPLE_TIME)
    return fixed(index, width)


def images(length: int, width: int, make: Callable[..., Any] = augmented) -> Call:
    return Call(functools.partial(make, width=width), length)


class Stored(Call):
    """What is read of a storage that is slow, fails, and hangs, whenever it likes."""

    @lit_loader.reads_ahead
    def read(self, index: int) -> int:
        now = time.monotonic_ns() // 1000  # no random number: a read draws none
        if now % 50 == 0:
            raise OSError("the storage is busy")
        time.sleep(3 * TIMEOUT if now % 10_000 == 0 else SAMPLE_TIME * (now % 4))
        return 2 * index

    def __getitem__(self, index: int) -> dict[str, Any]:
        assert self.read(index) == 2 * index
        return augmented(index, 50)


class Stream(IterableDataset):
    """Samples with a state. Readers take turns batch by batch, so any number gives the same.

    If it is read by ``num_shards`` (``sharded``), readers do not depend on workers.
    """

    def __init__(self, length: int, sharded: bool = False) -> None:
        self.length, self.sharded = length, sharded

    def __iter__(self) -> Iterator[Any]:
        reader, readers = lit_loader.get_shard()
        starts = range(reader * SIZE, self.length, readers * SIZE)
        return Cursor(
            self.make, [index for start in starts for index in range(start, start + SIZE)]
        )

    def make(self, index: int) -> Any:
        # A reader's first sample, if there are so many: what it draws is not its batch's.
        first = not self.sharded and index % SIZE == 0 and index // SIZE < WORKERS
        return (fixed if first else augmented)(index, 50)


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
    """Parts of batches that are kept, each for ``longest`` batches at most, and must not change."""

    KINDS: tuple[Callable[[Any], Any], ...] = (
        lambda batch: batch["index"],
        lambda batch: batch["noise"][1:, ::3],
        lambda batch: batch["noise"][0].view(-1).numpy(),
        lambda batch: batch["jitter"].numpy()[..., 1],
        lambda batch: batch["jitter"].select(0, -1),
    )

    def __init__(self, rng: random.Random, longest: int) -> None:
        self.rng, self.longest, self.checked = rng, longest, 0
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

    It keeps up to ``hold`` past batches, which it checks again when it lets go of them, and pieces
    of batches for up to ``pieces`` batches. Further options are the loader's, also without workers.
    """

    def __init__(
        self,
        name: str,
        dataset: Any,
        hold: int = 2,
        pieces: int = 0,
        workers: int | str = WORKERS,
        persistent: bool = True,
        in_order: bool = True,
        prefetch_factor: int = 2,
        method: str = "fork",
        **options: Any,
    ) -> None:
        self.name, self.dataset = name, dataset
        self.hold, self.in_order, self.method = hold, in_order, method
        self.options = {"batch_size": SIZE, "seed": 7, **options}
        self.with_workers: dict[str, Any] = {"num_workers": workers}
        self.varies = workers == "auto"
        if workers:
            self.with_workers |= {
                "persistent_workers": persistent,
                "in_order": in_order,
                "prefetch_factor": prefetch_factor,
                "multiprocessing_context": method,
                "timeout": TIMEOUT,
                "max_worker_restarts": 10**6,
            }
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
        pool = getattr(iterator, "pool", None)
        if pool is not None and self.pool() is not pool:
            self.pool = weakref.ref(pool)

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


class Resized(Lane):
    """The number of its workers is changed in the midst of an epoch, now and then."""

    resized = 0

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.varies = True

    def _epoch(self, loader: Any) -> None:
        self._loader = loader
        super()._epoch(loader)

    def _take(self, iterator: Any) -> Any:
        if self.rng.random() < 0.05:
            self._loader.resize(self.rng.randint(1, 2 * WORKERS))
            self.resized += 1
        return next(iterator)


class Kept(Lane):
    """Its samples are kept in a cache: in memory alone, or in a folder as well; often a new one."""

    def _run(self, until: Callable[[], bool]) -> None:
        plain = self.dataset
        with tempfile.TemporaryDirectory() as folder:
            while not until():
                where = {"directory": folder, "key": "soak"} if self.rng.random() < 0.5 else {}
                self.dataset = CachedDataset(plain, memory="20 MB", **where)
                with DataLoader(self.dataset, **self.options, **self.with_workers) as loader:
                    for _ in range(self.rng.randint(1, 4)):
                        self._epoch(loader)
                    self.restarts += loader.statistics().worker_restarts
            self.dataset = plain


class Remote(Lane):
    """Beside its workers there are remote ones, threads of a relay; a new loader now and then."""

    def _run(self, until: Callable[[], bool]) -> None:
        while not until():
            with tempfile.TemporaryDirectory() as folder:
                remote = ThreadWorkers(folder)
                options = {**self.with_workers, "remote": remote, "remote_workers": 2}
                with DataLoader(self.dataset, **self.options, **options) as loader:
                    for _ in range(self.rng.randint(3, 9)):
                        self._epoch(loader)
                    statistics = loader.statistics()
                    self.restarts += statistics.worker_restarts
                    self.made_there += statistics.remote_batches

    made_there = 0


class Later(ThreadPoolExecutor):
    """A thread that does things after a while, one after the other; what fails there fails here."""

    def __init__(self) -> None:
        super().__init__(1, "later")
        self._done: list[Future[object]] = []

    def do(self, seconds: float, function: Callable[[], object]) -> None:
        """Have something done when so much time has passed."""
        until = time.monotonic() + seconds
        wait = functools.partial(self._wait, until, function)
        self._done = [each for each in self._done if not each.done() or each.result()]
        self._done.append(self.submit(wait))

    @staticmethod
    def _wait(until: float, function: Callable[[], object]) -> None:
        time.sleep(max(0.0, until - time.monotonic()))
        function()

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        for each in self._done:
            each.result()


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
        Lane("persistent", images(160, 50), shuffle=True),
        Lane("fresh", images(120, 50), shuffle=True, persistent=False, seeding="sample"),
        Lane("stream", Stream(160)),
        Lane("unordered", images(160, 50), shuffle=True, in_order=False),
        Lane("large", images(40, wide), shuffle=True),
        Lane("held", images(160, 5_000), hold=30, shuffle=True, prefetch_factor=4),
        Lane("pieces", images(160, 5_000), pieces=400, shuffle=True, prefetch_factor=4),
        Lane("in process", images(80, 50), workers=0, pieces=20, shuffle=True),
        Lane("another in process", Stream(80), workers=0, pieces=20),
        Lane("fork server", images(160, 50), shuffle=True, method="forkserver"),
        Lane("shards", Stream(160, sharded=True), num_shards=5),
        Lane("auto", images(160, 50), shuffle=True, workers="auto"),
        Lane("shards, auto", Stream(160, sharded=True), num_shards=4, workers="auto"),
        Resized("resized", images(160, 50), shuffle=True),
        Resized("shards, resized", Stream(160, sharded=True), num_shards=6),
        Kept("cached", images(160, 50, kept), shuffle=True),
        Lane("reads ahead", Stored(int, 160), shuffle=True, reads=8, sample_retries=5),
        Remote("beside remote ones", images(160, 50), shuffle=True),
        Closed("closed", images(80, 50), shuffle=True, pieces=200),
        Closed("stream, closed", Stream(80), pieces=20),
    ]


def interrupted_lane() -> Interrupted:
    """The one of the main thread."""
    return Interrupted("interrupted", images(80, 50), shuffle=True, pieces=50)
