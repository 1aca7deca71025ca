"""A stream of the `datasets` library, and its data module: Parquet files, written once."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import datasets
from datasets import Dataset, IterableDataset, load_dataset
from digits.dataset import Digits
from digits.once import write_once

from hf.data import FEATURES
from lit_loader import LoaderDataModule

FILES = 8  # of the training split: what it can be divided into


def write(root: Path) -> None:
    """Writes ``root/<split>-<number>.parquet`` of images (1 × 8 × 8, float32) and labels."""
    for split in ("train", "val", "test"):
        digits = Digits(split)
        columns = {"image": digits.images.numpy(), "label": digits.labels}
        whole = Dataset.from_dict(columns, features=FEATURES)
        count = FILES if split == "train" else 2
        for number in range(count):
            whole.shard(count, number).to_parquet(root / f"{split}-{number}.parquet")


def stream(root: Path, split: str, seed: int, buffer_size: int) -> IterableDataset:
    """Returns a split as a stream; "train" is shuffled: its files, and rows through a buffer.

    It divides its files among the readers by itself, and has a state of its own. That lacks what is
    in the buffer; so lit_loader reads a shuffled stream again up to the place, and loses nothing.
    """
    files = sorted(map(str, root.glob(f"{split}-*.parquet")))
    cache = str(root.with_name(f"{root.name}-cache"))
    rows = load_dataset(
        "parquet", data_files=files, split="train", streaming=True, cache_dir=cache
    ).with_format("torch")
    if split != "train":
        return rows
    # Several files into one buffer are read by threads, for which the library waits 5 s at the end.
    one = "max_buffer_input_shards"
    options = {one: 1} if one in inspect.signature(rows.shuffle).parameters else {}
    return rows.shuffle(seed=seed, buffer_size=buffer_size, **options)


class HuggingFaceStreamData(LoaderDataModule):
    """Digits as a stream of `datasets`.

    Args:
        root: Where the files are, or are to be written.
        seed: Of the order.
        buffer_size: Rows that are shuffled together.
        **options: Of `LoaderDataModule`.
    """

    splits = ("train", "val", "test")

    def __init__(self, root: str, seed: int = 0, buffer_size: int = 256, **options: Any) -> None:
        super().__init__(**options)
        self.root, self.seed, self.buffer_size = Path(root).absolute(), seed, buffer_size

    def prepare_data(self) -> None:
        datasets.disable_progress_bars()  # it would stay on the console, above the Trainer's
        write_once(self.root, write)

    def make_dataset(self, split: str) -> IterableDataset:
        datasets.disable_progress_bars()
        return stream(self.root, split, self.seed, self.buffer_size)
