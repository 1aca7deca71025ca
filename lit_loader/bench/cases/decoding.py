"""Real decoding: JPEG images, text, Parquet. What a loader adds should vanish beside it.

Two figures each: the time a batch, against the limit; and the processor time a sample that all
processes together take, user and system, against torch's.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lit_loader.bench.core.processes import cpu_seconds
from lit_loader.bench.core.results import Measurement, Target
from lit_loader.bench.core.settings import Settings
from lit_loader.bench.data.decoders import JpegImages, ParquetGroups, Texts, write_parquet
from lit_loader.bench.loaders.interface import OpenLoader, Setup
from lit_loader.bench.measure.limits import Limit
from lit_loader.bench.measure.rounds import Figures, seconds_per_batch
from lit_loader.bench.measure.session import MICRO, Row, Session

__all__ = ["rows"]


def rows(settings: Settings) -> list[Row]:
    """Images, text, tables."""
    return [
        Row("decoding", "JPEG 500x375, crop, flip", _jpeg),
        Row("decoding", "text, 512 tokens", _text),
        Row("decoding", "Parquet row groups", _parquet),
    ]


def _jpeg(session: Session) -> None:
    _measure(session, "JPEG 500x375, crop, flip", JpegImages, 16, 40)


def _text(session: Session) -> None:
    _measure(session, "text, 512 tokens", lambda length: Texts(length, 512), 32, 60)


def _parquet(session: Session) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.parquet"
        write_parquet(path, groups=16, rows=20_000, columns=8)
        _measure(session, "Parquet row groups", functools.partial(ParquetGroups, path), 4, 60)


def _measure(
    session: Session, name: str, make: Callable[[int], Any], batch_size: int, full: int
) -> None:
    settings = session.settings
    setup = Setup(batch_size, settings.num_workers, settings.prefetch_factor)
    batches = settings.count(full)
    dataset = make(setup.length(batches))

    def figure(opened: OpenLoader) -> Figures:
        before = cpu_seconds()
        seconds = seconds_per_batch(opened, skip=setup.ahead, batches=batches)
        # Of whole epochs: what is made ahead of one is made ahead of the next one, too.
        opened.after_turn()
        return {"": seconds * MICRO, "cpu": (cpu_seconds() - before) / len(dataset) * MICRO}

    time = Measurement("decoding", name, "µs/batch", (Target("of_limit", 0.97),))
    cpu = Measurement("decoding", f"{name}: processor", "µs/sample", (Target("vs_torch", 1.0),))
    openers = session.loaders(dataset, setup, figure)
    limit = Limit(dataset, setup, max(2, batches // 8))
    session.compare_with_limit({"": time, "cpu": cpu}, openers, limit)
