"""What the cases load: samples that cost next to nothing, or a given time, or real decoding.

JPEG by Pillow, text by a tokenizer, Parquet by PyArrow. All datasets can be pickled.
"""

from __future__ import annotations

import io
import random
import re
import time
import zlib
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch.utils.data import Dataset

_POOL: Final = 64  # different samples: fetching stays cheap, memory stays small


class _Sized(Dataset[Any]):
    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length


class Pool(_Sized):
    """A few samples that lie in memory, again and again; with their indices, if `labelled`."""

    def __init__(self, length: int, samples: Any, labelled: bool = False) -> None:
        super().__init__(length)
        self._samples, self._labelled = samples, labelled

    def __getitem__(self, index: int) -> Any:
        sample = self._samples[index % len(self._samples)]
        return (sample, index) if self._labelled else sample


def tensors(*shape: int, pool: int = _POOL) -> torch.Tensor:
    """Different float32 tensors of this shape."""
    numbers = torch.arange(pool, dtype=torch.float32).view(-1, *[1] * len(shape))
    return numbers.expand(pool, *shape).contiguous()


def lengths(least: int, most: int) -> list[int]:
    """Lengths of samples that differ."""
    return random.Random(0).choices(range(least, most + 1), k=_POOL)


class Sleeping(Dataset[int]):
    """Samples that take a time without taking the processor, as waiting for storage does.

    A part of them, `slow`, at places that are always the same, takes so many `times` as long.
    """

    def __init__(self, length: int, seconds: float, slow: float = 0.0, times: float = 1.0) -> None:
        self.seconds = [seconds] * length  # what each sample takes
        for index in random.Random(0).sample(range(length), round(slow * length)):
            self.seconds[index] *= times

    def __len__(self) -> int:
        return len(self.seconds)

    def __getitem__(self, index: int) -> int:
        time.sleep(self.seconds[index])
        return index


class Costing(_Sized):
    """Samples that take a processor for some seconds, and wait for some; others from `at` on."""

    def __init__(
        self, length: int, before: tuple[float, float], after: tuple[float, float], at: int
    ) -> None:
        super().__init__(length)
        self._costs, self._at = (before, after), at

    def __getitem__(self, index: int) -> int:
        computing, waiting = self._costs[index >= self._at]
        if waiting:
            time.sleep(waiting)
        end = time.thread_time() + computing
        while time.thread_time() < end:
            pass
        return index


def jpeg_files() -> list[bytes]:
    """Make 32 JPEG images of 500 x 375: smooth noise, which compresses about as photographs do."""
    from PIL import Image

    files, dice = [io.BytesIO() for _ in range(32)], np.random.default_rng(0)
    for file in files:
        coarse = dice.integers(0, 256, (47, 63, 3), np.uint8)
        image = Image.fromarray(coarse).resize((500, 375), Image.Resampling.BICUBIC)
        noisy = np.asarray(image, np.int16) + dice.integers(-8, 9, (375, 500, 3))
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
    return [file.getvalue() for file in files]


def augmented(content: bytes) -> torch.Tensor:
    """Decode such an image, crop it at random to 224 x 224, flip it at random.

    Returns:
        float32 of shape (3, 224, 224).
    """
    from PIL import Image

    with Image.open(io.BytesIO(content)) as file:
        image = file.convert("RGB")
    size = int(torch.randint(200, 376, ()))
    left, top = (int(torch.randint(0, most - size, ())) for most in (501, 376))
    box = (left, top, left + size, top + size)
    image = image.resize((224, 224), Image.Resampling.BILINEAR, box=box)
    if torch.rand(()) < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return (torch.from_numpy(np.array(image)).permute(2, 0, 1).float() - 127.5) / 64.0


class JpegImages(_Sized):
    """Samples (`augmented`, label) of `jpeg_files`, some 40 kB each."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self._files = jpeg_files()

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return augmented(self._files[index % len(self._files)]), index % 1000


class Texts(_Sized):
    """Text of Python's standard library, split into words and signs, each hashed to a token.

    A sample is int64 of shape (tokens,); shorter texts are filled up with 0.
    """

    _SPLIT = re.compile(r"\w+|[^\w\s]")

    def __init__(self, length: int, tokens: int) -> None:
        super().__init__(length)
        self._tokens = tokens
        folder = Path(re.__file__).parent.parent
        sources = [folder / name for name in ("argparse.py", "inspect.py", "typing.py")]
        text = "".join(path.read_text(encoding="utf-8") for path in sources)
        self._texts = [text[i : i + 3000] for i in range(0, len(text) - 3000, 3000)]

    def __getitem__(self, index: int) -> torch.Tensor:
        words = self._SPLIT.findall(self._texts[index % len(self._texts)].lower())
        found = [1 + zlib.crc32(word.encode()) % 50_000 for word in words[: self._tokens]]
        return torch.tensor(found + [0] * (self._tokens - len(found)))


def write_parquet(path: Path, groups: int, rows: int, columns: int) -> None:
    """Write a compressed table of float32 columns: so many row groups of so many rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    dice = np.random.default_rng(0)
    made = {
        f"column_{column}": dice.integers(0, 1000, groups * rows).astype(np.float32)
        for column in range(columns)
    }
    pq.write_table(pa.table(made), path, row_group_size=rows, compression="zstd")


class ParquetGroups(_Sized):
    """Each sample is one row group: float32 of shape (columns, rows)."""

    def __init__(self, length: int, path: Path) -> None:
        super().__init__(length)
        self._path = path

    def __getitem__(self, index: int) -> torch.Tensor:
        import pyarrow.parquet as pq

        # OpenStream for each sample, by one thread: a reader carried over a fork would hang.
        with pq.ParquetFile(self._path) as file:
            table = file.read_row_group(index % file.num_row_groups, use_threads=False)
        return torch.from_numpy(np.stack([column.to_numpy() for column in table.columns]))
