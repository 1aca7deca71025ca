"""`digest_of`: a number that tells a batch of a stream from another one when it is replayed.

It is taken of every batch of a stream, so it costs a few microseconds, however large the batch is:
some values of some samples are looked at. Data in another order, or augmented by other random
numbers, has another digest; a digest that is the same proves nothing.
"""

from __future__ import annotations

import marshal
import zlib
from collections.abc import Mapping
from itertools import chain, islice
from typing import Any, Final

import numpy as np
import torch

_SAMPLES: Final = 4
"""Samples of a batch that are looked at, the first and the last among them."""

_VALUES: Final = 32
"""Values of a tensor or container that are looked at, and half of the characters of a text."""

_DEPTH: Final = 9


def digest_of(samples: object) -> int:
    """Return a digest of a batch's samples, from 1 on; it is the same in every process."""
    found: list[str] = []
    if type(samples) is list:
        _look_into(samples, found, 0, _SAMPLES)
    else:
        _look(samples, found, 0, _SAMPLES)
    return zlib.crc32("\0".join(found).encode("utf-8", "surrogatepass")) or 1


def _look(value: Any, found: list[str], depth: int, most: int = _VALUES) -> None:
    """Write down some of what a value is; calls no code of the user's."""
    kind = type(value)
    if kind in _PLAIN:
        found.append(repr(value))
    elif kind is str or kind is bytes:
        is_long = len(value) > 2 * _VALUES
        found.append(
            f"{value[:_VALUES]!r}{value[-_VALUES:]!r}{len(value)}" if is_long else repr(value)
        )
    elif issubclass(kind, (torch.Tensor, np.ndarray, np.generic)):
        _look_at_array(value, found)
    elif depth < _DEPTH:
        if not issubclass(kind, (list, tuple)):
            found.append(kind.__name__)
            inside = value if issubclass(kind, Mapping) else getattr(value, "__dict__", {})
            if names := getattr(kind, "alike_in_processes", None):  # of its attributes only these
                inside = {name: getattr(value, name) for name in names}
            value, most = [*chain.from_iterable(islice(inside.items(), most))], 2 * most
        _look_into(value, found, depth, most)


def _look_into(parts: Any, found: list[str], depth: int, most: int) -> None:
    """Write down how many parts there are, and some of them, the first and the last among these."""
    count = len(parts)
    found.append(str(count))
    if count > most:
        parts = [*parts[:: -(-count // (most - 1))], parts[-1]]
    kinds = set(map(type, parts))
    if kinds == _TEXT and max(map(len, parts)) <= 2 * _VALUES:  # as often: at once
        found.extend(parts)
    elif kinds <= _PLAIN:
        found.append(repr([*parts]))
    else:
        for part in parts:
            _look(part, found, depth + 1)


_TEXT: Final = {str}
_PLAIN: Final = frozenset({int, float, bool, complex, range, type(None)})


def _look_at_array(array: Any, found: list[str]) -> None:
    if isinstance(array, torch.Tensor):
        try:
            if array.is_cpu and array.numel() <= _VALUES:  # as often: quicker than by NumPy
                found.append(marshal.dumps(array.tolist(), 2).decode("latin-1"))
                return
            plain = array.detach() if array.requires_grad else array
            # NumPy has no bfloat16.
            array = (plain.view(torch.int16) if plain.dtype is torch.bfloat16 else plain).numpy()
        except Exception:  # sparse, quantized, nested, on a device
            array = np.array(f"{array.layout}, {array.numel()} values")
    found.append(array.dtype.str)
    if array.size > _VALUES:
        found.append(str(array.size))
        array = array.flat[:: array.size // _VALUES]
    if not array.dtype.hasobject:
        found.append(array.tobytes().decode("latin-1"))
