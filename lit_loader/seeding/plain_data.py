"""Which objects are data and nothing else, so that no random generator can be behind them.

Used by the search for generators (`seeding/find_generators.py`), which does not walk through data.
No code of the user's is run: attributes are read past properties and ``__getattr__``.
"""

from __future__ import annotations

import functools
import itertools
import sys
import threading
import types
import weakref
from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np
import torch

__all__ = [
    "CLOSED",
    "FUNCTIONS",
    "OPAQUE",
    "PLAIN",
    "SAMPLE",
    "instance_dict",
    "is_data",
    "is_leaf",
    "may_lead",
    "referent",
    "root_of",
    "slot_readers",
]

_LEAVES = (str, bytes, bytearray, int, float, complex, type(None), slice, range, types.CodeType)
PLAIN = frozenset(_LEAVES) | {bool, torch.Tensor, type(Ellipsis), types.NotImplementedType}
SAMPLE = 64
_DATA_DEPTH = 4
CLOSED = frozenset(sys.stdlib_module_names) | {"numpy", "torch", "lit_loader"}
# Their objects (locks, loggers, queues, streams, ...) lead far away and hold no generator.
OPAQUE = frozenset(
    {
        *("abc", "ast", "asyncio", "concurrent", "contextvars", "ctypes", "datetime", "decimal"),
        *("enum", "fractions", "importlib", "inspect", "io", "_io", "ipaddress", "logging", "mmap"),
        *("multiprocessing", "pathlib", "queue", "re", "selectors", "signal", "socket", "sqlite3"),
        *("ssl", "subprocess", "sys", "tempfile", "threading", "traceback", "typing", "unittest"),
        *("uuid", "warnings", "zipfile", "zipimport", "zoneinfo"),
        # Clients of object storage: many thousand objects, and no sample draws from them.
        *("adlfs", "aiobotocore", "aiohttp", "boto3", "botocore", "fsspec", "gcsfs", "requests"),
        *("s3fs", "urllib3"),
    }
)
FUNCTIONS = (types.FunctionType, types.MethodType, types.BuiltinFunctionType)


def is_leaf(value: Any) -> bool:
    """Whether nothing is to be found in there."""
    kind = type(value)
    if kind in PLAIN or issubclass(kind, (*_LEAVES, torch.Tensor, np.generic, types.ModuleType)):
        return True
    return issubclass(kind, np.ndarray) and value.dtype != object


def is_data(value: Any, records: bool, depth: int = _DATA_DEPTH) -> bool:
    """Whether a value is data: leaves, in containers or (``records``) in attributes."""
    if is_leaf(value):
        return True
    kind = type(value)
    if depth == 0 or kind in (*FUNCTIONS, functools.partial, type):
        return False
    parts: Collection[Any]
    if issubclass(kind, weakref.ref):
        parts = [referent(value)]
    elif kind in (list, tuple, set, frozenset, dict):
        parts = dict.values(value) if kind is dict else value
    elif kind is threading.local or (records and root_of(kind) not in CLOSED):
        parts = [*(instance_dict(value, kind) or {}).values()]
        parts += [read() for _, read in slot_readers(value, kind)]
    else:
        return root_of(kind) in OPAQUE
    some = itertools.islice(parts, SAMPLE)
    return all(is_data(part, records, depth - 1) for part in some)


def may_lead(value: Any) -> bool:
    """Whether what is new in a place leads to something."""
    if issubclass(type(value), types.ModuleType):  # imported by a function, when it was called
        name = object.__getattribute__(value, "__dict__").get("__name__")
        return str(name).partition(".")[0] not in CLOSED
    return not is_data(value, records=False)


def instance_dict(value: Any, kind: type) -> dict[str, Any] | None:
    """Give the ``__dict__`` of an object that is neither function nor class, if it has one."""
    if kind is types.FunctionType or issubclass(kind, type):
        return None
    try:
        reads = threading.local if issubclass(kind, threading.local) else object
        attributes = reads.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return attributes if type(attributes) is dict else None


def slot_readers(value: Any, kind: type) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Give the names of an object's ``__slots__``, each with a function that reads it."""
    if kind is types.FunctionType or issubclass(kind, type):
        return
    for base in kind.__mro__:
        if "__slots__" in base.__dict__:
            for name, slot in base.__dict__.items():
                if type(slot) is types.MemberDescriptorType:
                    yield name, functools.partial(_slot, slot, value)


def _slot(slot: Any, value: Any) -> Any:
    try:
        return slot.__get__(value, type(value))
    except AttributeError:
        return None  # never assigned


def referent(reference: weakref.ref[Any]) -> Any:
    """Give what a weak reference is to; of one to a method the method."""
    if issubclass(type(reference), weakref.WeakMethod):
        return weakref.WeakMethod.__call__(reference)  # type: ignore[arg-type]
    return weakref.ref.__call__(reference)


def root_of(code: Any) -> str:
    """Give the package that a class or function is of."""
    module = getattr(code, "__module__", None)
    return module.partition(".")[0] if isinstance(module, str) else ""
