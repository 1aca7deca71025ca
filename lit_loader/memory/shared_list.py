"""What takes the place of a long list or tuple in workers: it reads alike, and lies there once.

Numbers lie as they do in an array, other records pickled as in a `SharedSequence`; dicts and lists
among them cannot be changed.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, SupportsIndex

from lit_loader.memory.shared_records import SharedRecords, refuse_to_be_changed
from lit_loader.memory.shared_sequence import SharedSequence
from lit_loader.system.shared_file import nameless_file, write_all

__all__ = ["SharedHashes", "SharedList", "SharedTuple", "shared"]


class _Numbers(SharedSequence[Any]):
    """Numbers of one kind, 8 bytes each."""

    CODE: ClassVar[Any]

    def __init__(self, numbers: Sequence[Any]) -> None:
        numbers = array(self.CODE, numbers)
        fd = self._own(nameless_file("lit_loader numbers")[0])
        try:
            write_all(fd, memoryview(numbers).cast("B"))
            self._open(len(numbers))
        except BaseException:
            self._finalizer()
            raise

    def _look(self, view: memoryview, length: int) -> None:
        self._view, self._length = view, length
        self._numbers = view.cast(self.CODE)

    def _record(self, number: int) -> Any:
        return self._numbers[number]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._numbers)


class _Ints(_Numbers):
    CODE = "q"


class _Floats(_Numbers):
    CODE = "d"


class SharedHashes(_Numbers):
    """Integers from 0 to 2**64 - 1."""

    CODE = "Q"

    @property
    def numbers(self) -> memoryview:
        """The numbers, to look through them quickly."""
        return self._numbers


class SharedList(Sequence[Any]):
    """Reads as the list that it was made of; what would write to it raises."""

    KIND: ClassVar[Any] = list
    __setitem__ = __delitem__ = __iadd__ = __imul__ = append = clear = refuse_to_be_changed
    extend = insert = pop = remove = reverse = sort = refuse_to_be_changed

    def __init__(self, records: SharedSequence[Any]) -> None:
        self._records = records

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: Any) -> Any:
        found = self._records[index]
        return self.KIND(found) if isinstance(index, slice) else found

    def __iter__(self) -> Iterator[Any]:
        return iter(self._records)

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
        return self._records.nbytes

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
    """Put a list or tuple into shared memory.

    Raises:
        OSError: There is no memory.
        Exception: A record cannot be pickled.
    """
    kinds = set(map(type, records))
    held: SharedSequence[Any] | None = None
    if kinds == {float}:
        held = _Floats(records)
    elif kinds == {int}:
        try:
            held = _Ints(records)
        except OverflowError:
            held = None
    if held is None:
        nested = not kinds.isdisjoint((dict, list, tuple))
        held = SharedRecords(records) if nested else SharedSequence(records)
    return SharedTuple(held) if isinstance(records, tuple) else SharedList(held)
