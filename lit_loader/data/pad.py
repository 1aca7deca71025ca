"""`PadCollate`: a ``collate_fn`` for samples of different lengths.

::

    samples ─▶ entry by entry, as default_collate goes ─┬ to be padded ─▶ Padded(values, lengths)
                                                        └ anything else ─▶ default_collate
"""

from __future__ import annotations

import functools
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lit_loader.core.batch.collate import default_collate
from lit_loader.core.options.checks import known_keywords, plain, refuse, whole_number
from lit_loader.describe import public

__all__ = ["PadCollate", "Padded"]


@public
class Padded(NamedTuple):
    """Tensors of different lengths as one.

    Attributes:
        values: The padded tensors, of shape (samples, longest length, …) and their common dtype.
        lengths: Length of each sample without padding: int64, of shape (samples,).
    """

    values: Tensor
    lengths: Tensor

    def mask(self) -> Tensor:
        """Return True where there is data: bool, of shape (samples, longest length)."""
        places = torch.arange(self.values.shape[1], device=self.lengths.device)
        return places < self.lengths[:, None]


@public
class PadCollate:
    """Makes a batch of samples whose tensors differ in their first dimension, the length.

    Mappings, tuples, namedtuples and lists are padded entry by entry. Tensors or NumPy arrays of
    shape (length, …) become a `Padded`, even if all lengths are equal: ``values`` has the shape
    (samples, longest length, …) and the same dtype. `default_collate` makes the rest.

    Args:
        padding_value: What is put after the data. A number: every tensor or array of at least one
            dimension is padded with it. A mapping: the entries of these names are, each with its
            own number, at whatever depth they are, and the others are left to `default_collate`.
        pad_to_multiple_of: The longest length is rounded up to a multiple of this.

    Raises:
        OptionError: An option is refused.

    Examples:
        >>> import torch
        >>> from lit_loader import PadCollate
        >>> batch = PadCollate()([torch.tensor([1, 2, 3]), torch.tensor([4])])
        >>> batch.values
        tensor([[1, 2, 3],
                [4, 0, 0]])
        >>> batch.lengths
        tensor([3, 1])

        A mapping pads the named entries, each with its own number:
        ``PadCollate({"tokens": 0, "labels": -100})``.
    """

    @known_keywords
    def __init__(
        self, padding_value: float | Mapping[str, float] = 0, pad_to_multiple_of: int = 1
    ) -> None:
        if isinstance(padding_value, Mapping):
            padding_value = {name: plain(value) for name, value in padding_value.items()}
        else:
            padding_value = plain(padding_value)
        values = padding_value if isinstance(padding_value, Mapping) else {"": padding_value}
        for value in values.values():
            if not isinstance(value, numbers.Real):
                refuse("padding_value", "a number, or a number for each entry", padding_value)
        self.padding_value = padding_value
        self.pad_to_multiple_of = whole_number("pad_to_multiple_of", pad_to_multiple_of, low=1)

    def __repr__(self) -> str:
        value, multiple = self.padding_value, self.pad_to_multiple_of
        return f"{type(self).__name__}(padding_value={value}, pad_to_multiple_of={multiple})"

    def __call__(self, samples: Sequence[Any]) -> Any:
        """Return the samples as one batch.

        Args:
            samples: At least one sample; the first one's type decides.

        Raises:
            ValueError: Tensors to be padded differ in more than their length, or their dtype cannot
                hold the padding_value. The message names the entry.
            RuntimeError: Sequences have different numbers of entries; and what `default_collate`
                raises.
            KeyError: A key of the first mapping is missing in another one.
        """
        value = None if isinstance(self.padding_value, Mapping) else self.padding_value
        return self._collate(samples, value, "")

    def _collate(self, samples: Sequence[Any], value: float | None, place: str) -> Any:
        """Collate one entry; `value` is what it is padded with, None: not at all."""
        first = samples[0]
        if isinstance(first, Mapping):
            named = self.padding_value if isinstance(self.padding_value, Mapping) else {}
            return {
                key: self._collate(
                    [sample[key] for sample in samples],
                    named.get(key, value),
                    f"{place}.{key}" if place else str(key),
                )
                for key in first
            }
        if isinstance(first, (tuple, list)):
            if len(set(map(len, samples))) != 1:
                raise RuntimeError(
                    "lit_loader: "
                    f"{place or 'samples'}: sequences of different lengths cannot be padded, got "
                    f"lengths {_few(samples, len)}: make tensors of them"
                )
            columns = [
                self._collate(column, value, f"{place}[{number}]")
                for number, column in enumerate(zip(*samples, strict=True))
            ]
            return type(first)(*columns) if hasattr(first, "_fields") else columns
        if value is None or not _has_length(first):
            return default_collate(samples)
        return self._pad(samples, value, place or "samples")

    def _pad(self, samples: Sequence[object], value: float, place: str) -> object:
        tensors = [torch.as_tensor(sample) for sample in samples]
        tail = tensors[0].shape[1:]
        if any(tensor.ndim == 0 or tensor.shape[1:] != tail for tensor in tensors):
            raise ValueError(
                "lit_loader: "
                f"{place}: only the first dimension may differ, got shapes "
                f"{_few(tensors, lambda tensor: tuple(tensor.shape))}: crop or pad the others in "
                "the dataset"
            )
        dtype = functools.reduce(torch.promote_types, (tensor.dtype for tensor in tensors))
        _check_fits(value, dtype, place)
        return self._join([tensor.to(dtype) for tensor in tensors], value, place)

    def _join(self, tensors: list[Tensor], value: float, place: str) -> object:
        lengths = [len(tensor) for tensor in tensors]
        longest = -(-max(lengths) // self.pad_to_multiple_of) * self.pad_to_multiple_of
        values = tensors[0].new_full((len(tensors), longest, *tensors[0].shape[1:]), value)
        for row, (tensor, length) in enumerate(zip(tensors, lengths, strict=True)):
            values[row, :length] = tensor
        return Padded(values, torch.tensor(lengths))


def _has_length(entry: object) -> bool:
    """Whether an entry is a tensor, or an array that can become one, with a first dimension."""
    if isinstance(entry, np.ndarray):
        return entry.ndim > 0 and entry.dtype.kind in "biufc"
    return isinstance(entry, Tensor) and entry.ndim > 0


def _check_fits(value: float, dtype: torch.dtype, place: str) -> None:
    """Refuse what torch would round, or let wrap around, without a word."""
    if dtype.is_floating_point or dtype.is_complex:
        return
    low, high = (0, 1) if dtype == torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    if not (low <= value <= high and value == int(value)):  # NaN fails both comparisons
        raise ValueError(
            "lit_loader: "
            f"{place}: {dtype} cannot hold padding_value={value!r}: choose another padding_value, "
            "or convert the data"
        )


def _few(items: Sequence[object], of: Callable[..., object]) -> str:
    distinct = list(dict.fromkeys(map(of, items)))
    return ", ".join(map(str, distinct[:4])) + (", …" if len(distinct) > 4 else "")
