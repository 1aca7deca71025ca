"""What the tests of this folder share: a dataset with large arrays, and processes that tell."""

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from lit_loader import SharedSequence

LENGTH = 1 << 15


class Bulk(Dataset[Any]):
    """An array, a view and a tensor of it, a read-only array and records.

    Args:
        notes: Where it is noted who has built one.
        start: The array's first number.
    """

    def __init__(self, notes: Path | None = None, start: int = 0) -> None:
        if notes is not None:
            with open(notes, "a") as file:
                file.write(f"{os.getpid()}\n")
        self.array = np.arange(start, start + LENGTH)
        self.view = self.array[10:]
        self.tensor = torch.from_numpy(self.array)
        self.fixed = np.full(LENGTH, 3.0)
        self.fixed.flags.writeable = False
        self.names = SharedSequence(f"sample {index} of {LENGTH}" for index in range(LENGTH))
        self.small = {"a": [1, 2], "b": torch.arange(3)}

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        return self.array[index], self.names[index], os.getpid(), inode_of(self.array)


def builders(notes: Path) -> list[int]:
    """The processes that have built one."""
    return list(map(int, notes.read_text().split())) if notes.exists() else []


def is_whole(data: Any, start: int = 0) -> bool:
    """Whether this is what `Bulk` makes."""
    plain = Bulk(start=start)
    return (
        type(data) is Bulk
        and np.array_equal(data.array, plain.array)
        and np.array_equal(data.view, plain.view)
        and data.tensor.data_ptr() == data.array.ctypes.data
        and data.array.flags.writeable
        and np.array_equal(data.fixed, plain.fixed)
        and not data.fixed.flags.writeable
        and list(data.names[:3]) == list(plain.names[:3])
        and len(data.names) == LENGTH
        and data.small["a"] == [1, 2]
        and data.small["b"].tolist() == [0, 1, 2]
    )


def inode_of(array: np.ndarray[Any, Any]) -> int:
    """Number of the file that an array of this process is mapped from; 0: of none."""
    address = array.ctypes.data
    for line in Path("/proc/self/maps").read_text().splitlines():
        bounds, _, _, _, inode = line.split()[:5]
        low, high = (int(bound, 16) for bound in bounds.split("-"))
        if low <= address < high:
            return int(inode)
    return 0


started: list["Child"] = []
"""Those that have not been ended."""


class Child:
    """A forked process: does something, says what it gives, and waits until it is let go.

    Args:
        do: Gets a function that tells the test a line meanwhile.
    """

    def __init__(self, do: Callable[[Callable[[str], object]], object]) -> None:
        told, tell = os.pipe()
        goes, self._go = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(told)
            os.close(self._go)
            try:

                def say(line: str) -> None:
                    os.write(tell, f"{line}\n".encode())

                kept = do(say)
                say(str(kept[0] if isinstance(kept, tuple) else kept))
                os.read(goes, 1)
            except BaseException as error:
                os.write(tell, f"{type(error).__name__}: {error}\n".encode())
                os._exit(1)
            os._exit(0)
        os.close(tell)
        os.close(goes)
        started.append(self)
        self._told = os.fdopen(told)

    def line(self) -> str:
        """What it says next; nothing if it has ended."""
        return self._told.readline().rstrip("\n")

    def kill(self) -> None:
        """End it at once."""
        os.kill(self.pid, signal.SIGKILL)
        self.end()

    def end(self) -> int:
        """Let it go, and wait until it has ended; returns its status."""
        with contextlib.suppress(BrokenPipeError):  # it has ended already
            os.write(self._go, b"x")
        started.remove(self)
        os.close(self._go)
        self._told.close()
        return os.waitpid(self.pid, 0)[1]
