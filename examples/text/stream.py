"""Packed text as a stream: documents one after the other, cut into sequences of equal length.

::

    documents ─ order of this epoch ─ every count-th ─▶ DocumentReader ─▶ PackedStream ─▶ sequence
                (seed, epoch)         (get_shard)       {"place": 7}
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import IterableDataset

from lit_loader import PackedStream, get_epoch, get_shard
from text import corpus

Document = dict[str, Any]


class DocumentStream(IterableDataset[Document]):
    """The documents of a kind of text; shard n of N has every N-th of them.

    Args:
        directory: Where the data module has written the corpus.
        kind: The kind of text.
        split: "train", "val" or "test".
        shuffle: A new order in each epoch.
        seed: Of that order.
        source: Number of the source in a mixture, which each token then has as "source".
    """

    def __init__(
        self,
        directory: str,
        kind: str,
        split: str,
        shuffle: bool = True,
        seed: int = 0,
        source: int | None = None,
    ) -> None:
        self.path = corpus.write(Path(directory), kind)
        self.split, self.shuffle, self.seed, self.source = split, shuffle, seed, source

    def __iter__(self) -> DocumentReader:
        return DocumentReader(self)


class DocumentReader(Iterator[Document]):
    """One reader's way through one epoch; its state is its place alone."""

    def __init__(self, stream: DocumentStream) -> None:
        self.source = stream.source
        self.text = np.load(stream.path / f"{stream.split}.npy", mmap_mode="r")
        self.starts = np.load(stream.path / f"{stream.split}-starts.npy")
        order = np.arange(len(self.starts) - 1)
        if stream.shuffle:
            order = np.random.default_rng([stream.seed, get_epoch()]).permutation(order)
        index, count = get_shard()
        self.order, self.place = order[index::count], 0

    def __next__(self) -> Document:
        """Returns "tokens" (bytes), and "source" if there is one, for each of them."""
        if self.place == len(self.order):
            raise StopIteration
        number = self.order[self.place]
        self.place += 1
        text = np.array(self.text[self.starts[number] : self.starts[number + 1]])
        if self.source is None:
            return {"tokens": text}
        return {"tokens": text, "source": np.full(len(text), self.source)}

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]


def packed(
    directory: str, kind: str, split: str, length: int = 128, **options: Any
) -> PackedStream:
    """Returns a kind of text as sequences, of which ``length`` bytes are predicted.

    Each begins with the last byte of the one before. ``options`` are those of `DocumentStream`.
    """
    documents = DocumentStream(directory, kind, split, **options)
    return PackedStream(documents, length + 1, overlap=1)
