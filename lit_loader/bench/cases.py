"""The cases: `ROWS` has, by a case's name, what measures its rows, by theirs.

- ``transport``: samples cost next to nothing, so what is measured is what a loader adds.
- ``decoding``: real decoding, where what a loader adds should vanish. Two figures each: the time a
  batch; and the processor time a sample that all processes together take, user and system.
- ``stragglers``: one sample in a hundred takes 50 times as long. The samples sleep, so four workers
  can keep busy on any number of processors.
- ``busy``: a training loop that holds the GIL in pure Python for 5 ms at a time. What a loader does
  in threads of the training process has to wait for the GIL. The consumer is slower than the
  workers together, or these are.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from lit_loader.bench import datasets
from lit_loader.bench.datasets import Pool, Sleeping, lengths, tensors
from lit_loader.bench.loaders import OpenLoader, Setup
from lit_loader.bench.machine import cpu_seconds, wait_until_idle
from lit_loader.bench.rounds import (
    A_BATCH,
    MICRO,
    PROCESSOR,
    Figures,
    Rows,
    Session,
    seconds_per_batch,
)

__all__ = ["ROWS"]


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


def _handed_over(name: str, session: Session) -> None:
    make, size, full, collate_fn = _KINDS[name]
    batches = session.settings.count(full)
    setup = Setup(size, *session.settings.workers, collate_fn=collate_fn)
    dataset = Pool(setup.length(batches), make(), labelled="+ 32 ints" in name)
    session.compare("transport", name, dataset, setup, partial(_a_batch, setup, batches))


def _a_batch(setup: Setup, batches: int, opened: OpenLoader) -> Figures:
    return {A_BATCH: seconds_per_batch(opened, skip=setup.ahead, batches=batches) * MICRO}


def _parquet(name: str, session: Session) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.parquet"
        datasets.write_parquet(path, groups=16, rows=20_000, columns=8)
        _decoded(partial(datasets.ParquetGroups, path=path), 4, 60, name, session)


def _decoded(make: Callable[[int], Any], size: int, full: int, name: str, session: Session) -> None:
    batches = session.settings.count(full)
    setup = Setup(size, *session.settings.workers)
    dataset = make(setup.length(batches))

    def figure(opened: OpenLoader) -> Figures:
        before = cpu_seconds()
        figures = _a_batch(setup, batches, opened)
        # Of whole epochs: what is made ahead of one is made ahead of the next one, too.
        wait_until_idle()
        return {**figures, PROCESSOR: (cpu_seconds() - before) / len(dataset) * MICRO}

    session.compare("decoding", name, dataset, setup, figure, units=(A_BATCH, PROCESSOR))


def _straggling(name: str, session: Session) -> None:
    batches = session.settings.count(100, quick=8)
    setup = Setup(32, 4, session.settings.prefetch_factor)
    dataset = Sleeping(setup.length(batches), 1e-3, slow=0.01, times=50)
    session.compare("stragglers", name, dataset, setup, partial(_a_batch, setup, batches))


_STEP: Final = 5e-3  # seconds


def _hold_the_gil() -> None:
    end = time.perf_counter() + _STEP
    while time.perf_counter() < end:
        sum(range(100))


def _beside_steps(share: float, name: str, session: Session) -> None:
    """The workers together need this share of a step for a batch."""
    batches = session.settings.count(200, quick=10)
    setup = Setup(1, *session.settings.workers)
    dataset = Sleeping(setup.length(batches), share * _STEP * setup.num_workers)

    def figure(opened: OpenLoader) -> Figures:
        taken = seconds_per_batch(opened, skip=setup.ahead, batches=batches, step=_hold_the_gil)
        return {A_BATCH: taken * MICRO}

    session.compare("busy", name, dataset, setup, figure)


ROWS: Final[Mapping[str, Rows]] = {
    "transport": dict.fromkeys(_KINDS, _handed_over),
    "decoding": {
        "JPEG 500x375, crop, flip": partial(_decoded, datasets.JpegImages, 16, 40),
        "text, 512 tokens": partial(_decoded, partial(datasets.Texts, tokens=512), 32, 60),
        "Parquet row groups": _parquet,
    },
    "stragglers": {"32 samples of 1 ms, 1 % of 50 ms": _straggling},
    "busy": {
        "steps of 5 ms, the consumer slower": partial(_beside_steps, 0.8),
        "steps of 5 ms, the workers slower": partial(_beside_steps, 1.2),
    },
}
