"""Datasets over the arrays of `text.corpus`, read through memory maps, and their data module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from lit_loader import LoaderDataModule
from text import corpus

Sample = dict[str, Any]


class TextData(LoaderDataModule):
    """A data module that writes the corpus before anything else, once on each machine.

    Args:
        directory: Where the arrays are written.
        kinds: The kinds of text that the datasets need.
        **options: Those of `LoaderDataModule`.
    """

    def __init__(self, directory: str, kinds: list[str], **options: Any) -> None:
        super().__init__(**options)
        self.directory, self.kinds = Path(directory), kinds

    def prepare_data(self) -> None:
        for kind in self.kinds:
            corpus.write(self.directory, kind)


class MappedBytes:
    """One split's bytes, mapped into memory where they are first read.

    It is pickled as a path: each worker maps the file itself, and the system holds it once.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._array: np.ndarray | None = None

    def __getitem__(self, part: slice) -> Tensor:
        """Gives a part, as a uint8 tensor of its own."""
        if self._array is None:
            self._array = np.load(self.path, mmap_mode="r")
        return torch.from_numpy(np.array(self._array[part]))

    def __len__(self) -> int:
        header = np.load(self.path, mmap_mode="r")
        return len(header)

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "_array": None}


class Packed(Dataset[Sample]):
    """A kind of text as one stream, cut into pieces of equal length: no padding, nothing lost.

    Args:
        directory: Where the data module has written the corpus.
        kind: The kind of text.
        split: "train", "val" or "test".
        length: Bytes of a piece that are predicted; each piece has one more, to begin with.
        source: Number of the source in a mixture, which each sample then has as "source".
    """

    def __init__(
        self, directory: str, kind: str, split: str, length: int = 128, source: int | None = None
    ) -> None:
        self.bytes = MappedBytes(corpus.write(Path(directory), kind) / f"{split}.npy")
        self.length, self.source = length, source
        self._pieces = (len(self.bytes) - 1) // length

    def __len__(self) -> int:
        return self._pieces

    def __getitem__(self, index: int) -> Sample:
        """Returns "tokens" (length + 1, uint8), and "source" if there is one."""
        start = index * self.length
        sample = {"tokens": self.bytes[start : start + self.length + 1]}
        return sample if self.source is None else {**sample, "source": self.source}


class Documents(Dataset[Sample]):
    """The documents of a kind of text, each of its own length; those beyond ``longest`` left out.

    Args:
        directory: Where the data module has written the corpus.
        kind: The kind of text.
        split: "train", "val" or "test".
        longest: Most bytes of a document.

    Attributes:
        lengths: Bytes of each document (int64); a `TokenBudgetBatchSampler` looks for it.
    """

    def __init__(self, directory: str, kind: str, split: str, longest: int = 512) -> None:
        path = corpus.write(Path(directory), kind)
        self.bytes = MappedBytes(path / f"{split}.npy")
        starts = np.load(path / f"{split}-starts.npy")
        lengths = np.diff(starts)
        self._starts, self.lengths = starts[:-1][lengths <= longest], lengths[lengths <= longest]

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Sample:
        """Returns "tokens" (uint8, as many as ``lengths[index]``)."""
        start = self._starts[index]
        return {"tokens": self.bytes[start : start + self.lengths[index]]}


class PadTokens:
    """A ``collate_fn``: samples of different lengths become one batch, padded with zeros."""

    def __call__(self, samples: list[Sample]) -> dict[str, Tensor]:
        """Returns "tokens" (samples × longest, uint8) and "lengths" (samples, int64)."""
        tokens = [sample["tokens"] for sample in samples]
        return {
            "tokens": torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True),
            "lengths": torch.tensor([len(piece) for piece in tokens]),
        }
