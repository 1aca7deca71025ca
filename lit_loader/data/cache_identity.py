"""What tells caches of one key apart: a dataset's length, and digests of three of its samples.

The key of a cache is what the user says it is. If two datasets have one key by mistake, or a
dataset has changed since, its length or one of three samples differs most likely, and each has a
cache of its own.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
import torch

__all__ = ["places_compared", "sample_digest"]

_DEPTH: Final = 8


def places_compared(length: int) -> list[int]:
    """Return which samples are compared."""
    return sorted({0, length // 2, length - 1}) if length else []


def sample_digest(sample: object) -> int:
    """Return 64 bits that are the same for equal samples in every process.

    What is neither a number, text, tensor, array or container of such counts by its attributes.
    """
    digest = hashlib.blake2b(digest_size=8)
    _add(sample, digest, _DEPTH)
    return int.from_bytes(digest.digest(), "little")


def _add(value: object, digest: Any, depth: int) -> None:
    digest.update(type(value).__qualname__.encode())
    if value is None or isinstance(value, (int, float, complex, bytes)):
        digest.update(repr(value).encode())
    elif isinstance(value, str):
        digest.update(value.encode("utf-8", "surrogatepass"))
    elif isinstance(value, torch.Tensor):
        digest.update(f"{value.dtype}{tuple(value.shape)}".encode())
        with contextlib.suppress(Exception):  # a sparse one, say
            plain = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
            digest.update(plain.reshape(-1).view(torch.uint8).numpy())
    elif isinstance(value, (np.ndarray, np.generic)) and not value.dtype.hasobject:
        digest.update(f"{value.dtype}{value.shape}".encode())
        digest.update(value.tobytes())
    elif depth:
        parts: Iterable[object] = getattr(value, "__dict__", {})
        if isinstance(value, Mapping):
            parts = [part for pair in value.items() for part in pair]
        elif isinstance(value, (set, frozenset)):  # whose order differs from process to process
            parts = sorted(map(sample_digest, value))
        elif isinstance(value, (list, tuple, np.ndarray)):
            parts = list(value)
        for part in parts.items() if isinstance(parts, dict) else parts:
            _add(part, digest, depth - 1)
        digest.update(b";")
