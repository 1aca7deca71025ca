"""`digest_of`: a number that tells a batch of a stream from another one when it is replayed.

It is taken of every batch of a stream, so it costs a few microseconds, however large the batch is:
some values of some samples are looked at. Data in another order, or augmented by other random
numbers, has another digest; a digest that is the same proves nothing.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from itertools import islice
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
    found: list[bytes] = []
    if type(samples) is list:
        _look_into(samples, found, 0, _SAMPLES)
    else:
        _look(samples, found, 0, _SAMPLES)
    return zlib.crc32(b"\0".join(found)) or 1


def _look(value: Any, found: list[bytes], depth: int, most: int = _VALUES) -> None:
    """Write down some of what a value is; calls no code of the user's."""
    kind = type(value)
    if kind is str:
        found.append(_written([value]))
    elif kind is bytes:
        found.append(value[:_VALUES] + value[-_VALUES:] + b"%d" % len(value))
    elif kind in _PLAIN:
        found.append(repr(value).encode())
    elif issubclass(kind, (torch.Tensor, np.ndarray, np.generic)):
        _look_at_array(value, found)
    elif depth < _DEPTH:
        if not issubclass(kind, (list, tuple)):
            found.append(kind.__name__.encode())
            inside = value if issubclass(kind, Mapping) else getattr(value, "__dict__", {})
            if names := getattr(kind, "alike_in_processes", None):  # of its attributes only these
                inside = {name: getattr(value, name) for name in names}
            value = [*islice(inside.items(), most)]
        _look_into(value, found, depth, most)


def _look_into(parts: Any, found: list[bytes], depth: int, most: int) -> None:
    """Write down how many parts there are, and some of them, the first and the last among these."""
    count = len(parts)
    found.append(b"%d" % count)
    if count > most:
        parts = [*parts[:: -(-count // (most - 1))], parts[-1]]
    if set(map(type, parts)) == _TEXT:  # as often: at once
        found.append(_written(parts))
    else:
        for part in parts:
            _look(part, found, depth + 1)


def _written(texts: list[str]) -> bytes:
    """Write texts down: of long ones the first and last characters, and the length."""
    if max(map(len, texts)) > 2 * _VALUES:
        texts = [
            text if len(text) <= 2 * _VALUES else f"{text[:_VALUES]}{text[-_VALUES:]}{len(text)}"
            for text in texts
        ]
    return "\0".join(texts).encode("utf-8", "surrogatepass")


_TEXT: Final = {str}
_PLAIN: Final = frozenset({int, float, bool, complex, range, type(None)})


def _look_at_array(array: Any, found: list[bytes]) -> None:
    if isinstance(array, torch.Tensor):
        try:
            plain = array.detach()
            # NumPy has no bfloat16.
            array = (plain.view(torch.int16) if plain.dtype is torch.bfloat16 else plain).numpy()
        except Exception:  # sparse, quantized, nested, on a device
            array = np.array(str(array.shape))
    found.append(b"%b%d" % (array.dtype.str.encode(), array.size))
    if not array.dtype.hasobject:
        found.append(array.flat[:: max(1, array.size // _VALUES)].tobytes())
