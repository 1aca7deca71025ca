"""`statistics_of`: a loader's statistics, of what its `BatchLog` has.

::

    BatchLog ── sums over all batches ──▶ LoaderStatistics
        ╰────── the latest batches ─────▶ Evidence
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from torch.utils.data import IterableDataset

from lit_loader.core.batch.progress import BatchLog, Timings
from lit_loader.core.epoch.loader_core import LoaderCore
from lit_loader.core.system.linux import usable_cores
from lit_loader.describe import short_repr
from lit_loader.profiling.resources import own_memory
from lit_loader.profiling.statistics import LoaderStatistics, MemoryUse
from lit_loader.profiling.verdict import Evidence

__all__ = ["statistics_of", "summary_of"]

ENOUGH: Final = 16
"""Batches after a change of the number of workers by which the verdict judges."""

SLOW: Final = 2  # times the median batch that a slow one takes to make

NAMED: Final = 5  # slowest samples that are named


def summary_of(log: BatchLog, memory: MemoryUse | None = None, **around: Any) -> LoaderStatistics:
    """Return the statistics of all batches so far; ``around``: more fields of the evidence."""
    log.sum_up()
    waits, sums = log.waits, log.sums
    records, workers = _judged(log, around.get("num_workers", 0))
    around |= {"num_workers": workers, "remote_batches": sums["remote"]}
    around["lock_fraction"] = sum(waits.looks) / max(1, len(waits.looks))
    seconds = {name: total / 1e9 for name, total in sums.items()}
    return LoaderStatistics(
        batches=sums["batches"],
        samples=sums["samples"],
        tokens=sums["tokens"],
        seconds=seconds["waited"] + seconds["step"],
        **{name: seconds[name] for name in ("waited", "step", "fetch", "collate", "busy")},
        transfer=seconds["encode"] + seconds["decode"] + seconds["pin"],
        worker_restarts=log.worker_restarts,
        sample_errors=log.counts["sample_errors"],
        memory=memory,
        evidence=evidence_of(records, waits.hangs, **around),
    )


def _judged(log: BatchLog, workers: int) -> tuple[list[Timings], int]:
    """Return the batches to judge by, and how many workers here have made them.

    New workers idle while they start. So after a change of their number those batches count that
    were begun when all were up; until there are enough, those before the change.
    """
    records = [*log.latest]
    before = [record for record in records if record.began < log.resized]
    if not before:
        return records, workers
    first: dict[int, int] = {}
    for record in records[len(before) :]:
        if 0 <= record.worker < log.first_remote:
            first.setdefault(record.worker, record.began)
    if len(first) >= workers:
        all_up = max(first.values(), default=0)
        since = [record for record in records if record.began >= all_up]
        if len(since) >= ENOUGH:
            return since, workers
    return before, len({each.worker for each in before if 0 <= each.worker < log.first_remote})


def evidence_of(records: Sequence[Timings], hangs: Sequence[int] = (), **around: Any) -> Evidence:
    """Return what some batches show; ``hangs``: the moments at which hung workers were ended."""
    made = [each.made for each in records]
    first = [each for each in records if not each.step]
    clocked = [(each, took) for each, took in zip(records, made, strict=True) if each.cpu_time]
    slow = SLOW * float(np.median(made)) if made else 0
    hung = [m - each.asked for each in records for m in hangs if each.asked <= m < each.given]
    busy: Counter[int] = Counter()
    for each, took in zip(records, made, strict=True):
        if each.worker >= 0:
            busy[each.worker] += took
    slowest: dict[str, float] = {}
    for each in sorted(records, key=lambda each: -each.slowest):
        if each.slowest and each.slowest_index is not None and len(slowest) < NAMED:
            slowest.setdefault(short_repr(each.slowest_index), each.slowest / 1e9)
    return Evidence(
        batches=len(records),
        samples=sum(each.samples for each in records),
        nbytes=sum(each.nbytes for each in records),
        seconds=_seconds(each.waited + each.step for each in records),
        waited=_seconds(each.waited for each in records),
        fetch=_seconds(each.fetch for each in records),
        collate=_seconds(each.collate for each in records),
        encode=_seconds(each.encode for each in records),
        late=_seconds(
            max(0, each.given - max(each.asked, each.arrived)) for each in records if each.arrived
        ),
        slow=_seconds(each.waited for each, took in zip(records, made, strict=True) if took > slow),
        starts=len(first),
        startup=_seconds(each.waited for each in first),
        hangs=len(hung),
        hung=_seconds(hung),
        busy=tuple(nanoseconds / 1e9 for nanoseconds in busy.values()),
        computing=_part((each.cpu_time for each, _ in clocked), clocked),
        queued=_part((each.queued for each, _ in clocked), clocked),
        slowest=tuple(slowest.items()),
        **around,
    )


def _seconds(nanoseconds: Iterable[int]) -> float:
    return sum(nanoseconds) / 1e9


def _part(values: Iterable[int], clocked: Sequence[tuple[Timings, int]]) -> float:
    return sum(values) / max(1, sum(took for _, took in clocked))


def statistics_of(core: LoaderCore, memory: bool, caches: Mapping[str, int]) -> LoaderStatistics:
    """Return a loader's statistics; ``memory``: measure the memory of its processes, too.

    ``caches`` are the figures of the caches in its dataset.
    """
    with core.lock:
        loader, auto = core.loader, core.auto
        return summary_of(
            core.log,
            memory=_memory_use(core) if memory else None,
            num_workers=loader.num_workers,
            remote_workers=core.remote_workers,
            auto=None if auto is None else auto.setting,
            cores=math.ceil(usable_cores()),
            persistent_workers=loader.persistent_workers,
            iterable=isinstance(core.dataset, IterableDataset),
            threads=loader.worker_method == "thread",
            gpu=torch.cuda.is_initialized(),  # type: ignore[no-untyped-call]
            cache=dict(caches),
        )


def _memory_use(core: LoaderCore) -> MemoryUse:
    keeper = core.keeper
    workers = {*filter(None, [keeper.pool, *(run.workers for run in keeper.alive())])}
    return MemoryUse(
        parent=own_memory(),
        arena=sum(each.memory[0] for each in workers),
        shared_data=sum(each.memory[1] for each in workers),
        workers=tuple(own_memory(process.pid) for each in workers for process in each.processes),
    )
