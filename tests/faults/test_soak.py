"""Soak: processes are killed all the time, for a long time, and nothing is lost and nothing grows.

    export LIT_LOADER_SOAK_SECONDS=1200
    pytest -m slow -n 0 -s -o faulthandler_timeout=0 tests/faults/test_soak.py

Several loaders (tests/support/soak_lanes.py) run side by side, each of them epoch after epoch and
in a thread of its own. Meanwhile another thread picks a victim every few hundred milliseconds: a
worker, the launcher, both, a launcher that has just been forked, the fork server. What is drawn
comes from a seed, which is printed (``LIT_LOADER_SOAK_SEED``); what it meets is the machine's
affair. Memory, descriptors, threads and processes of the first and the last quarter are compared.

Two deaths in a row over one batch are an error, by design. The schedule leaves workers alone that
are at a batch which was struck before; a signal may still come late and meet the next batch. Such
errors are counted, must say just that, and cost that batch and no other.
"""

from __future__ import annotations

import collections
import contextlib
import gc
import os
import random
import re
import signal
import statistics
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import forkserver
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from lit_loader import DataLoader
from lit_loader.errors import WorkerRestartWarning
from lit_loader.transport.status_board import Stage
from lit_loader.workers.worker_pool import WorkerPool
from tests.support.soak_lanes import SEED, WORKERS, Interrupted, Lane, interrupted_lane, lanes

SECONDS = float(os.environ.get("LIT_LOADER_SOAK_SECONDS", "1200"))

# By a thread: SIGALRM is ours here.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(SECONDS + 600, method="thread")]

SMOKE_SECONDS = 5.0

PAUSE = (0.1, 0.5)  # seconds between two strikes

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
        self._struck_at: dict[tuple[str, int], int] = {}  # lane, batch: which of its epochs

    def run(self, stop: threading.Event) -> None:
        """Strike until told otherwise."""
        kinds, weights = zip(*STRIKES.items(), strict=True)
        while not stop.wait(self.rng.uniform(*PAUSE)):
            [lane] = self.rng.choices(self.targets, self.weights)
            [kind] = self.rng.choices(kinds, weights)
            worker, order = self.rng.randrange(WORKERS), self.rng.random() < 0.5
            try:
                if kind == "newborn launcher":
                    done = self._strike_newborn(stop)
                elif kind == "fork server":
                    done = kill(lambda: forkserver._forkserver._forkserver_pid)
                else:
                    done = self._strike(lane, kind, worker, order)
            # A pool changes meanwhile, or ends: then there is nothing to strike.
            except (OSError, ValueError, LookupError, AttributeError, TypeError):
                done = False
            self.struck[str(getattr(kind, "name", kind))] += done
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
            finds += [lambda at=at: pool.workers.pids[at] for at in pool.workers.started]
            if not all([self._may_strike(lane, pool, at) for at in pool.workers.started]):
                return False
            return all([kill(find) for find in (finds if order else reversed(finds))])
        return self._may_strike(lane, pool, worker) and kill(
            lambda: pool.workers.pids[worker], kind
        )

    def _may_strike(self, lane: Lane, pool: WorkerPool, worker: int) -> bool:
        """Whether the batch that a worker is at was not struck before; notes that it is now."""
        row = pool._board.read(worker)
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


def launcher_of(pool: Any) -> int:
    return int(pool.workers.starter.pid)


def children() -> set[int]:
    """The processes that this one has started: launchers, and multiprocessing's helpers."""
    found: set[int] = set()
    for file in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found.update(map(int, file.read_text().split()))
    return found


# What it costs ---------------------------------------------------------------------------------


class Usage(NamedTuple):
    """What all processes together have at one moment: bytes, and numbers of things."""

    parent: int  # its own memory
    workers: int  # memory of launchers and workers, and their part of what is shared
    arenas: int
    descriptors: int  # of this process
    threads: int
    processes: int  # launchers and workers


def memory(pid: int | str, file: str, field: str) -> int:
    """Bytes that the kernel tells of a process; 0 if that has ended."""
    try:
        text = Path(f"/proc/{pid}/{file}").read_text()
    except OSError:
        return 0
    found = re.search(rf"^{field}:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def usage(targets: Iterable[Lane]) -> Usage:
    """What all take; workers whose number varies, with their descriptors, are not counted."""
    pids: set[int] = {child.pid for child in psutil.Process().children(recursive=True)}
    varying: set[int] = set()
    arenas = 0
    for lane in targets:
        pool = lane.pool()
        # Workers of a launcher that was killed are nobody's children any more.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            if pool is not None and not pool.closed:
                (varying if lane.varies else pids).update(pool.workers.pids)
                arenas += os.fstat(pool.arena.fd).st_blocks * 512
    return Usage(
        memory("self", "status", "RssAnon"),
        sum(memory(pid, "smaps_rollup", "Pss") for pid in pids - varying),
        arenas,
        len(os.listdir("/proc/self/fd")) - A_WORKER * len(varying),
        threading.active_count(),
        len(pids - varying),
    )


A_WORKER = 3
"""Descriptors that the parent has of a worker."""

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
        if "of remote_workers=" in first and "The others come up" in first:
            self.starts["remote workers are late"] += 1
            return
        killed = re.search(
            r"was killed by (\w+)|did not get on|exit code is not known|did not come up",
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

    def __init__(self, seconds: float, targets: list[Lane]) -> None:
        self.targets, self.stop = targets, threading.Event()
        self.found: list[Usage] = []
        self._looked = time.monotonic()
        self._end, self._interval = self._looked + seconds, min(10.0, seconds / 20)

    def over(self) -> bool:
        """Whether the time is up, or something has failed; the main thread asks often."""
        now = time.monotonic()
        if now - self._looked > self._interval:
            self._looked = now
            self.found.append(usage(self.targets))
        if now > self._end or any(lane.failure for lane in self.targets):
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
    interrupted = interrupted_lane()
    threaded = lanes()
    targets = [*threaded, interrupted]
    for lane in targets:
        lane.prepare()
    with DataLoader(range(2), num_workers=1, multiprocessing_context="forkserver") as loader:
        list(loader)  # the fork server stays
    gc.collect()
    before = left_over()
    chaos = Chaos(targets)
    watch = Watch(seconds, targets)
    # Not of a ThreadPoolExecutor: what is forked in its threads cannot end with exit code 0.
    threads = [threading.Thread(target=lane.run, args=(watch.stop.is_set,)) for lane in threaded]
    with counted_warnings() as told, ThreadPoolExecutor(1) as pool:
        striking = pool.submit(chaos.run, watch.stop)
        for thread in threads:
            thread.start()
        interrupted.run(watch.over)
        watch.stop.set()
        for thread in threads:
            thread.join()
        striking.result()
    report(targets, chaos, told, interrupted, watch.found)
    failures = [lane.failure for lane in targets if lane.failure]
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
    while (left := left_over()) != before and time.monotonic() < end:
        os.sched_yield()
    # A thread of a loader before this may have ended meanwhile.
    assert (left[0], left[2]) == (before[0], before[2]) and left[1] <= before[1]
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
        print(f"  first quarter {medians(found[:quarter])}")
        print(f"  last quarter  {medians(found[-quarter:])}", flush=True)
