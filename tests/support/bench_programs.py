"""Twenty datasets as users bring them to ``lit-loader-bench``; each with options on its line."""

from __future__ import annotations

import io
import pickle
import threading
import time
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import torch
from torch.utils.data import IterableDataset

import lit_loader
from tests.support.samples import OfLength

__all__ = ["PROGRAMS"]


class Work(OfLength):
    """Sleeps, then computes, for so many milliseconds, and gives so many bytes."""

    def __init__(
        self, length: int = 256, sleep: float = 0, compute: float = 0, nbytes: int = 64
    ) -> None:
        super().__init__(length)
        self.seconds, self.compute, self.nbytes = sleep / 1e3, compute / 1e3, nbytes

    def __getitem__(self, index: int) -> Any:
        if self.seconds:
            time.sleep(self.seconds)
        end = time.thread_time() + self.compute
        while time.thread_time() < end:
            pass
        return torch.zeros(self.nbytes, dtype=torch.uint8)


class Uneven(Work):
    """One sample in 32 takes twenty times as long."""

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.02 if index % 32 == 7 else 0.001)
        return super().__getitem__(index)


class Lazy(Work):
    """Opens something with its first sample."""

    opened = False

    def __getitem__(self, index: int) -> Any:
        if not self.opened:
            time.sleep(0.1)
            self.opened = True
        return super().__getitem__(index)


class Pictures(OfLength):
    """JPEG files, decoded by Pillow."""

    def __init__(self, size: int = 128, length: int = 256) -> None:
        from PIL import Image

        super().__init__(length)
        pixels = np.random.default_rng(0).integers(0, 255, (size, size, 3), dtype=np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "JPEG")
        self.data = file.getvalue()

    def __getitem__(self, index: int) -> Any:
        from PIL import Image

        return torch.from_numpy(np.array(Image.open(io.BytesIO(self.data))))


class Arrays(OfLength):
    """NumPy: a crop of a large array, with noise."""

    def __init__(self, length: int = 256) -> None:
        super().__init__(length)
        self.data = np.zeros((512, 512), np.float32)

    def __getitem__(self, index: int) -> Any:
        rng = lit_loader.get_rng()
        at = int(rng.integers(256))
        return self.data[at : at + 256, :256] + rng.normal(size=(256, 256)).astype(np.float32)


class Objects(OfLength):
    """Mappings of many small objects, which are pickled."""

    def __getitem__(self, index: int) -> Any:
        return {f"key{n}": (n, str(n)) for n in range(30)}


class Ragged(OfLength):
    """Sequences of different lengths, for a collate function that pads."""

    def __getitem__(self, index: int) -> Any:
        return torch.zeros(1 + index * 37 % 400, dtype=torch.long)


class Pickled(OfLength):
    """Records that each sample unpickles."""

    def __init__(self, length: int = 256) -> None:
        super().__init__(length)
        self.record = pickle.dumps([*range(2000)])

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(pickle.loads(self.record))


class Unpicklable(Work):
    """Holds a lock, so it can be forked and not spawned."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.lock = threading.Lock()


class Together(Work):
    """Reads a batch at once."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        time.sleep(0.002)
        return [torch.zeros(self.nbytes, dtype=torch.uint8) for _ in indices]


class Stream(IterableDataset[Any]):
    """A stream of samples that sleep and compute."""

    def __init__(self, length: int = 256, **work: float) -> None:
        self.samples = Work(length, **work)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        shard, shards = lit_loader.get_shard()
        for index in range(shard, len(self.samples), shards):
            yield self.samples[index]


def _line(target: str, batch_size: int = 16, *more: str, **options: Any) -> list[str]:
    named = [f"+dataset.{name}={value}" for name, value in options.items()]
    return [
        f"dataset._target_={__name__}.{target}",
        f"loader.batch_size={batch_size}",
        *named,
        *more,
    ]


PROGRAMS: Final[dict[str, list[str]]] = {
    "samples sleep": _line("Work", sleep=1),
    "samples compute": _line("Work", compute=1),
    "samples do both": _line("Work", sleep=1, compute=0.5),
    "samples cost nothing": _line("Work"),
    "tiny batches": _line("Work", 1),
    "batch of one that sleeps": _line("Work", 1, sleep=2),
    "huge samples": _line("Work", 8, length=64, nbytes=4_000_000),
    "huge samples that compute": _line("Work", 8, length=64, nbytes=1_000_000, compute=1),
    "JPEG": _line("Pictures"),
    "NumPy, with noise": _line("Arrays"),
    "small objects": _line(
        "Objects", 16, "+loader.collate_fn._target_=lit_loader.hydra.targets.SampleList"
    ),
    "ragged, padded": _line("Ragged", 16, "+loader.collate_fn._target_=lit_loader.PadCollate"),
    "records": _line("Pickled"),
    "a few slow samples": _line("Uneven"),
    "opens lazily": _line("Lazy", compute=0.5),
    "unpicklable": _line("Unpicklable", compute=0.5),
    "a batch at once": _line("Together"),
    "a stream that sleeps": _line("Stream", sleep=1),
    "a stream in shards": _line("Stream", 16, "loader.num_shards=4", compute=0.5),
    "beside a step": _line("Work", 16, "grid.step_ms=10", sleep=1),
}
