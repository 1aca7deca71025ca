"""What takes the place of a long dict in workers: it reads alike, and lies there once.

::

    hashes, sorted │ h0 h1 h2 …          a key is found by bisection in these,
    order          │  5  0  3 …          has this place among
    keys, values   │ in the dict's own order
"""

from __future__ import annotations

import hashlib
import operator
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from lit_loader.memory.shared_list import SharedHashes, shared
from lit_loader.memory.shared_records import refuse_to_be_changed

__all__ = ["SharedDict", "has_plain_keys"]

_MASK: Final = (1 << 64) - 1


def has_plain_keys(mapping: dict[Any, Any]) -> bool:
    """Whether a dict's keys are such as a `SharedDict` takes: all strings, or all integers."""
    kinds = set(map(type, mapping))
    return kinds in ({str}, {int})


class SharedDict(Mapping[Any, Any]):
    """Reads as the dict that it was made of; what would write to it raises.

    Args:
        mapping: The dict; `has_plain_keys` says whether it can be.

    Raises:
        OSError: There is no memory.
        Exception: A value cannot be pickled.
    """

    KIND = dict
    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = refuse_to_be_changed
    setdefault = update = refuse_to_be_changed

    def __init__(self, mapping: dict[Any, Any]) -> None:
        self._text = type(next(iter(mapping))) is str
        hashes = np.fromiter(map(_hash, mapping), np.uint64, len(mapping))
        order = np.argsort(hashes, kind="stable")
        self._hashes = SharedHashes(hashes[order].tolist())
        self._order = shared(order.tolist())
        self._keys = shared(list(mapping))
        self._values = shared(list(mapping.values()))

    def _place(self, key: Any) -> int:
        """Where a key stands; -1: nowhere."""
        hash(key)  # of what has none, a dict raises
        if isinstance(key, str) != self._text:
            return -1
        if not self._text:
            if isinstance(key, float) and key.is_integer():
                key = int(key)
            try:
                key = operator.index(key)
            except TypeError:
                return -1
        wanted, hashes = _hash(key), self._hashes.numbers
        at = bisect_left(hashes, wanted)
        while at < len(hashes) and hashes[at] == wanted:
            place: int = self._order[at]
            if self._keys[place] == key:
                return place
            at += 1
        return -1

    def __getitem__(self, key: Any) -> Any:
        place = self._place(key)
        if place < 0:
            raise KeyError(key)
        return self._values[place]

    def __contains__(self, key: object) -> bool:
        return self._place(key) >= 0

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._keys)

    def __reversed__(self) -> Iterator[Any]:
        return reversed(self._keys)

    def __or__(self, other: Any) -> Any:
        return self.copy() | other

    def __ror__(self, other: Any) -> Any:
        return other | self.copy()

    def copy(self) -> dict[Any, Any]:
        """Return a dict of one's own."""
        return dict(zip(self._keys, self._values, strict=True))

    @property
    def nbytes(self) -> int:
        """Bytes of shared memory that it takes."""
        parts = (self._hashes, self._order, self._keys, self._values)
        return sum(part.nbytes for part in parts)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self):,} records)"


def _hash(key: Any) -> int:
    """A key's hash, the same in all processes."""
    if isinstance(key, str):
        data = key.encode("utf-8", "surrogatepass")
        return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")
    return int(key) & _MASK
