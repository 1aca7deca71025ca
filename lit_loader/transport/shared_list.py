"""What takes the place of a long list or tuple in workers: it reads alike, and lies there once.

Numbers lie in an array, other records in a `SharedSequence`. Each reading makes a new object, so
what is written into a record would be gone the next time, and no other worker would see it: dicts
and lists among them refuse to be changed. They are dicts and lists to whoever reads them; copies
(``copy``, `dict`, ``copy.deepcopy``), and what arrives in another process, are plain ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NoReturn, SupportsIndex

import numpy as np

from lit_loader.transport.shared_sequence import SharedSequence

__all__ = ["SharedList", "SharedTuple", "shared"]


def _refuse(self: Any, *_: Any, **__: Any) -> NoReturn:
    """Take the place of the methods that write.

    Raises:
        TypeError: Always.
    """
    raise TypeError(
        f"this {self.KIND.__name__} belongs to what all workers share (share=True), and what is "
        "written into it would be lost: change a copy of it, as in copy.deepcopy(record), or leave "
        "share out"
    )


class _ReadOnlyDict(dict[Any, Any]):
    KIND = dict
    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse

    def __reduce_ex__(self, protocol: Any) -> Any:
        return dict, (dict(self),)


class _ReadOnlyList(list[Any]):
    KIND = list
    __setitem__ = __delitem__ = __iadd__ = __imul__ = append = clear = extend = _refuse
    insert = pop = remove = reverse = sort = _refuse

    def __reduce_ex__(self, protocol: Any) -> Any:
        return list, (list(self),)


def _read_only(value: Any) -> Any:
    kind = type(value)
    if kind is dict:
        return _ReadOnlyDict({key: _read_only(part) for key, part in value.items()})
    if kind is list:
        return _ReadOnlyList(map(_read_only, value))
    return tuple(map(_read_only, value)) if kind is tuple else value


class SharedList(Sequence[Any]):
    """Reads as the list that it was made of; what would write to it raises.

    Raises:
        OSError: There is no memory.
        Exception: A record cannot be pickled.
    """

    KIND: ClassVar[Any] = list
    __setitem__ = __delitem__ = __iadd__ = __imul__ = append = clear = extend = _refuse
    insert = pop = remove = reverse = sort = _refuse

    def __init__(self, records: Sequence[Any]) -> None:
        kinds = set(map(type, records))
        self._numbers: np.ndarray[Any, Any] | None = None
        if kinds in ({int}, {float}):
            numbers = np.array(records)
            self._numbers = numbers if numbers.dtype in (np.int64, np.float64) else None
        if self._numbers is None:
            self._records: SharedSequence[Any] = SharedSequence(records)

    def __len__(self) -> int:
        return len(self._records if self._numbers is None else self._numbers)

    def __getitem__(self, index: Any) -> Any:
        if self._numbers is not None:
            found = self._numbers[index].tolist()
        else:
            found = _read_only(self._records[index])
        return self.KIND(found) if isinstance(index, slice) else found

    def __iter__(self) -> Iterator[Any]:
        if self._numbers is not None:
            return iter(self._numbers.data)
        return map(_read_only, self._records)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, SharedList):
            other = other.KIND(other)
        return bool(self.KIND(self) == other)

    __hash__ = None  # type: ignore[assignment]

    def __add__(self, other: Any) -> Any:
        return self.KIND(self) + (self.KIND(other) if isinstance(other, type(self)) else other)

    def __radd__(self, other: Any) -> Any:
        return other + self.KIND(self)

    def __mul__(self, times: SupportsIndex) -> Any:
        return self.KIND(self) * times

    __rmul__ = __mul__

    def copy(self) -> list[Any]:
        """Return a list of one's own."""
        return list(self)

    @property
    def nbytes(self) -> int:
        """Bytes of shared memory that it takes."""
        return self._records.nbytes if self._numbers is None else self._numbers.nbytes

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self):,} records)"


class SharedTuple(SharedList):
    """Reads as the tuple that it was made of."""

    KIND = tuple
    __iadd__ = SharedList.__add__  # another one, as of any tuple
    __imul__ = SharedList.__mul__

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self))


def shared(records: list[Any] | tuple[Any, ...]) -> SharedList:
    """Put a list or tuple into shared memory."""
    return SharedTuple(records) if isinstance(records, tuple) else SharedList(records)
