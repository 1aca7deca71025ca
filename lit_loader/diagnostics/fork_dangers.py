"""What forked workers would share with each other, and what does not survive a fork.

Looked for once, when workers are about to be forked, and told with the cure: an open file has one
position for all processes, a connection one conversation, a library's threads are not there. Only
what the dataset holds counts, and only where no harm can be excluded: not a file of one worker, or
that only ``__init__`` reads, reads by ``pread``, memory maps, HDF5 (which reads by ``pread``), a
class that looks at its process id, and what a ``worker_init_fn`` opens again.

The walk is short: the attributes of the user's objects, items of small containers. No code of the
user's is run.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from types import CodeType, FunctionType
from typing import Any, Final, NamedTuple

from lit_loader.core.seeding.held_generators import CLOSED, instance_dict, is_leaf, root_of
from lit_loader.core.system import linux

_OBJECTS: Final = 300
"""That are looked at; each takes 1 to 3 us."""

_ITEMS: Final = 32
"""Of a container, that are looked at."""

_CAREFUL: Final = frozenset({"pread", "preadv", "getpid", "register_at_fork", "flock", "lockf"})
"""Names in the code of classes that know what a fork does."""

_CONNECTIONS: Final = frozenset(
    (
        *(
            "duckdb.DuckDBPyConnection",
            "grpc.Channel",
            "mysql.MySQLConnection",
            "psycopg.Connection",
        ),
        *("psycopg2.connection", "pymysql.Connection", "socket.socket"),
    )
)
_DECODERS: Final = frozenset(
    (
        *("av.InputContainer", "cv2.VideoCapture", "decord.VideoReader", "torchcodec.VideoDecoder"),
        "wave.Wave_read",
    )
)
"""By the library and the class."""

_CLOSED: Final = CLOSED - {"lit_loader"}

_POOLS: Final = {"polars": "polars-", "zarr": "zarr_io", "tensorstore": "tensorstore"}
"""Libraries whose objects are of no use in a fork once their threads run, and how these begin."""


class Holding(NamedTuple):
    """An object, and how the dataset has it."""

    value: Any
    path: str  # as in ``Images.reader.file``
    name: str  # the attribute


def fork_dangers(dataset: Any, worker_init_fn: Any, several: bool = True) -> list[str]:
    """Say what forked workers would share that they must not, each with the cure.

    One worker, and not ``several``, shares nothing; but it may lack a library's threads.
    """
    if not several and {*_POOLS, "numba"}.isdisjoint(sys.modules):
        return []
    held, kinds = held_by(dataset)
    if (text := _parallel_numba(kinds)) is not None:
        return [text]
    functions = [*_functions(kinds)]
    around = _used_around(functions)
    if any(
        type(each.value).__module__ == "multiprocessing.synchronize" for each in [*held, *around]
    ):
        return []  # with a lock of all processes, its reads wait for each other
    used = {each.name for each in around}.union(*(_names(each.__code__) for each in functions))
    told = [
        (each, text)
        for each in [*held, *around]
        if (several or root_of(type(each.value)) in _POOLS)
        and (text := _danger(each.value, each.path))
    ]
    if not told or not _CAREFUL.isdisjoint(used):
        return []
    opened = _names(getattr(worker_init_fn, "__code__", None))
    if "get_worker_info" in opened:
        return []
    return [text for each, text in told if each.name in used and each.name not in opened]


def held_by(dataset: Any) -> tuple[list[Holding], set[type]]:
    """What a dataset holds, breadth first, and the classes of the user's objects among it."""
    seen: set[int] = set()
    kinds: set[type] = set()
    held: list[Holding] = []
    waiting = deque([Holding(dataset, type(dataset).__name__, "")])
    while waiting and len(seen) < _OBJECTS:
        at = waiting.popleft()
        value, kind = at.value, type(at.value)
        if is_leaf(value) or id(value) in seen:
            continue
        seen.add(id(value))
        held.append(at)
        if kind in (list, tuple):
            items = enumerate(value[:_ITEMS])
            waiting += (Holding(item, f"{at.path}[{n}]", at.name) for n, item in items)
        elif kind is dict:
            pairs = [*islice(value.items(), _ITEMS)]
            waiting += (Holding(item, f"{at.path}[{key!r}]", at.name) for key, item in pairs)
        elif root_of(kind) not in _CLOSED or kind.__module__.startswith("torch.utils.data"):
            kinds.update(kind.__mro__)
            attributes = [*instance_dict(value).items()]
            waiting += (Holding(item, f"{at.path}.{name}", name) for name, item in attributes)
    return held, kinds


def _functions(kinds: set[type]) -> Iterator[FunctionType]:
    """The functions in classes, properties' too, but for those that make objects."""
    for kind in kinds:
        for name, member in [*vars(kind).items()]:
            function = getattr(member, "fget", member)
            if name != "__init__" and isinstance(function, FunctionType):
                yield function


def _used_around(functions: Iterable[FunctionType]) -> list[Holding]:
    """What functions use of their modules and closures."""
    found: dict[int, Holding] = {}
    for function in functions:
        code, space = function.__code__, function.__globals__
        for name in sorted(_names(code) & space.keys()):
            found.setdefault(id(space[name]), Holding(space[name], name, name))
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # it is empty
                value = cell.cell_contents
                found.setdefault(id(value), Holding(value, name, name))
    return [*found.values()]


def _parallel_numba(kinds: set[type]) -> str | None:
    """Say that samples call a parallel function of numba, whose pool of GNU OpenMP has begun here.

    Numba finds a fork by its parent's number, and ends it.
    """
    numba: Any = sys.modules.get("numba")
    try:
        if numba is None or numba.threading_layer() != "omp":
            return None
    except ValueError:  # none has begun
        return None
    for kind in kinds:
        names = set[str]().union(
            *(_names(getattr(member, "__code__", None)) for member in [*vars(kind).values()])
        )
        around = vars(sys.modules.get(kind.__module__, object))
        for name in sorted(names & around.keys()):
            options = getattr(around[name], "targetoptions", None)
            if isinstance(options, dict) and options.get("parallel"):
                return (
                    f"lit_loader: {kind.__qualname__} calls {name}, which numba runs in the "
                    "threads of GNU OpenMP, and these have begun in this process: in a forked "
                    "worker the call hangs. Set NUMBA_THREADING_LAYER=workqueue, or "
                    "multiprocessing_context='forkserver' or 'spawn'. [LL049]"
                )
    return None


def _danger(value: Any, path: str) -> str | None:
    """Say why forked workers must not have an object, and what to do; None: they may."""
    kind = type(value)
    if isinstance(value, io.IOBase):
        if value in (sys.stdin, sys.stdout, sys.stderr):
            return None
        again = _file(value)
        return again and _shared_position(path, again)
    names = {f"{root_of(base).lstrip('_')}.{base.__qualname__}" for base in kind.__mro__}
    if "zipfile.ZipFile" in names:
        is_open = value.fp is not None and value.mode == "r" and value.filename is not None
        return _shared_position(path, f"zipfile.ZipFile({value.filename!r})") if is_open else None
    if "tarfile.TarFile" in names:
        is_open = not value.closed and value.mode == "r" and value.name is not None
        return _shared_position(path, f"tarfile.open({value.name!r})") if is_open else None
    if "sqlite3.Connection" in names:
        file = _database(value)
        return file and _shared(path, kind, f"sqlite3.connect({file!r})")
    if not names.isdisjoint(_DECODERS):
        return _shared_position(path, "...  # opened as before")
    if not names.isdisjoint(_CONNECTIONS):
        return _shared(path, kind, "...  # connected as before")
    begins = _POOLS.get(root_of(kind))
    if begins is not None and _runs(begins) and not _resets(kind):
        return (
            f"lit_loader: {path} is {kind.__qualname__!r} of {root_of(kind)}, "
            "whose threads run in this process: a forked worker has its locks, but not its "
            "threads, and may hang. Set multiprocessing_context='forkserver' or 'spawn'. [LL023]"
        )
    return None


def _file(file: Any) -> str | None:
    """How a file is opened again that is read from a position; None: it has none to share."""
    try:
        if file.closed or not file.readable() or not file.seekable():
            return None
        file.fileno()
        name, mode = file.name, str(getattr(file, "mode", "rb"))
    except (OSError, AttributeError, ValueError, TypeError):
        return None
    if "a" in mode:
        return None
    if type(file).__module__ in ("gzip", "bz2", "lzma"):
        return f"{type(file).__module__}.open({name!r})"
    if not isinstance(name, (str, bytes)):
        return "...  # opened as before"
    return f"open({name!r})" if mode == "r" else f"open({name!r}, {mode!r})"


def _database(connection: Any) -> str | None:
    """The file of a database; None: it is in memory."""
    try:
        return next(iter(connection.execute("PRAGMA database_list")))[2] or None
    except Exception:  # it is closed, or another thread's
        return None


def _shared_position(path: str, again: str) -> str:
    return (
        f"lit_loader: {path} is open, and its file has one position for all forked workers: "
        "those that read it without opening it again read each other's bytes. "
        f"{_open_again(path, again)}\nOr read by "
        "os.pread(file, length, offset), which uses no position. [LL021]"
    )


def _shared(path: str, kind: type, again: str) -> str:
    return (
        f"lit_loader: {path} is a connection ({kind.__module__}.{kind.__qualname__}) that all "
        f"forked workers use at the same time. [LL022] {_open_again(path, again)}"
    )


def _open_again(path: str, again: str) -> str:
    attribute = path.rpartition(".")[2]
    if not attribute.isidentifier():
        attribute = "file"
    return (
        "Open it in each worker, for example where a sample is read:\n"
        "    if self._opened_by != os.getpid():  # -1 at first, set in __init__\n"
        f"        self.{attribute} = {again}\n"
        "        self._opened_by = os.getpid()"
    )


def _names(code: CodeType | None) -> set[str]:
    """The attributes and globals that code uses, that of functions within it too."""
    if code is None:
        return set()
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names(constant)
    return names


def _runs(begins: str) -> bool:
    """Whether a thread with such a name runs in this process."""
    if any(each.name.startswith(begins) for each in threading.enumerate()):
        return True
    try:
        tasks = os.listdir(f"{linux.PROC}/self/task")
    except OSError:
        return False
    for task in tasks:
        try:
            with open(f"{linux.PROC}/self/task/{task}/comm") as file:
                if file.read().startswith(begins):
                    return True
        except OSError:  # it has just ended
            pass
    return False


def _resets(kind: type) -> bool:
    """Whether a library begins anew after a fork by itself, as zarr does in newer versions."""
    sync = sys.modules.get("zarr.core.sync")
    return root_of(kind) == "zarr" and hasattr(sync, "reset_resources_after_fork")


def thread_dangers(dataset: Any, worker_init_fn: Any) -> list[str]:
    """Say which open files worker threads would read at one position, each with the cure.

    Not of a dataset with a lock, for which its reads wait; a ZipFile has one itself.
    """
    told = [
        text.removeprefix("lit_loader: ").replace("forked workers", "worker threads")
        for text in fork_dangers(dataset, worker_init_fn)
        if "one position" in text and " = zipfile.ZipFile(" not in text
    ]
    held, kinds = held_by(dataset) if told else ([], set())
    locked = any(
        type(each.value).__name__.lower() in ("lock", "rlock")
        for each in [*held, *_used_around(_functions(kinds))]
    )
    return [] if locked else told
