"""`verdict`: what limits a training loop, how one sees that, and what to do about it.

It judges the `Evidence` of the latest batches. The first rule that applies counts::

    most of the wait was lost to workers that hang ─▶ what hangs, or a shorter timeout
    the loop hardly waited                         ─▶ the training step is the limit
    most of the wait was for epochs' first batches ─▶ keep workers, or start them earlier
    the workers are busy, or there are none        ─▶ reading samples is the limit
    most of the wait was for a few slow batches    ─▶ more batches in flight
    most of the wait was for batches that existed  ─▶ sending batches is the limit

Where none applies, the verdict says so: it advises nothing that was not seen to help.
``tests/support/limited_programs.py`` has a program for each piece of advice, and what it becomes
when the advice is followed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from lit_loader.diagnostics.sentences import counted, duration, percent
from lit_loader.profiling.controller import Setting

__all__ = ["Evidence", "verdict"]

LITTLE: Final = 0.05  # part of the time that a loop may wait without advice about it
MOST: Final = 0.5  # part of a sum that makes one summand its cause
BUSY: Final = 0.7  # part of the time from which on workers count as busy
ELSEWHERE: Final = 0.3  # part of a worker's time from which on it waits for something
LOCKED: Final = 0.1  # part of the looks at workers that makes a lock the cause
TURN: Final = 2.5e-3
"""Seconds that a loop waits for the GIL with each batch, on average, if worker threads hold it."""

SMALL, QUICK = 0.25e-3, 1e-3
"""Seconds of work on a batch below which sending it takes longer: for busy workers, for idle."""

LARGE: Final = 4e6  # bytes of a batch whose copying takes the time
SLOWER: Final = 3  # times the mean sample's time from which on a sample is named


@dataclass(frozen=True)
class Evidence:
    """What the verdict is based on: the latest batches, and what the loader works in.

    Durations are seconds, summed over these batches.
    """

    batches: int = 0
    samples: int = 0
    nbytes: int = 0
    seconds: float = 0.0  # of the loop
    waited: float = 0.0
    fetch: float = 0.0
    collate: float = 0.0
    encode: float = 0.0
    late: float = 0.0  # waited for batches that had arrived: decoding, pinning, the GIL
    slow: float = 0.0  # waited for batches that took much longer to make than others
    starts: int = 0  # epochs' first batches among these
    startup: float = 0.0  # waited for them
    hangs: int = 0  # workers that were ended because they hung
    hung: float = 0.0  # waited for them
    busy: tuple[float, ...] = ()  # of each worker: making batches
    computing: float = 0.0  # CPU cores that a busy worker used; 0: not measured
    queued: float = 0.0  # part of a busy worker's time in which it waited for a CPU core
    lock_fraction: float = 0.0  # part of the looks that found a worker at a lock they share
    slowest: tuple[tuple[str, float], ...] = ()  # samples, by their indices, and their seconds
    remote_batches: int = 0  # of all batches, made on other machines
    num_workers: int = 0  # on this machine, that made these batches
    remote_workers: int = 0
    auto: Setting | None = None  # of num_workers="auto"
    cores: int = 1  # that this process and its workers may use
    persistent_workers: bool = False
    iterable: bool = False
    threads: bool = False  # whether the workers are threads
    gpu: bool = False  # whether the training process uses one
    cache: Mapping[str, int] = field(default_factory=dict)

    @property
    def workers(self) -> int:
        """Workers here and on other machines."""
        return self.num_workers + self.remote_workers

    @property
    def made(self) -> float:
        """Seconds in which these batches were made."""
        return self.fetch + self.collate + self.encode

    @property
    def busy_fraction(self) -> float:
        """Part of the time in which the workers made batches, once they had started."""
        first = self.starts * self.made / max(1, self.batches)
        seconds = max(self.seconds - max(0.0, self.startup - first), 1e-9)
        return sum(min(1.0, each / seconds) for each in self.busy) / max(1, self.workers)


def verdict(seen: Evidence) -> str:
    """Return three lines: what limits the loop, the evidence, and a fix."""
    if not seen.batches:
        return "no batch was loaded"
    limit, evidence, fix = next(filter(None, _found(seen)))
    which = "the last batch" if seen.batches == 1 else f"the last {seen.batches:,} batches"
    waited = f"{percent(seen.waited / max(seen.seconds, 1e-9))} of the time"
    gpu = " (host time: the GPU may have been busy meanwhile)" if seen.gpu else ""
    parts = [f"in {which} the loop waited {waited}{gpu}", *evidence]
    if seen.hangs and seen.hung < MOST * seen.waited:
        parts.append(_hung(seen))
    return f"Limit: {limit}\nEvidence: {'; '.join(parts)}\nFix: {fix}"


_Verdict = tuple[str, list[str], str]


def _found(seen: Evidence) -> Iterator[_Verdict | None]:
    yield _hangs(seen)
    yield _step(seen)
    yield _start(seen)
    yield _no_workers(seen)
    yield _in_turn(seen)
    yield _small(seen, SMALL)
    yield _workers(seen)
    yield _uneven(seen)
    yield _late(seen)
    yield _small(seen, QUICK)
    yield (
        "not found",
        [_busy(seen), "neither slow batches nor the transfer explain the wait"],
        "none is known",
    )


def _hangs(seen: Evidence) -> _Verdict | None:
    if seen.hung < max(MOST * seen.waited, LITTLE * seen.seconds):
        return None
    fix = "repair what hangs (the WorkerRestartWarning has its stack), or lower timeout"
    return "workers that hang", [_hung(seen)], fix


def _hung(seen: Evidence) -> str:
    workers = counted(seen.hangs, "worker that hung", "workers that hung")
    return f"{duration(seen.hung)} of it were lost to {workers}"


def _step(seen: Evidence) -> _Verdict | None:
    if seen.waited - seen.hung >= LITTLE * seen.seconds:
        return None
    return "the training step", [], "none is needed in the loader"


def _start(seen: Evidence) -> _Verdict | None:
    """Most of the wait was for the first batches of epochs."""
    later = seen.batches - seen.starts
    usual = (seen.waited - seen.startup) / later if later else 0.0
    if not seen.starts or seen.startup - seen.starts * usual < MOST * seen.waited:
        return None
    if not later and not seen.num_workers:
        return None
    epochs = counted(seen.starts, "epoch")
    evidence = [
        f"{percent(seen.startup / seen.waited)} of that for the first batch of {epochs} "
        f"({duration(seen.startup / seen.starts)} each)"
    ]
    if seen.num_workers and not seen.persistent_workers and seen.starts > 1:
        fix = "persistent_workers=True, which keeps the workers from epoch to epoch"
    elif seen.starts > 1:
        fix = "longer epochs: nothing is ready when one begins"
    elif seen.num_workers:
        fix = "loader.start() before you build the model; it matters less the longer the run is"
    else:
        fix = "none is needed: it matters less the longer the run is"
    return "the start", evidence, fix


def _no_workers(seen: Evidence) -> _Verdict | None:
    if seen.workers and seen.busy:
        return None
    stages = {"fetch": seen.fetch, "collate": seen.collate}
    stage = max(stages, key=stages.__getitem__)
    evidence = ["the training process makes the batches itself", *_slowest(seen, stage)]
    if seen.made < QUICK * seen.batches:
        evidence.append(f"a batch takes {duration(seen.made / seen.batches)}")
        fix = "larger batches; workers would not be faster"
    else:  # a table is read here, whatever the number of workers
        fix = "none is known" if seen.num_workers else "set num_workers"
    return _samples(seen, stage), evidence, fix


def _in_turn(seen: Evidence) -> _Verdict | None:
    """The workers wait for each other, at a lock or, if they are threads, at the GIL."""
    if seen.num_workers < 2:
        return None
    limit = _samples(seen, "fetch")
    if seen.lock_fraction >= LOCKED:
        share = percent(seen.lock_fraction)
        evidence = f"{share} of the looks at workers found one waiting for a lock that they share"
        own = "thread" if seen.threads else "worker"
        fix = f"hold the lock for less time, or open a file or connection in each {own}"
        return limit, [evidence], f"{fix}; more workers do not help"
    crowded = seen.queued >= ELSEWHERE  # then the loop waits for a CPU core
    if seen.threads and not crowded and seen.late >= TURN * seen.batches:
        each = duration(seen.late / seen.batches)
        evidence = f"worker threads hold the GIL: the loop waited {each} for it with each batch"
        return limit, [evidence], "worker_method='multiprocessing'"
    return None


def _workers(seen: Evidence) -> _Verdict | None:
    """All workers are busy, or one of them, with an unequal share of a stream."""
    stages = {"fetch": seen.fetch, "collate": seen.collate, "encode": seen.encode}
    stage = max(stages, key=stages.__getitem__)
    busy, most = seen.busy_fraction, max(seen.busy) / max(seen.seconds, 1e-9)
    if busy < BUSY:
        others = (busy * seen.workers - most) / max(1, seen.workers - 1)
        if not seen.iterable or most < BUSY or seen.workers < 2 or others > MOST * most:
            return None
        evidence = f"one worker was {percent(most)} busy, the others {percent(others)}"
        return _samples(seen, stage), [evidence], "give the workers equal shares of the stream"
    share = percent(stages[stage] / max(seen.made, 1e-9))
    parts = [f"{_busy(seen)}, {share} of it {_where(seen, stage)}"]
    if stage == "encode" or (stage == "collate" and seen.nbytes >= LARGE * seen.batches):
        return "sending batches to the training process", parts, _lighter(seen)
    waiting = max(0.0, 1 - seen.computing - seen.queued) if seen.computing else 0.0
    if seen.computing:
        parts.append(
            f"they computed for {percent(min(seen.computing, 1.0))} of that, and waited for "
            f"{percent(waiting)} (storage, network) and {percent(seen.queued)} (a CPU core)"
        )
    if seen.auto is not None:
        workers = counted(seen.auto.workers, "worker")
        parts.append(f'num_workers="auto" has {workers} ({seen.auto.reason})')
    parts += _slowest(seen, stage)
    return _samples(seen, stage), parts, _fix(seen, stage, waiting)


def _fix(seen: Evidence, stage: str, waiting: float) -> str:
    """What helps workers that are busy reading samples, or collating them."""
    cheaper = f"make {_where(seen, stage).removeprefix('in ')} cheaper"
    if missing := seen.cache.get("cache_bytes_missing"):
        return f"give the CachedDataset {_size(missing)} more memory, or {cheaper}"
    if seen.auto is not None:
        growing = "let it run: it starts more workers while the loop waits"
        return cheaper if seen.auto.limited else growing
    few = seen.computing * seen.num_workers < BUSY * seen.cores
    # A core that were free would not shorten what a sample sleeps, or waits for storage.
    if few and waiting >= ELSEWHERE * (1 - seen.queued):
        threads = "" if seen.iterable else ". Or set read_threads"
        return (
            f"raise num_workers, even beyond the {seen.cores} CPU cores: the workers mostly wait, "
            f"so ignore LL031{threads}"
        )
    if seen.queued > seen.computing and seen.num_workers <= seen.cores:
        return "free CPU cores: other programs, or the training step, use them"
    if seen.num_workers < seen.cores:
        return f"raise num_workers: there are {counted(seen.cores, 'CPU core')}"
    return f"{cheaper}; more workers do not help: all {counted(seen.cores, 'CPU core')} compute"


def _uneven(seen: Evidence) -> _Verdict | None:
    """The loop waits for a few slow batches, while the others are made, and workers idle."""
    if seen.slow < MOST * seen.waited:
        return None
    share = percent(seen.slow / seen.waited)
    evidence = f"{share} of that was for batches that took over twice the usual time"
    fix = "raise prefetch_factor, so that more batches are ready when a slow one comes"
    return "a few slow batches", [_busy(seen), evidence, *_slowest(seen, "fetch")], fix


def _late(seen: Evidence) -> _Verdict | None:
    """Batches are there, and the training process takes long to rebuild or to pin them."""
    if seen.late < MOST * seen.waited:
        return None
    share = percent(seen.late / seen.waited)
    evidence = f"{share} of that was for batches that had arrived: to rebuild or to pin them"
    return "sending batches to the training process", [_busy(seen), evidence], _lighter(seen)


def _small(seen: Evidence, quick: float) -> _Verdict | None:
    """Batches are made faster than they can be sent."""
    if seen.made >= quick * seen.batches or seen.waited >= 2 * QUICK * seen.batches:
        return None
    evidence = f"a batch is made in {duration(seen.made / seen.batches)}, and sending it takes more"
    return "sending batches to the training process", [evidence], "larger batches, or num_workers=0"


def _lighter(seen: Evidence) -> str:
    each = seen.nbytes / max(1, seen.batches)
    if each >= LARGE:
        return f"send less: a batch has {_size(each)}; uint8 images, which the model converts"
    return "return tensors or arrays, which are copied, instead of objects, which are pickled"


def _samples(seen: Evidence, stage: str) -> str:
    verb = "reading samples" if stage == "fetch" else "making batches"
    return f"{verb}, {_where(seen, stage)}"


def _where(seen: Evidence, stage: str) -> str:
    if stage == "fetch":
        return "in the stream's __iter__" if seen.iterable else "in __getitem__"
    return "in collate_fn" if stage == "collate" else "writing batches into shared memory"


def _busy(seen: Evidence) -> str:
    return f"{counted(seen.workers, 'worker')} {percent(seen.busy_fraction)} busy"


def _slowest(seen: Evidence, stage: str) -> list[str]:
    mean = seen.fetch / max(1, seen.samples)
    named = [f"{index} ({duration(took)})" for index, took in seen.slowest if took > SLOWER * mean]
    return [f"slowest samples: {', '.join(named)}"] if named and stage == "fetch" else []


def _size(nbytes: float) -> str:
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.3g} {name}"
    return f"{nbytes:.0f} bytes"
