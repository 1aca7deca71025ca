"""Says in words what a loader's statistics mean: does data loading limit, by what, and what helps.

Used by `LoaderMonitor` for what it prints at the end of a fit. The first rule that applies counts::

    the trainer hardly waited           ─▶ data loading is not what limits
    … mostly for first batches          ─▶ keep the workers, or start them faster
    … and there are no workers          ─▶ have some
    … a few samples take most of it     ─▶ these samples
    … and remote workers were not busy  ─▶ the way from them (`_network`)
    … and the workers were busy         ─▶ more of them, or the stage that takes longest
    … … waiting for storage             ─▶ more reads at a time
    … one of them was, the others not   ─▶ unequal shares
    … and the parent itself was busy    ─▶ decode, or the pin-memory thread
    … and none of these was busy        ─▶ prefetch more
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lit_loader.statistics.records import LoaderStatistics, StageTimes
from lit_loader.statistics.sentences import counted, duration, percent

__all__ = ["PLACES", "cause", "verdict"]

LITTLE: Final = 0.02  # part of the time that the trainer may wait without advice about it
MUCH: Final = 0.1  # part of the time from which on the transfer to the device is mentioned
MOST: Final = 0.5  # part of a sum that makes one summand its cause
BUSY: Final = 0.7  # part of the time from which on a worker, or thread, counts as busy

FEW: Final = 0.1
"""Part of the batches that remote workers must have made for their way to be judged."""

TEN_GBE: Final = 1.15e9  # bytes a second that such a network carries of batches

WIDE, SMALL = 0.08e9, 1e6
"""Bytes a second, and of a batch, up to which it is the number of small batches that takes the
time, not bytes: a slow network, 100 Mbit, carries a dozen of a megabyte a second."""

PLACES: Final = {
    "fetch": "in __getitem__",
    "state": "taking the stream's state",
    "collate": "in collate_fn",
    "encode": "writing batches into shared memory",
}
_CHEAPER: Final = {
    "fetch": "make __getitem__ cheaper",
    "state": "make state_dict cheaper",
    "collate": "make collate_fn cheaper (the default one stacks tensors where they are needed)",
    "encode": "return tensors or arrays, which are copied, instead of objects, which are pickled",
}
_IN_PARENT: Final = {
    "decode": "rebuilding batches in the training process: return tensors or arrays, instead of "
    "objects that take long to unpickle",
    "pin": "copying batches into page-locked memory: return fewer, larger tensors, or try "
    "pin_memory=False",
}


def verdict(
    statistics: LoaderStatistics,
    *,
    transfer: StageTimes | None = None,
    num_workers: int,
    cores: int | None = None,
    persistent_workers: bool = False,
) -> str:
    """Say in a line where the time of a training loop went, and what would help.

    ``transfer`` is from the moment at which a batch was given out to that at which the step with it
    began; ``cores`` are those that this process and its workers may use; None: not known.
    """
    if not statistics.batches:
        return "no batch was loaded"
    fraction = statistics.wait_fraction
    if fraction < LITTLE:
        parts = [
            "data loading is not what limits: "
            f"the trainer waited {100 * fraction:.1f} % of the time for it"
        ]
    else:
        parts = [
            f"the trainer waited {percent(fraction)} of the time",
            cause(statistics, num_workers, cores, persistent_workers),
        ]
    return "; ".join([*parts, *_besides(statistics, transfer, cores)])


def cause(
    statistics: LoaderStatistics, num_workers: int, cores: int | None, persistent_workers: bool
) -> str:
    """Why the trainer waited, and what would help."""
    if statistics.waited <= 0:
        return "nothing was waited for but the first batch: measure more batches"
    everywhere = num_workers + sum(node.workers for node in statistics.nodes)
    for found in (
        _startup(statistics, num_workers, persistent_workers),
        _no_workers(statistics, num_workers),
        _stragglers(statistics),
        _network(statistics),
        _workers(statistics, everywhere, cores),
        _parent(statistics),
    ):
        if found:
            return found
    return (
        f"workers were only {percent(_busy(statistics, everywhere))} busy, and the training "
        "process was not held up either: raise prefetch_factor, so that more batches are ready "
        "when the trainer asks"
    )


def _startup(statistics: LoaderStatistics, num_workers: int, persistent_workers: bool) -> str:
    """Advice where most of the wait was for the first batches of epochs; else ""."""
    later = statistics.batches - statistics.starts
    others = (statistics.waited - statistics.startup) / later if later else 0.0
    excess = statistics.startup - statistics.starts * others
    if excess < MOST * statistics.waited or (not later and not num_workers):
        return ""
    share = statistics.startup / statistics.waited
    if statistics.starts == 1:
        text = f"{percent(share)} of that for the first batch ({duration(statistics.startup)})"
        if num_workers:
            text += ": starting workers takes that long, which matters less the longer a run is"
        return text
    each = statistics.startup / statistics.starts
    text = f"{percent(share)} of that for the first batches of {statistics.starts} epochs"
    text += f" ({duration(each)} each)"
    if num_workers and persistent_workers:
        text += ": workers begin an epoch with nothing ready, which matters less in longer ones"
    elif num_workers:
        text += ": persistent_workers=True starts workers once"
    return text


def _no_workers(statistics: LoaderStatistics, num_workers: int) -> str:
    """Advice for a loader without workers; else ""."""
    if num_workers or statistics.remote_batches:
        return ""
    own = {**_made(statistics), "encode": 0.0, "pin": statistics.pin.total}
    stage = max(own, key=own.__getitem__)
    share = own[stage] / max(sum(own.values()), 1e-9)
    where = PLACES.get(stage, "copying batches into page-locked memory")
    text = f"it loads the data itself, {percent(share)} of that {where}: set num_workers"
    if storage := _storage(statistics):
        text += f"; {storage}"
    return text + (_slowest(statistics) if stage == "fetch" else "")


def _stragglers(statistics: LoaderStatistics) -> str:
    """Advice where a few slow samples, which others wait for, took most of the time; else ""."""
    made = sum(_made(statistics).values())
    if statistics.stragglers < MOST * made or not statistics.stragglers or _storage(statistics):
        return ""  # of reads that are made together, the first is waited for
    share = statistics.stragglers / statistics.fetch.total
    return (
        f"a few slow samples were {percent(share)} of the time in __getitem__: make these "
        f"cheaper, or raise prefetch_factor{_slowest(statistics)}"
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


def _workers(statistics: LoaderStatistics, num_workers: int, cores: int | None) -> str:
    """Advice where all workers were busy, or one of them while the others were not; else ""."""
    busy = _busy(statistics, num_workers)
    most = max(statistics.workers, key=lambda worker: worker.busy_fraction)
    stages = _made(statistics)
    stage = max(stages, key=stages.__getitem__)
    share = stages[stage] / max(sum(stages.values()), 1e-9)
    if busy < BUSY:
        others = (busy * num_workers - most.busy_fraction) / max(1, num_workers - 1)
        if most.busy_fraction < BUSY or num_workers == 1 or others > MOST * most.busy_fraction:
            return ""
        return (
            f"worker {most.worker} was {percent(most.busy_fraction)} busy, the others "
            f"{percent(others)}: give the workers equal shares"
        )
    text = f"workers were {percent(busy)} busy, {percent(share)} of it {PLACES[stage]}: "
    if storage := _storage(statistics):
        return text + storage
    computing = statistics.processor_fraction
    few = cores is not None and computing * busy * num_workers < BUSY * cores
    if statistics.why_so_many:
        text += _CHEAPER[stage]
    elif 0 < computing < BUSY and few:
        text += (
            f"they computed for {percent(computing)} of that and waited for the rest, so more "
            f"workers help, also more than there are processors, or {_CHEAPER[stage]}"
        )
    elif statistics.nodes:
        text += f"raise remote_workers or {_CHEAPER[stage]}"
    elif cores is None or num_workers < cores:
        text += f"add workers or {_CHEAPER[stage]}"
    else:
        text += f"{_CHEAPER[stage]}; there are {cores} cores"
        text += "" if computing else ", so add workers only if these wait for files or network"
    return text + (_slowest(statistics) if stage == "fetch" else "")


def _storage(statistics: LoaderStatistics) -> str:
    """Advice where samples mostly waited for what `reads_ahead` marks; else ""."""
    if statistics.read.total <= MOST * statistics.fetch.total:
        return ""
    share = statistics.read.total / statistics.fetch.total
    return f"samples waited for storage for {percent(share)} of that: raise reads"


def _parent(statistics: LoaderStatistics) -> str:
    """Advice where decoding or pinning, in the training process, took most of the time; else ""."""
    own = {"decode": statistics.decode.total, "pin": statistics.pin.total}
    stage = max(own, key=own.__getitem__)
    if statistics.pin.total:
        share = sum(own.values()) / statistics.seconds
        if share < BUSY:
            return ""
        busy = percent(min(share, 1.0))
        return f"the pin-memory thread was {busy} busy, mostly {_IN_PARENT[stage]}"
    share = statistics.decode.total / statistics.waited
    return f"{percent(share)} of that {_IN_PARENT['decode']}" if share >= MOST else ""


def _besides(
    statistics: LoaderStatistics, transfer: StageTimes | None, cores: int | None
) -> Iterator[str]:
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
    if statistics.why_so_many:
        yield _chosen(statistics, cores)
    asked = statistics.cache_hits + statistics.cache_misses
    if asked:
        text = f"{percent(statistics.cache_hits / asked)} of the samples came from the cache"
        if statistics.cache_lacking:
            made = _made(statistics)
            share = made["fetch"] / max(sum(made.values()), 1e-9)
            text += (
                f", and reading samples was {percent(share)} of the work on batches: "
                f"{statistics.cache_lacking / 1e9:.2g} GB more memory would hold all"
            )
        yield text
    share = transfer.total / statistics.seconds if transfer and statistics.seconds else 0.0
    share = min(1.0, share)  # of a few batches, the last one's is behind their time
    if share >= MUCH:
        advice = (
            "" if statistics.pin.total else "; on an accelerator pin_memory=True makes it cheaper"
        )
        yield f"bringing batches to the device took {percent(share)} of the time{advice}"
    if statistics.worker_restarts:
        replaced = counted(statistics.worker_restarts, "worker had", "workers had")
        yield f"{replaced} to be replaced"
    if statistics.sample_errors:
        yield counted(statistics.sample_errors, "sample") + " could not be read"


def _chosen(statistics: LoaderStatistics, cores: int | None) -> str:
    """How many workers were found to be right, and why: what ``num_workers="auto"`` has done."""
    workers = counted(statistics.num_workers, "worker")
    of = "" if cores is None else f" on {counted(cores, 'processor')}"
    text = f"{workers}{of} in the end: {statistics.why_so_many}"
    if statistics.processor_fraction:
        queued = statistics.queued_fraction
        computing = min(statistics.processor_fraction, 1 - queued)
        text += f" (workers computed for {percent(computing)} of their time"
        if queued >= LITTLE:
            text += f", waited for a processor for {percent(queued)}"
        if (storage := 1 - computing - queued) >= LITTLE:
            text += f", for storage or network {percent(storage)}"
        text += ")"
    return text


def _made(statistics: LoaderStatistics) -> dict[str, float]:
    """Seconds that workers spent in each of their stages."""
    stages = {name: getattr(statistics, name).total for name in PLACES}
    return {**stages, "fetch": stages["fetch"] - stages["state"]}


def _busy(statistics: LoaderStatistics, num_workers: int) -> float:
    """Mean over all workers; the statistics leave out those that have made no batch."""
    return sum(worker.busy_fraction for worker in statistics.workers) / max(1, num_workers)


def _slowest(statistics: LoaderStatistics) -> str:
    named = [s for s in statistics.slowest_samples if s.index is not None]
    listed = ", ".join(f"{s.index!r:.40} ({duration(s.seconds)})" for s in named)
    return f"; slowest samples: {listed}" if listed else ""


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def _size(nbytes: float) -> str:
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.3g} {name}"
    return f"{nbytes:.0f} bytes"
