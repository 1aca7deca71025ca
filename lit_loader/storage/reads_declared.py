"""`reads_ahead`: a dataset says which part of a sample waits; what it is read from, and how.

::

    DataLoader's index ─▶ Subset, ConcatDataset, `reads_from` … ─▶ (dataset, index), one or several
                                                                       ╰▶ its `reads_ahead` methods

That a way through the datasets is a wrong one costs reads that nobody asks for, and never a byte: a
sample takes what was read for just its dataset and index, or reads it.
"""

from __future__ import annotations

import asyncio
import bisect
import functools
import inspect
import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError
from queue import SimpleQueue
from types import MappingProxyType
from typing import Any, Final, TypeVar, overload

import numpy as np
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, StackDataset, Subset

from lit_loader.context import in_read, reading
from lit_loader.core.system.interrupts import HeldBack
from lit_loader.describe import public, short_repr
from lit_loader.errors import LoaderError, OptionError

__all__ = [
    *("Call", "Key", "ReadResult", "declares_reads", "key_of"),
    *("read_in_loop", "read_now", "reads_ahead", "reads_of"),
]

_D = TypeVar("_D")
_I = TypeVar("_I")
_R = TypeVar("_R")

Call = Callable[..., Any]

Key = tuple[int, Call, Any]
"""What is read: the dataset (by its id), the method, the index with its type."""

_MARK: Final = "__lit_loader_reads__"

_NONE: Final[Mapping[str, Any]] = MappingProxyType({})


@overload
def reads_ahead(read: Callable[[_D, _I], Coroutine[Any, Any, _R]]) -> Callable[[_D, _I], _R]: ...
@overload
def reads_ahead(read: Callable[[_D, _I], _R]) -> Callable[[_D, _I], _R]: ...
@public
def reads_ahead(read: Call) -> Call:
    """Mark the method of a dataset that waits for storage, so that it is called ahead.

    ``__getitem__`` calls the method as before. In a `DataLoader` it gets what a thread of the
    worker has read meanwhile, up to ``concurrent_reads`` samples at a time; elsewhere, under
    torch's loader too, the method is simply called. No byte of a batch depends on it::

        class Objects(Dataset):
            @lit_loader.reads_ahead
            def read(self, index):
                return client.get(self.keys[index])

            def __getitem__(self, index):
                return decode(self.read(index))

    ``read(index)`` is called with an index of this dataset; called in another way, with a keyword
    say, it is not what was read ahead, and reads at once. It depends on its index and on what the
    dataset was in the epoch's beginning, draws no random number (`get_rng` refuses; one that draws
    is not called ahead, and a warning says so) and may run in several threads at a time: a client
    that cannot, such as a connection of sqlite3, is to be one of the thread's. With ``async def``
    all reads of a process run in one event loop, in which the client is made, and ``__getitem__``
    calls it as a plain method. A subclass that overrides it marks its own.

    A dataset around others is looked through if it is torch's ``Subset``, ``ConcatDataset`` or
    ``StackDataset``, one of lit_loader's, or holds one dataset of its own length. Another one says
    it by a method ``reads_from(index)``, which gives pairs ``(dataset, index)``.

    Args:
        read: The method ``read(self, index)``.

    Raises:
        OptionError: It is none: a property, say, or a generator function, which reads nothing yet
            when it is called.
    """
    if isinstance(read, _NO_METHODS) or not callable(read):
        kind = type(read).__name__
        raise OptionError(f"reads_ahead marks a method read(self, index), not a {kind} [LL424]")
    if inspect.isgeneratorfunction(read) or inspect.isasyncgenfunction(read):
        raise OptionError(
            f"reads_ahead: {read.__qualname__} is a generator function, which reads nothing before "
            "it is iterated: return a list"
            " [LL423]"
        )

    # Without its module: what looks for generators is to look into the user's function alone.
    @functools.wraps(read, assigned=("__name__", "__qualname__", "__doc__", "__annotations__"))
    def wrapper(self: Any, *index: Any, **options: Any) -> Any:
        # By its name: a class may be pickled with its functions.
        return _call(read, self, index, options)

    setattr(wrapper, _MARK, read)
    return wrapper


_NO_METHODS: Final = (staticmethod, classmethod, property, functools.cached_property)


def _call(read: Call, dataset: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Give what was read ahead for a sample; or read it."""
    within = in_read.get()  # another read, which waits for this one as a whole
    if within and (_in_loop() or not inspect.iscoroutinefunction(read)):
        return read(dataset, *args, **options)
    ahead = getattr(reading.maker, "reads", None)
    if within or ahead is None or options or len(args) != 1:  # called in another way than ahead
        return read_now(read, (dataset, *args), options)
    [index] = args
    try:
        return ahead.take(read, dataset, index)
    except (CancelledError, asyncio.CancelledError) as error:  # the loader cancels none
        raise LoaderError(
            f"{read.__qualname__}({index!r}) was cancelled by itself [LL422]"
        ) from error


def _in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


@functools.lru_cache(maxsize=256)
def _declared(kind: type) -> tuple[Call, ...]:
    """The methods of a class that are read ahead, and those that they override.

    Of which it is known at a sample's first read whether they are called at all.
    """
    found: list[Call] = []
    for base in kind.__mro__:
        for name, value in vars(base).items():
            if isinstance(value, _NO_METHODS):
                inner = getattr(value, "__func__", None) or getattr(value, "fget", None)
                if hasattr(inner, _MARK):
                    raise OptionError(
                        f"{base.__qualname__}.{name} is marked by reads_ahead and is a "
                        f"{type(value).__name__}: it has to be a method read(self, index)"
                        " [LL421]"
                    )
            elif inspect.isfunction(value) and hasattr(value, _MARK):
                found.append(getattr(value, _MARK))
    return tuple(found)


def declares_reads(dataset: Any) -> bool:
    """Whether a dataset, or one that it is made of, has a method that is read ahead."""
    seen: set[int] = set()
    waiting = [dataset]
    while waiting:
        one = waiting.pop()
        kind: Any = type(one)
        if _declared(kind):
            return True
        if id(one) not in seen:
            seen.add(id(one))
            for value in getattr(one, "__dict__", {}).values():
                waiting += filter(_is_dataset, _members(value))
    return False


_FEW: Final = 1000
"""Members of a list or mapping that may be datasets; a longer one is data."""


def _members(value: Any) -> Iterable[Any]:
    if type(value) not in (list, tuple, dict):
        return (value,)
    if len(value) > _FEW:
        return ()
    return value.values() if type(value) is dict else value


def _is_dataset(value: Any) -> bool:
    kind: Any = type(value)
    return isinstance(value, Dataset) or bool(_declared(kind)) or hasattr(kind, "reads_from")


def reads_of(dataset: Any, index: Any) -> Iterator[tuple[Call, Any, Any]]:
    """Give the reads (method, dataset, index) that a sample asks for, as far as that is known."""
    kind: Any = type(dataset)
    declared = _declared(kind)
    for read in declared:
        yield read, dataset, index
    parts: Iterable[tuple[Any, Any]] = ()
    if (reads_from := getattr(kind, "reads_from", None)) is not None:
        parts = reads_from(dataset, index)
    elif isinstance(dataset, Subset):
        parts = ((dataset.dataset, dataset.indices[index]),)
    elif isinstance(dataset, ConcatDataset):
        index = index + len(dataset) if index < 0 else index
        ends = dataset.cumulative_sizes
        place = bisect.bisect_right(ends, index)
        parts = ((dataset.datasets[place], index - (ends[place - 1] if place else 0)),)
    elif isinstance(dataset, StackDataset):
        parts = ((part, index) for part in _members(dataset.datasets))
    elif not declared:
        # Transforms and the like: what is around one dataset has its indices, if it has its length.
        held = [value for value in getattr(dataset, "__dict__", {}).values() if _is_dataset(value)]
        if len(held) == 1 and len(held[0]) == len(dataset):
            parts = ((held[0], index),)
    for pair in parts:
        if type(pair) is not tuple or len(pair) != 2:
            raise OptionError(
                f"{kind.__name__}.reads_from({short_repr(index)}) is to give pairs (dataset, "
                f"index), and gives {short_repr(pair)}"
                " [LL420]"
            )
        yield from reads_of(*pair)


def key_of(read: Call, dataset: Any, index: Any) -> Key | None:
    """Give what a read is known by; None: such an index is not known again for certain."""
    known = _exact(index)
    return None if known is None else (id(dataset), read, known)


def _exact(index: Any) -> Any:
    """An index with its type: 1, True and 1.0 are equal, and not the same."""
    kind = type(index)
    if kind in (int, str, bytes) or isinstance(index, np.integer):
        return kind, index
    if kind is tuple:
        parts = tuple(map(_exact, index))
        return None if None in parts else parts
    if kind is Tensor and not index.ndim:  # from a Subset by a tensor
        return kind, index.dtype, index.item()
    return None


# --- how a read is called: a coroutine in the one event loop of its process ---


class ReadResult:
    """What a read gives, for the one who waits for it.

    In place of a future: an exception out of a signal handler may leave a future's lock taken, and
    is dropped where it breaks into its callbacks. Here each step is one instruction.

    ``arrived`` is called with what is given and this, in the thread that read, before it is given.
    """

    __slots__ = ("_given", "_unclaimed", "arrived", "running")

    def __init__(self) -> None:
        self._unclaimed = [None]  # emptied by whoever is first to claim
        self._given: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        self.arrived: Callable[[Any, BaseException | None, ReadResult], object] | None = None
        self.running: object = None  # keeps a coroutine's task, to which the loop has no reference

    def claim(self) -> bool:
        """Take it upon oneself to give the value, or drop it; False: somebody else has."""
        try:
            self._unclaimed.pop()
        except IndexError:
            return False
        return True

    def give(self, value: Any, error: BaseException | None = None) -> None:
        """Give the value, or what is raised in its place; by the one who has claimed that."""
        try:
            if self.arrived is not None:
                self.arrived(value, error, self)
        finally:
            self._given.put((value, error))

    @property
    def given(self) -> bool:
        """Whether it is there."""
        return not self._given.empty()

    def wait(self) -> Any:
        """Take the value; once."""
        value, error = self._given.get()
        if error is None:
            return value
        try:
            raise error
        finally:
            del error  # whose traceback holds this frame


def read_now(read: Call, arguments: tuple[Any, ...], options: Mapping[str, Any] = _NONE) -> Any:
    """Read, and wait for it."""
    if inspect.iscoroutinefunction(read):
        result = ReadResult()
        read_in_loop(result, read, arguments, options)
        return result.wait()
    token = in_read.set(True)
    try:
        return read(*arguments, **options)
    finally:
        in_read.reset(token)


def read_in_loop(
    result: ReadResult, read: Call, arguments: tuple[Any, ...], options: Mapping[str, Any] = _NONE
) -> None:
    """Begin to read by a coroutine."""
    coroutine = _await(result, read, arguments, options)
    result.running = asyncio.run_coroutine_threadsafe(coroutine, _loop())


async def _await(
    result: ReadResult, read: Call, arguments: tuple[Any, ...], options: Mapping[str, Any]
) -> None:
    in_read.set(True)
    failed: BaseException | None = None
    value = None
    try:
        value = await read(*arguments, **options)
    except (SystemExit, KeyboardInterrupt) as error:  # they would end the loop
        failed = RuntimeError(f"{read.__qualname__} raised {error!r}")
        failed.__cause__ = error
    except BaseException as error:
        failed = error
    if result.claim():  # not before: it may be dropped
        result.give(value, failed)
    del result, failed  # its traceback holds this frame


_loops: Final[dict[int, asyncio.AbstractEventLoop]] = {}
"""The event loop of a process, by its id."""

_making: Final = threading.Lock()


def _loop() -> asyncio.AbstractEventLoop:
    """The process's event loop, one for all: a client that was made in it is of use in it alone."""
    pid = os.getpid()
    if pid not in _loops:
        with _making, HeldBack():
            if pid not in _loops:
                loop = asyncio.new_event_loop()
                threading.Thread(
                    target=loop.run_forever, name="event loop of reads_ahead", daemon=True
                ).start()
                _loops[pid] = loop
    return _loops[pid]
