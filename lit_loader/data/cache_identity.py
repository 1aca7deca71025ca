"""`Identity`: what a cache is checked by, when it is opened again: a few samples, not code.

The key of a cache is what the user says it is. If two datasets have one key by mistake, or a
dataset has changed since, the length or one of three samples differs most likely, and the cache is
refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
import torch

from lit_loader.errors import OptionError

__all__ = ["Identity", "sample_digest"]

_FORM: Final = struct.Struct("<4Q")
_DEPTH: Final = 8


@dataclass(frozen=True)
class Identity:
    """A dataset's length, and the digests of three samples; 0: it could not be read."""

    length: int
    digests: tuple[int, ...]

    NBYTES: ClassVar = _FORM.size

    @staticmethod
    def places(length: int) -> tuple[int, int, int]:
        """Return which samples' digests it has."""
        return 0, length // 2, max(0, length - 1)

    @classmethod
    def of(cls, length: int, samples: Mapping[int, Any]) -> Identity:
        """Return that of a dataset, by those samples at `places` that could be read."""
        places = cls.places(length)
        return cls(length, tuple(sample_digest(samples[p]) if p in samples else 0 for p in places))

    @classmethod
    def from_bytes(cls, data: bytes) -> Identity:
        """Read what `to_bytes` has written; ValueError: it is torn."""
        if len(data) != cls.NBYTES:
            raise ValueError(f"{cls.NBYTES} bytes expected, got {len(data)}")
        length, *digests = _FORM.unpack(data)
        return cls(length, tuple(digests))

    def to_bytes(self) -> bytes:
        """Return it as `NBYTES` bytes."""
        return _FORM.pack(self.length, *self.digests)

    def check(self, known: Identity, key: str, advice: str = "") -> None:
        """Compare with that of a cache which is there; OptionError: it is another dataset's."""
        pairs = zip(self.digests, known.digests, strict=True)
        if self.length != known.length or any(a != b for a, b in pairs if a and b):
            asked = ", ".join(map(str, sorted({*self.places(self.length)})))
            raise OptionError(
                f"the cache with key={key!r} holds other samples than this dataset makes (its "
                f"length or one of samples {asked} differs). The dataset has changed since, or two "
                f"datasets have one key. Pass another key{advice}"
            )


def sample_digest(sample: Any) -> int:
    """Return 64 bits, not 0, that are the same for equal samples in every process.

    What is neither a number, text, tensor, array or container of such counts by its attributes.
    """
    digest = hashlib.blake2b(digest_size=8)
    _add(sample, digest, _DEPTH)
    return int.from_bytes(digest.digest(), "little") or 1


def _add(value: Any, digest: Any, depth: int) -> None:
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
        parts: Any = getattr(value, "__dict__", {})
        if isinstance(value, Mapping):
            parts = [part for pair in value.items() for part in pair]
        elif isinstance(value, (set, frozenset)):  # whose order differs from process to process
            parts = sorted(map(sample_digest, value))
        elif isinstance(value, (list, tuple, np.ndarray)):
            parts = list(value)
        for part in parts.items() if isinstance(parts, dict) else parts:
            _add(part, digest, depth - 1)
        digest.update(b";")
