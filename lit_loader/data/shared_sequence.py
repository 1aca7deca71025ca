"""A list of records that all workers share, without a copy in any of them.

A forked worker shares its parent's objects only until it looks at them: reading a Python object
counts a reference in it, which copies its page. So a dataset's list of a million small records ends
up once in every worker. Here records lie pickled in one stretch of shared memory, and only the one
that is asked for is made into an object.
"""

from __future__ import annotations

import mmap
import operator
import pickle
from array import array
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing.context import get_spawning_popen
from typing import Any, Final, SupportsIndex, TypeVar, overload

import numpy as np

from lit_loader.core.system.shared_file import HeldFile, nameless_file, write_all
from lit_loader.describe import public

__all__ = ["SharedSequence"]

T = TypeVar("T")

_LABEL: Final = "lit_loader records"

_AT_ONCE: Final = 1 << 20
"""Bytes of records that are written at once."""

_ROWS: Final = 4096
"""Rows of a column that are made Python's at once."""


@public
class SharedSequence(Sequence[T]):
    """A read-only sequence in shared memory: ``self.files = SharedSequence(files)``.

    Records are given back as equal objects, new ones each time: changing one changes nothing here.
    Works under every start method; when workers are started, a descriptor travels and not the data.
    Outside of that (``pickle``, ``torch.save``) the data does.

    Args:
        records: What it is to hold; anything that can be pickled. Taken one by one, so that a
            generator need never have all of them in memory. 8 bytes are added for each. NumPy's
            strings are given back as Python's.

    Raises:
        OSError: There is no memory (or, without memfd, no room in the temporary directory).
        Exception: A record cannot be pickled.
    """

    def __init__(self, records: Iterable[T]) -> None:
        file = HeldFile(nameless_file(_LABEL)[0])
        ends = array("q", [0])
        chunk: list[bytes] = []
        end = written = 0
        for record in _plain(records):
            data = pickle.dumps(record, pickle.HIGHEST_PROTOCOL)
            chunk.append(data)
            end += len(data)
            ends.append(end)
            if end - written >= _AT_ONCE:
                written += write_all(file.fd, b"".join(chunk))
                chunk.clear()
        write_all(file.fd, b"".join(chunk) + bytes(-end % 8))
        write_all(file.fd, memoryview(ends).cast("B"))
        self._look(file, len(ends) - 1)

    def _look(self, data: HeldFile | np.ndarray[Any, Any], length: int) -> None:
        """Look into memory: records, up to 8 bytes of nothing, and where each record ends."""
        self._file = data if isinstance(data, HeldFile) else None
        if isinstance(data, HeldFile):
            view = memoryview(mmap.mmap(data.fd, 0, access=mmap.ACCESS_READ))
        else:
            view = data.data  # perhaps of memory that others look into as well
        self._view, self._length = view, length
        self._ends = view[len(view) - 8 * (length + 1) :].cast("q")

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: SupportsIndex) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> list[T]: ...

    def __getitem__(self, index: SupportsIndex | slice) -> T | list[T]:
        """Return a record, or a list of those in a slice.

        Raises:
            IndexError: There is no such record.
        """
        if isinstance(index, slice):
            return [self._record(number) for number in range(*index.indices(self._length))]
        number = operator.index(index)
        if number < 0:
            number += self._length
        if not 0 <= number < self._length:
            raise IndexError(
                f"index {index} is out of range for a SharedSequence of {self._length} records"
            )
        return self._record(number)

    def _record(self, number: int) -> T:
        record: T = pickle.loads(self._view[self._ends[number] : self._ends[number + 1]])
        return record

    def __iter__(self) -> Iterator[T]:
        return map(self._record, range(self._length))

    @property
    def nbytes(self) -> int:
        """Bytes of shared memory that it takes."""
        return len(self._view)

    def __repr__(self) -> str:
        mebibytes = self.nbytes / 2**20
        size = f"{mebibytes:,.1f} MiB" if mebibytes >= 1 else f"{self.nbytes:,} bytes"
        return f"SharedSequence({self._length:,} records, {size})"

    def __copy__(self) -> SharedSequence[T]:
        return self  # nothing about it can be changed

    def __deepcopy__(self, memo: Any) -> SharedSequence[T]:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        data: Any = self._file
        if data is None or get_spawning_popen() is None:
            data = np.frombuffer(self._view, np.uint8)
        return object.__new__, (type(self),), (data, self._length)

    def __setstate__(self, state: tuple[Any, int]) -> None:
        self._look(*state)


def _plain(records: Iterable[Any]) -> Iterable[Any]:
    """Give Python's strings for a column of NumPy's: pickled, each takes 100 bytes less."""
    if not (isinstance(records, np.ndarray) and records.ndim == 1 and records.dtype.kind in "USO"):
        return records
    parts = (records[start : start + _ROWS] for start in range(0, len(records), _ROWS))
    return (record for part in parts for record in part.tolist())
