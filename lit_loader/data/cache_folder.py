"""Entries on disk: one file a sample, in a folder that outlives the run.

::

    directory/<key>-<digest of the key>/about.txt       what it holds, and its identity
                                        000012/12345    entry of sample 12345, with its checksum
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
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

from lit_loader.core.system.shared_file import HeldFile, write_all
from lit_loader.data.cache_entry import Bytes, seal, whole
from lit_loader.data.cache_identity import Identity
from lit_loader.errors import OptionError

__all__ = ["Folder"]

_FORMAT: Final = 4
_EACH: Final = 1000  # samples in a folder of its own
_ABOUT: Final = "about.txt"
_NEW: Final = "new"
_STALE: Final = 3600
"""Seconds after which a file that was not finished is taken for one of a process that is dead."""

_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
_WRITE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


class Folder:
    """One folder. Goes along when a process is started, by any start method.

    ``about`` is for whoever looks. OptionError: it is of another ``identity``, belongs to another
    user, or others may write into it; OSError: it cannot be made.
    """

    def __init__(self, directory: Path, key: str, identity: Identity, about: str) -> None:
        name = repr((_FORMAT, platform.machine(), key)).encode()
        digest = hashlib.blake2b(name, digest_size=4).hexdigest()
        path = directory / f"{re.sub(r'[^A-Za-z0-9._-]+', '_', key)[:80]}-{digest}"
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OptionError(
                f"directory cannot be made ({type(error).__name__}: {error}), got "
                f"directory={str(directory)!r}"
            ) from error
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        self.path = path
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
        self._file = HeldFile(os.open(path, flags))
        status = os.fstat(self._file.fd)
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o022:
            raise OptionError(
                f"directory holds {path}, which others may write into, and what is read from it "
                "may run code. Remove it, or choose another directory, got "
                f"directory={str(directory)!r}"
            )
        with contextlib.suppress(FileExistsError):
            os.mkdir(_NEW, 0o700, dir_fd=self._file.fd)
        # What processes that were killed have not finished goes.
        with contextlib.suppress(OSError):
            for entry in os.scandir(path / _NEW):
                if time.time() - entry.stat(follow_symlinks=False).st_mtime > _STALE:
                    os.unlink(entry.path)
        self._check(identity, key, about)

    def _check(self, identity: Identity, key: str, about: str) -> None:
        """Compare with whoever has made the folder, or write down that it was made for this."""
        text, known = f"{key}\n{about}\n{identity.to_bytes().hex()}\n", None
        # A link leaves alone what another process writes now; some file systems have none.
        for publish in (os.link, os.rename):
            if (known := self._known()) is not None:
                break
            with contextlib.suppress(OSError):
                self._write(_ABOUT, text.encode(), publish)
        identity.check(known or identity, key, f", or delete {self.path}")

    def _known(self) -> Identity | None:
        try:
            *_, line = (self.path / _ABOUT).read_text().split()
            return Identity.from_bytes(bytes.fromhex(line))
        except (OSError, ValueError):  # not there yet, or torn as the machine went down
            return None

    def __contains__(self, index: int) -> bool:
        try:
            os.stat(f"{index // _EACH:06}/{index}", dir_fd=self._file.fd)
        except OSError:
            return False
        return True

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
        self._write(f"{folder}/{index}", entry.data)

    def _write(
        self, name: str, data: bytes | memoryview, publish: Callable[..., None] = os.rename
    ) -> None:
        new, folder = f"{_NEW}/{secrets.token_hex(16)}", self._file.fd
        try:
            fd = os.open(new, _WRITE, 0o600, dir_fd=folder)
            try:
                write_all(fd, data)
            finally:
                os.close(fd)
            publish(new, name, src_dir_fd=folder, dst_dir_fd=folder)
        finally:
            with contextlib.suppress(OSError):  # it is renamed
                os.unlink(new, dir_fd=folder)
