"""Open handles that a dataset holds and that forked workers must not share.

A fork copies them all, but a file has one position for all processes, a connection one
conversation, and a decoder's threads are not there. The loader looks for them once, before workers
are forked, and warns with the cure. It looks at attributes and small containers only: it reads no
code and runs none of the user's.

Harmless under fork, as ``tests/diagnostics/test_fork_dangers.py`` shows: memory maps, HDF5 files
(which are read by ``pread``), LMDB without locks, and what is written only.
"""

from __future__ import annotations

import functools
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final, NamedTuple

_OBJECTS: Final = 300  # that are looked at; each takes about 1 us
_ITEMS: Final = 32  # of a container, that are looked at

_CLOSED: Final = frozenset(
    (
        *("asyncio", "concurrent", "logging", "multiprocessing", "numpy", "pandas", "pyarrow"),
        *("threading", "torch"),
    )
)
"""Libraries whose objects are not looked into."""

_LEAVES: Final = frozenset((str, bytes, int, float, complex, bool, type(None), type, type(sys)))


class Held(NamedTuple):
    """An object that a dataset holds."""

    value: object
    path: str  # how one gets there: ``Images.reader.file``
    knows_forks: bool  # its owner keeps this process's id, to open handles again after a fork


def fork_dangers(dataset: object, several: bool = True, has_init_fn: bool = False) -> list[str]:
    """Return what to warn of before workers are forked.

    One worker, and not ``several``, shares nothing, but has no threads of a decoder either.
    ``has_init_fn``: there is a ``worker_init_fn``, which may open handles again.
    """
    held = [*_held(dataset)]
    if any(type(each.value).__module__ == "multiprocessing.synchronize" for each in held):
        return []  # workers take turns
    note = "\n(Ignore this warning if worker_init_fn opens it again.)" if has_init_fn else ""
    return [
        f"lit_loader: {each.path} is {what}, and {why}. Open it in each worker, where a sample is "
        f"read:\n{_cure(each.path, how)}{note} [LL021]"
        for each in held
        if not each.knows_forks and (danger := _danger(each.value))
        for what, why, how in [danger]
        if several or why is _THREADS
    ]


def thread_dangers(dataset: object) -> list[str]:
    """Return which open files worker threads would read at one position, unless there is a lock."""
    held = [*_held(dataset)]
    if any(type(each.value).__name__.lower() in ("lock", "rlock") for each in held):
        return []
    return [
        f"{each.path} is {danger[0]}, and worker threads share its position in the file: they read "
        "each other's bytes. Read it under a lock, or open one in each thread. [LL021]"
        for each in held
        if (danger := _danger(each.value)) and danger[0] in (_FILE, _TAR)
    ]


def _held(dataset: object) -> Iterator[Held]:
    """Yield what a dataset holds, breadth first."""
    seen: set[int] = set()
    waiting = deque([Held(dataset, type(dataset).__name__, False)])
    while waiting and len(seen) < _OBJECTS:
        at = waiting.popleft()
        value: Any = at.value
        kind: type = type(value)
        if kind in _LEAVES or id(value) in seen:
            continue
        seen.add(id(value))
        yield at
        if issubclass(kind, dict):
            for key, item in islice(dict.items(value), _ITEMS):
                step = f"[{key!r:.40}]" if type(key) in (str, int) else "[…]"
                waiting.append(Held(item, at.path + step, at.knows_forks))
        if kind in (list, tuple):
            for number, item in enumerate(value[:_ITEMS]):
                waiting.append(Held(item, f"{at.path}[{number}]", at.knows_forks))
        elif _known(kind) is None and _is_open(kind):
            own = _attributes(value)
            knows = any(type(item) is int and item == os.getpid() for item in own.values())
            for name, item in own.items():
                waiting.append(Held(item, f"{at.path}.{name}", knows))


def _is_open(kind: type) -> bool:
    """Whether objects of a class are looked into."""
    return _root(kind) not in _CLOSED or kind.__module__.startswith("torch.utils.data")


def _attributes(value: object) -> dict[str, object]:
    try:
        found = object.__getattribute__(value, "__dict__")
    except (AttributeError, TypeError):
        return {}
    return dict(found) if isinstance(found, dict) else {}


def _root(kind: type) -> str:
    return str(kind.__module__).partition(".")[0].lstrip("_")


# --- kinds ---

_POSITION: Final = "forked workers share its position in the file: they read each other's bytes"
_ANSWERS: Final = "forked workers share the connection: they get each other's answers"
_THREADS: Final = "its threads do not exist in a forked worker, which hangs"
_LOCKS: Final = "its locks do not survive a fork"
_FILE, _TAR = "an open file", "an open tarfile"

_Danger = tuple[str, str, str]
"""What an object is, why forked workers must not share it, and how it is opened again."""


def _danger(value: object) -> _Danger | None:
    """Say why forked workers must not share an object; None: they may."""
    kind: type = type(value)
    name = _known(kind)
    if name is None:
        return None
    what, why, how = _KINDS[name]
    try:
        opened = how(value) if callable(how) else how
    except Exception:  # it is closed, or of another version
        return None
    return (what or f"a {name}", why, opened) if opened else None


@functools.lru_cache(maxsize=128)
def _known(kind: type) -> str | None:
    """Return by which name `_KINDS` has a class; None: it has not."""
    names = (f"{_root(each)}.{each.__qualname__}" for each in kind.__mro__)
    return next((name for name in names if name in _KINDS), None)


def _open(file: Any) -> str | None:
    if file in (sys.stdin, sys.stdout, sys.stderr) or not (file.readable() and file.seekable()):
        return None
    file.fileno()  # raises if it is in memory
    name, mode = file.name, str(getattr(file, "mode", "rb"))
    if "a" in mode:
        return None
    module = type(file).__module__
    opener = f"{module}.open" if module in ("gzip", "bz2", "lzma") else "open"
    given = "" if mode == "r" or opener != "open" else f", {mode!r}"
    return f"{opener}({name!r}{given})" if isinstance(name, (str, bytes)) else "...  # as before"


def _open_zip(file: Any) -> str | None:
    return f"zipfile.ZipFile({str(file.filename)!r})" if file.fp and file.mode == "r" else None


def _open_tar(file: Any) -> str | None:
    return None if file.closed or file.mode != "r" else f"tarfile.open({str(file.name)!r})"


def _open_npz(file: Any) -> str | None:
    return f"numpy.load({str(file.zip.filename)!r})" if file.zip else None


def _open_hdf5(value: Any) -> str | None:
    """HDF5's own drivers read by ``pread``; those of Python and C files have a position."""
    return "h5py.File(path)" if value and value.file.driver in ("fileobj", "stdio") else None


def _open_sqlite(connection: Any) -> str | None:
    """A database in memory, which has no path, is copied by a fork."""
    path = next(iter(connection.execute("PRAGMA database_list")))[2]
    return f"sqlite3.connect({path!r})" if path else None


def _open_lmdb(environment: Any) -> str | None:
    if not environment.flags()["lock"]:
        return None
    return f"lmdb.open({environment.path()!r}, readonly=True, lock=False)"


_LMDB: Final = ("an open LMDB environment with locks", _LOCKS, _open_lmdb)

_KINDS: Final[dict[str, tuple[str, str, str | Callable[[Any], str | None]]]] = {
    "io._IOBase": (_FILE, _POSITION, _open),
    "zipfile.ZipFile": ("an open zipfile.ZipFile", _POSITION, _open_zip),
    "tarfile.TarFile": (_TAR, _POSITION, _open_tar),
    "numpy.NpzFile": ("an open .npz file", _POSITION, _open_npz),
    "h5py.HLObject": ("an HDF5 file with a position", _POSITION, _open_hdf5),
    "sqlite3.Connection": ("a connection to SQLite", _LOCKS, _open_sqlite),
    "builtins.Environment": _LMDB,  # as py-lmdb's is called in C
    "lmdb.Environment": _LMDB,
    "av.InputContainer": ("", _POSITION, "av.open(path)"),
    "cv2.VideoCapture": ("", _THREADS, "cv2.VideoCapture(path)"),
    "decord.VideoReader": ("", _THREADS, "decord.VideoReader(path)"),
    "torchcodec.VideoDecoder": ("", _POSITION, "VideoDecoder(path)"),
    "wave.Wave_read": ("", _POSITION, "wave.open(path)"),
    **dict.fromkeys(
        (
            *("socket.socket", "http.HTTPConnection", "grpc.Channel", "duckdb.DuckDBPyConnection"),
            *("psycopg.Connection", "psycopg2.connection", "pymysql.Connection"),
            "mysql.MySQLConnection",
        ),
        ("", _ANSWERS, "...  # connected as before"),
    ),
}
"""Dangerous kinds by the library and the class: what one is ("": by its name), why, and how it is
opened again; a function that returns None if this one is not dangerous."""


def _cure(path: str, how: str) -> str:
    attribute = path.rpartition(".")[2]
    if not attribute.isidentifier():
        attribute = "file"
    return (
        "    if self._pid != os.getpid():  # -1 in __init__\n"
        f"        self.{attribute} = {how}\n"
        "        self._pid = os.getpid()"
    )
