"""Packed text as a stream: documents one after the other, cut into sequences of equal length.

::

    documents ─ order of this epoch ─ every count-th ─▶ DocumentReader ─▶ Packer ─▶ sequence
                (seed, epoch)         (get_shard)       {"place": 7}        │
    state: {"documents": {"place": 6}, "offset": 90, "filled": […]} ◀───────╯ half-filled

A sequence ends where it is full, in the midst of a document most often, and the next one goes on
there. So the state has what is filled of a sequence, and how far into which document that was.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset

from lit_loader import get_epoch, get_shard
from text import corpus
from text.data import Sample


class DocumentStream(IterableDataset[bytes]):
    """The documents of a kind of text; each reader has every so many-th of them.

    Args:
        directory: Where the data module has written the corpus.
        kind: The kind of text.
        split: "train", "val" or "test".
        shuffle: A new order in each epoch.
        seed: Of that order.
    """

    def __init__(
        self, directory: str, kind: str, split: str, shuffle: bool = True, seed: int = 0
    ) -> None:
        self.path = corpus.write(Path(directory), kind)
        self.split, self.shuffle, self.seed = split, shuffle, seed

    def __iter__(self) -> DocumentReader:
        return DocumentReader(self)


class DocumentReader(Iterator[bytes]):
    """One reader's way through one epoch; its state is its place alone."""

    def __init__(self, stream: DocumentStream) -> None:
        self.text = np.load(stream.path / f"{stream.split}.npy", mmap_mode="r")
        self.starts = np.load(stream.path / f"{stream.split}-starts.npy")
        order = np.arange(len(self.starts) - 1)
        if stream.shuffle:
            order = np.random.default_rng([stream.seed, get_epoch()]).permutation(order)
        index, count = get_shard()
        self.order, self.place = order[index::count], 0

    def __next__(self) -> bytes:
        if self.place == len(self.order):
            raise StopIteration
        number = self.order[self.place]
        self.place += 1
        return self.text[self.starts[number] : self.starts[number + 1]].tobytes()

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]


class PackedStream(IterableDataset[Sample]):
    """Documents packed into sequences: no padding; at the end of an epoch a last part is left out.

    Args:
        documents: An iterable dataset of ``bytes`` whose iterator has a state.
        length: Bytes of a sequence that are predicted; each has one more, to begin with.
        source: Number of the source in a mixture, which each sample then has as "source".
    """

    def __init__(
        self, documents: IterableDataset[bytes], length: int = 128, source: int | None = None
    ) -> None:
        self.documents, self.length, self.source = documents, length, source

    def __iter__(self) -> Packer:
        return Packer(self)


class Packer(Iterator[Sample]):
    """One reader's way through one epoch."""

    def __init__(self, stream: PackedStream) -> None:
        self.stream = stream
        self.documents: Any = iter(stream.documents)
        self.before: Any = None  # where `documents` was before it gave `document`
        self.document: bytes | None = None
        self.offset = 0  # of what is not used yet of `document`, or of the one that comes next
        self.filled = b""

    def __next__(self) -> Sample:
        """Returns "tokens" (length + 1, uint8), and "source" if there is one."""
        wanted = self.stream.length + 1
        while len(self.filled) < wanted:
            if self.document is None:
                self.before = self.documents.state_dict()
                self.document = next(self.documents)
            part = self.document[self.offset :][: wanted - len(self.filled)]
            self.filled += part
            self.offset += len(part)
            if self.offset >= len(self.document):
                self.document, self.offset = None, 0
        sample = {"tokens": torch.frombuffer(bytearray(self.filled), dtype=torch.uint8)}
        self.filled = self.filled[-1:]  # which the next one begins with
        return sample if self.stream.source is None else {**sample, "source": self.stream.source}

    def state_dict(self) -> dict[str, Any]:
        between = self.document is None
        return {
            "documents": self.documents.state_dict() if between else self.before,
            "offset": self.offset,
            "filled": list(self.filled),  # numbers, which torch.load(weights_only=True) takes
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.documents.load_state_dict(state["documents"])
        self.document, self.offset, self.filled = None, state["offset"], bytes(state["filled"])


def packed(
    directory: str,
    kind: str,
    split: str,
    length: int = 128,
    source: int | None = None,
    **order: Any,
) -> PackedStream:
    """Returns a kind of text as a stream of sequences; ``order`` is that of `DocumentStream`."""
    return PackedStream(DocumentStream(directory, kind, split, **order), length, source)
