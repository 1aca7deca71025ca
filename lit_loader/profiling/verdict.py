"""`LoaderStatistics`, and what they mean in words: does loading limit, by what, and what helps.

``loader.statistics().verdict`` is this; `LoaderMonitor` adds what the Trainer does between a batch
and its step. The first rule that applies counts::

    torch's threads wait for processors ─▶ fewer threads (`_threads`)
    the loop hardly waited              ─▶ the loader is not the limit
    … mostly for first batches          ─▶ keep the workers, or start them faster
    … and there are no workers          ─▶ have some
    … workers wait for one lock         ─▶ hold it for less
    … threads wait for the interpreter  ─▶ have processes
    … or for pages from a disk          ─▶ less memory
    … a few samples take most of it     ─▶ these samples
    … and remote workers were not busy  ─▶ the way from them (`_network`)
    … and the workers were busy         ─▶ more of them, or the stage that takes longest
    … … waiting for storage             ─▶ more reads at a time
    … one of them was, the others not   ─▶ unequal shares
    … and the parent itself was busy    ─▶ decode, or the pin-memory thread
    … and batches are made at once      ─▶ larger batches
    … and none of these was busy        ─▶ prefetch more
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from lit_loader.describe import public
from lit_loader.diagnostics.sentences import counted, duration, percent
from lit_loader.profiling.records import (
    MemoryUse,
    NodeTimes,
    SlowSample,
    StageTimes,
    Surroundings,
    WorkerTimes,
)

__all__ = ["MADE", "LoaderStatistics", "cause", "places", "verdict"]

LITTLE: Final = 0.05  # part of the time that a loop may wait without advice about it
BRIEF: Final = 0.15  # part of the time that epochs' first batches may take
MUCH: Final = 0.1  # part of the time from which on the transfer to the device is mentioned
SHOWN: Final = 0.02  # part of the workers' time that is worth mentioning
MOST: Final = 0.5  # part of a sum that makes one summand its cause
ELSEWHERE: Final = 0.3  # part of a worker's time from which on it waits for something
BUSY: Final = 0.7  # part of the time from which on a worker, or thread, counts as busy
OFTEN: Final = 0.1  # part of the looks at workers that makes what they wait for the cause
ENOUGH: Final = 20  # looks at workers of which none found one at a lock, so that there is none

SLOWER: Final = 3  # times the mean sample's time from which on a sample is named

QUEUED: Final = 0.3
"""Threads that wait for a processor, on the mean, from which on they take them from each other."""

OURS: Final = 0.75
"""Part of the processors that a program has, below which others are what its threads wait for."""

HELD: Final = 0.5 * sys.getswitchinterval()
"""Seconds that a thread waits for the interpreter's lock, on the mean, where others compute with
it; where they let go of it, hardly any."""

ALONE: Final = 1.2  # processors that workers may use together which take turns

LARGE: Final = 4e6  # bytes of a batch whose copying takes the time
QUICK: Final = 1e-3  # seconds of work on a batch below which handing it over takes longer

INSTANT: Final = 0.25e-3
"""Seconds of work on a batch below which handing it over takes a good part of the time, however
busy workers are."""

FEW: Final = 0.1
"""Part of the batches that remote workers must have made for their way to be judged."""

TEN_GBE: Final = 1.15e9  # bytes a second that such a network carries of batches

WIDE, SMALL = 0.08e9, 1e6
"""Bytes a second, and of a batch, up to which it is the number of small batches that takes the
time, not bytes: a slow network, 100 Mbit, carries a dozen of a megabyte a second."""

_LEAVE: Final = "the loader is not the limit: leave it"

MADE: Final = ("fetch", "state", "collate", "encode")  # a worker's stages
_IN_PARENT: Final = {
    "decode": "rebuilding batches in the training process: return tensors or arrays, instead of "
    "objects that take long to unpickle",
    "pin": "copying batches into page-locked memory: return fewer, larger tensors, or try "
    "pin_memory=False",
}


@public
@dataclass(frozen=True)
class LoaderStatistics:
    """Where a loader's time went, from its first batch on.

    A stage (``fetch`` to ``step``) has ``total``, ``mean``, ``p50``, ``p90``, ``p99`` and ``max``,
    in seconds.

    Attributes:
        batches: Batches yielded.
        samples: Samples in them.
        nbytes: Bytes of shared memory that they took.
        tokens: Tokens in them, as counted by `lit_loader.note`, `PackedStream` or `PackCollate`; 0:
            nothing counts them.
        seconds: Spent in the loops over this loader: waiting for batches, and using them.
        fetch: Reading samples (``__getitem__``), in workers.
        collate: Collating, in workers.
        encode: Writing batches into shared memory, in workers.
        wait: The consumer's wait for the workers. With ``num_workers=0``: for fetch and collate.
        decode: Rebuilding batches, in the training process.
        pin: Copying them into page-locked memory, in the pin-memory thread.
        step: What the consumer did between batches; 0 before an iterator's first one.
        waited: Seconds that the consumer waited for data: ``wait``, and what it did itself (decode
            without a pin-memory thread, pin with ``num_workers=0``).
        wait_fraction: ``waited`` as a fraction of ``seconds``.
        starts: Iterators that have yielded a batch.
        startup: Seconds of ``waited`` for their first batches.
        startup_fetch: Seconds of ``startup`` in which these were read, and not workers started.
        workers: Each worker's part.
        busy_fraction: Mean of the workers'.
        slowest_samples: The slowest, at most five, slowest first, each index once.
        straggler_seconds: Seconds of ``fetch`` spent in samples that took over five times as long
            as the mean of the others in their batch.
        ready: Batches that were finished and not yielded yet, when this was taken.
        worker_restarts: Workers that were replaced after they crashed or hung.
        worker_growth: Bytes a batch by which the workers' memory, all together, has grown and still
            grows; 0: it does not, or by less than 64 MiB so far.
        sample_errors: Samples that could not be read, and were skipped or replaced.
        sample_retries: Times that a sample was read again.
        shared_memory: Bytes of shared memory that batches have in use now.
        cache_hits: Samples that a `CachedDataset` in the dataset took from memory or disk, since it
            was made and in all processes.
        cache_misses: Samples that it had to make.
        cache_bytes: Bytes of memory that its samples use.
        cache_bytes_missing: Bytes of memory that it lacks to hold all samples; 0 while it has room.
        remote_batches: Those of ``batches`` that were made on other machines.
        remote_nbytes: Their bytes, which came over the network.
        handover: Seconds, summed over batches of workers here, from when a batch was there, and
            asked for, until the loop had it.
        transit: Seconds, summed over them, in which no worker made the batch, between its order
            and its arrival: on the way, or waiting for another one.
        nodes: What each other machine did, by name.
        memory: The memory of the loader's processes; None unless you asked for it.
        num_workers: Worker processes, when this was taken.
        num_workers_reason: Why ``num_workers="auto"`` chose this number; else "".
        processor_fraction: Processor time of the workers, as part of the time in which they made
            batches (with threads of the dataset's it may be more than 1); 0: not measured.
        queued_fraction: Part of that time in which they waited for a processor; 0: not measured.
        read: The part of ``fetch`` in which samples waited for what `lit_loader.reads_ahead` or
            `lit_loader.read_stream` reads; 0 where the dataset uses neither.
        state: The part of ``fetch`` in which the ``state_dict`` of a stream was asked and written
            down; 0 where it has none.
        worker_looks: Looks at what workers slept at, taken while the consumer waited (Linux).
        lock_fraction: Part of these that found a worker waiting for a lock that the workers share.
        page_fraction: Likewise for memory that comes from a disk: swap, or a mapped file.
        running_threads: Threads of the training process that ran, on the mean over ``seconds``
            (Linux); 0: not measured.
        queued_threads: Threads of the training process that waited for a processor, on the mean
            over ``seconds`` (Linux); 0: none, or not measured.
        active_threads: Threads of the training process that ran, or waited for a processor, for a
            fifth of ``seconds`` at least.
        surroundings: What the verdict depends on besides: processors, threads, the dataset's kind.
    """

    batches: int = 0
    samples: int = 0
    nbytes: int = 0
    tokens: int = 0
    seconds: float = 0.0
    fetch: StageTimes = field(default_factory=StageTimes)
    collate: StageTimes = field(default_factory=StageTimes)
    encode: StageTimes = field(default_factory=StageTimes)
    wait: StageTimes = field(default_factory=StageTimes)
    decode: StageTimes = field(default_factory=StageTimes)
    pin: StageTimes = field(default_factory=StageTimes)
    step: StageTimes = field(default_factory=StageTimes)
    waited: float = 0.0
    wait_fraction: float = 0.0
    starts: int = 0
    startup: float = 0.0
    startup_fetch: float = 0.0
    workers: tuple[WorkerTimes, ...] = ()
    busy_fraction: float = 0.0
    slowest_samples: tuple[SlowSample, ...] = ()
    straggler_seconds: float = 0.0
    ready: int = 0
    worker_restarts: int = 0
    worker_growth: float = 0.0
    sample_errors: int = 0
    sample_retries: int = 0
    shared_memory: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    cache_bytes: int = 0
    cache_bytes_missing: int = 0
    remote_batches: int = 0
    remote_nbytes: int = 0
    handover: float = 0.0
    transit: float = 0.0
    nodes: tuple[NodeTimes, ...] = ()
    memory: MemoryUse | None = None
    num_workers: int = 0
    num_workers_reason: str = ""
    processor_fraction: float = 0.0
    queued_fraction: float = 0.0
    read: StageTimes = field(default_factory=StageTimes)
    state: StageTimes = field(default_factory=StageTimes)
    worker_looks: int = 0
    lock_fraction: float = 0.0
    page_fraction: float = 0.0
    running_threads: float = 0.0
    queued_threads: float = 0.0
    active_threads: int = 0
    surroundings: Surroundings = field(default_factory=Surroundings)

    @property
    def samples_per_second(self) -> float:
        """Samples a second of the loop, steps and waits included; of this rank."""
        return self.samples / self.seconds if self.seconds else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Tokens a second of the loop, steps and waits included; of this rank."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def verdict(self) -> str:
        """What limits the loop, and what to do about it, in a line."""
        return verdict(self)

    def __str__(self) -> str:
        """Two lines for a reader: figures, verdict; the repr has everything."""
        return f"{self.figures()}\n{self.verdict}"

    def figures(self) -> str:
        """The gist of the figures, in a line."""
        stages = ("fetch", "read", "state", "collate", "encode", "decode", "pin", "step")
        means = {name: getattr(self, name).mean * 1e3 for name in stages}
        shown = ", ".join(f"{name} {mean:.3g}" for name, mean in means.items() if mean)
        makers = counted(len(self.workers) or self.num_workers, "worker")
        if [made.worker for made in self.workers] == [-1]:
            makers = "this process"
        if self.remote_batches:
            nodes = counted(len(self.nodes), "node")
            makers += f" ({counted(self.remote_batches, 'batch', 'batches')} from {nodes})"
        tokens = f", {counted(self.tokens, 'token')}" if self.tokens else ""
        return (
            f"{counted(self.batches, 'batch', 'batches')} ({counted(self.samples, 'sample')}"
            f"{tokens}) in "
            f"{self.seconds:.3g} s; waited {self.wait_fraction:.0%} of it; {makers} "
            f"{self.busy_fraction:.0%} busy; mean ms a batch: {shown or 'none'}; "
            f"{counted(self.worker_restarts, 'restart')}, "
            f"{counted(self.sample_errors, 'bad sample')}{self._cache()}"
            f"{'' if self.memory is None else f'; memory: {self.memory}'}"
        )

    def _cache(self) -> str:
        asked = self.cache_hits + self.cache_misses
        return f"; {self.cache_hits / asked:.0%} from the cache" if asked else ""


def places(iterable: bool) -> dict[str, str]:
    """Where each stage of a worker's happens, in the user's words."""
    return {
        "fetch": "in the stream's __iter__" if iterable else "in __getitem__",
        "state": "taking the stream's state",
        "collate": "in collate_fn",
        "encode": "writing batches into shared memory",
    }


def verdict(statistics: LoaderStatistics, transfer: StageTimes | None = None) -> str:
    """Say in a line where the time of a training loop went, and what would help.

    ``transfer`` is from the moment at which a batch was given out to that at which the step with it
    began; None: not known.
    """
    if not statistics.batches:
        return "no batch was loaded"
    fraction = statistics.wait_fraction
    if threads := _threads(statistics):
        parts = [threads]
    elif fraction < LITTLE:
        parts = [f"{_LEAVE} (the loop waited {100 * fraction:.1f} % of the time)"]
    elif (steady := _behind_the_first(statistics)) < LITTLE:
        parts = [
            f"{_LEAVE} (the loop waited {duration(statistics.startup)} for "
            f"{_first(statistics)}, and then {100 * steady:.1f} % of the time)"
        ]
    else:
        parts = [f"the loop waited {percent(fraction)} of the time", cause(statistics)]
    return "; ".join([*parts, *_besides(statistics, transfer)])


def _behind_the_first(statistics: LoaderStatistics) -> float:
    """Part of the time that a loop waited behind its epochs' first batches.

    1: these are no longer than others, or something can be done about them.
    """
    seconds = statistics.seconds - statistics.startup
    brief = statistics.startup < BRIEF * statistics.seconds
    live = statistics.surroundings.persistent_workers and brief
    if statistics.batches <= statistics.starts or not (statistics.starts == 1 or live):
        return 1.0
    return (statistics.waited - statistics.startup) / max(seconds, 1e-9)


def _first(statistics: LoaderStatistics) -> str:
    one = statistics.starts == 1
    return "the first batch" if one else f"the first batches of {statistics.starts} epochs"


def cause(statistics: LoaderStatistics) -> str:
    """Why the loop waited, and what would help."""
    if statistics.waited <= 0:
        return "nothing was waited for but the first batch: measure more batches"
    everywhere = statistics.num_workers + sum(node.workers for node in statistics.nodes)
    for found in (
        _startup(statistics),
        _no_workers(statistics),
        _kept_waiting(statistics),
        _stragglers(statistics),
        _network(statistics),
        _small(statistics, INSTANT),
        _workers(statistics, everywhere),
        _parent(statistics),
        _crowded(statistics),
        _small(statistics, QUICK),
    ):
        if found:
            return found
    return (
        f"workers were only {percent(_busy(statistics, everywhere))} busy, and the training "
        "process was not held up either: raise prefetch_factor, so that more batches are ready "
        "when the loop asks"
    )


def _threads(statistics: LoaderStatistics) -> str:
    """Advice where torch's threads and the workers want more processors than there are; else ""."""
    around, processors = statistics.surroundings, statistics.surroundings.processors
    busy = _busy(statistics, 1)
    active, queued = statistics.active_threads, statistics.queued_threads
    if around.worker_method == "thread":  # the workers' are none of torch's
        active -= len(statistics.workers)
        queued -= busy * statistics.queued_fraction
    wanted = busy * min(1.0, statistics.processor_fraction + statistics.queued_fraction)
    stepping = 1 - statistics.wait_fraction
    running = statistics.running_threads / max(stepping, MUCH)
    if (
        running
        and processors
        and running + busy * statistics.processor_fraction < OURS * processors
    ):
        return ""  # other programs have them
    if (
        processors is None
        or min(around.threads, active) < 2
        or stepping < MUCH
        or queued < QUEUED * stepping
        or around.threads + wanted < processors + QUEUED
        or wanted < QUEUED
    ):
        return ""
    left = max(1, round(processors - wanted))
    return (
        f"the step computes with {around.threads} threads while workers want {wanted:.1f} of "
        f"{counted(processors, 'processor')}: its threads waited for a processor, which can make a "
        f"step many times slower; call torch.set_num_threads({min(left, around.threads - 1)}) at "
        "the program's start, or have fewer workers"
    )


def _startup(statistics: LoaderStatistics) -> str:
    """Advice where most of the wait was for the first batches of epochs; else ""."""
    num_workers = statistics.num_workers
    later = statistics.batches - statistics.starts
    others = (statistics.waited - statistics.startup) / later if later else 0.0
    excess = statistics.startup - statistics.starts * others
    if excess < MOST * statistics.waited or (not later and not num_workers):
        return ""
    share = statistics.startup / statistics.waited
    if statistics.starts == 1:
        text = f"{percent(share)} of that for {_first(statistics)} ({duration(statistics.startup)})"
        if lazily := _lazily(statistics):
            text += f"{lazily}, which matters less the longer a run is"
            text += "; loader.start() does it while you build the model" if num_workers else ""
        elif num_workers and statistics.surroundings.worker_method == "thread":
            text += ": nothing is ready when a run begins, which matters less the longer it is"
        elif num_workers:
            text += ": starting workers takes that long, which matters less the longer a run is"
        return text
    each = statistics.startup / statistics.starts
    text = f"{percent(share)} of that for {_first(statistics)} ({duration(each)} each)"
    if lazily := _lazily(statistics):
        dear = "keep that from epoch to epoch"
        live = num_workers and not statistics.surroundings.persistent_workers
        return text + f"{lazily}: {'persistent_workers=True keeps it' if live else dear}"
    if num_workers and statistics.surroundings.persistent_workers:
        text += ": workers begin an epoch with nothing ready, which matters less in longer ones"
    elif num_workers:
        text += ": persistent_workers=True starts workers once"
    return text


_LAZY: Final = 3
"""Times as long as others that first batches are read by a dataset that opens lazily."""


def _lazily(statistics: LoaderStatistics) -> str:
    """What is said where first batches were read for long, and not workers started; else ""."""
    share = statistics.startup_fetch / max(statistics.startup, 1e-9)
    later = max(1, statistics.batches - statistics.starts)
    others = max(0.0, statistics.fetch.total - statistics.startup_fetch) / later
    # Of two batches in each epoch half are first ones, which the median does not tell apart.
    usual = min(statistics.fetch.p50, others) * statistics.starts
    if share < MOST or statistics.startup_fetch < _LAZY * usual:
        return ""
    where = places(statistics.surroundings.iterable)["fetch"]
    return f", {percent(share)} of it {where}: the dataset opens or builds something on first use"


def _no_workers(statistics: LoaderStatistics) -> str:
    here = bool(statistics.workers) and all(each.worker < 0 for each in statistics.workers)
    if (statistics.num_workers and not here) or statistics.remote_batches:
        return ""
    own = {**_made(statistics), "encode": 0.0, "pin": statistics.pin.total}
    stage = max(own, key=own.__getitem__)
    share = own[stage] / max(sum(own.values()), 1e-9)
    where = places(statistics.surroundings.iterable)
    text = f"it loads the data itself, {percent(share)} of that "
    text += where.get(stage, "copying batches into page-locked memory")
    if sum(own.values()) < QUICK * statistics.batches or 0 < statistics.wait.p50 < QUICK:
        text += ": batches are made faster than workers could hand them over; make them larger"
    elif not statistics.num_workers:  # else it is a table, which is read in this process anyway
        text += ": set num_workers"
    if storage := _storage(statistics):
        text += f"; {storage}"
    return text + (_slowest(statistics) if stage == "fetch" else "")


def _kept_waiting(statistics: LoaderStatistics) -> str:
    """Advice where workers wait for a lock, or for pages from a disk; else ""."""
    if statistics.surroundings.worker_method == "thread":
        return _lock_of_threads(statistics) or _interpreter(statistics)
    if statistics.lock_fraction >= OFTEN:
        return (
            f"workers waited for a lock that they share ({percent(statistics.lock_fraction)} of "
            "the looks at them found one waiting), so more workers do not help: hold it for less "
            "time, or give each worker its own file, connection or client"
        )
    if statistics.page_fraction >= OFTEN:
        return (
            "workers waited for memory that comes from a disk "
            f"({percent(statistics.page_fraction)} of the looks at them found one waiting): the "
            "machine swaps, or samples read memory-mapped files that are not in memory; use fewer "
            "workers, less memory or a faster disk"
        )
    return ""


def _lock_of_threads(statistics: LoaderStatistics) -> str:
    """Advice where threads wait for a lock that one of them holds; else ""."""
    waiting = statistics.lock_fraction
    if waiting < OFTEN or statistics.num_workers < 2:
        return ""
    return (
        f"worker threads waited for a lock that they share ({percent(waiting)} of the looks at "
        "them found one waiting), so they wait for each other and more of them do not help: hold "
        "it for less time, or open a file, connection or client for each thread"
    )


def _interpreter(statistics: LoaderStatistics) -> str:
    """Advice where threads wait for the interpreter's lock, which one of them holds; else ""."""
    each = statistics.handover / max(1, statistics.batches)
    crowded = statistics.queued_fraction >= ELSEWHERE  # then the loop waits for a processor, too
    if each < HELD or crowded or statistics.processor_fraction * _busy(statistics, 1) > ALONE:
        return ""
    return (
        "worker threads hold the interpreter's lock (the loop waited "
        f"{duration(each)} for it with each batch that was there), so they take turns and more of "
        "them do not help: set worker_method='multiprocessing', or use code that releases it"
    )


def _stragglers(statistics: LoaderStatistics) -> str:
    """Advice where a few slow samples, which others wait for, took most of the time; else ""."""
    made = sum(_made(statistics).values())
    if (
        statistics.straggler_seconds < MOST * made
        or not statistics.straggler_seconds
        or _storage(statistics)
    ):
        return ""  # of reads that are made together, the first is waited for
    share = statistics.straggler_seconds / statistics.fetch.total
    return (
        f"a few slow samples were {percent(share)} of the time "
        f"{places(statistics.surroundings.iterable)['fetch']}: make these cheaper, or raise "
        f"prefetch_factor{_slowest(statistics)}"
    )


def _network(statistics: LoaderStatistics) -> str:
    """Advice where the way from other machines limits; else "".

    It does where remote workers are not busy though the trainer waits: then their batches are long
    on the way, or wait to be taken in.
    """
    remote = [worker.busy_fraction for worker in statistics.workers if worker.node]
    busy = sum(remote) / max(1, len(remote))
    made = sum(node.busy for node in statistics.nodes)
    few = statistics.remote_batches < FEW * statistics.batches or not statistics.remote_batches
    if few or busy >= BUSY or statistics.transit < made:
        return ""
    each = statistics.remote_nbytes / statistics.remote_batches
    rate = statistics.remote_nbytes / max(statistics.seconds, 1e-9)
    text = f"remote workers were only {percent(busy)} busy: "
    if rate < WIDE and each < SMALL:
        way = statistics.transit / statistics.remote_batches
        return text + (
            f"a batch of {_size(each)} is {duration(way)} on its way or waiting for it: raise "
            "remote.in_flight, or make larger batches"
        )
    return text + (
        f"the network, or the process that takes batches in, is the limit ({_size(each)} a batch, "
        f"{_number(rate / each)} a second; 10 GbE carries {_number(TEN_GBE / each)}): send less, "
        "images as uint8, say, and convert and normalise them in the model"
    )


def _workers(statistics: LoaderStatistics, num_workers: int) -> str:
    """Advice where all workers were busy, or one of them while the others were not; else ""."""
    busy, processors = _busy(statistics, num_workers), statistics.surroundings.processors
    if not statistics.workers:
        return ""
    most = max(statistics.workers, key=lambda worker: worker.busy_fraction)
    stages = _made(statistics)
    stage = max(stages, key=stages.__getitem__)
    share = stages[stage] / max(sum(stages.values()), 1e-9)
    if busy < BUSY:
        others = (busy * num_workers - most.busy_fraction) / max(1, num_workers - 1)
        if most.busy_fraction < BUSY or num_workers == 1 or others > MOST * most.busy_fraction:
            return ""
        if not statistics.surroundings.iterable:
            return ""  # any worker makes any batch: these had not started yet, or came later
        return (
            f"worker {most.worker} was {percent(most.busy_fraction)} busy, the others "
            f"{percent(others)}: give the workers equal shares"
        )
    where = places(statistics.surroundings.iterable)[stage]
    text = f"workers were {percent(busy)} busy, {percent(share)} of it {where}: "
    if storage := _storage(statistics):
        return text + storage
    computing, cheaper = statistics.processor_fraction, _cheaper(statistics, stage)
    queued = statistics.queued_fraction
    waiting = computing and 1 - computing - queued >= ELSEWHERE
    few = processors is not None and computing * busy * num_workers < BUSY * processors
    if statistics.num_workers_reason:
        text += cheaper
    elif waiting and few and _may_take_turns(statistics, busy * num_workers):
        text = text.removesuffix(": ") + (
            f", but they computed for {percent(computing)}, all together as much as one processor "
            "can: either they wait for storage or network, and more workers help, or for a lock "
            "that they share, and more do not; compare the samples a second with one worker more"
        )
    elif waiting and few:
        other = f"mark what waits with lit_loader.{_marked(statistics)}"
        text = text.removesuffix(": ") + (
            ", mostly waiting for storage, network or each other (they computed for "
            f"{percent(computing)}): add workers, also more than there are processors, or "
            f"{other if stage == 'fetch' else cheaper}"
        )
    elif queued > computing and processors is not None and num_workers <= processors:
        return _crowded(statistics)  # and not by each other
    elif statistics.nodes:
        text += f"raise num_remote_workers or {cheaper}"
    elif processors is None or num_workers < processors:
        text += f"add workers or {cheaper}"
    elif computing:
        text += f"{cheaper}; more workers do not help: {counted(processors, 'processor')} for "
        text += f"{num_workers} that compute"
    else:
        text += f"{cheaper}; with {counted(processors, 'processor')} more workers help only if "
        text += "they wait for files or network"
    return text + (_slowest(statistics) if stage == "fetch" else "")


def _may_take_turns(statistics: LoaderStatistics, busy: float) -> bool:
    """Whether so many busy workers may be one behind another at a lock which no look has shown."""
    together = busy * (statistics.processor_fraction + statistics.queued_fraction)
    sure = statistics.worker_looks >= ENOUGH and not statistics.lock_fraction
    return not sure and statistics.num_workers > 1 and 1 / ALONE < together < ALONE


def _marked(statistics: LoaderStatistics) -> str:
    return "read_stream" if statistics.surroundings.iterable else "reads_ahead"


def _cheaper(statistics: LoaderStatistics, stage: str) -> str:
    """What makes a stage of the workers' cheaper."""
    if stage == "fetch":
        place = places(statistics.surroundings.iterable)[stage].removeprefix("in ")
        return f"make {place} cheaper"
    if stage == "state":
        return "make state_dict cheaper"
    each = statistics.nbytes / max(1, statistics.batches)
    if each >= LARGE:
        return (
            f"send less: a batch has {_size(each)}; images as uint8, say, which the model converts "
            "and normalises"
        )
    if stage == "collate":
        return "make collate_fn cheaper (the default one stacks tensors where they are needed)"
    return "return tensors or arrays, which are copied, instead of objects, which are pickled"


def _storage(statistics: LoaderStatistics) -> str:
    """Advice where samples mostly waited for what `reads_ahead` marks; else ""."""
    if statistics.read.total <= MOST * statistics.fetch.total:
        return ""
    share = statistics.read.total / max(statistics.fetch.total, 1e-9)
    return f"samples waited for storage for {percent(share)} of that: raise concurrent_reads"


def _parent(statistics: LoaderStatistics) -> str:
    """Advice where decoding or pinning, in the training process, took most of the time; else ""."""
    own = {"decode": statistics.decode.total, "pin": statistics.pin.total}
    stage = max(own, key=own.__getitem__)
    if statistics.pin.total:
        share = sum(own.values()) / max(statistics.seconds, 1e-9)
        if share < BUSY:
            return ""
        busy = percent(min(share, 1.0))
        return f"the pin-memory thread was {busy} busy, mostly {_IN_PARENT[stage]}"
    share = statistics.decode.total / statistics.waited
    return f"{percent(share)} of that {_IN_PARENT['decode']}" if share >= MOST else ""


def _crowded(statistics: LoaderStatistics) -> str:
    """Advice where workers mostly waited for a processor; else ""."""
    if statistics.queued_fraction < ELSEWHERE:
        return ""
    processors = statistics.surroundings.processors
    there_are = "" if processors is None else f" ({counted(processors, 'processor')} may be used)"
    return (
        f"workers waited for a processor for {percent(statistics.queued_fraction)} of their time"
        f"{there_are}: something else uses them, the step, other programs or other workers; run "
        "fewer of these"
    )


def _small(statistics: LoaderStatistics, quick: float) -> str:
    """Advice where batches are made faster than they can be handed over; else ""."""
    made = sum(_made(statistics).values()) / statistics.batches
    if made >= quick or statistics.wait.p50 + statistics.decode.p50 >= QUICK:
        return ""
    part = "most" if _busy(statistics, statistics.num_workers) < MOST else "much"
    return (
        f"a batch is made in {duration(made)}, so handing it over takes {part} of the time: make "
        "batches larger, or try num_workers=0"
    )


def _besides(statistics: LoaderStatistics, transfer: StageTimes | None) -> Iterator[str]:
    """What is said whatever limits: remote workers, "auto", the device, a cache, accidents."""
    if statistics.remote_batches:
        workers = sum(node.workers for node in statistics.nodes)
        named = sorted(statistics.nodes, key=lambda node: -node.batches)
        listed = ", ".join(f"{node.node} {node.batches}" for node in named[:4])
        yield (
            f"{percent(statistics.remote_batches / statistics.batches)} of the batches "
            f"({_size(statistics.remote_nbytes)}) came from "
            f"{counted(workers, 'remote worker')} ({listed}"
            f"{', …' if len(named) > 4 else ''}), each "
            f"{duration(statistics.transit / statistics.remote_batches)} in transit"
        )
    if statistics.num_workers_reason:
        yield _chosen(statistics)
    asked = statistics.cache_hits + statistics.cache_misses
    if asked:
        text = f"{percent(statistics.cache_hits / asked)} of the samples came from the cache"
        if statistics.cache_bytes_missing:
            made = _made(statistics)
            share = made["fetch"] / max(sum(made.values()), 1e-9)
            text += (
                f", and reading samples was {percent(share)} of the work on batches: "
                f"{_size(statistics.cache_bytes_missing)} more memory would hold all"
            )
        yield text
    share = transfer.total / statistics.seconds if transfer and statistics.seconds else 0.0
    share = min(1.0, share)  # of a few batches, the last one's is behind their time
    if share >= MUCH:
        device = statistics.surroundings.device
        what = "bringing batches to the device" if device else "the way from a batch to its step"
        advice = ": pin_memory=True makes it cheaper" if device and not statistics.pin.total else ""
        yield f"{what} took {percent(share)} of the time{advice}"
    if statistics.tokens:
        yield f"{_number(statistics.tokens_per_second)} tokens a second"
    if statistics.worker_growth:
        yield f"the workers' memory grew by {_size(statistics.worker_growth)} a batch"
    if statistics.worker_restarts:
        replaced = counted(statistics.worker_restarts, "worker had", "workers had")
        yield f"{replaced} to be replaced"
    if statistics.sample_errors:
        yield counted(statistics.sample_errors, "sample") + " could not be read"


def _chosen(statistics: LoaderStatistics) -> str:
    """How many workers were found to be right, and why: what ``num_workers="auto"`` has done."""
    workers = counted(statistics.num_workers, "worker")
    processors = statistics.surroundings.processors
    of = "" if processors is None else f" on {counted(processors, 'processor')}"
    text = f"{workers}{of} in the end: {statistics.num_workers_reason}"
    if statistics.processor_fraction:
        queued = statistics.queued_fraction
        computing = min(statistics.processor_fraction, 1 - queued)
        text += f" (workers computed for {percent(computing)} of their time"
        if queued >= SHOWN:
            text += f", waited for a processor for {percent(queued)}"
        if (storage := 1 - computing - queued) >= SHOWN:
            text += f", for storage or network {percent(storage)}"
        text += ")"
    return text


def _made(statistics: LoaderStatistics) -> dict[str, float]:
    stages = {name: getattr(statistics, name).total for name in MADE}
    return {**stages, "fetch": stages["fetch"] - stages["state"]}


def _busy(statistics: LoaderStatistics, num_workers: int) -> float:
    """Mean over all workers, once they are up; those that have made no batch are left out."""
    made = sum(_made(statistics).values()) / max(1, statistics.batches)
    start = max(0.0, statistics.startup - statistics.starts * made)
    seconds = max(statistics.seconds - start, 1e-9)
    busy = (worker.busy / seconds for worker in statistics.workers if worker.worker >= 0)
    return sum(min(1.0, each) for each in busy) / max(1, num_workers)


def _slowest(statistics: LoaderStatistics) -> str:
    mean = statistics.fetch.total / statistics.samples if statistics.samples else 0.0
    named = [
        each
        for each in statistics.slowest_samples
        if each.index is not None and each.seconds > SLOWER * mean
    ]
    listed = ", ".join(f"{each.index!r:.40} ({duration(each.seconds)})" for each in named)
    return f"; slowest samples: {listed}" if listed else ""


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def _size(nbytes: float) -> str:
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.3g} {name}"
    return f"{nbytes:.0f} bytes"
