"""Entries in one nameless file that all workers share, found by the sample's index.

::

    file  │ notes │ counters │ index: one word a sample │ entries, one after another │
                      place │ size                             the file's end ▲

* **Space is taken by appending**: the kernel writes after the file's end in one step, and the
  position of who has written is then the end of what is his. There is no lock, so none that a
  killed process could hold. What a process has written and not published when it is killed is
  lost, and nothing else.
* **An entry is published by one word**, the last that is written. It is aligned, so a reader sees
  none or all of it, and after it bytes that do not change any more.
* No memory and no room are errors of a ``write``, and not signals.
"""

from __future__ import annotations

import errno
import logging
import mmap
import os
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from lit_loader.core.system.shared_file import HeldFile, nameless_file, round_up
from lit_loader.data import memory_files
from lit_loader.data.cache_entry import MISSING, UNIT, unpack
from lit_loader.data.memory import memory_left, memory_limits

__all__ = ["FULL", "HITS", "MADE", "NOT_KEPT", "NOT_ON_DISK", "CacheFigures", "SharedStore"]

Bytes = npt.NDArray[np.uint8]

_NAME: Final = "lit_loader cache"
_SHARED: Final = f"{_NAME} 5"  # its end is the version of the format
_WORD: Final = 8
_NOTES: Final = 8  # words
_ROWS: Final = 1024  # of counters; a process has that of its number, modulo this
_ROW: Final = 8  # words
_INDEX: Final = (_NOTES + _ROWS * _ROW) * _WORD

_SIZE_BITS: Final = 28
_SIZE_MASK: Final = (1 << _SIZE_BITS) - 1
_MOST: Final = 0x7FFFF000  # bytes of an entry that are written at once
_PATIENCE: Final = 60.0  # seconds to wait for another process that makes the file
_LOOK: Final = 32 << 20  # bytes after which a process asks again how much memory is left

_SPARED: Final = 256 << 20
"""Bytes of memory that are left to others, at least; and so is a part of what there is."""

_SPARED_PART: Final = 20

_log = logging.getLogger("lit_loader.cache")


FULL, NOT_KEPT, NOT_ON_DISK = range(3)
"""What is noted once for all processes, and said by the one that notes it."""

HITS, MADE = range(2)
"""What a process counts."""


class CacheFigures(NamedTuple):
    """What a cache holds and has spared, over all processes."""

    hits: int  # samples given from memory or disk
    misses: int  # samples made
    bytes: int  # in use
    bytes_missing: int  # those more that would hold all, about; 0 while there is room


class SharedStore:
    """The file. Goes along when a process is started, by any start method.

    All processes of this user on this machine find it by its ``name``, as long as any has it;
    without one it is this process's, and its workers'. OSError: there is no memory, or descriptor.
    """

    def __init__(self, length: int, limit: int, name: object = None) -> None:
        self.length, self.limit = length, limit
        shared = name is not None and limit
        self._map(self._found_or_made(name) if shared else self._made())

    def _made(self) -> HeldFile:
        fd, sparse = nameless_file(_NAME)
        file = HeldFile(fd)
        if sparse:
            os.ftruncate(fd, self._begin)
        else:
            os.posix_fallocate(fd, 0, self._begin)
        os.lseek(fd, self._begin, os.SEEK_SET)
        return file

    def _found_or_made(self, name: object) -> HeldFile:
        """Find the one that another process has made, or make it for others, too."""
        label = memory_files.label_of(_SHARED, name, self.limit)
        try:
            with memory_files.lock(label, _PATIENCE):
                found = memory_files.find(label, writable=True)
                if found is not None:
                    return HeldFile(found)
                file = HeldFile(memory_files.new(label))
                os.ftruncate(file.fd, self._begin)
                memory_files.seal(file.fd, writable=True)
                return file
        except OSError as error:
            _log.warning("CachedDataset: each process has a cache of its own: %s", str(error))
            return self._made()

    @property
    def _begin(self) -> int:
        return round_up(_INDEX + self.length * _WORD)

    def _map(self, file: HeldFile) -> None:
        self._file, self._fd = file, file.fd
        words = memoryview(mmap.mmap(self._fd, self._begin)).cast("Q")
        self._notes, self._counters = words[:_NOTES], words[_NOTES : _INDEX // _WORD]
        self._index = words[_INDEX // _WORD :][: self.length]
        self._looked = 0

    def __reduce__(self) -> tuple[object, ...]:
        return object.__new__, (SharedStore,), (self._file, self.length, self.limit)

    def __setstate__(self, state: tuple[HeldFile, int, int]) -> None:
        file, self.length, self.limit = state
        self._map(file)

    # --- entries ---

    def get(self, index: int) -> object:
        """Return the sample of this index, `MISSING` if it is not there."""
        word = self._index[index]
        if not word:
            return MISSING
        start, size = word >> _SIZE_BITS, (word & _SIZE_MASK) * UNIT
        entry = np.empty(size, np.uint8)
        if os.preadv(self._fd, [entry.data], start * UNIT) < size:
            return MISSING
        return unpack(index, entry)

    def __contains__(self, index: int) -> bool:
        return self._index[index] != 0

    @property
    def is_open(self) -> bool:
        """Whether entries are still taken."""
        return self.limit > 0 and not self._notes[FULL]

    def put(self, index: int, entry: Bytes) -> None:
        """Keep a sample's entry, if there is room."""
        size = len(entry)
        if self._index[index]:
            return
        if size > min(self.limit, _MOST):  # others may still find room
            large = f"a sample of {size / 1e6:,.1f} MB finds no room in memory={self.limit} bytes"
            self.note(NOT_KEPT, f"{large}: such samples are not kept")
            return
        if not self._has_room(size):
            return
        # Two that write the same sample at this very moment both take space, and the later word
        # counts: they are equal.
        try:
            start = self._append(entry)
        except OSError as error:
            self._close(str(error.strerror))
            return
        if start + size <= self._begin + self.limit:  # else others have taken the room meanwhile
            self._index[index] = (start // UNIT) << _SIZE_BITS | (size // UNIT)

    def _has_room(self, size: int) -> bool:
        if self.used + size > self.limit:
            self._close(f"memory={self.limit} bytes are full")
            return False
        self._looked -= size
        if self._looked < 0:
            self._looked = _LOOK
            left, spared = _memory_left()
            if left < spared + size:
                self._close(f"only {left / 1e9:.1f} GB of memory are left here")
                return False
        return True

    def _close(self, why: str) -> None:
        """Take no more entries."""
        self.note(
            FULL,
            f"{why}: {self.kept} of {self.length} samples are kept ({self.used / 1e6:,.1f} MB), "
            "the others are built each time",
        )

    def _append(self, entry: Bytes) -> int:
        """Write an entry after all others; returns its first byte's place. OSError: no memory."""
        # Opened again, for a position of its own.
        with open(f"/proc/self/fd/{self._fd}", "ab", buffering=0) as file:
            fd = file.fileno()
            while True:
                written = os.write(fd, entry.data)
                start = os.lseek(fd, 0, os.SEEK_CUR) - written
                if written < len(entry):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                if not start % UNIT:
                    return start
                os.write(fd, bytes(-start % UNIT))  # another was killed during a write

    @property
    def used(self) -> int:
        """Bytes that entries have taken."""
        return min(self.limit, max(0, os.fstat(self._fd).st_size - self._begin))

    @property
    def kept(self) -> int:
        """Samples that are kept."""
        return int(np.count_nonzero(self._index))

    def figures(self) -> CacheFigures:
        """Say what is held, and what that has spared."""
        kept, lacking = self.kept, 0
        if kept and self.limit and not self.is_open:
            held = int((np.asarray(self._index) & _SIZE_MASK).sum()) * UNIT
            lacking = held * (self.length - kept) // kept
        hits, misses = self._total(HITS), self._total(MADE)
        return CacheFigures(hits, misses, self.used, lacking)

    # --- counters and notes ---

    def count(self, counter: int) -> None:
        """Count a sample, in this process's row."""
        self._counters[os.getpid() % _ROWS * _ROW + counter] += 1

    def _total(self, counter: int) -> int:
        """Add up what all processes have counted; two of the same row may miss some."""
        return sum(self._counters[counter::_ROW].tolist())

    def noted(self, note: int) -> bool:
        """Whether something was noted, by any process."""
        return bool(self._notes[note])

    def note(self, note: int, text: str) -> None:
        """Note something, and log it as a line: once, in whichever process it happens first."""
        if not self._notes[note]:
            self._notes[note] = 1
            _log.warning("CachedDataset: %s", text)


def _memory_left() -> tuple[int, int]:
    """Bytes of memory that may still be used here, and how many of them are to be left."""
    left = memory_left()
    whole = memory_limits().limit or 0
    return 1 << 62 if left is None else left, max(_SPARED, whole // _SPARED_PART)
