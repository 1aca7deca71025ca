"""`Parts`: what a thing depends on, in words, the same in all processes for equal things.

::

    argument ─▶ values, containers, objects (pickled) ─╮
                                                       ├─▶ functions and classes ─▶ code, and what
    what code names, of the user's own ────────────────╯        ▲                   that names ─╮
                                                                ╰───────────────────────────────╯

So another argument, a changed helper or a changed constant is another thing. Installed packages,
Python's own library, environment variables and files do not count.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import pickle
import random
import types
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import torch

from lit_loader.describe import short_repr
from lit_loader.errors import OptionError
from lit_loader.node.code import (
    attribute,
    behind,
    code_of,
    home,
    imported_by,
    is_foreign,
    names_in,
)
from lit_loader.seeding.code_references import is_library
from lit_loader.seeding.plain_data import CLOSED, instance_dict, root_of
from lit_loader.system.tensor_bytes import tensor_bytes

__all__ = ["Parts"]

_PLAIN: Final = (int, float, complex, bool, str, bytes, type(None))
_CODE: Final = (types.FunctionType, type)
_MEMBERS: Final = (types.FunctionType, staticmethod, classmethod, property)
_DESCRIPTORS: Final = (types.GetSetDescriptorType, types.MemberDescriptorType)
_BUILTIN: Final = (
    *(list, tuple, set, frozenset, dict, functools.partial, functools.partialmethod),
    *(types.MethodType, staticmethod, classmethod, property),
)
_NOTED: Final = frozenset(
    f"__{name}__"
    for name in (
        *("abstractmethods", "annotate", "annotations", "annotations_cache", "classdictcell"),
        *("dataclass_fields", "dataclass_params", "dict", "doc", "firstlineno", "match_args"),
        *("module", "orig_bases", "parameters", "qualname", "slotnames", "static_attributes"),
        *("type_params", "weakref"),
    )
)
"""What Python itself notes in a class, some of it when it is first used."""
_GENERATORS: Final = (
    *(random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator),
    torch.Generator,
)


class Parts:
    """Describes things, piece by piece; each function and class once.

    Args:
        objects: Whether what objects hold counts, or their class alone.
    """

    def __init__(self, objects: bool = True) -> None:
        self._objects = objects
        self._known: dict[int, Any] = {}  # functions and classes by their ids, which they keep so
        self._in: set[str] = set()  # modules that are being described

    def of(self, thing: Any) -> Iterator[str]:
        """Describe an argument.

        Raises:
            OptionError: It holds what cannot be told from others.
        """
        return self._of(thing, strict=True, above=frozenset())

    def _of(self, thing: Any, strict: bool, above: frozenset[int]) -> Iterator[str]:
        """Describe a thing.

        Args:
            thing: Anything.
            strict: It must be possible to tell it from others. It need not of what code names.
            above: Ids of the containers and objects that it is in.
        """
        kind = type(thing)
        yield kind.__qualname__
        if kind in _PLAIN:
            yield repr(thing)
        elif isinstance(thing, _CODE):
            yield from self._of_code(thing, strict)
        elif id(thing) not in above:
            inside = self._inside(thing)
            above |= {id(thing)}
            if isinstance(thing, Mapping) and (target := _target(thing)) is not None:
                yield from self._of(target, False, above)
            if inside is None:
                yield from self._of_object(thing, strict, above)
            elif isinstance(thing, (set, frozenset)):
                yield from sorted(self.apart(each, strict, above) for each in inside)
                yield from self._of_kind(thing, strict, above)
            elif set(map(type, inside)) <= {*_PLAIN}:
                yield repr(inside)
                yield from self._of_kind(thing, strict, above)
            else:
                yield str(len(inside))
                for each in inside:
                    yield from self._of(each, strict, above)
                yield from self._of_kind(thing, strict, above)

    def _of_kind(self, thing: Any, strict: bool, above: frozenset[int]) -> Iterator[str]:
        """Describe what a container is besides its items, where it is none of Python's own."""
        kind = type(thing)
        if kind in _BUILTIN:
            return
        yield from self._of(kind, strict, above)
        if isinstance(thing, _BUILTIN):  # attributes of a mapping are how it keeps its items
            yield from self._of(instance_dict(thing, kind), False, above)
        if isinstance(thing, defaultdict):
            yield from self._of(thing.default_factory, False, above)

    def apart(self, thing: Any, strict: bool = False, above: frozenset[int] = frozenset()) -> str:
        """Describe a thing as if it came next, whatever else comes before or after it."""
        known = dict(self._known)
        try:
            return "\0".join(self._of(thing, strict, above))
        finally:
            self._known = known

    def _inside(self, thing: Any) -> list[Any] | None:
        """Give what is in a container, or in what stands for a function; None: it is an object."""
        if isinstance(thing, (list, tuple, set, frozenset)):
            return list(thing)
        if isinstance(thing, Mapping):
            return [each for item in thing.items() for each in item]
        if callable(parts := attribute(thing, "fingerprint_parts")):
            return [parts()]
        return behind(thing)

    def _of_object(self, thing: Any, strict: bool, above: frozenset[int]) -> Iterator[str]:
        yield from self._of(type(thing), strict, above)
        if isinstance(thing, _GENERATORS) and not strict:
            return  # each process has another, and to draw from it is refused
        if self._objects:
            try:
                yield self._pickled(thing)
                return
            except Exception as error:
                if strict:
                    raise OptionError(
                        "the factory has an argument or variable that cannot be compared, "
                        f"{short_repr(thing)} ({type(error).__name__}: {error}): shared_dataset "
                        "must know which processes mean the same dataset; pass what can be "
                        "pickled, such as paths and numbers"
                    ) from error
        for name, value in (instance_dict(thing, type(thing)) or {}).items():
            if self._objects or isinstance(value, (*_CODE, functools.partial)):
                yield name  # of a functools.cached_property, say
                yield from self._of(value, False, above)

    def _pickled(self, thing: Any) -> str:
        """Describe an object by its pickle, in which code is described, and not only named."""
        file = io.BytesIO()
        pickler = _Pickler(file, self)
        pickler.fast = True  # equal ones give equal bytes, whether parts are shared or not
        try:
            pickler.dump(thing)
        except ValueError:  # it is in itself
            file = io.BytesIO()
            _Pickler(file, self).dump(thing)
        return hashlib.blake2b(file.getbuffer()).hexdigest()

    def _of_code(self, thing: Any, strict: bool) -> Iterator[str]:
        yield home(thing)
        if id(thing) in self._known:
            yield str([*self._known].index(id(thing)))  # others may have the same name
            return
        self._known[id(thing)] = thing
        if isinstance(thing, type):
            yield from self._of_class(thing)
        elif not is_foreign(root_of(thing)):
            yield from self._of_function(thing, strict)

    def _of_function(self, function: types.FunctionType, strict: bool) -> Iterator[str]:
        code, namespace = function.__code__, function.__globals__
        yield str(code_of(code))
        cells = [_contents(cell) for cell in function.__closure__ or ()]
        held = [function.__defaults__, function.__kwdefaults__, vars(function), cells]
        yield from self._of(held, strict, frozenset())
        yield from self._named(list(names_in(code)), namespace)
        yield from imported_by(code, namespace.get("__package__"))

    def _named(self, names: list[str], namespace: dict[str, Any]) -> Iterator[str]:
        """Describe what names mean in a module, and in the user's modules that they name there."""
        for name in names:
            value = namespace.get(name, _Nothing)
            if value is _Nothing:
                continue
            yield name
            if not isinstance(value, types.ModuleType):
                yield from self._of(value, False, frozenset())
            elif value.__name__ not in self._in and not is_foreign(value.__name__.split(".")[0]):
                self._in.add(value.__name__)  # it may name itself
                yield from self._named(names, vars(value))
                self._in.discard(value.__name__)

    def _of_class(self, kind: type) -> Iterator[str]:
        """Describe the methods and attributes of a class and of those that it derives from."""
        metaclass: Any = type(kind)
        for base in (*kind.__mro__, *metaclass.__mro__):
            root = root_of(base)
            if root in CLOSED:
                continue
            for name, member in sorted(vars(base).items()):
                if name in _NOTED or isinstance(member, _DESCRIPTORS):
                    continue
                if not is_library(root):
                    yield name
                    yield from self._of(member, False, frozenset())
                elif isinstance(code := getattr(member, "__func__", member), types.FunctionType):
                    # It may have been exchanged in a running program.
                    yield f"{name} {code_of(code.__code__)}"


class _Nothing:
    """What no name means."""


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, parts: Parts) -> None:
        super().__init__(file, 5)
        self._parts = parts
        self._described: dict[int, tuple[Any, str]] = {}  # by id; held, so that the id stays its

    def reducer_override(self, thing: Any) -> Any:
        """Put the description of the user's functions and classes in place of their names.

        And of a tensor its bytes: what it is pickled as is another thing each time.
        """
        if isinstance(thing, torch.Tensor):
            with contextlib.suppress(Exception):  # of a sparse one, say
                digest = hashlib.blake2b(tensor_bytes(thing).data).hexdigest()
                return str, (f"{type(thing)} {thing.dtype} {[*thing.shape]} {digest}",)
        if isinstance(thing, _CODE) and not is_foreign(root_of(thing)):
            if id(thing) not in self._described:
                text = self._parts.apart(thing).encode("utf-8", "surrogatepass")
                self._described[id(thing)] = thing, hashlib.blake2b(text).hexdigest()
            return str, (self._described[id(thing)][1],)
        return NotImplemented


def _target(mapping: Mapping[Any, Any]) -> Any:
    """Give what Hydra calls for a node, or None."""
    try:
        name = mapping.get("_target_")
        if not isinstance(name, str):
            return None
        import pydoc  # and much else with it

        return pydoc.locate(name)
    except Exception:  # there is none: that is for Hydra to say
        return None


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not bound yet
        return None
