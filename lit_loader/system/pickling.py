"""Pickling the user's objects for a worker that begins with a new interpreter.

Pickle names functions and classes, and the worker imports them. What cannot be imported (a lambda,
a closure, a local class, whatever a notebook defines) can be carried by value, as code, with
cloudpickle. Both ways keep multiprocessing's reductions, and torch's among them: locks, queues and
shared tensors arrive as the same ones, which nothing but the start of a process can do.

A ``__main__`` that workers cannot import (notebook, REPL, ``python -c``, a script from standard
input) is carried by value from the start, for by name all of it would be missed there only.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import operator
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from mmap import mmap
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import FunctionType
from typing import Any, ClassVar, NamedTuple

from lit_loader.system.out_of_band import PROTOCOL, OutOfBand, Reducer

__all__ = ["Pickled", "can_carry_by_value", "dump", "importable_main", "load", "main_is_importable"]


def can_carry_by_value() -> bool:
    """Whether cloudpickle is installed."""
    return importlib.util.find_spec("cloudpickle") is not None


def main_is_importable() -> bool:
    """Whether ``__main__`` is a module or a file that a new process can import."""
    main = sys.modules["__main__"]
    if getattr(main, "__spec__", None) is not None:
        return True
    path = getattr(main, "__file__", None)
    return path is not None and Path(path).is_file()


@contextlib.contextmanager
def importable_main(hide: bool = False) -> Iterator[None]:
    """Hide the path of a ``__main__`` that has one and no file, such as ``<stdin>``.

    A process that is started meanwhile would otherwise end, trying to run that file.

    Args:
        hide: Hide any ``__main__``: a process that is started meanwhile does not import it.
    """
    main: Any = sys.modules["__main__"]
    hidden = {}
    if hide or not main_is_importable():
        hidden = {name: vars(main)[name] for name in ("__file__", "__spec__") if name in vars(main)}
    if "__file__" in hidden:
        del main.__file__
    if "__spec__" in hidden:
        main.__spec__ = None
    try:
        yield
    finally:
        vars(main).update(hidden)


class Pickled(NamedTuple):
    """An object, pickled.

    Attributes:
        stream: The pickle, without its large buffers.
        buffers: These, where they lie in this process, in the order in which the pickle names them.
        pickler: To be kept until the process is started, if descriptors go along. It has what was
            made on the way (a ``torch.Generator``'s state, say), whose file descriptors must still
            be open then.
    """

    stream: bytes
    buffers: Sequence[memoryview]
    pickler: pickle.Pickler


def dump(
    value: object, by_value: bool, instead: Callable[[object], object] | None = None
) -> Pickled:
    """Pickle an object, as a part of starting a process.

    Args:
        value: The object.
        by_value: Carry functions and classes by value where the worker cannot import them; needs
            cloudpickle.
        instead: Gives what is pickled in an object's place; None: the object itself.

    Raises:
        Exception: Whatever pickling raises.
    """
    carried: dict[str, object] = {}
    # Asked for anew each time: libraries register with multiprocessing as they are imported.
    others = ForkingPickler(io.BytesIO()).dispatch_table
    apart = OutOfBand(others)
    file = io.BytesIO()
    if by_value:
        kind = _with(instead, _by_value(carried, others, apart))
        pickler: pickle.Pickler = kind(file, PROTOCOL, apart.stays_inside)
    else:
        kind = _with(instead, ForkingPickler if main_is_importable() else _WithoutMain)
        pickler = kind(file, PROTOCOL, True, apart.stays_inside)
        pickler.dispatch_table = {**others, **apart.reducers()}
    pickler.dump((value, carried))  # in this order: the second is filled by pickling the first
    return Pickled(file.getvalue(), apart.buffers, pickler)


def load(stream: mmap, buffers: Iterable[memoryview]) -> Any:
    """Unpickle what :func:`dump` gave.

    Args:
        stream: The pickle, from where it stands on.
        buffers: Its large buffers, where they lie in this process.

    What was carried out of the parent's ``__main__`` is put into the one here, so that a batch
    that holds an instance of such a class can be pickled by name on its way back.

    Raises:
        Exception: Whatever unpickling raises.
    """
    value, carried = _Unpickler(stream, buffers=buffers).load()
    vars(sys.modules["__main__"]).update(carried)
    return value


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, given: object) -> object:
        """Gives what `dump` has put in an object's place."""
        return given


def _with(instead: Callable[[object], object] | None, kind: Any) -> Any:
    """A pickler's class that asks `instead`: in Python 3.13.0 no single pickler can be told to."""
    if instead is None:
        return kind  # any at all would be called for every number and string
    return type("_Replacing", (kind,), {"persistent_id": lambda self, value: instead(value)})


def _is_in_main(value: object) -> bool:
    """Whether this is a function or class that ``__main__`` has under its own name."""
    if not isinstance(value, (type, FunctionType)) or value.__module__ != "__main__":
        return False
    try:
        return operator.attrgetter(value.__qualname__)(sys.modules["__main__"]) is value
    except AttributeError:
        return False


def _by_value(carried: dict[str, object], others: Mapping[type, Reducer], apart: OutOfBand) -> Any:
    """Make a pickler's class that notes in ``carried`` what it takes out of ``__main__``."""
    import cloudpickle

    by_name = main_is_importable()

    class ByValue(cloudpickle.Pickler):  # type: ignore[misc]
        dispatch_table: ClassVar = {
            **others,
            **cloudpickle.Pickler.dispatch_table,
            **apart.reducers(),
        }

        def reducer_override(self, obj: Any) -> Any:
            if _is_in_main(obj):
                if by_name:
                    # cloudpickle would make a second class of each, with which isinstance() and
                    # the pickling of instances would go wrong in the worker.
                    return NotImplemented
                if "." not in obj.__qualname__:
                    carried[obj.__qualname__] = obj
            return super().reducer_override(obj)

    return ByValue


class _WithoutMain(ForkingPickler):
    """Refuses here what could only be found missing in the worker."""

    def reducer_override(self, obj: Any) -> Any:
        if _is_in_main(obj):
            raise pickle.PicklingError(
                f"{obj.__qualname__} is defined in a session or script that has no file"
            )
        return NotImplemented
