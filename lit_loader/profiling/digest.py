"""What a batch holds, in few bytes, and where two differ: for batches that are made twice."""

from __future__ import annotations

import hashlib
import itertools
from typing import Any

import numpy as np
import torch

from lit_loader.core.seeding.seeds import canonical_pickle, tensor_bytes

__all__ = ["Digest", "difference", "digest"]

Digest = dict[str, tuple[str, bytes]]
"""Path in a batch to what is there, in words, and a hash of its value."""


def difference(before: Digest, now: Digest) -> str | None:
    """Say where two batches differ first; None: nowhere."""
    for path in itertools.chain(before, now):
        was, is_ = before.get(path), now.get(path)
        if was != is_:
            there = f"batch{path}"
            if was is None or is_ is None or was[0] != is_[0]:
                words = [side[0] if side else "missing" for side in (was, is_)]
                return f"{there} was {words[0]}, and then {words[1]}"
            return f"{there} ({was[0]}) has other values"
    return None


def digest(batch: Any) -> Digest:
    """Say what a batch holds, tensor by tensor; equal for equal bytes."""
    found: Digest = {}
    _walk(batch, "", found, ())
    return found


def _walk(value: Any, path: str, found: Digest, above: tuple[int, ...]) -> None:
    kind = type(value)
    if id(value) in above:
        found[path] = ("itself", b"")
    elif isinstance(value, torch.Tensor) and not value.is_nested:
        found[path] = _of_tensor(value)
    elif isinstance(value, np.ndarray) and value.dtype != object:
        shape = "x".join(map(str, value.shape)) or "scalar"
        found[path] = (f"array, {value.dtype} {shape}", _hash(value.tobytes()))
    elif isinstance(value, BaseException):
        found[path] = (f"{kind.__name__}: {' '.join(str(value).split())[:100]}", b"")
    elif (parts := _parts(value)) is not None:
        found[path] = (f"{kind.__name__} of {len(parts)}", b"")
        for step, part in parts:
            _walk(part, path + step, found, (*above, id(value)))
    else:
        try:
            data = canonical_pickle(value)
        except Exception:  # its kind must do
            data = b""
        found[path] = (kind.__name__, _hash(data))


def _parts(value: Any) -> list[tuple[str, Any]] | None:
    if isinstance(value, dict):
        return [(f"[{key!r}]", part) for key, part in value.items()]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [(f".{name}", part) for name, part in zip(value._fields, value, strict=False)]
    if isinstance(value, torch.Tensor):
        value = value.unbind()  # of a nested one, whose shape may name no numbers
    if isinstance(value, (list, tuple, np.ndarray)):
        return [(f"[{number}]", part) for number, part in enumerate(value)]
    if isinstance(value, (set, frozenset)):
        return [(f"{{{key!r}}}", None) for key in sorted(value, key=repr)]
    if hasattr(value, "__dict__") and not callable(value):
        return [(f".{name}", part) for name, part in vars(value).items()]
    return None


def _of_tensor(tensor: torch.Tensor) -> tuple[str, bytes]:
    shape = "x".join(map(str, tensor.shape)) or "scalar"
    words = f"{str(tensor.dtype).removeprefix('torch.')} {shape}"
    try:
        return words, _hash(tensor_bytes(tensor).data)
    except Exception:  # sparse, quantized
        return words, _hash(repr(tensor).encode())


def _hash(data: bytes | memoryview) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()
