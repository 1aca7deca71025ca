"""`PackedStream`: a stream of documents as sequences of one length, without padding.

::

    documents ─▶ one after the other ─ cut every `length` tokens ─▶ sequence
    state: {"documents": where they were before the one in which the next sequence begins,
            "offset": what of that one is yielded already, …}

A sequence ends where it is full, usually inside a document, and the next one continues there. The
state holds no tokens: that document is reread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from lit_loader.context import note, reading
from lit_loader.core.options.checks import whole_number
from lit_loader.core.state.state_validation import Fingerprint, damaged, fingerprint_of, is_count
from lit_loader.core.state.stateful import OpenStream, checked_parts
from lit_loader.data.mixture import announce_epoch
from lit_loader.describe import public, short_repr
from lit_loader.errors import OptionError, StateError
from lit_loader.streams.other_streams import open_stream

__all__ = ["PackedStream"]

_KEY: Final = "dataset"


@public
class PackedStream(IterableDataset[dict[str, Tensor]]):
    """Documents one after the other, cut into sequences of one length.

    A sample is a dict of tensors of ``length`` tokens each, which `default_collate` stacks: the
    document's entries ("tokens", if a document is no mapping), ``position_ids`` (int64: the place
    in the document, from 0 where the sequence begins in its middle), and ``sequence_ids`` (int64:
    the number of the document within the sequence). At the end of an epoch a part that does not
    fill a sequence is left out, by each reader.

    Each reader (one of ``num_shards``; without, each worker of each rank) packs what it gets of the
    documents, which ask `lit_loader.get_shard` for their share. The stream is resumed exactly where
    ``documents`` are.

    Args:
        documents: An iterable dataset. A document is a tensor, an array, a list of numbers or
            ``bytes``; or a mapping from name to such, all of one length. It has at least one token.
        length: Tokens of a sequence.
        overlap: Tokens at the end of a sequence with which the next one begins: 1 where each token
            is to be predicted from the one before.

    Raises:
        OptionError: An option is refused.
        ValueError: While it is iterated: a document has no tokens, entries of different lengths, or
            something that is no tensor.
        StateError: A state is of other documents.

    Examples:
        >>> from lit_loader import PackedStream
        >>> documents = [[1, 2, 3], [4, 5]]  # an iterable dataset, in a program
        >>> for sample in PackedStream(documents, length=2):
        ...     print(sample["tokens"], sample["position_ids"])
        tensor([1, 2]) tensor([0, 1])
        tensor([3, 4]) tensor([0, 0])
    """

    state_is_that_of_sources: Final = True
    """For the advice that is given where there is none."""

    def __init__(self, documents: Any, length: int, overlap: int = 0) -> None:
        if isinstance(documents, (type, str, bytes)) or not hasattr(type(documents), "__iter__"):
            raise OptionError(
                "documents must be an iterable dataset, got "
                f"{short_repr(documents)} ({type(documents).__name__}). For a map-style dataset "
                "use PackingBatchSampler"
            )
        self.documents = documents
        self.length = whole_number("length", length, low=1)
        self.overlap = whole_number("overlap", overlap, low=0)
        if self.overlap >= self.length:
            raise OptionError(f"overlap must be below length={length}, got overlap={overlap}")

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        return _Packer(self)

    def __repr__(self) -> str:
        name = type(self.documents).__name__
        return f"{type(self).__name__}({name}, length={self.length}, overlap={self.overlap})"

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch on the documents, if they have ``set_epoch``; the loader calls it.

        Args:
            epoch: Epoch number.
        """
        announce_epoch([self.documents], epoch)

    def state_fingerprint(self) -> Fingerprint:
        """Name what the sequences depend on, besides epoch and reader."""
        inner = fingerprint_of("documents", self.documents)
        return {"length": self.length, "overlap": self.overlap, **inner}


class _Piece(NamedTuple):
    """A part of a document that is in the sequence that comes next."""

    before: Mapping[str, object] | None  # where the documents were before they gave it
    start: int  # of the part, in the document
    parts: dict[str, Tensor]


class _Packer(Iterator[dict[str, Tensor]]):
    def __init__(self, stream: PackedStream) -> None:
        self._stream = stream
        self._opened: OpenStream | None = None
        self._loaded: Mapping[str, object] | None = None
        self._pieces: list[_Piece] = []
        self._skipped = 0  # tokens of the document that comes next, yielded already
        self._read = 0  # documents

    def __next__(self) -> dict[str, Tensor]:
        missing = self._stream.length - sum(map(_size, self._pieces))
        while missing > 0:
            self._pieces.append(piece := self._next_document())
            missing -= _size(piece)
        taken = self._pieces
        if missing:  # the last one continues in the next sequence
            last = taken[-1]
            taken = [*taken[:-1], _cut(last, 0, _size(last) + missing)]
        sequence = {
            name: torch.cat([each.parts[name] for each in taken]) for name in taken[0].parts
        }
        note(tokens=self._stream.length)
        # By NumPy: torch's threads take longer than the work where others use the CPU cores.
        sizes = np.array([*map(_size, taken)], np.int64)
        firsts = np.repeat(np.cumsum(sizes) - sizes, sizes)
        sequence["position_ids"] = torch.from_numpy(np.arange(len(firsts)) - firsts)
        sequence["sequence_ids"] = torch.from_numpy(np.repeat(np.arange(len(sizes)), sizes))
        self._pieces = self._from(self._stream.length - self._stream.overlap)
        return sequence

    def _from(self, place: int) -> list[_Piece]:
        """Return the pieces from a place of the sequence on."""
        left = []
        for piece in self._pieces:
            if place < _size(piece):
                left.append(_cut(piece, max(0, place), _size(piece)))
            place -= _size(piece)
        return left

    def _next_document(self) -> _Piece:
        if self._opened is None:
            documents = self._stream.documents
            self._opened = open_stream(documents, _KEY, self._loaded, role="documents")
            self._loaded = None
        before = self._opened.state()
        with reading().unnoted():  # the tokens of sequences count
            document = next(self._opened.iterator)
        piece = _Piece(before, 0, _entries(document, self._read))
        self._read += 1
        skipped, self._skipped = self._skipped, 0
        if skipped > _size(piece):
            raise StateError(
                f"the state is at token {skipped} of a document that has {_size(piece)}: resume "
                "with the documents that the state was taken with"
            )
        return _cut(piece, skipped, _size(piece)) if skipped else piece

    @property
    def must_be_read_again(self) -> bool:
        """Whether the documents have been begun and have no state."""
        return self._opened is not None and not self._opened.stateful

    def state_dict(self) -> dict[str, object]:
        """Return the place: of the documents, and in that in which the next sequence begins."""
        if self._pieces:
            documents, offset = self._pieces[0].before, self._pieces[0].start
        else:
            documents = self._loaded if self._opened is None else self._opened.state()
            offset = self._skipped
        return {"documents": documents, "offset": offset}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where a state was taken; a StateError if it is none."""
        if not isinstance(state, Mapping) or not is_count(state.get("offset")):
            raise damaged("place in the documents must be a dict with an offset", state)
        self._loaded = checked_parts("documents", state.get("documents"), _KEY)
        self._opened, self._pieces, self._skipped = None, [], state["offset"]


def _size(piece: _Piece) -> int:
    return len(next(iter(piece.parts.values())))


def _cut(piece: _Piece, start: int, stop: int) -> _Piece:
    parts = {name: part[start:stop] for name, part in piece.parts.items()}
    return piece._replace(start=piece.start + start, parts=parts)


def _entries(document: object, number: int) -> dict[str, Tensor]:
    """Return a document's entries as tensors; ValueError: there are none, or lengths differ."""
    # Of a reader; one that was resumed does not know how many there were before.
    which = f"document {number} (counted from 0, since this reader began or was resumed)"
    named = document if isinstance(document, Mapping) else {"tokens": document}
    entries = {name: _tensor(entry, f"{which}, {name!r}") for name, entry in named.items()}
    lengths = {name: len(entry) if entry.ndim else 0 for name, entry in entries.items()}
    if len({*lengths.values()}) != 1 or not all(lengths.values()):
        raise ValueError(
            "lit_loader: "
            f"{which}: a document's entries must have one length of at least 1, got lengths "
            f"{lengths}. Leave out entries that are not one per token, and empty documents"
        )
    return entries


def _tensor(entry: object, which: str) -> Tensor:
    try:
        return torch.as_tensor(
            np.frombuffer(entry, np.uint8).copy() if isinstance(entry, bytes) else entry
        )
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            "lit_loader: "
            f"{which}, must be a tensor, an array, a list of numbers or bytes, or a mapping from "
            f"name to such, got {short_repr(entry)} ({type(entry).__name__}). Tokenize text, and "
            "leave out entries that are not one per token"
        ) from error
