"""Loaders on the same work: ``python cases.py [CASE ...] [--loaders ...] [--rows TEXT]``.

It prints a table for each case: medians over rounds in which the loaders take turns, how many times
torch's figure that is, and the part of what no loader can undercut (the limit).

- ``transport``: samples cost next to nothing, so what is measured is what a loader adds.
- ``decoding``: real decoding, where what a loader adds should vanish. Two figures each: the time a
  batch; and the processor time a sample that all processes together take, user and system.
- ``stragglers``: one sample in a hundred takes 50 times as long. The samples sleep, so four workers
  can keep busy on any number of processors; the limit is the mean cost of a batch over four.
- ``busy``: a training loop that holds the GIL in pure Python for 5 ms at a time. What a loader does
  in threads of the training process has to wait for the GIL. The consumer is slower than the
  workers together, or these are; the limit is what the slower one takes by itself.
- ``start``: the time from making a loader to its first batch, by start methods and workers, for a
  dataset object that is small and one that is large (an array and many strings, all of which a
  start method other than fork has to carry over); then everything is ended again.
- ``workers``: ``num_workers="auto"`` beside fixed numbers of workers. Each begins at nothing, as a
  training does; the first 200 batches do not count. The limit is the best fixed number of the
  round; for the workers that there are in the end, the fewest that come near it.
"""

from __future__ import annotations

import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from multiprocessing import get_all_start_methods
from pathlib import Path
from typing import Any, Final

import numpy as np
import samples
import torch
from common import parser, table
from limits import Limit
from loaders import LOADERS, Open, OpenLoader, Setup
from machine import cpu_seconds
from rounds import LIMIT, MICRO, Figures, Measurement, Rows, Session, Subject, seconds_per_batch
from samples import Costing, Pool, Sleeping, lengths, tensors

from lit_loader import DataLoader
from lit_loader.core.system.linux import usable_cores

OURS: Final = "lit_loader"


def _small(count: int, numbers: int) -> Iterator[tuple[str, torch.Tensor]]:
    return ((f"feature_{key}", torch.full((numbers,), float(key))) for key in range(count))


_KINDS: Final[Mapping[str, tuple[Callable[[], Any], int | None, int, Any]]] = {
    # name: (makes the samples, a batch's, batches a round, collate_fn)
    "32x3x224x224 float32 + 32 ints": (lambda: tensors(3, 224, 224), 32, 60, None),
    "32x3x64x64 float32": (lambda: tensors(3, 64, 64), 32, 400, None),
    "32x16 float32": (lambda: tensors(16), 32, 1000, None),
    "batch of 1": (lambda: tensors(16), 1, 1000, None),
    "dict of 20 tensors, batch of 8": (lambda: [dict(_small(20, 4))], 8, 300, None),
    "1,000 tensors of 32 bytes": (
        lambda: [[tensor for _, tensor in _small(1000, 8)]], None, 20, None,
    ),
    "32 structured arrays of 1,000": (
        lambda: [np.zeros(1000, "i8, 3f4, f4")], 32, 300, np.stack,
    ),
    "256 strings": (lambda: ["x" * n for n in lengths(60, 140)], 256, 300, None),
    "8x3x1024x1024 float32 (100 MB)": (lambda: tensors(3, 1024, 1024, pool=8), 8, 12, None),
    "32 ragged lists of ints": (
        lambda: [list(range(n)) for n in lengths(10, 100)], 32, 500, list,
    ),
}  # fmt: skip


def _transport(settings: Any) -> Rows:
    return dict.fromkeys(_KINDS, _handed_over)


def _handed_over(name: str, session: Session) -> None:
    make, size, full, collate_fn = _KINDS[name]
    batches = _count(session.settings, full)
    setup = Setup(size, *_workers_of(session.settings), collate_fn=collate_fn)
    dataset = Pool(setup.length(batches), make(), labelled="+ 32 ints" in name)
    subjects = session.subjects(dataset, setup, partial(_a_batch, setup, batches))
    subjects[LIMIT] = nullcontext(Limit(dataset, setup, max(1, batches // 10)))
    session.compare(Measurement("transport", name, "µs/batch", Limit.by), subjects)


def _a_batch(setup: Setup, batches: int, opened: OpenLoader) -> Figures:
    return {"": seconds_per_batch(opened, skip=setup.ahead, batches=batches) * MICRO}


def _decoding(settings: Any) -> Rows:
    return {
        "JPEG 500x375, crop, flip": partial(_decoded, samples.JpegImages, 16, 40),
        "text, 512 tokens": partial(_decoded, partial(samples.Texts, tokens=512), 32, 60),
        "Parquet row groups": _parquet,
    }


def _parquet(name: str, session: Session) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.parquet"
        samples.write_parquet(path, groups=16, rows=20_000, columns=8)
        _decoded(partial(samples.ParquetGroups, path=path), 4, 60, name, session)


def _decoded(make: Callable[[int], Any], size: int, full: int, name: str, session: Session) -> None:
    batches = _count(session.settings, full)
    setup = Setup(size, *_workers_of(session.settings))
    dataset = make(setup.length(batches))

    def figure(opened: OpenLoader) -> Figures:
        before = cpu_seconds()
        figures = _a_batch(setup, batches, opened)
        # Of whole epochs: what is made ahead of one is made ahead of the next one, too.
        opened.after_turn()
        return {**figures, "cpu": (cpu_seconds() - before) / len(dataset) * MICRO}

    measurements = {
        "": Measurement("decoding", name, "µs/batch", Limit.by),
        "cpu": Measurement("decoding", f"{name}: processor", "µs/sample"),
    }
    subjects = session.subjects(dataset, setup, figure)
    subjects[LIMIT] = nullcontext(Limit(dataset, setup, max(2, batches // 8)))
    session.compare(measurements, subjects)


def _slept(seconds: float, times: int) -> float:
    """What a sleep takes, in fact and now."""
    begin = time.perf_counter()
    for _ in range(times):
        time.sleep(seconds)
    return (time.perf_counter() - begin) / times


def _stragglers(settings: Any) -> Rows:
    return {"32 samples of 1 ms, 1 % of 50 ms": _straggling}


def _straggling(name: str, session: Session) -> None:
    workers, size, usual = 4, 32, 1e-3
    batches = _count(session.settings, 100, quick=8)
    setup = Setup(size, workers, session.settings.prefetch_factor)
    dataset = Sleeping(setup.length(batches), usual, slow=0.01, times=50)
    more = sum(dataset.seconds) / len(dataset) - usual

    def bound() -> Figures:
        return {"": size * (_slept(usual, 50) + more) / workers * MICRO}

    limit_by = f"mean cost of a batch / {workers} workers"
    subjects = session.subjects(dataset, setup, partial(_a_batch, setup, batches))
    subjects[LIMIT] = nullcontext(bound)
    session.compare(Measurement("stragglers", name, "µs/batch", limit_by), subjects)


_STEP: Final = 5e-3  # seconds


def _busy(settings: Any) -> Rows:
    return {  # the workers together need so much of a step for a batch
        "steps of 5 ms, the consumer slower": partial(_beside_steps, 0.8),
        "steps of 5 ms, the workers slower": partial(_beside_steps, 1.2),
    }


def _hold_the_gil() -> None:
    end = time.perf_counter() + _STEP
    while time.perf_counter() < end:
        sum(range(100))


def _beside_steps(share: float, name: str, session: Session) -> None:
    batches = _count(session.settings, 200, quick=10)
    setup = Setup(1, *_workers_of(session.settings))
    seconds = share * _STEP * setup.num_workers
    dataset = Sleeping(setup.length(batches), seconds)

    def figure(opened: OpenLoader) -> Figures:
        taken = seconds_per_batch(opened, skip=setup.ahead, batches=batches, step=_hold_the_gil)
        return {"": taken * MICRO}

    def bound() -> Figures:
        begin = time.perf_counter()
        for _ in range(20):
            _hold_the_gil()
        step = (time.perf_counter() - begin) / 20
        return {"": max(step, _slept(seconds, 5) / setup.num_workers) * MICRO}

    subjects = session.subjects(dataset, setup, figure)
    subjects[LIMIT] = nullcontext(bound)
    session.compare(Measurement("busy", name, "µs/batch", "the slower of the two"), subjects)


def _start(settings: Any) -> Rows:
    rows: Rows = {}
    for size in ("small", "large"):
        for method in get_all_start_methods():
            few = (1, 2) if method == "fork" else (1,)
            for workers in few if settings.quick else (1, 8, 32):
                name = f"{size} dataset, {method}, {workers} workers"
                rows[name] = partial(_started, size, method, workers)
    return rows


def _started(size: str, method: str, workers: int, name: str, session: Session) -> None:
    settings = session.settings
    dataset: Any = Pool(4096, tensors(16))
    if size == "large":
        megabytes, count = (1, 1_000) if settings.quick else (200, 500_000)
        dataset.array = np.ones(megabytes * 125_000)
        dataset.names = [f"images/{number:09d}.jpg" for number in range(count)]
    setup = Setup(16, workers, settings.prefetch_factor, False, start_method=method)

    def first_batch(open_: Open) -> Figures:
        begin = time.perf_counter()
        opened = open_(dataset, setup)
        try:
            epoch = opened.epoch()
            next(epoch)
            taken = time.perf_counter() - begin
            # Its workers end with it; SPDL's iterator ends them only when it is closed.
            getattr(epoch, "close", lambda: None)()
            del epoch
        finally:
            opened.close()
        return {"": taken * 1e3}

    subjects: dict[str, Subject] = {
        loader: nullcontext(partial(first_batch, open_))
        for loader, open_ in session.loaders.items()
    }
    # Three rounds at most: 32 workers by spawn take a minute where there are two processors.
    session.compare(Measurement("start", name, "ms"), subjects, rounds=min(3, settings.rounds))


_LOADS: Final[dict[str, tuple[tuple[float, float], tuple[float, float], float]]] = {
    # name: (seconds of a processor, of waiting) a sample; the same later on; seconds of a step
    "decoding, 2 ms a sample": ((2e-3, 0), (2e-3, 0), 1e-3),
    "storage, 5 ms a sample": ((1e-4, 5e-3), (1e-4, 5e-3), 2e-3),
    "storage, 20 ms a sample": ((1e-4, 2e-2), (1e-4, 2e-2), 5e-3),
    "slow consumer, 20 ms a step": ((5e-4, 1e-3), (5e-4, 1e-3), 2e-2),
    "storage, then decoding": ((1e-4, 5e-3), (2e-3, 0), 2e-3),
    "decoding, then storage": ((2e-3, 0), (1e-4, 5e-3), 2e-3),
}


def _workers(settings: Any) -> Rows:
    return dict.fromkeys(_LOADS, _by_workers)


def _by_workers(name: str, session: Session) -> None:
    before, after, step = _LOADS[name]
    quick, size = session.settings.quick, 4
    warm, counted = (20, 10) if quick else (200, 200)
    dataset = Costing((warm + counted + 64) * size, before, after, size * warm // 2)
    fixed: dict[int, float] = {}
    cores = math.ceil(usable_cores())

    @contextmanager
    def subject(workers: Any) -> Iterator[Callable[[], Figures]]:
        given: dict[str, Any] = {} if workers == "auto" else {"prefetch_factor": 3}
        with DataLoader(dataset, size, num_workers=workers, **given) as loader:

            def figures() -> Figures:
                seconds = _after_a_while(loader, warm, counted, step)
                if workers == "auto":
                    return {"": seconds * MICRO, "workers": loader.num_workers}
                fixed[workers] = seconds
                return {"": seconds * MICRO}

            yield figures

    def best() -> Figures:
        found = min(fixed.values())
        few = min(workers for workers, seconds in fixed.items() if seconds <= 1.05 * found)
        fixed.clear()
        return {"": found * MICRO, "workers": few}

    numbers = (1, 4) if quick else sorted({1, 2, 4, 8, 16, 32, cores})
    among = f"of {', '.join(map(str, numbers))} workers"
    most, fewest = f"the best {among}", f"the fewest {among} as good"
    measurements = {
        "": Measurement("workers", name, "µs/batch", most),
        "workers": Measurement("workers", f"… {name}", "workers in the end", fewest),
    }
    names = {1: "1 worker", cores: f"all {cores} processors"}
    subjects: dict[str, Subject] = {OURS: subject("auto")}
    subjects |= {names.get(each, f"{each} workers"): subject(each) for each in numbers}
    subjects[LIMIT] = nullcontext(best)
    session.compare(measurements, subjects, uncounted=0)


def _after_a_while(loader: DataLoader[Any], warm: int, counted: int, step: float) -> float:
    began = time.perf_counter()
    for number, _ in enumerate(loader, 1):
        time.sleep(step)
        if number == warm:
            began = time.perf_counter()
        elif number == warm + counted:
            break
    return (time.perf_counter() - began) / counted


ROWS: Final[Mapping[str, Callable[[Any], Rows]]] = {
    "transport": _transport,
    "decoding": _decoding,
    "stragglers": _stragglers,
    "busy": _busy,
    "start": _start,
    "workers": _workers,
}


def _count(settings: Any, full: int, quick: int = 4) -> int:
    """Return a number of batches, or of anything that takes time."""
    return min(full, quick) if settings.quick else full


def _workers_of(settings: Any) -> tuple[int, int]:
    return settings.workers, settings.prefetch_factor


def _print(case: str, measurements: list[Measurement]) -> None:
    rows = []
    for found in measurements:
        for name in found.loaders:
            figure, times, part = found.figure(name), found.vs_torch(name), found.of_limit(name)
            if figure is None:
                rows.append([found.name, name, found.cannot.get(name, ""), "", "", ""])
                continue
            spread = f"{figure.low:.3g} to {figure.high:.3g}"
            ratios = [each.median if each else "" for each in (times, part)]
            rows.append([found.name, name, figure.median, spread, *ratios])
    unit = measurements[0].unit
    print(f"\n## {case}\n", flush=True)
    table(["row", "loader", unit, "low to high", "x torch", "of the limit"], rows)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("cases", nargs="*", choices=[[], *ROWS], help="all of them by default")
    options.add_argument("--loaders", nargs="*", default=list(LOADERS), choices=list(LOADERS))
    options.add_argument("--rows", default="", help="only rows whose name holds this text")
    options.add_argument("--prefetch-factor", type=int, default=2)
    given = options.parse_args()
    if given.quick:
        given.rounds = 1
    for case in given.cases or ROWS:
        session = Session(given, {name: LOADERS[name] for name in given.loaders})
        for name, measure in ROWS[case](given).items():
            if given.rows in name:
                print(f"{case}: {name}", file=sys.stderr, flush=True)
                measure(name, session)
        if session.measurements:
            _print(case, session.measurements)


if __name__ == "__main__":
    main()
