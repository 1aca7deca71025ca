"""Caches of decoded images: the epoch that fills one, later ones, and one that holds half of them.

Beside decoding anew with torch's loader, and MONAI's caches (in torch's loader) where MONAI is
installed: ``CacheDataset`` decodes all that it holds before the first epoch, by as many threads as
there are workers, which counts as part of that epoch; ``PersistentDataset`` keeps a file a sample.
"""

from __future__ import annotations

import functools
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import lit_loader
from lit_loader.bench.core.names import OURS, REFERENCE, installed
from lit_loader.bench.core.results import Measurement, Target
from lit_loader.bench.core.settings import Settings
from lit_loader.bench.data.decoders import JpegThumbnails
from lit_loader.bench.loaders.interface import Setup
from lit_loader.bench.measure.rounds import Figures, Opener
from lit_loader.bench.measure.session import MICRO, Row, Session, plain_opener

__all__ = ["rows"]

_BATCH: Final = 16

_SAMPLE: Final = 224 * 224 * 3 + 256
"""Bytes of a sample that is kept."""

Make = Callable[[Any, float, Path, int], Any]
"""Dataset, part of it that has room, folder and workers to a dataset that keeps."""


def rows(settings: Settings) -> list[Row]:
    """Cold, warm, half full; in memory and on disk."""
    return [
        Row("cache", name, functools.partial(_run, name=name, room=room, epoch=epoch, disk=disk))
        for name, room, epoch, disk in (
            ("memory, first epoch", 1.0, 0, False),
            ("memory, second epoch", 1.0, 1, False),
            ("memory for half of it, second epoch", 0.5, 1, False),
            ("disk, first epoch", 1.0, 0, True),
            ("disk, second epoch", 1.0, 1, True),
        )
    ]


def _run(session: Session, *, name: str, room: float, epoch: int, disk: bool) -> None:
    settings = session.settings
    images = JpegThumbnails(48 if settings.quick else 320)
    setup = Setup(_BATCH, settings.num_workers, settings.prefetch_factor)
    # Filling a cache costs; there is no target for how much.
    targets = (Target("vs_torch", 1.0),) if epoch else ()
    measurement = Measurement("cache", name, "µs/batch", targets)

    def opener(loader: str, make: Make) -> Opener:
        def turn() -> Figures:
            with tempfile.TemporaryDirectory() as folder:
                began = time.perf_counter()
                dataset = make(images, room, Path(folder), setup.num_workers)
                opened = session.adapters[loader].open(dataset, setup)
                try:
                    for _ in range(epoch):
                        for _ in opened.epoch():
                            pass
                        opened.after_turn()
                        began = time.perf_counter()
                    for _ in opened.epoch():
                        pass
                    took = time.perf_counter() - began
                finally:
                    opened.close()
            return {"": took * MICRO * _BATCH / len(images)}

        return plain_opener(turn)

    openers: dict[str, Opener] = {}
    if OURS in session.adapters:
        openers[OURS] = opener(OURS, _on_disk if disk else _in_memory)
    if REFERENCE in session.adapters:
        openers[REFERENCE] = opener(REFERENCE, lambda dataset, *_: dataset)
        if installed("monai"):
            openers["MONAI"] = opener(REFERENCE, _monai_on_disk if disk else _monai_in_memory)
    session.compare(measurement, openers)


def _in_memory(dataset: Any, room: float, folder: Path, workers: int) -> Any:
    return lit_loader.CachedDataset(dataset, int(room * len(dataset) * _SAMPLE))


def _on_disk(dataset: Any, room: float, folder: Path, workers: int) -> Any:
    return lit_loader.CachedDataset(dataset, 0, folder, "images")


def _monai_in_memory(dataset: Any, room: float, folder: Path, workers: int) -> Any:
    from monai.data import CacheDataset

    numbers, transform = list(range(len(dataset))), _transform(dataset)
    return CacheDataset(numbers, transform, cache_rate=room, num_workers=workers, progress=False)


def _monai_on_disk(dataset: Any, room: float, folder: Path, workers: int) -> Any:
    from monai.data import PersistentDataset

    return PersistentDataset(list(range(len(dataset))), _transform(dataset), folder)


def _transform(dataset: Any) -> Any:
    """A transform that MONAI takes for one without random numbers, and so keeps."""
    from monai.transforms import Transform

    kind: Any = type("Decode", (Transform,), {"__call__": lambda self, index: dataset[index]})
    return kind()
