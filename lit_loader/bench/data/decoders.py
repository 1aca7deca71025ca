"""The datasets of the case "decoding": JPEG by Pillow, text by a tokenizer, Parquet by PyArrow."""

from __future__ import annotations

import io
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

__all__ = ["JpegImages", "ParquetGroups", "Texts", "augmented", "jpeg_files", "write_parquet"]

_IMAGES = 32


def jpeg_files() -> list[bytes]:
    """Make 32 JPEG images of 500 × 375.

    They are smooth noise, which compresses about as well as photographs do (some 40 kB each).
    """
    from PIL import Image

    files = []
    dice = np.random.default_rng(0)
    for _ in range(_IMAGES):
        coarse = dice.integers(0, 256, (47, 63, 3), np.uint8)
        image = Image.fromarray(coarse).resize((500, 375), Image.Resampling.BICUBIC)
        noisy = np.asarray(image, np.int16) + dice.integers(-8, 9, (375, 500, 3))
        file = io.BytesIO()
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
        files.append(file.getvalue())
    return files


def augmented(content: bytes) -> torch.Tensor:
    """Decode such an image, crop it at random to 224 × 224, flip it at random.

    Args:
        content: The JPEG file.

    Returns:
        float32 of shape (3, 224, 224).
    """
    from PIL import Image

    with Image.open(io.BytesIO(content)) as file:
        image = file.convert("RGB")
    size = int(torch.randint(200, 376, ()))
    left = int(torch.randint(0, 501 - size, ()))
    top = int(torch.randint(0, 376 - size, ()))
    box = (left, top, left + size, top + size)
    image = image.resize((224, 224), Image.Resampling.BILINEAR, box=box)
    if torch.rand(()) < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
    return (pixels.float() - 127.5) / 64.0


class JpegImages(Dataset[Any]):
    """JPEG images of 500 × 375, decoded, cropped at random to 224 × 224, flipped at random.

    A sample is (float32 of shape (3, 224, 224), label); see `jpeg_files`.

    Args:
        length: Number of samples, of 32 different images.
    """

    def __init__(self, length: int) -> None:
        self._length = length
        self._files = jpeg_files()

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return augmented(self._files[index % _IMAGES]), index % 1000


class JpegThumbnails(JpegImages):
    """The same images, resized to 224 × 224; nothing is random. A sample is (uint8, label)."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        from PIL import Image

        with Image.open(io.BytesIO(self._files[index % _IMAGES])) as file:
            image = file.convert("RGB").resize((224, 224), Image.Resampling.BILINEAR)
        return torch.from_numpy(np.array(image)), index % 1000


class Texts(Dataset[torch.Tensor]):
    """Text of Python's standard library, split into words and signs, each hashed to a token.

    Args:
        length: Number of samples.
        tokens: Tokens a sample, int64; shorter texts are filled up with 0.
    """

    _SPLIT = re.compile(r"\w+|[^\w\s]")
    _CHARACTERS = 3000

    def __init__(self, length: int, tokens: int) -> None:
        self._length, self._tokens = length, tokens
        folder = Path(re.__file__).parent.parent
        sources = [folder / name for name in ("argparse.py", "inspect.py", "typing.py")]
        text = "".join(path.read_text(encoding="utf-8") for path in sources)
        size = self._CHARACTERS
        self._texts = [text[i : i + size] for i in range(0, len(text) - size, size)]

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> torch.Tensor:
        words = self._SPLIT.findall(self._texts[index % len(self._texts)].lower())
        tokens = [1 + zlib.crc32(word.encode()) % 50_000 for word in words[: self._tokens]]
        return torch.tensor(tokens + [0] * (self._tokens - len(tokens)))


def write_parquet(path: Path, groups: int, rows: int, columns: int) -> None:
    """Write a compressed table of float32 columns.

    Args:
        path: The file.
        groups: Row groups.
        rows: Rows of each.
        columns: Columns.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    dice = np.random.default_rng(0)
    table = pa.table(
        {
            f"column_{column}": dice.integers(0, 1000, groups * rows).astype(np.float32)
            for column in range(columns)
        }
    )
    pq.write_table(table, path, row_group_size=rows, compression="zstd")


class ParquetGroups(Dataset[torch.Tensor]):
    """Each sample is one row group: float32 of shape (columns, rows).

    Args:
        path: The file.
        length: Number of samples; row groups are read again and again.
    """

    def __init__(self, path: Path, length: int) -> None:
        self._path, self._length = path, length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> torch.Tensor:
        import pyarrow.parquet as pq

        # Opened for each sample, by one thread: a reader carried over a fork would hang.
        with pq.ParquetFile(self._path) as file:
            table = file.read_row_group(index % file.num_row_groups, use_threads=False)
        return torch.from_numpy(np.stack([column.to_numpy() for column in table.columns]))
