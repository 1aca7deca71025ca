"""What a function or class does, in words: its code, and what that names of the user's own.

::

    function ─▶ code, defaults ─▶ names in it ─▶ functions, classes and constants behind them ─▶ …
    class ────▶ methods, attributes, bases ──────╯

So a changed helper or constant is another thing. Of objects their class counts; installed packages,
Python's own library, environment variables and files do not.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterator
from typing import Any, Final

from lit_loader.seeding.code_references import is_library
from lit_loader.seeding.plain_data import root_of

__all__ = ["PLAIN", "code_of", "code_parts"]

PLAIN: Final = (int, float, complex, bool, str, bytes, type(None))
"""Kinds of which the value says all."""

_FOREIGN: Final = {"builtins", "lit_loader", "typing", "torch", "numpy", *sys.stdlib_module_names}
_MEMBERS: Final = (types.FunctionType, staticmethod, classmethod, property)


def code_parts(thing: Any, seen: dict[int, Any] | None = None) -> Iterator[str]:
    """Describe a function, a class, or what their code names, piece by piece.

    Args:
        thing: The function or class.
        seen: What was described before, by its id: held, so that no other thing has that id.
    """
    seen = {} if seen is None else seen
    kind = type(thing)
    yield kind.__qualname__
    if kind in PLAIN:
        yield repr(thing)
        return
    if id(thing) in seen:
        return
    seen[id(thing)] = thing
    if isinstance(thing, functools.partial):
        thing = [thing.func, thing.args, thing.keywords]
    elif isinstance(thing, dict):
        thing = [each for item in thing.items() for each in item]
    if isinstance(thing, (list, tuple)):
        if all(type(each) in PLAIN for each in thing):
            yield repr(list(thing))
            return
        for each in thing:
            yield from code_parts(each, seen)
    elif isinstance(thing, (set, frozenset)):
        yield from sorted("\0".join(code_parts(each, dict(seen))) for each in thing)
    elif isinstance(thing, (staticmethod, classmethod, types.MethodType)):
        yield from code_parts(thing.__func__, seen)
    elif isinstance(thing, property):
        yield from code_parts((thing.fget, thing.fset, thing.fdel), seen)
    elif isinstance(thing, (types.FunctionType, type)):
        yield _home(thing)
        if not _is_foreign(thing):
            yield from _of_class(thing, seen) if isinstance(thing, type) else _of(thing, seen)
    elif callable(getattr(thing, "__wrapped__", None)):  # functools.lru_cache
        yield from code_parts(thing.__wrapped__, seen)
    else:
        yield from code_parts(kind, seen)


def _of(function: types.FunctionType, seen: dict[int, Any]) -> Iterator[str]:
    """Describe a function's code and all that it names."""
    code = function.__code__
    yield str(code_of(code))
    cells = [_contents(cell) for cell in function.__closure__ or ()]
    yield from code_parts([function.__defaults__, function.__kwdefaults__, cells], seen)
    yield from _named(list(_names(code)), function.__globals__, seen)


def _named(names: list[str], namespace: dict[str, Any], seen: dict[int, Any]) -> Iterator[str]:
    for name in names:
        if name not in namespace:
            continue
        value = namespace[name]
        yield name
        if not isinstance(value, types.ModuleType):
            yield from code_parts(value, seen)
        elif not _is_foreign_root(value.__name__.partition(".")[0]) and id(value) not in seen:
            seen[id(value)] = value  # of a package that names itself
            yield from _named(names, vars(value), seen)
            del seen[id(value)]


def _of_class(kind: type, seen: dict[int, Any]) -> Iterator[str]:
    """Describe the methods and attributes of a class and of those that it derives from."""
    for base in kind.__mro__:
        root = base.__module__.partition(".")[0]
        if root in _FOREIGN:
            continue
        for name, member in sorted(vars(base).items()):
            if name.startswith("__") and not isinstance(member, _MEMBERS):
                continue  # what Python notes there, pickle at first use, say
            yield name
            if not is_library(root):
                yield from code_parts(member, seen)
            elif isinstance(function := getattr(member, "__func__", member), types.FunctionType):
                yield str(code_of(function.__code__))


def _is_foreign(thing: Any) -> bool:
    """Whether a function or class is not the user's own."""
    return _is_foreign_root(root_of(thing)) and not (
        # An installed dataset's methods may be exchanged in a running program.
        isinstance(thing, type) and root_of(thing) not in _FOREIGN
    )


def _is_foreign_root(root: str) -> bool:
    return root in _FOREIGN or is_library(root)


def _home(thing: Any) -> str:
    return f"{thing.__module__}.{thing.__qualname__}"


def _names(code: types.CodeType) -> dict[str, None]:
    """Give the names that code uses, that of inner functions included, in their order."""
    names = dict.fromkeys(code.co_names)
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            names.update(_names(each))
    return names


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not bound yet
        return None


def code_of(code: types.CodeType) -> list[Any]:
    """Describe what a function does, without the lines on which it stands."""
    constants = [
        code_of(each) if isinstance(each, types.CodeType) else repr(each)
        for each in code.co_consts
        if not isinstance(each, frozenset)  # in salted order
    ]
    return [code.co_code, code.co_names, constants]
