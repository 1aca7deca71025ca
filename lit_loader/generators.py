"""Random generators that a dataset holds itself, found once and reseeded like the global ones.

Seeding ``random``, ``numpy.random`` and torch does not reach an attribute ``self.rng``. Between
workers that pull their tasks such a generator would make results depend on who did what.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import random
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from lit_loader.seeding import derive

__all__ = ["HeldGenerators", "MAX_DEPTH", "MAX_ITEMS", "MAX_OBJECTS", "find_generators"]

MAX_DEPTH = 16
"""Steps (attribute, item, closure cell, ...) that are followed from a root."""

MAX_OBJECTS = 10_000
"""Objects that are looked into, breadth first: 20 to 50 ms at worker start at the worst."""

MAX_ITEMS = 256
"""Containers with more items than this are not looked into: they hold data, not transforms."""

_LEAVES = (str, bytes, bytearray, int, float, complex, type(None), type, types.ModuleType)
_ARRAYS = (torch.Tensor, np.ndarray, np.generic)
_GLOBALS: tuple[Any, ...] = (
    random.seed.__self__,  # type: ignore[attr-defined]
    np.random.mtrand._rand,
    torch.default_generator,
)
# Their objects (locks, loggers, queues, ...) lead far away and hold no generator of the user's.
_OPAQUE = frozenset(sys.stdlib_module_names) - {"types"} | {"numpy"}
_Reseed = Callable[[int], object]


class HeldGenerators:
    """The generators that `find_generators` found.

    Attributes:
        paths: Where each was found first, such as ``Digits.transform.rng``, sorted.
        complete: Whether the search ended by itself and not at one of its limits of depth or
            number of objects.
        generators: The generators themselves, in the order of ``paths``.
    """

    def __init__(self, found: dict[str, list[tuple[Any, _Reseed]]], complete: bool) -> None:
        pairs = [(path, *pair) for path in sorted(found) for pair in found[path]]
        self.paths = [path for path, _, _ in pairs]
        self.complete = complete
        self.generators = [generator for _, generator, _ in pairs]
        # By path and not by number: what else is found must not change a generator's stream.
        self._reseeds = [(_hash(path), reseed) for path, _, reseed in pairs]

    def __len__(self) -> int:
        """Give the number of generators found."""
        return len(self._reseeds)

    def reseed(self, seed: int) -> None:
        """Reseed each generator in place, with a stream of its own derived from ``seed``.

        Args:
            seed: 64-bit seed; a batch's or a sample's.
        """
        for name, reseed in self._reseeds:
            reseed(derive(seed, name))


def find_generators(*roots: object) -> HeldGenerators:
    """Find the random generators that objects hold or functions use.

    Looked into: attributes (``__dict__``, ``__slots__``, class attributes), items of lists, tuples,
    deques, dicts and sets, ``functools.partial``, bound methods, and of functions closures,
    defaults and the global names that they and methods of the objects' classes load. No code of
    the user is run: no property, no ``__getattr__``. Not looked into: tensors, arrays, modules,
    objects of the standard library and of NumPy, containers of more than `MAX_ITEMS` items.

    Found: ``numpy.random.Generator``, ``BitGenerator`` and ``RandomState``, ``torch.Generator``,
    ``random.Random``, and what derives from them; not the three global ones. Members of a set have
    no order that two processes agree on, so they share a path, and thereby their seeds.

    Args:
        *roots: The dataset, the collate_fn, ...
    """
    found: dict[str, list[tuple[Any, _Reseed]]] = {}
    complete = True
    queue = deque((root, getattr(type(root), "__name__", "?"), 0) for root in roots)
    # Objects made on the way (bound methods, say) must live on, or another would get their id.
    seen: dict[int, object] = {id(known): known for known in _GLOBALS}
    while queue:
        value, path, depth = queue.popleft()
        kind = type(value)
        if issubclass(kind, _LEAVES) or issubclass(kind, _ARRAYS) or id(value) in seen:
            continue
        if depth > MAX_DEPTH or len(seen) > MAX_OBJECTS:
            complete = False
            continue
        seen[id(value)] = value
        if issubclass(kind, np.random.Generator):
            queue.appendleft((value.bit_generator, path, depth))  # type: ignore[attr-defined]
        elif (reseed := _reseeder(value)) is not None:
            found.setdefault(path, []).append((value, reseed))
        else:
            for step, child in _children(value, kind, seen):
                queue.append((child, path + step, depth + 1))
    return HeldGenerators(found, complete)


def _reseeder(value: Any) -> _Reseed | None:
    """Give the function that reseeds a generator; None if ``value`` is none that can be."""
    kind = type(value)
    if issubclass(kind, torch.Generator):
        return value.manual_seed  # type: ignore[no-any-return]
    if issubclass(kind, random.Random):
        return value.seed  # type: ignore[no-any-return]
    if issubclass(kind, np.random.BitGenerator):
        return functools.partial(_reseed_bits, value)
    if issubclass(kind, np.random.RandomState):
        return functools.partial(_reseed_random_state, value)
    return None


def _reseed_bits(bits: Any, seed: int) -> None:
    bits.state = type(bits)(seed).state


def _reseed_random_state(generator: np.random.RandomState, seed: int) -> None:
    try:
        generator.seed(seed >> 32)
    except TypeError:  # not a Mersenne Twister
        kind = generator.get_state(legacy=False)["bit_generator"]
        fresh = np.random.RandomState(getattr(np.random, kind)(seed))
        generator.set_state(fresh.get_state(legacy=False))


def _children(value: Any, kind: type, seen: dict[int, object]) -> Iterator[tuple[str, Any]]:
    if issubclass(kind, (list, tuple, deque)):
        if len(value) <= MAX_ITEMS:
            yield from ((f"[{number}]", item) for number, item in enumerate(value))
    elif issubclass(kind, dict):
        if dict.__len__(value) <= MAX_ITEMS:
            for number, (key, item) in enumerate(dict.items(value)):
                yield f"[{key!r}]" if type(key) in (str, int) else f"[{number}]", item
    elif issubclass(kind, (set, frozenset)):
        if len(value) <= MAX_ITEMS:
            yield from (("{}", item) for item in value)
    elif issubclass(kind, functools.partial):
        yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
    elif kind is types.FunctionType:
        yield from _function_children(value)
    elif kind is types.MethodType:
        yield from ((".__self__", value.__self__), (".__func__", value.__func__))
    elif kind is types.BuiltinFunctionType:  # rng.normal, say
        yield ".__self__", value.__self__
    if kind.__module__.partition(".")[0] not in _OPAQUE:
        yield from _attributes(value, kind)
        for base in kind.__mro__:
            root = base.__module__.partition(".")[0]
            if id(base) not in seen and root not in _OPAQUE and root != "torch":
                seen[id(base)] = base
                yield from _class_children(base)


def _attributes(value: Any, kind: type) -> Iterator[tuple[str, Any]]:
    try:
        attributes = object.__getattribute__(value, "__dict__")
    except AttributeError:
        attributes = None
    if type(attributes) is dict:
        yield from ((f".{name}", item) for name, item in list(attributes.items()))
    for base in kind.__mro__:
        if "__slots__" in base.__dict__:
            for name, slot in base.__dict__.items():
                if type(slot) is types.MemberDescriptorType:
                    try:
                        yield f".{name}", slot.__get__(value, kind)
                    except AttributeError:
                        continue  # never assigned


def _class_children(kind: type) -> Iterator[tuple[str, Any]]:
    for name, member in kind.__dict__.items():
        if isinstance(member, (staticmethod, classmethod)):
            member = member.__func__
        elif isinstance(member, property):
            member = member.fget
        if name not in ("__dict__", "__weakref__"):
            yield f".{name}", member


def _function_children(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    if function.__module__ and function.__module__.partition(".")[0] in (*_OPAQUE, "torch"):
        return
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f"<{name}>", cell.cell_contents
        except ValueError:
            continue  # never assigned
    yield "<defaults>", function.__defaults__
    yield "<defaults>", function.__kwdefaults__
    yield "", function.__dict__
    for name in _global_names(function.__code__):
        if name in function.__globals__:
            yield f"<global {name}>", function.__globals__[name]


def _global_names(code: types.CodeType) -> list[str]:
    """Give the global names that a function, or one defined in it, loads."""
    names = {i.argval for i in dis.get_instructions(code) if i.opname == "LOAD_GLOBAL"}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names.update(_global_names(constant))
    return sorted(names)


def _hash(path: str) -> int:
    digest = hashlib.blake2b(path.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")
