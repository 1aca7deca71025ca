"""Soak: workers are killed all the time, for a long time, and nothing is lost and nothing grows.

    LIT_LOADER_SOAK_SECONDS=1200 pytest -m slow -s -o faulthandler_timeout=0 tests/test_soak.py

Several loaders run side by side, one a thread, each of them epoch after epoch; what they give is
compared with what ``num_workers=0`` gives. Meanwhile another thread picks a worker and a signal
every few hundred milliseconds, by a seeded schedule (what it meets is the machine's affair).
Memory, descriptors, threads and processes of the first and the last quarter are compared.

Two deaths in a row over one batch are an error, by design. The schedule leaves workers alone that
are at a batch which was struck before; a signal may still come late and meet the next batch. Such
errors are counted, must say just that, and cost that batch and no other.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import os
import random
import re
import signal
import statistics
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

import lit_loader
from lit_loader import DataLoader
from lit_loader.board import Stage
from lit_loader.errors import (
    LoaderError,
    WorkerDiedError,
    WorkerRestartWarning,
    WorkerTimeoutError,
)
from lit_loader.worker_pool import WorkerPool

SECONDS = float(os.environ.get("LIT_LOADER_SOAK_SECONDS", "1200"))
SEED = int(os.environ.get("LIT_LOADER_SOAK_SEED", "0"))

pytestmark = [pytest.mark.slow, pytest.mark.timeout(SECONDS + 600)]

WORKERS = 2
EPOCHS = 3  # different ones, which come around again
TIMEOUT = 1.0
PAUSE = (0.1, 0.5)  # seconds between two strikes
SAMPLE_TIME = 0.001

STRIKES = {
    signal.SIGKILL: 40,
    signal.SIGSEGV: 20,
    signal.SIGTERM: 20,
    signal.SIGSTOP: 10,
    "launcher": 10,
}
"""What strikes how often, of a hundred; a launcher is killed by SIGKILL."""


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
        return augmented(self.indices[self.position - 1], self.stream.width)

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


class Lane:
    """A loader, and a thread that iterates it over and over and checks what it gets.

    Args:
        name: For the report.
        dataset: What it loads.
        hold: How many past batches are kept, at most, and checked again when they are let go of.
        persistent: Whether its workers are.
        in_order: Whether batches come in order.
        prefetch_factor: Of the loader.
        options: Of the loader, and of one without workers.
    """

    def __init__(
        self,
        name: str,
        dataset: Any,
        hold: int = 2,
        persistent: bool = True,
        in_order: bool = True,
        prefetch_factor: int = 2,
        **options: Any,
    ) -> None:
        self.name = name
        self.hold = hold
        self.in_order = in_order
        self.options = {"batch_size": 4, "seed": 7, **options}
        self.with_workers = {
            "num_workers": WORKERS,
            "persistent_workers": persistent,
            "in_order": in_order,
            "prefetch_factor": prefetch_factor,
            "timeout": TIMEOUT,
            "max_worker_restarts": 10**6,
        }
        self.dataset = dataset
        self.rng = random.Random(f"{SEED} {name}")
        self.epochs = self.batches = self.left = self.restarts = 0
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
            with DataLoader(self.dataset, **self.options, **self.with_workers) as loader:
                while not until():
                    self._epoch(loader, self.rng.randrange(EPOCHS), until)
                self.restarts = loader.statistics().worker_restarts
        except BaseException:
            self.failure = traceback.format_exc()

    def _epoch(self, loader: Any, epoch: int, until: Callable[[], bool]) -> None:
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
                batch = next(iterator)
            except StopIteration:
                break
            except (WorkerDiedError, WorkerTimeoutError, LoaderError) as error:
                number = self._expected_error(error)
                if number is not None:
                    given_up.add(number)
                continue
            finally:
                self._note_pool(iterator)
            found.append(digest(batch))
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

    def _note_pool(self, iterator: Any) -> None:
        engine = iterator._engine
        if engine is not None and self.pool() is not engine.pool:
            self.pool = weakref.ref(engine.pool)

    def _check_held(self, batch: Any, before: str) -> None:
        assert digest(batch) == before, f"{self.name}: a batch that was held has changed"

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
        where = f"{self.name}, epoch {epoch} (the {self.epochs}th that was begun)"
        if self.in_order:
            if not complete:
                # What was given up further on had no turn yet.
                wanted = [e for n, e in enumerate(expected) if n not in given_up][: len(found)]
            assert found == wanted, f"{where}: {difference(expected, found)}"
        elif complete:
            assert sorted(found) == sorted(wanted), f"{where}: {difference(expected, found)}"
        else:
            lacking = collections.Counter(found) - collections.Counter(wanted)
            assert not lacking, f"{where}: {difference(expected, found)}"


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
    ]


# The chaos -------------------------------------------------------------------------------------


class Chaos:
    """Strikes workers until told otherwise; what and when is drawn from a seed."""

    def __init__(self, targets: list[Lane]) -> None:
        self.targets = targets
        self.rng = random.Random(SEED)
        self.struck: collections.Counter[str] = collections.Counter()
        self.avoided = 0
        self.failure: str | None = None
        self._struck_at: dict[tuple[int, int], int] = {}  # pool, batch: its generation then

    def run(self, stop: threading.Event) -> None:
        """Strike until told otherwise."""
        try:
            self._run(stop)
        except BaseException:
            self.failure = traceback.format_exc()

    def _run(self, stop: threading.Event) -> None:
        kinds, weights = zip(*STRIKES.items(), strict=True)
        while not stop.wait(self.rng.uniform(*PAUSE)):
            lane, [kind] = self.rng.choice(self.targets), self.rng.choices(kinds, weights)
            worker = self.rng.randrange(WORKERS)
            pool = lane.pool()
            if pool is None:
                continue
            # The pool changes meanwhile, or ends: then there is nothing to strike.
            with contextlib.suppress(OSError, ValueError, IndexError, AttributeError):
                if kind == "launcher":
                    self._kill(lambda pool=pool: launcher_of(pool), signal.SIGKILL)
                elif self._may_strike(pool, worker):
                    self._kill(lambda pool=pool, at=worker: pool.pids[at], kind)
                else:
                    self.avoided += 1
                    continue
                self.struck["launcher" if kind == "launcher" else kind.name] += 1

    def _may_strike(self, pool: WorkerPool, worker: int) -> bool:
        """Whether the batch that a worker is at was not struck before; notes that it is now."""
        row = pool.rows()[worker]
        if row.stage not in Stage.BUSY:
            return True
        key = (id(pool), row.number)
        if self._struck_at.get(key) == pool.generation:
            return False
        self._struck_at[key] = pool.generation
        return True

    def _kill(self, find: Callable[[], int], number: signal.Signals) -> None:
        """Send a signal to a process that is still the one that was meant."""
        pid = find()
        pidfd = os.pidfd_open(pid)
        try:
            if find() == pid:
                signal.pidfd_send_signal(pidfd, number)
        finally:
            os.close(pidfd)


def launcher_of(pool: WorkerPool) -> int:
    return pool._own.starter._launcher._process.pid or 0  # type: ignore[union-attr, no-any-return]


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


SLACK = Usage(64 << 20, 256 << 20, 128 << 20, 8, 2, 4)
"""By how much the median of the last quarter may be above that of the first."""


# The test --------------------------------------------------------------------------------------


@contextlib.contextmanager
def counted_warnings() -> Iterator[collections.Counter[str]]:
    """Count restarts by their cause, as the loader tells it."""
    causes: collections.Counter[str] = collections.Counter()

    def count(message: Any, category: type, *_: Any) -> None:
        text = str(message)
        assert category is WorkerRestartWarning, text
        killed = re.search(r"was killed by (\w+)|did not get on|exit code is not known", text)
        assert killed, text
        causes[killed[1] or ("hung" if "did not" in text else "not known")] += 1

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = count
        yield causes


def test_soak() -> None:
    targets, stop = lanes(), threading.Event()
    for lane in targets:
        lane.prepare()
    before = left_over()
    chaos = Chaos(targets)
    end = time.monotonic() + SECONDS
    threads = [threading.Thread(target=lane.run, args=(stop.is_set,)) for lane in targets]
    threads.append(threading.Thread(target=chaos.run, args=(stop,)))
    found: list[Usage] = []
    interval = min(10.0, SECONDS / 20)
    with counted_warnings() as causes:
        for thread in threads:
            thread.start()
        checkpoint = 0.0
        while time.monotonic() < end and not any(part.failure for part in (chaos, *targets)):
            stop.wait(interval)
            found.append(usage(targets))
            if time.monotonic() - checkpoint > 60:
                checkpoint = time.monotonic()
                report(targets, chaos, causes, found)
        stop.set()
        for thread in threads:
            thread.join()
        report(targets, chaos, causes, found)
    failures = [part.failure for part in (chaos, *targets) if part.failure]
    assert not failures, "\n".join(failures)
    assert all(lane.epochs for lane in targets)
    assert sum(causes.values()) == sum(lane.restarts for lane in targets) > 0
    # At most one strike in fifty may meet a batch that was struck before.
    unlucky = sum((lane.errors for lane in targets), collections.Counter())
    assert sum(unlucky.values()) <= 1 + sum(chaos.struck.values()) // 50, unlucky
    # A worker whose launcher was killed is nobody's child; it ends by itself.
    end = time.monotonic() + 10
    while left_over() != before and time.monotonic() < end:
        os.sched_yield()
    assert left_over() == before
    quarter = len(found) // 4
    for name, first, last in zip(
        Usage._fields, medians(found[1 : 1 + quarter]), medians(found[-quarter:]), strict=True
    ):
        slack = getattr(SLACK, name)
        assert last <= first + slack, f"{name} went from {first} to {last} (allowed: {slack} more)"


def left_over() -> tuple[int, int, set[int]]:
    """Descriptors and threads of this process, and all that were forked from it and live."""
    forks = set()
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            ours = os.getpgid(pid) == os.getpgrp() and pid != os.getpid()
            if ours and "memfd:lit_loader " in Path(f"/proc/{pid}/maps").read_text():
                forks.add(pid)
    return len(os.listdir("/proc/self/fd")), threading.active_count(), forks


def medians(entries: list[Usage]) -> Usage:
    return Usage(*(int(statistics.median(column)) for column in zip(*entries, strict=True)))


def report(
    targets: list[Lane], chaos: Chaos, causes: collections.Counter[str], found: list[Usage]
) -> None:
    print(f"\nstruck {dict(chaos.struck)} (left alone {chaos.avoided}); restarts {dict(causes)}")
    for lane in targets:
        print(
            f"  {lane.name}: {lane.epochs} epochs ({lane.left} left in the middle), "
            f"{lane.batches} batches, {dict(lane.errors)}"
        )
    quarter = max(1, len(found) // 4)
    print(f"  first quarter {describe(found[:quarter])}")
    print(f"  last quarter  {describe(found[-quarter:])}", flush=True)


def describe(entries: list[Usage]) -> str:
    median = medians(entries)
    return (
        f"parent {median.parent >> 20} MiB, workers {median.workers >> 20} MiB, arenas "
        f"{median.arenas >> 20} MiB, {median.descriptors} descriptors, {median.threads} threads, "
        f"{median.processes} processes"
    )
