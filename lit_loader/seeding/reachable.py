"""What an object leads to: attributes, items of containers, referents, and what its code uses.

One step of the search for random generators (`seeding/find_generators.py`): an object comes in, the
objects behind it go out, each with the step that leads there. No code of the user's is run: no
property, no ``__getattr__``. Data (`seeding/plain_data.py`) is not walked through: of long
containers only what could hold more than data. What functions and classes lead to is in
`seeding/code_references.py`.
"""

from __future__ import annotations

import functools
import gc
import itertools
import random
import types
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch
import torch.utils.data

from lit_loader.seeding.code_references import Lead, leads_of_class, leads_of_function
from lit_loader.seeding.plain_data import (
    FUNCTIONS,
    OPAQUE,
    PLAIN,
    SAMPLE,
    instance_dict,
    is_data,
    referent,
    root_of,
    slot_readers,
)
from lit_loader.seeding.searched_places import SearchedPlaces

__all__ = ["MAX_ITEMS", "MAX_SCANNED", "Cut", "leads"]

MAX_ITEMS = 256
"""Containers with more items than this are looked into only if they hold more than data."""

MAX_SCANNED = 10_000
"""Of containers with more items than this, `MAX_ITEMS` are looked at, evenly spread."""

_BIG = (torch.Tensor, np.ndarray, bytes)  # a cache of such must not be kept alive by being noted
_BY_REFERENTS = frozenset(
    {"builtins", "functools", "itertools", "operator", "collections", "numpy"}
)


def leads(
    value: Any, calls: int, searched: SearchedPlaces, seen: Mapping[int, object]
) -> Iterator[Lead]:
    """Give what a value leads to.

    Args:
        value: No leaf.
        calls: How many calls deep in library code it was found.
        searched: Notes what is looked at.
        seen: The objects (and classes) by their id that were looked into before.
    """
    kind = type(value)
    if issubclass(kind, (list, tuple, deque, dict, set, frozenset, np.ndarray)):
        for step, item in _items(value, kind, searched):
            yield step, item, calls
    elif issubclass(kind, functools.partial):
        yield from ((".func", value.func, calls), (".args", value.args, calls))
        yield ".keywords", value.keywords, calls
    elif kind is types.FunctionType:
        yield from leads_of_function(value, calls, searched)
    elif kind is types.MethodType:
        yield from ((".__self__", value.__self__, calls), (".__func__", value.__func__, calls))
    elif kind is types.BuiltinFunctionType:  # rng.normal, say
        if not issubclass(type(value.__self__), types.ModuleType):
            yield ".__self__", value.__self__, calls
    elif kind in (staticmethod, classmethod):
        yield "", value.__func__, calls
    elif kind is property:
        yield from (("", function, calls) for function in (value.fget, value.fset))
    elif issubclass(kind, type):
        yield from leads_of_class(value, calls, searched)
        metaclass: Any = kind
        if metaclass is not type:
            for base in metaclass.__mro__:
                if id(base) not in seen:
                    yield "<metaclass>", base, calls
    elif issubclass(kind, weakref.ref):
        yield "()", referent(value), calls
    elif kind is types.GeneratorType:
        for step, item in _of_generator(value, searched):
            yield step, item, calls
        return
    elif kind is ContextVar:
        read = functools.partial(_context_value, value)
        searched.readers.append(read)
        yield ".get()", read(), calls
        return
    if issubclass(kind, torch.utils.data.DataLoader):
        # What it makes is its own; the dataset may be used besides.
        yield ".dataset", value.__dict__.get("dataset"), calls
        yield ".collate_fn", value.__dict__.get("collate_fn"), calls
        return
    root = root_of(kind)
    if root in OPAQUE or kind in _FRAMES or (root == "lit_loader" and hasattr(kind, "__next__")):
        return
    yield from _attributes(value, kind, calls, searched)
    if root in _BY_REFERENTS and not issubclass(kind, (type, *FUNCTIONS, *_CONTAINERS)):
        for number, item in enumerate(_referents(value)):
            yield f"<{number}>", item, calls
    if not issubclass(kind, type):
        for base in kind.__mro__:
            if id(base) not in seen:
                yield "", base, calls


def _context_value(variable: ContextVar[Any]) -> Any:
    try:
        return variable.get()
    except LookupError:
        return None


class _Suspended:
    """What a generator object holds: its locals, and what it is in the midst of."""

    def __init__(self, generator: types.GeneratorType[Any, Any, Any]) -> None:
        self._generator = generator

    def __iter__(self) -> Iterator[Any]:
        held = _referents(self._generator)
        for frame in [each for each in held if type(each) is types.FrameType]:  # Python 3.10
            known = (frame.f_globals, frame.f_builtins)
            held += [each for each in _referents(frame) if not any(each is one for one in known)]
        return (each for each in held if type(each) not in _FRAMES)


def _of_generator(
    generator: types.GeneratorType[Any, Any, Any], searched: SearchedPlaces
) -> Iterator[tuple[str, Any]]:
    place = _Suspended(generator)
    searched.places.append(place)
    frame = generator.gi_frame
    if frame is None:
        return
    held = frame.f_locals
    variables = list(held.items())
    if type(held) is dict:  # a copy (Python < 3.13), which the frame keeps: values must be free
        held.clear()
    for name, item in variables:  # by name: which of them there are changes while it runs
        yield f"<{name}>", item
    named = {id(item) for _, item in variables}
    others = (each for each in place if id(each) not in named and each is not held)
    for number, item in enumerate(others):
        yield f"<{number}>", item


def _attributes(value: Any, kind: type, calls: int, searched: SearchedPlaces) -> Iterator[Lead]:
    attributes = instance_dict(value, kind)
    if attributes is not None:
        searched.places.append(attributes.values())
        for name, item in list(attributes.items()):
            yield f".{name}", item, calls
    for name, read in slot_readers(value, kind):
        searched.readers.append(read)
        yield f".{name}", read(), calls


_FRAMES = (types.FrameType, types.TracebackType)
_SPECIAL = (random.Random, np.random.RandomState, type, *FUNCTIONS, functools.partial)
_CONTAINERS = (list, tuple, deque, dict, set, frozenset, np.ndarray, functools.partial)


def _items(value: Any, kind: type, searched: SearchedPlaces) -> Iterator[tuple[str, Any]]:
    """Give the items that may lead to something."""
    keys: list[Any] | None = None
    if issubclass(kind, dict):
        length = dict.__len__(value)
        entries = [*itertools.islice(dict.items(value), MAX_SCANNED)]
        keys, items = [key for key, _ in entries], [item for _, item in entries]
    elif issubclass(kind, np.ndarray):
        value = value.view(np.ndarray)
        length, items = value.size, list(value.flat[:MAX_SCANNED])
    else:
        length = len(value)
        items = list(_some(value, kind, length))
    chosen = _chosen(items, length <= MAX_SCANNED, searched)
    if chosen is None:
        return
    if length <= MAX_SCANNED and not any(issubclass(type(item), _BIG) for item in items):
        if issubclass(kind, dict):
            searched.places.append(dict.values(value))
        elif not issubclass(kind, (tuple, frozenset)):
            searched.places.append(value.ravel() if issubclass(kind, np.ndarray) else value)
    for number in chosen:
        if keys is not None and type(keys[number]) in (str, int):
            yield f"[{keys[number]!r}]", items[number]
        else:
            yield "{}" if issubclass(kind, (set, frozenset)) else f"[{number}]", items[number]
    if length > MAX_SCANNED:
        yield "", Cut(f"one of its {length:,} items")


class Cut:
    """Stands for objects that the search leaves out.

    Attributes:
        what: Which, in words.
    """

    def __init__(self, what: str) -> None:
        self.what = what


def _some(value: Any, kind: type, length: int) -> Iterable[Any]:
    if length <= MAX_SCANNED or not issubclass(kind, (list, tuple)):
        return itertools.islice(value, MAX_SCANNED)
    return value[:: max(1, length // MAX_ITEMS)]  # type: ignore[no-any-return]


def _chosen(items: list[Any], whole: bool, searched: SearchedPlaces) -> Iterable[int] | None:
    """Give the numbers of those items that are looked into; None: it is data, all of it."""
    numbers = [number for number, item in enumerate(items) if type(item) not in PLAIN]
    if len(items) <= MAX_ITEMS and whole:
        return numbers
    sample = numbers[:: max(1, len(numbers) // SAMPLE)]
    if (sample or not whole) and all(
        is_data(items[number], records=not whole) for number in sample
    ):
        return None
    kinds: dict[type, bool] = {}
    return [number for number in numbers if not _is_record(items[number], kinds, searched)]


def _is_record(value: Any, kinds: dict[type, bool], searched: SearchedPlaces) -> bool:
    """Whether an object has nothing but data in its attributes; the first of a kind is looked into.

    A table of 10,000 objects is gone through in a tenth of the time.
    """
    kind = type(value)
    if kind not in kinds:
        kinds[kind] = bool(kind.__dictoffset__) and not (
            issubclass(kind, _SPECIAL) or any("__slots__" in base.__dict__ for base in kind.__mro__)
        )
        return False
    if not kinds[kind]:
        return False
    attributes = object.__getattribute__(value, "__dict__")
    if type(attributes) is not dict or not PLAIN.issuperset(map(type, attributes.values())):
        return False
    searched.places.append(attributes.values())
    return True


def _referents(value: Any) -> list[Any]:
    """Give what an object of a type that is written in C holds: caches, iterators, proxies."""
    return [item for item in gc.get_referents(value) if not issubclass(type(item), type)]
