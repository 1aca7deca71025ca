"""A list of records that all workers share, without a copy in any of them.

A forked worker shares its parent's objects only until it looks at them: reading a Python object
counts a reference in it, which copies its page. So a dataset's list of a million small records ends
up once in every worker. Here records lie pickled in one stretch of shared memory, and only the one
that is read is made into an object.
"""

from __future__ import annotations

import operator
import pickle
from array import array
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing.context import get_spawning_popen
from typing import Any, ClassVar, Final, SupportsIndex, TypeVar, overload

import numpy as np

from lit_loader.core.system.shared_file import HeldFile, nameless_file
from lit_loader.core.transport.dataset_pickle import Policy, freeze, thaw
from lit_loader.describe import public

__all__ = ["SharedSequence"]

T = TypeVar("T")

_LABEL: Final = "lit_loader records"


@public
class SharedSequence(Sequence[T]):
    """A read-only sequence in shared memory: ``self.files = SharedSequence(files)``.

    Each read returns a new object, equal to the record: changing it changes nothing here. It works
    under every start method: workers get a file descriptor, not the data. ``pickle`` and
    ``torch.save`` write the data.

    Args:
        records: What it is to hold; anything that can be pickled. Taken one by one, so that a
            generator need never have all of them in memory. 8 bytes are added for each. NumPy's
            strings are returned as Python's.

    Raises:
        OSError: There is no memory (or, without memfd, no room in the temporary directory).
        Exception: A record cannot be pickled.

    Examples:
        >>> from lit_loader import SharedSequence
        >>> files = SharedSequence(f"{number}.jpg" for number in range(1000))
        >>> files[7], len(files)
        ('7.jpg', 1000)
    """

    alike_in_processes: ClassVar[tuple[str, ...]] = ("_data", "_ends")
    """See `streams/digest.py`: the file has another number in each process."""

    def __init__(self, records: Iterable[T]) -> None:
        data, ends = bytearray(), array("q", [0])
        if isinstance(records, np.ndarray) and records.ndim == 1 and records.dtype.kind in "US":
            # Pickled, Python's strings take 100 bytes less than NumPy's.
            records = (record.item() for record in records)
        for record in records:
            data += pickle.dumps(record, pickle.HIGHEST_PROTOCOL)
            ends.append(len(data))
        arrays = np.frombuffer(data or bytes(1), np.uint8), np.frombuffer(ends, np.int64)
        file = HeldFile(nameless_file(_LABEL)[0])
        freeze(arrays, Policy("", "")).write(file.fd)
        self.__setstate__((file,))

    def __reduce__(self) -> tuple[object, ...]:
        spawning = self._file is not None and get_spawning_popen() is not None
        state = (self._file,) if spawning else (self._data, self._ends)
        return object.__new__, (type(self),), state

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        """Look into a file of both arrays, or into these: what is pickled, and where each ends."""
        self._file: HeldFile | None = state[0] if len(state) == 1 else None
        self._data, self._ends = state if self._file is None else thaw(self._file.fd)
        self._pickled, self._places = self._data.data, self._ends.data  # quicker than arrays

    def __len__(self) -> int:
        return len(self._ends) - 1

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
            return [self._record(number) for number in range(*index.indices(len(self)))]
        number = operator.index(index)
        if number < 0:
            number += len(self)
        if not 0 <= number < len(self):
            raise IndexError(
                f"index {index} is out of range for a SharedSequence of {len(self)} records"
            )
        return self._record(number)

    def _record(self, number: int) -> T:
        record: T = pickle.loads(self._pickled[self._places[number] : self._places[number + 1]])
        return record

    def __iter__(self) -> Iterator[T]:
        return map(self._record, range(len(self)))

    @property
    def nbytes(self) -> int:
        """Bytes of shared memory that it takes."""
        return int(self._pickled.nbytes + self._places.nbytes)

    def __repr__(self) -> str:
        mebibytes = self.nbytes / 2**20
        size = f"{mebibytes:,.1f} MiB" if mebibytes >= 1 else f"{self.nbytes:,} bytes"
        return f"SharedSequence({len(self):,} records, {size})"

    def __copy__(self) -> SharedSequence[T]:
        return self  # nothing about it can be changed

    def __deepcopy__(self, memo: object) -> SharedSequence[T]:
        return self
