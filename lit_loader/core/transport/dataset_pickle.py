"""An object as a pickle and large buffers, in one file; and put together from it in any process.

::

    object ─ freeze ─▶ Frozen ─ write ─▶ file ─ thaw ─▶ object
                                          │
        large buffers, 64 bytes apart │ where they lie │ pickle │ lengths
        mapped privately: shared until written to        read once

Large are arrays, tensors, and whatever else has buffers of pickle's protocol 5 (pyarrow's tables),
from `LARGE` bytes on. The same memory lies in the file once. A `numpy.memmap` goes as its file's
name. All else is in the pickle: plain `bytes`, arrays of objects, what is small.

A `Policy` says for whom:

- *workers* (spawn, forkserver): locks, queues and shared tensors arrive as the same ones. Their
  descriptors are duplicated, and the pickle names them by number: so all workers read one pickle,
  also those that replace others, and get the dataset as it was at first.
- *this machine* (`shared_dataset`): no descriptors.
- *other machines*: one pickle, and what ``__main__`` defines goes by value.

A process's global random generators (`GLOBAL_GENERATORS`) are those of the process where they
arrive, also inside of ``np.random.uniform`` or ``random.choice``.

What cannot be imported (a lambda, a closure, a local class, whatever a notebook defines) is carried
by value, with cloudpickle.
"""

from __future__ import annotations

import copyreg
import dataclasses
import importlib.util
import io
import mmap
import operator
import os
import pickle
import struct
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import context
from multiprocessing.reduction import ForkingPickler
from types import FunctionType
from typing import Any, Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from lit_loader.core.seeding.held_generators import GLOBAL_GENERATORS
from lit_loader.core.system.shared_file import map_part, round_up, write_all
from lit_loader.describe import FailingObject, find_failing_object, message_of, short_repr
from lit_loader.errors import TransportError

LARGE: Final = 1 << 16
"""Bytes from which on a buffer is kept out of the pickle."""

_PROTOCOL: Final = 5
"""Of pickle: the first one that knows buffers out of band."""

_ALIGNED: Final = 64
_END: Final = struct.Struct("<QQQ8s")  # bytes of the buffers, of their places, of the pickle; magic
_MAGIC: Final = b"litfile1"

_PLAIN_KINDS: Final = frozenset("biufcmMSUV?")
"""Kinds of elements that are their bytes; others hold pointers."""

LEFT_OUT: Final = "open or make it on first use (in __getitem__), and drop it in __getstate__"

_NO_CLOUDPICKLE: Final = (
    "define it at the top level of a module, pip install cloudpickle (which carries lambdas, "
    "closures, local classes and those of notebooks), or use multiprocessing_context='fork'"
)


@dataclasses.dataclass(frozen=True)
class Policy:
    """For whom an object is taken apart.

    Attributes:
        fault: What is said of an object that cannot be: and who needs it.
        advice: What can be done about functions and classes that cannot be.
        along: Descriptors go along.
        by_value: Functions and classes go by value where they cannot be imported; needs
            cloudpickle.
        main: What ``__main__`` defines can be imported where it arrives.
        apart: Large buffers are kept out of the pickle.
    """

    fault: str
    advice: str
    along: bool = False
    by_value: bool = False
    main: bool = True
    apart: bool = True

    @classmethod
    def workers(cls, main: bool = True) -> Policy:
        """For workers that begin with a new interpreter; ``main``: it can import ``__main__``."""
        advice, how, by_value = LEFT_OUT, ", not by cloudpickle either", True
        if importlib.util.find_spec("cloudpickle") is None:
            advice, how, by_value = _NO_CLOUDPICKLE, "", False
        return cls(
            f"cannot be pickled{how}, as every start method but 'fork' needs",
            advice,
            along=True,
            by_value=by_value,
            main=main,
        )


# --- apart ---


class Frozen:
    """An object, taken apart. Its buffers lie where they lay: it is to be written soon.

    The file has ``nbytes`` of buffers, whole pages, and ``size`` in all. Descriptors that go along,
    ``fds``, belong to whoever has this.
    """

    def __init__(self, pickled: bytes, buffers: Sequence[memoryview], fds: list[int]) -> None:
        self.pickled, self.fds = pickled, fds
        places = []
        self._once: dict[tuple[int, int], tuple[int, memoryview]] = {}
        end = 0
        for buffer in buffers:
            memory = np.frombuffer(buffer, np.uint8).__array_interface__["data"][0], buffer.nbytes
            if memory not in self._once:
                self._once[memory] = end, buffer
                end += -(-buffer.nbytes // _ALIGNED) * _ALIGNED
            places.append((self._once[memory][0], buffer.nbytes, buffer.readonly))
        self.nbytes = round_up(end)
        table = pickle.dumps(places, _PROTOCOL)
        lengths = _END.pack(self.nbytes, len(table), len(pickled), _MAGIC)
        self._rest = table, pickled, lengths
        self.size = self.nbytes + sum(map(len, self._rest))

    def close(self) -> None:
        """Close the descriptors."""
        while self.fds:
            os.close(self.fds.pop())

    def write(self, fd: int) -> None:
        """Write an empty file; OSError: there is no room."""
        os.ftruncate(fd, self.size)
        for offset, buffer in self._once.values():
            os.lseek(fd, offset, os.SEEK_SET)
            write_all(fd, buffer)
        os.lseek(fd, self.nbytes, os.SEEK_SET)
        for part in self._rest:
            write_all(fd, part)


def freeze(value: object, policy: Policy, parts: Mapping[str, object] | None = None) -> Frozen:
    """Take an object apart.

    TransportError: one of its ``parts``, by the names that users know them by, cannot be pickled.
    """
    try:
        return _freeze(value, policy)
    except Exception:
        for name, part in (parts or {}).items():
            _check(part, policy, name)
        raise


def _check(part: object, policy: Policy, name: str) -> None:
    """See whether a part of an object can be pickled; TransportError if not."""

    def attempt(value: object) -> None:
        _freeze(value, policy).close()

    try:
        attempt(part)
    except Exception as error:
        place = find_failing_object(part, error, attempt, name, inside=policy.by_value)
        # The owner of a file or connection is not sent to fork: there workers would share it.
        advice = policy.advice if _is_code(place.value) else LEFT_OUT
        raise refusal(place, policy.fault, advice) from error


def _is_code(value: object) -> bool:
    """Whether code cannot be imported by its name: a function, or the class of an object."""
    kind = type(value)
    local = "<locals>" in kind.__qualname__ or kind.__module__ == "__main__"
    return isinstance(value, (FunctionType, type)) or local


def refusal(place: FailingObject, fault: str, advice: str) -> TransportError:
    """Say what cannot be done with an object, why, and what to do."""
    return TransportError(
        f"{place.path}: {short_repr(place.value)} {fault} "
        f"({type(place.error).__name__}: {message_of(place.error)}); {advice} [LL024]"
    )


def _freeze(value: object, policy: Policy) -> Frozen:
    # It stands for a process that is being started, which locks, queues and shared tensors ask for.
    before, along = context.get_spawning_popen(), _Along()
    meanwhile: Any = along if policy.along else None
    file, buffers, carried = io.BytesIO(), list[memoryview](), dict[str, object]()

    def stays_inside(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if not policy.apart or raw.nbytes < LARGE:
            return True
        buffers.append(raw)
        return False

    kind = _pickler(policy, carried)
    try:
        context.set_spawning_popen(meanwhile)
        # In this order: the second is filled by pickling the first.
        kind(file, _PROTOCOL, buffer_callback=stays_inside).dump((value, carried))
    except BaseException:
        for fd in along.fds:
            os.close(fd)
        raise
    finally:
        context.set_spawning_popen(before)
    return Frozen(file.getvalue(), buffers, along.fds)


class _Along:
    """Takes the place of the process that is being started, and collects descriptors."""

    def __init__(self) -> None:
        self.fds: list[int] = []

    def duplicate_for_child(self, fd: int) -> int:
        self.fds.append(os.dup(fd))
        return len(self.fds) - 1

    class DupFd:
        """What a pickle says of a descriptor."""

        arrived: Sequence[int] = ()

        def __init__(self, number: int) -> None:
            self.number = number

        def detach(self) -> int:
            return self.arrived[self.number]


def _pickler(policy: Policy, carried: dict[str, object]) -> type[pickle.Pickler]:
    """Make a pickler's class, which notes in ``carried`` what it takes out of ``__main__``."""
    # Looked up each time: libraries register with multiprocessing as they are imported.
    table: dict[type, object] = dict(ForkingPickler(io.BytesIO()).dispatch_table)
    if not policy.along:  # nor what multiprocessing sends by descriptors
        table = {kind: how for kind, how in table.items() if kind.__module__.startswith("torch")}
    table = {**copyreg.dispatch_table, **(table if policy.apart else {})}
    base: Any = pickle.Pickler
    if policy.by_value:
        import cloudpickle

        base = cloudpickle.Pickler
        table |= base.dispatch_table

    class Freezing(base):  # type: ignore[misc]
        dispatch_table = table

        def reducer_override(self, obj: Any) -> object:
            if id(obj) in _PLACES:
                return _global_generator, (_PLACES[id(obj)],)
            if policy.apart and type(obj) in _REDUCERS:
                return _REDUCERS[type(obj)](obj, policy)
            if _is_in_main(obj):
                if policy.main:
                    # By name: cloudpickle would make a second class, with which isinstance() and
                    # the pickling of instances would go wrong where it arrives.
                    return NotImplemented
                if not policy.by_value:
                    raise pickle.PicklingError(
                        f"{obj.__qualname__} is defined in a session or script that has no file"
                    )
                if "." not in obj.__qualname__:
                    carried[obj.__qualname__] = obj
            return super().reducer_override(obj) if policy.by_value else NotImplemented

    return Freezing


_PLACES: Final = {id(each): place for place, each in enumerate(GLOBAL_GENERATORS)}


def _global_generator(place: int) -> object:
    return GLOBAL_GENERATORS[place]


def _reduce_tensor(tensor: torch.Tensor, _: Policy) -> object:
    """As torch does, which forgets that a view is the conjugate or negative of its bytes."""
    if not tensor.is_leaf or not (tensor.is_conj() or tensor.is_neg()):
        return NotImplemented
    plain = tensor.detach().resolve_conj().resolve_neg()
    return _tensor_of, (type(tensor), plain, tensor.requires_grad)


def _reduce_storage(storage: torch.UntypedStorage, policy: Policy) -> object:
    nbytes = storage.nbytes()
    if policy.along and (storage.device.type != "cpu" or storage.is_shared() or not nbytes):
        return NotImplemented
    if not nbytes:
        return type(storage), (0,)
    if storage.device.type != "cpu":
        raise TypeError(f"its memory is that of {storage.device}; keep data on the CPU")
    if storage.is_shared():
        raise TypeError(
            "a tensor in shared memory would be shared by the workers of one rank or of all; leave "
            "share_memory_() out, for shared_dataset does what it is for"
        )
    elements = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
    return _storage_of, (pickle.PickleBuffer(elements.data),)


def _reduce_array(array: NDArray[np.generic], _: Policy) -> object:
    flags, kind = array.flags, array.dtype.kind
    if array.nbytes < LARGE or kind not in _PLAIN_KINDS or array.dtype.hasobject:
        return NotImplemented
    mapped = _reduce_mapped(array)
    if mapped is not None:
        return mapped
    order: Literal["F", "C"] = "F" if flags.f_contiguous else "C"
    elements = np.asarray(array).ravel(order).view(np.uint8)  # a copy if it is neither
    look = (array.dtype, array.shape, order, flags.writeable)
    return _array_of, (pickle.PickleBuffer(elements.data), *look)


def _reduce_mapped(array: Any) -> object:
    """Name the file that an array looks into; None: there is none, or it is to go as it is.

    That is one that was written to privately (mode "c"), or whose file is gone or has another
    length by now.
    """
    whole = array
    while isinstance(whole.base, np.ndarray):
        whole = whole.base
    if not (isinstance(whole, np.memmap) and isinstance(whole.base, mmap.mmap)):
        return None
    if whole.mode == "c" or not isinstance(whole.filename, (str, os.PathLike)):
        return None
    path = os.fspath(whole.filename)
    try:
        if os.stat(path).st_size != whole.base.size():
            return None
    except OSError:
        return None
    start = array.ctypes.data - whole.ctypes.data + whole.offset
    look = (type(array), array.dtype, array.shape, array.strides, array.flags.writeable)
    return _map_again, (path, _identity(os.stat(path)), start, *look)


_REDUCERS: Final[dict[type, Callable[[Any, Policy], object]]] = {
    np.ndarray: _reduce_array,
    np.memmap: _reduce_array,
    torch.Tensor: _reduce_tensor,
    torch.nn.Parameter: _reduce_tensor,
    torch.UntypedStorage: _reduce_storage,
}


# --- together ---


def thaw(fd: int, fds: Sequence[int] = (), held: bool = False) -> Any:
    """Put an object together from its file; not a byte of its buffers is copied.

    What was carried out of the other ``__main__`` is put into the one here, so that a batch that
    holds an instance of such a class can be pickled by name on its way back. ``fds`` are the
    descriptors that came along; ``held``: the file stays open as long as its buffers are in use.
    """
    size = os.fstat(fd).st_size
    nbytes, table, pickled, magic = _END.unpack(os.pread(fd, _END.size, size - _END.size))
    if magic != _MAGIC or nbytes + table + pickled + _END.size != size:
        raise ValueError("no file of an object that was taken apart")
    with mmap.mmap(fd, size - nbytes, access=mmap.ACCESS_READ, offset=nbytes) as rest:
        places = pickle.load(rest)
        buffers = []
        if nbytes:
            whole = map_part(fd, 0, nbytes, private=True)
            if held:
                weakref.finalize(whole, os.close, os.dup(fd)).atexit = False
            for offset, length, readonly in places:
                buffer = memoryview(whole)[offset : offset + length]
                buffers.append(buffer.toreadonly() if readonly else buffer)
        rest.seek(table)
        _Along.DupFd.arrived = fds
        return _arrived(pickle.load(rest, buffers=buffers))


def thaw_bytes(pickled: bytes | memoryview) -> Any:
    """Put an object together that went to another machine."""
    return _arrived(pickle.loads(pickled))


def _arrived(found: tuple[Any, dict[str, object]]) -> Any:
    value, carried = found
    vars(sys.modules["__main__"]).update(carried)
    return value


def _tensor_of(kind: type[torch.Tensor], plain: torch.Tensor, requires_grad: bool) -> torch.Tensor:
    return plain.as_subclass(kind).requires_grad_(requires_grad)


def _storage_of(buffer: memoryview | bytearray) -> torch.UntypedStorage:
    return torch.frombuffer(buffer, dtype=torch.uint8).untyped_storage()


def _array_of(
    buffer: memoryview, dtype: np.dtype[Any], shape: tuple[int, ...], order: Any, writeable: bool
) -> NDArray[np.generic]:
    array = np.frombuffer(buffer, np.uint8).view(dtype).reshape(shape, order=order)
    if not writeable:
        array.flags.writeable = False
    return array


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size


def _map_again(
    path: str,
    file: tuple[int, ...],
    start: int,
    kind: type[NDArray[np.generic]],
    dtype: np.dtype[np.generic],
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    writeable: bool,
) -> NDArray[np.generic]:
    """Map a file once more; what is written there stays this process's own."""
    with open(path, "rb") as opened:
        if _identity(os.fstat(opened.fileno())) != file:
            raise FileNotFoundError(
                f"{path}, which a numpy.memmap of the dataset maps, has been replaced by another "
                "file since the workers were started; keep it as long as they run"
            )
        whole = np.memmap(opened, np.uint8, "c" if writeable else "r")
    array: NDArray[np.generic] = np.ndarray.__new__(kind, shape, dtype, whole, start, strides)
    if isinstance(array, np.memmap):
        array.filename, array.mode, array.offset = whole.filename, whole.mode, start
    return array


def _is_in_main(value: object) -> bool:
    """Whether this is a function or class that ``__main__`` has under its own name."""
    if not isinstance(value, (type, FunctionType)) or value.__module__ != "__main__":
        return False
    try:
        return operator.attrgetter(value.__qualname__)(sys.modules["__main__"]) is value
    except AttributeError:
        return False
