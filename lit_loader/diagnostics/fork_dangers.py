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

    value: Any
    step: Any  # the attribute's name, index or key
    above: Held | None  # what holds it
    attributes: dict[str, Any] | None  # of the object whose attribute it is; None: it is an item

    @property
    def path(self) -> str:
        """How one gets there: ``Images.reader.file``."""
        if self.above is None:
            return type(self.value).__name__
        step = f"[{self.step!r:.40}]" if self.attributes is None else f".{self.step}"
        return self.above.path + step

    @property
    def knows_forks(self) -> bool:
        """Whether its owner keeps this process's id: then it opens handles again after a fork."""
        own = self.attributes
        if own is None:
            return self.above is not None and self.above.knows_forks
        return any(type(value) is int and value == os.getpid() for value in own.values())


def fork_dangers(dataset: Any, several: bool = True, has_init_fn: bool = False) -> list[str]:
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


def thread_dangers(dataset: Any) -> list[str]:
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


def _held(dataset: Any) -> Iterator[Held]:
    """Yield what a dataset holds, breadth first."""
    seen: set[int] = set()
    waiting = deque([Held(dataset, "", None, None)])
    while waiting and len(seen) < _OBJECTS:
        at = waiting.popleft()
        value: Any = at.value
        kind: Any = type(value)
        if kind in _LEAVES or id(value) in seen:
            continue
        seen.add(id(value))
        yield at
        if issubclass(kind, dict):
            items = [*islice(dict.items(value), _ITEMS)]
            waiting += (Held(item, key, at, None) for key, item in items)
        if kind in (list, tuple):
            waiting += (Held(item, n, at, None) for n, item in enumerate(value[:_ITEMS]))
        elif _known(kind) is None and _is_open(kind):
            attributes = _attributes(value)
            waiting += (Held(item, name, at, attributes) for name, item in attributes.items())


def _is_open(kind: type) -> bool:
    """Whether objects of a class are looked into."""
    return _root(kind) not in _CLOSED or kind.__module__.startswith("torch.utils.data")


def _attributes(value: Any) -> dict[str, Any]:
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


@functools.lru_cache(maxsize=128)
def _known(kind: Any) -> Callable[[Any], _Danger | None] | _Danger | None:
    """Return what says whether objects of a class are dangerous; None: it is not known."""
    for each in kind.__mro__:
        name = f"{_root(each)}.{each.__qualname__}"
        if name in _LOOKS:
            return _LOOKS[name]
        if name in _KINDS:
            return (f"a {name}", *_KINDS[name])
    return None


def _danger(value: Any) -> _Danger | None:
    """Say why forked workers must not share an object; None: they may."""
    kind: Any = type(value)
    known = _known(kind)
    try:
        return known(value) if callable(known) else known
    except Exception:  # it is closed, or of another version
        return None


def _file(file: Any) -> _Danger | None:
    if file in (sys.stdin, sys.stdout, sys.stderr) or not (file.readable() and file.seekable()):
        return None
    file.fileno()  # raises if it is in memory
    name, mode = file.name, str(getattr(file, "mode", "rb"))
    if "a" in mode:
        return None
    module = type(file).__module__
    opener = f"{module}.open" if module in ("gzip", "bz2", "lzma") else "open"
    given = "" if mode == "r" or opener != "open" else f", {mode!r}"
    how = f"{opener}({name!r}{given})" if isinstance(name, (str, bytes)) else "...  # as before"
    return _FILE, _POSITION, how


def _zip(file: Any) -> _Danger | None:
    if file.fp is None or file.mode != "r":
        return None
    return "an open zipfile.ZipFile", _POSITION, f"zipfile.ZipFile({str(file.filename)!r})"


def _tar(file: Any) -> _Danger | None:
    if file.closed or file.mode != "r":
        return None
    return _TAR, _POSITION, f"tarfile.open({str(file.name)!r})"


def _npz(file: Any) -> _Danger | None:
    if file.zip is None:
        return None
    return "an open .npz file", _POSITION, f"numpy.load({str(file.zip.filename)!r})"


def _hdf5(value: Any) -> _Danger | None:
    """HDF5's own drivers read by ``pread``; those of Python and C files have a position."""
    if not value or value.file.driver not in ("fileobj", "stdio"):
        return None
    return "an HDF5 file with a position", _POSITION, "h5py.File(path)"


def _sqlite(connection: Any) -> _Danger | None:
    """A connection to a database in a file; what is in memory is copied by a fork."""
    path = next(iter(connection.execute("PRAGMA database_list")))[2]
    if not path:
        return None
    return "a connection to SQLite", _LOCKS, f"sqlite3.connect({path!r})"


def _lmdb(environment: Any) -> _Danger | None:
    lmdb = sys.modules.get("lmdb")
    if lmdb is None or not isinstance(environment, lmdb.Environment):
        return None
    if not environment.flags()["lock"]:
        return None
    how = f"lmdb.open({environment.path()!r}, readonly=True, lock=False)"
    return "an open LMDB environment with locks", _LOCKS, how


_LOOKS: Final[dict[str, Callable[[Any], _Danger | None]]] = {
    "io._IOBase": _file,
    "zipfile.ZipFile": _zip,
    "tarfile.TarFile": _tar,
    "numpy.NpzFile": _npz,
    "h5py.HLObject": _hdf5,
    "sqlite3.Connection": _sqlite,
    "builtins.Environment": _lmdb,  # as py-lmdb's is called in C
    "lmdb.Environment": _lmdb,
}
"""Kinds that are dangerous in some states, by the library and the class."""

_KINDS: Final[dict[str, tuple[str, str]]] = {
    "av.InputContainer": (_POSITION, "av.open(path)"),
    "cv2.VideoCapture": (_THREADS, "cv2.VideoCapture(path)"),
    "decord.VideoReader": (_THREADS, "decord.VideoReader(path)"),
    "torchcodec.VideoDecoder": (_POSITION, "VideoDecoder(path)"),
    "wave.Wave_read": (_POSITION, "wave.open(path)"),
    **{
        name: (_ANSWERS, "...  # connected as before")
        for name in (
            *("socket.socket", "http.HTTPConnection", "grpc.Channel", "duckdb.DuckDBPyConnection"),
            *("psycopg.Connection", "psycopg2.connection", "pymysql.Connection"),
            "mysql.MySQLConnection",
        )
    },
}
"""Kinds that are always dangerous: why, and how they are opened again."""


def _cure(path: str, how: str) -> str:
    attribute = path.rpartition(".")[2]
    if not attribute.isidentifier():
        attribute = "file"
    return (
        "    if self._pid != os.getpid():  # -1 in __init__\n"
        f"        self.{attribute} = {how}\n"
        "        self._pid = os.getpid()"
    )
