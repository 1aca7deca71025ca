"""Entries on disk: one file a sample, in a folder that outlives the run.

::

    directory/<key>-<digest>/000012/12345    entry of sample 12345, with its checksum
                             new/            files that are being written

A file is written under ``new`` and then renamed, so several runs may fill a folder at once. One
that a machine has left torn as it went down is known by its checksum, and rebuilt. Entries may
be unpickled: the folder must belong to this user, and be writable for nobody else.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
import secrets
import stat
from pathlib import Path
from typing import Final

import numpy as np

from lit_loader.core.system.shared_file import HeldFile, write_all
from lit_loader.data.cache_entry import Bytes, seal, whole
from lit_loader.errors import OptionError

__all__ = ["Folder"]

_FORMAT: Final = 5
_EACH: Final = 1000  # samples in a folder of its own
_NEW: Final = "new"

_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
_WRITE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


class Folder:
    """The folder of one ``key`` and ``identity``. Travels to processes by any start method.

    OptionError: it belongs to another user, others may write into it, or the directory cannot be
    made; OSError: it cannot be made in there.
    """

    def __init__(self, directory: Path, key: str, identity: object) -> None:
        name = repr((_FORMAT, platform.machine(), key, identity)).encode()
        digest = hashlib.blake2b(name, digest_size=8).hexdigest()
        self.path = directory / f"{re.sub(r'[^A-Za-z0-9._-]+', '_', key)[:80]}-{digest}"
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OptionError(
                f"directory cannot be made ({type(error).__name__}: {error}), got "
                f"directory={str(directory)!r}"
            ) from error
        with contextlib.suppress(FileExistsError):
            self.path.mkdir(mode=0o700)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
        self._file = HeldFile(os.open(self.path, flags))
        status = os.fstat(self._file.fd)
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o022:
            raise OptionError(
                f"directory holds {self.path}, which others may write into, and what is read from "
                "it may run code. Remove it, or choose another directory, got "
                f"directory={str(directory)!r}"
            )
        with contextlib.suppress(FileExistsError):
            os.mkdir(_NEW, 0o700, dir_fd=self._file.fd)

    def get(self, index: int) -> Bytes | None:
        """Return the entry of a sample; None: it is not there, or damaged."""

        def opened(name: str, _: int) -> int:
            return os.open(name, _READ, dir_fd=self._file.fd)

        with (
            contextlib.suppress(OSError),
            open(f"{index // _EACH:06}/{index}", "rb", buffering=0, opener=opened) as file,
        ):
            entry = np.empty(os.fstat(file.fileno()).st_size, np.uint8)
            read = 0
            while more := file.readinto(entry[read:].data):
                read += more
            return entry if whole(entry[:read]) else None
        return None

    def put(self, index: int, entry: Bytes) -> None:
        """Write a sample's entry, in the place of what is there; OSError: it cannot be written."""
        seal(entry)
        folder = f"{index // _EACH:06}"
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700, dir_fd=self._file.fd)
        new = f"{_NEW}/{secrets.token_hex(16)}"
        try:
            fd = os.open(new, _WRITE, 0o600, dir_fd=self._file.fd)
            with open(fd, "wb", buffering=0):
                write_all(fd, entry.data)
            os.rename(new, f"{folder}/{index}", src_dir_fd=self._file.fd, dst_dir_fd=self._file.fd)
        finally:
            with contextlib.suppress(OSError):  # it is renamed
                os.unlink(new, dir_fd=self._file.fd)
