"""Which field of which samples did not fit, when `default_collate` has failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def why_not_collated(samples: Sequence[object], indices: Any = None) -> str | None:
    """Say where a sample differs from the first one; None: nowhere that shows.

    ``indices`` are those of the samples, if they are known.
    """
    known = isinstance(indices, (list, tuple)) and len(indices) == len(samples)
    names = [f"index {indices[n]!r}" if known else f"sample {n}" for n in range(len(samples))]
    return _difference(samples, names, "")


def _difference(parts: Sequence[Any], names: Sequence[str], place: str) -> str | None:
    first = parts[0]
    where = f"field {place}: " if place else ""
    for part, name in zip(parts, names, strict=True):
        if (shown := _kind(part)) != (expected := _kind(first)):
            cure = ""
            if shown.startswith("shape") and expected.startswith("shape"):
                cure = " (collate_fn=lit_loader.PadCollate() pads them)"
            return f"{where}{names[0]} has {expected}, {name} has {shown}{cure}"
    inner: Sequence[object] = ()
    if isinstance(first, Mapping):
        inner = list(first)
    elif isinstance(first, Sequence) and not isinstance(first, (str, bytes)):
        inner = range(len(first))
    for key in inner:
        found = _difference([part[key] for part in parts], names, f"{place}[{key!r}]")
        if found is not None:
            return found
    return None


def _kind(part: object) -> str:
    """Return what must be equal: the shape, the keys, the length, or else the type."""
    shape = getattr(part, "shape", None)
    if shape is not None:
        return f"shape {tuple(shape)}"
    if isinstance(part, Mapping):
        return f"keys {sorted(map(str, part))}"
    if isinstance(part, (list, tuple)):
        return f"length {len(part)}"
    return "a number" if isinstance(part, (bool, int, float)) else f"type {type(part).__name__}"
