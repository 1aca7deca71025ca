"""`PackingBatchSampler` and `PackCollate`: several samples in one sequence, without padding.

Packs are made once, and each epoch has them in another order. So all epochs have as many, of which
Lightning asks the number once.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lit_loader.context import note, reading
from lit_loader.core.options.checks import known_keywords, or_none, positive
from lit_loader.core.sampling.orders import Indices
from lit_loader.core.state.state_validation import Fingerprint
from lit_loader.data.by_length import BATCHES, ByTokens, halved, in_order
from lit_loader.data.pad import PadCollate
from lit_loader.describe import public

__all__ = ["PackCollate", "Packed", "PackingBatchSampler", "best_fit"]

_AT_ONCE = 262_144
"""Samples that are packed at once: about half a microsecond for each."""

_PACKS_OF_A_WINDOW = 64
"""A window's last pack is half empty: with 64 packs that is less than a hundredth."""

_SMALLEST, _LARGEST = 256, 16_384
"""Samples of a window that is not given; each costs as much time as the window has packs."""


@public
class PackingBatchSampler(ByTokens):
    """Makes each batch a pack: samples that together have at most ``max_tokens`` tokens.

    Within a window of the shuffled order each sample goes into the pack that it fills best, the
    longest sample first: packs are about 99 % full. What a pack holds is a function of (lengths,
    options, seed), and every sample comes once. Packs are made once, in half a second for a million
    samples of text, and shuffled in each epoch.

    Args:
        lengths: Tokens of each sample, one whole number each; or a dataset with an attribute that
            holds them. An empty sample counts as one token.
        max_tokens: Tokens of a pack at most.
        lengths_from: Name of the attribute in which a dataset has the lengths.
        window: Samples of the shuffled order that are packed together. More of them fill the packs
            better and take longer. None: enough to fill 64 packs.
        seed: Seed of the orders; the loader's own ``seed`` is not known here.
        shuffle: Shuffle samples before they are packed, and the packs in each epoch; False: windows
            of the dataset's order, the same in every epoch.
        drop_last: Leave off the packs that do not divide evenly among the ranks; False: packs are
            cut in two until their number does.
        too_long: What becomes of a sample of more than ``max_tokens`` tokens: "raise" an error,
            "skip" it, or count it as ``max_tokens`` long because the dataset will "truncate" it.
        num_replicas: Number of ranks; the number of packs is a multiple of it. None: the processes
            of ``torch.distributed``, 1 without. To resume on another number of ranks, pass one that
            all of them divide.

    Attributes:
        epoch: The epoch whose packs come next.

    Raises:
        OptionError: An option is refused, or a sample is too long (a ValueError).

    Examples:
        >>> from lit_loader import DataLoader, PackCollate, PackingBatchSampler
        >>> lengths = [5, 3, 4, 4, 2, 6]
        >>> batches = PackingBatchSampler(lengths, 8, shuffle=False)
        >>> [[lengths[index] for index in batch] for batch in batches]
        [[2, 6], [5, 3], [4, 4]]
        >>> import torch
        >>> texts = [torch.zeros(length, dtype=torch.int64) for length in lengths]
        >>> loader = DataLoader(texts, batch_sampler=batches, collate_fn=PackCollate())
        >>> next(iter(loader)).values.shape
        torch.Size([8])
    """

    @known_keywords
    def __init__(
        self,
        lengths: object,
        max_tokens: int,
        *,
        lengths_from: str = "lengths",
        window: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        too_long: str = "raise",
        num_replicas: int | None = None,
    ) -> None:
        super().__init__(
            *(lengths, lengths_from, max_tokens),
            shuffle=shuffle,
            drop_last=drop_last,
            too_long=too_long,
            num_replicas=num_replicas,
            seed=seed,
        )
        tokens = np.maximum(self.lengths, 1)
        self._kept = self._fitting(tokens, self.max_tokens)
        self._tokens = np.minimum(tokens, self.max_tokens)
        self.window: int | None = or_none(positive)("window", window)

    def __len__(self) -> int:
        """Return the number of packs, on all ranks together; the same in every epoch."""
        packs = len(self._packs[1]) - 1
        return packs - packs % self.num_replicas if self.drop_last else packs

    def plan(self, epoch: int) -> tuple[Indices, Indices]:  # noqa: D102
        (samples, starts), number = self._packs, len(self)
        if not self.shuffle:
            return samples[: starts[number]], starts[: number + 1]
        order = self.shuffled(epoch, len(starts) - 1, BATCHES).take(0, number)
        return in_order(samples, starts, order)

    def state_fingerprint(self) -> Fingerprint:
        """Name what the packs depend on, besides the epoch and the number of ranks."""
        return {**super().state_fingerprint(), "window": self._window}

    @functools.cached_property
    def _window(self) -> int:
        """Samples of a window."""
        if self.window is not None:
            return self.window
        mean = max(1.0, float(self._tokens[self._kept].mean())) if len(self._kept) else 1.0
        wanted = math.ceil(_PACKS_OF_A_WINDOW * self.max_tokens / mean)
        return min(max(wanted, _SMALLEST), _LARGEST)

    @functools.cached_property
    def _packs(self) -> tuple[Indices, Indices]:
        """The samples, pack after pack, and where packs begin and end, as `plan` has them."""
        samples, count, window = self._kept, len(self._kept), self._window
        if self.shuffle:
            samples = samples[self.shuffled(0, count).take(0, count)]
        whole = count // window * window
        rows = max(1, _AT_ONCE // window)
        windows = samples[:whole].reshape(-1, window)
        parts = [windows[start : start + rows] for start in range(0, len(windows), rows)]
        if whole < count:
            parts.append(samples[None, whole:])
        packs, first = [np.empty(0, np.int64)], 0
        for part in parts:
            found, used = best_fit(self._tokens[part], self.max_tokens)
            packs.append((found + (first + np.cumsum(used) - used)[:, None]).ravel())
            first += int(used.sum())
        pack = np.concatenate(packs)
        samples = samples[np.argsort(pack, kind="stable")]
        starts = np.concatenate([[0], np.cumsum(np.bincount(pack, minlength=first))])
        if self.drop_last:
            return samples, starts
        # Not more packs than samples: the loader's uneven_ranks decides.
        wanted = min(-(-first // self.num_replicas) * self.num_replicas, count)
        return samples, halved(starts, wanted, self._tokens[samples])


def best_fit(lengths: Indices, room: int) -> tuple[Indices, Indices]:
    """Pack the samples of windows, longest first, each where it leaves the least room.

    Args:
        lengths: Windows × samples, each at least 1 and at most ``room``.
        room: What packs hold.

    Returns:
        Windows × samples: the number of each one's pack within its window; and how many packs each
        window has. Both int64.
    """
    windows, samples = lengths.shape
    order = np.argsort(-lengths, axis=1, kind="stable")
    sorted_lengths = np.take_along_axis(lengths, order, axis=1).T.astype(np.int32, order="C")
    least = -(-lengths.sum(axis=1).max(initial=0) // room)
    left = np.full((windows, int(1.1 * least) + 2), room, np.int32)
    chosen = np.empty((samples, windows), np.int64)
    row = np.arange(windows)
    for number, length in enumerate(sorted_lengths):
        rest = left - length[:, None]
        # As numbers without a sign, what does not fit is larger than all that does.
        best = rest.view(np.uint32).argmin(axis=1)
        if (now := rest[row, best]).min() < 0:
            left = np.hstack([left, np.full((windows, left.shape[1] // 8 + 1), room, np.int32)])
            rest = left - length[:, None]
            best = rest.view(np.uint32).argmin(axis=1)
            now = rest[row, best]
        left[row, best] = now
        chosen[number] = best
    packs = np.empty_like(order)
    np.put_along_axis(packs, order, chosen.T, axis=1)
    return packs, (left < room).sum(axis=1)


# --- a pack as one sequence ---


@public
class Packed(NamedTuple):
    """Samples one after the other in one sequence, and where each begins and ends.

    ::

        flash_attn_varlen_func(q, k, v, p.cu_seqlens, p.cu_seqlens, p.max_seqlen, p.max_seqlen)
        torch.nested.nested_tensor_from_jagged(p.values["tokens"], p.cu_seqlens)
        model(p.values["tokens"][None], position_ids=p.position_ids[None])  # Hugging Face

    Padding at the end, from ``pad_to_multiple_of``, is a separate sequence, to which no sample
    attends.

    Attributes:
        values: What the samples are, with all tokens of an entry in one tensor of shape
            (tokens, …). `default_collate` makes the entries that are not packed.
        position_ids: Place of each token in its own sample: int64, of shape (tokens,).
        cu_seqlens: Where samples begin, and the end of the last: int32, of shape (samples + 1,).
        max_seqlen: Tokens of the longest sample.
        sequence_ids: Number of each token's sample, -1 for padding: int64, of shape (tokens,). Two
            tokens may attend to each other if they have the same number.
    """

    values: Any
    position_ids: Tensor
    cu_seqlens: Tensor
    max_seqlen: int
    sequence_ids: Tensor


@public
class PackCollate(PadCollate):
    """Makes one `Packed` sequence of samples whose tensors differ in their first dimension.

    Mappings, tuples, namedtuples and lists are packed entry by entry, as by `PadCollate`. Tensors
    and NumPy arrays of at least one dimension are packed: (length, …) of each sample becomes
    (sum of lengths, …), of the same dtype. `default_collate` makes the rest. The packed entries of
    a sample have the same length.

    Args:
        padding_value: What padding at the end is filled with. A number: every tensor or array of at
            least one dimension is packed. A mapping: the entries of these names are, each with its
            own number, and the others are left to `default_collate`.
        pad_to_multiple_of: The number of tokens is rounded up to a multiple of this.

    Raises:
        OptionError: An option is refused.

    Examples:
        >>> import torch
        >>> from lit_loader import PackCollate
        >>> packed = PackCollate()([torch.tensor([1, 2, 3]), torch.tensor([4])])
        >>> packed.values
        tensor([1, 2, 3, 4])
        >>> packed.position_ids
        tensor([0, 1, 2, 0])
        >>> packed.cu_seqlens
        tensor([0, 3, 4], dtype=torch.int32)
    """

    def __call__(self, samples: Sequence[Any]) -> Packed:
        """Return the samples as one sequence.

        Args:
            samples: At least one sample; the first one's type decides.

        Raises:
            ValueError: Tensors to be packed differ in more than their length, a sample's entries in
                that, their dtype cannot hold the padding_value, or there is nothing to be packed.
                The message names the entry.
            RuntimeError: Sequences have different numbers of entries; and what `default_collate`
                raises.
            KeyError: A key of the first mapping is missing in another one.
        """
        joining = _Joining(self.padding_value, self.pad_to_multiple_of)
        values = joining(samples)
        if joining.lengths is None:
            raise ValueError(
                "lit_loader: "
                f"samples have nothing to pack: no tensor with a length, or none of the names in "
                f"padding_value={self.padding_value!r}; got {type(samples[0]).__name__}"
            )
        lengths = torch.tensor(joining.lengths)
        if not reading().tokens:  # the dataset has not counted them
            note(tokens=sum(joining.lengths))
        padding = joining.padded(int(lengths.sum())) - int(lengths.sum())
        numbers = torch.arange(len(lengths))
        if padding:
            lengths = torch.cat([lengths, torch.tensor([padding])])
            numbers = torch.cat([numbers, torch.tensor([-1])])
        ends = lengths.cumsum(0)
        firsts = (ends - lengths).repeat_interleave(lengths)
        return Packed(
            values=values,
            position_ids=torch.arange(len(firsts)) - firsts,
            cu_seqlens=torch.cat([torch.zeros(1, dtype=torch.int64), ends]).to(torch.int32),
            max_seqlen=int(lengths.max()),
            sequence_ids=numbers.repeat_interleave(lengths),
        )


class _Joining(PadCollate):
    """Collates one pack; knows its samples' lengths afterwards."""

    lengths: list[int] | None = None
    _place = ""

    def padded(self, length: int) -> int:
        """Round a number of tokens up."""
        return -(-length // self.pad_to_multiple_of) * self.pad_to_multiple_of

    def _join(self, tensors: list[Tensor], value: float, place: str) -> Tensor:
        lengths = [len(tensor) for tensor in tensors]
        known = lengths if self.lengths is None else self.lengths
        for number, (ours, theirs) in enumerate(zip(lengths, known, strict=True)):
            if ours != theirs:
                raise ValueError(
                    "lit_loader: "
                    f"{place}: the packed entries of a sample must have one length, and sample "
                    f"{number} of the pack has {ours}, but {theirs} of {self._place}: name the "
                    "entries to be packed in padding_value, as {'tokens': 0, 'labels': -100}"
                )
        self.lengths, self._place = lengths, place
        joined = torch.cat(tensors)
        missing = self.padded(len(joined)) - len(joined)
        return torch.cat([joined, joined.new_full((missing, *joined.shape[1:]), value)])
