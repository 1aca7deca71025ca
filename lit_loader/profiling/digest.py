"""What a batch holds, in few bytes, and where two differ: for batches that are made twice."""

from __future__ import annotations

import hashlib
import itertools

import numpy as np
import torch

from lit_loader.core.seeding.seeds import canonical_pickle

__all__ = ["Digest", "digest", "first_difference"]

Digest = dict[str, tuple[str, tuple[bytes, ...]]]
"""Path in a batch to what is there, in words, and hashes of its samples, or of it as a whole."""


def first_difference(before: Digest, now: Digest) -> tuple[str, int | None] | None:
    """Return in words where two batches differ first, and in which sample if that is known."""
    for path in itertools.chain(before, now):
        was, is_ = before.get(path), now.get(path)
        if was == is_:
            continue
        there = f"batch{path}"
        if was is None or is_ is None or was[0] != is_[0]:
            words = [side[0] if side else "missing" for side in (was, is_)]
            return f"{there} was {words[0]}, and then {words[1]}", None
        differ = [a != b for a, b in zip(was[1], is_[1], strict=True)]
        return f"{there} ({was[0]}) has other values", differ.index(True) if differ[1:] else None
    return None


def digest(batch: object, samples: int = 0) -> Digest:
    """Return what a batch of n samples holds, tensor by tensor; equal for equal bytes."""
    found: Digest = {}
    _walk(batch, "", found, (), samples)
    return found


def _walk(value: object, path: str, found: Digest, above: tuple[int, ...], samples: int) -> None:
    kind = type(value)
    if id(value) in above:
        found[path] = ("itself", ())
    elif isinstance(value, torch.Tensor) and not value.is_nested:
        found[path] = (_words(value, ""), _hashes(value, samples))
    elif isinstance(value, np.ndarray) and value.dtype != object:
        found[path] = (_words(value, "array, "), _hashes(value, samples))
    elif isinstance(value, BaseException):
        found[path] = (f"{kind.__name__}: {' '.join(str(value).split())[:100]}", ())
    elif (parts := _parts(value)) is not None:
        found[path] = (f"{kind.__name__} of {len(parts)}", ())
        for step, part in parts:
            _walk(part, path + step, found, (*above, id(value)), samples)
    else:
        found[path] = (kind.__name__, (_hash(value),))


def _words(value: torch.Tensor | np.typing.NDArray[np.generic], kind: str) -> str:
    shape = "x".join(map(str, value.shape)) or "scalar"
    return f"{kind}{str(value.dtype).removeprefix('torch.')} {shape}"


def _hashes(value: torch.Tensor | np.typing.NDArray[np.generic], samples: int) -> tuple[bytes, ...]:
    """Return the hash of each sample of a collated array, or that of the array as a whole."""
    is_collated = samples > 1 and value.shape[:1] == (samples,)
    return tuple(map(_hash, value if is_collated else [value]))


def _hash(value: object) -> bytes:
    try:
        data = canonical_pickle(value)
    except Exception:  # of a sparse tensor its text must do, of another object its kind
        data = repr(value).encode() if isinstance(value, torch.Tensor) else b""
    return hashlib.blake2b(data, digest_size=16).digest()


def _parts(value: object) -> list[tuple[str, object]] | None:
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
