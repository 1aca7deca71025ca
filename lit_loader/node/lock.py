"""`NodeLock`: a lock among this user's processes on a machine, which leaves nothing behind.

The lock is a name in the kernel's own list of sockets (an abstract address), not in a file system:
one process can have it, and it is free again the moment that process ends, however it ends. Nothing
is ever sent. Who waits connects to it, and is told by the kernel when the holder lets go::

    holder   bind, listen ─ ─ ─ ─ ─ ─ ─ ─ ─ close, or killed
    waiter        connect ── recv … … … … … ▶ ConnectionResetError: look again
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import struct
import time
import weakref
from typing import Final

from lit_loader.system.weak_sets import members

__all__ = ["NodeLock"]

_WAITING: Final = 4096
"""Processes that may wait at once; more of them look again now and then."""

_CREDENTIALS: Final = struct.Struct("3i")  # process, user, group

_PAUSE: Final = 0.001

_NOTED: Final = 10.0
"""Seconds of waiting after which a line is logged."""

_log = logging.getLogger("lit_loader.node")

_held: weakref.WeakSet[NodeLock] = weakref.WeakSet()


class NodeLock:
    """A lock of this name. To be taken by one thread; a process that is forked does not have it.

    Args:
        name: At most 80 characters.

    Attributes:
        holder: The process that was found to have it; 0: not known.
    """

    def __init__(self, name: str) -> None:
        self._address = f"\0lit_loader/{os.geteuid()}/{name}"
        self._socket: socket.socket | None = None
        self.holder = 0

    def take(self) -> bool:
        """Take the lock, unless another has it.

        Raises:
            OSError: There are no such locks here (not Linux, or a sandbox).
        """
        taken = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            taken.bind(self._address)
            taken.listen(_WAITING)
        except OSError as error:
            taken.close()
            if error.errno == errno.EADDRINUSE:
                return False
            raise
        self._socket = taken
        _held.add(self)
        return True

    def acquire(self, seconds: float) -> None:
        """Take the lock, and wait for it until then.

        Raises:
            TimeoutError: Another process has had it for so many seconds.
            OSError: As `take` and `wait`.
        """
        began, noted = time.monotonic(), False
        while not self.take():
            left = seconds - (time.monotonic() - began)
            free = self.wait(min(left, _NOTED))
            if left < -_NOTED or not (free or left > _NOTED):
                raise TimeoutError(errno.ETIMEDOUT, f"process {self.holder} does not let go of it")
            if not (free or noted):
                noted = True
                _log.info("waiting for process %d, which makes what is shared", self.holder)

    def wait(self, seconds: float) -> bool:
        """Wait until whoever has it lets go.

        Args:
            seconds: For so long at most.

        Returns:
            Whether it may be free now.

        Raises:
            PermissionError: Another user has this name.
        """
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
            other.settimeout(max(seconds, _PAUSE))
            try:
                other.connect(self._address)
            except (ConnectionRefusedError, BlockingIOError):
                # Free again; or just taken, and not listening yet; or too many are waiting.
                time.sleep(_PAUSE)
                return True
            data = other.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            self.holder, user, _ = _CREDENTIALS.unpack(data)
            if user != os.geteuid():
                raise PermissionError(errno.EPERM, f"a process of user {user} has its name")
            try:
                other.recv(1)
            except TimeoutError:
                return False
            except ConnectionError:
                pass
            return True

    def release(self) -> None:
        """Let go of it, if this process has it."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def __enter__(self) -> NodeLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _in_child() -> None:
    for lock in members(_held):
        lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
