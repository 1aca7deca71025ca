"""Arrays that look into a mapped file (``numpy.memmap``) are carried as that file, not as bytes.

The process that unpickles one maps the file itself: read-only as it was, or, where it could be
written to, such that what is written stays private, as it does in every other array that is
carried. A file that has been replaced under its name since it was mapped is another one: then the
bytes go along.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["MappedFile", "mapping_behind"]


class MappedFile:
    """A file that an array maps; unpickled, it is the array of all of its bytes.

    Args:
        mapping: The array that was made by mapping it.
        path: Where it is found.
    """

    def __init__(self, mapping: np.memmap[Any, Any], path: str) -> None:
        self._mapping = mapping
        stat = os.stat(path)
        self._found = (path, stat.st_dev, stat.st_ino, mapping.mode == "r")

    def offset(self, address: int) -> int:
        """Returns which byte of the file lies at an address."""
        first: int = self._mapping.__array_interface__["data"][0]
        return address - first + self._mapping.offset

    def __reduce__(self) -> tuple[Any, ...]:
        return _map_again, self._found


def mapping_behind(array: NDArray[Any]) -> MappedFile | None:
    """Returns the file that an array looks into, if another process can map the same one."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    # In mode "c" what was written has not reached the file.
    if not isinstance(array, np.memmap) or array.mode == "c" or array.filename is None:
        return None
    path = os.fspath(array.filename)
    if isinstance(array.base, mmap.mmap) and isinstance(path, str) and _is_at(path, array):
        return MappedFile(array, path)
    return None


def _is_at(path: str, mapping: NDArray[Any]) -> bool:
    """Whether the file of this name is the one that is mapped, and not one put in its place."""
    address: int = mapping.__array_interface__["data"][0]
    try:
        stat = os.stat(path)
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:  # gone, or not Linux
        return False
    for line in lines:
        bounds, _, _, device, inode = line.split()[:5]
        low, high = (int(bound, 16) for bound in bounds.split("-"))
        if low <= address < high:
            found = f"{os.major(stat.st_dev):02x}:{os.minor(stat.st_dev):02x}", str(stat.st_ino)
            return found == (device, inode)
    return False


def _map_again(path: str, device: int, inode: int, readonly: bool) -> NDArray[np.uint8]:
    with open(path, "rb") as file:
        stat = os.fstat(file.fileno())
        if (stat.st_dev, stat.st_ino) != (device, inode):
            raise FileNotFoundError(
                f"{path}, which a numpy.memmap of the dataset maps, has been replaced by another "
                "file since the workers were started; keep it as long as they run"
            )
        return np.memmap(file, np.uint8, "r" if readonly else "c")
