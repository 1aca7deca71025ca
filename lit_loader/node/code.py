"""What the code of a function says: what it does, what it names, what it imports."""

from __future__ import annotations

import contextlib
import dis
import functools
import hashlib
import importlib.util
import os
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lit_loader.seeding.code_references import is_library
from lit_loader.seeding.plain_data import CLOSED

__all__ = [
    *("attribute", "behind", "code_of", "home", "imported_by", "is_foreign", "names_in"),
]

_SCRIPTS = ("__main__", "__mp_main__")


def code_of(code: types.CodeType) -> list[Any]:
    """Describe what a function does, without the lines on which it stands."""
    constants = [
        code_of(each) if isinstance(each, types.CodeType) else _constant(each)
        for each in code.co_consts
    ]
    arguments = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
    covered = getattr(code, "co_exceptiontable", b"")  # by try and with; before 3.11 in co_code
    return [code.co_code, covered, code.co_names, code.co_varnames, arguments, constants]


def _constant(value: Any) -> str:
    if isinstance(value, frozenset):  # in salted order
        return f"{{{sorted(map(_constant, value))}}}"
    if isinstance(value, tuple):
        return f"({[*map(_constant, value)]})"
    return repr(value)


def behind(thing: Any) -> list[Any] | None:
    """Give what is called where a thing stands for a function; None: it does not."""
    if isinstance(thing, functools.partial):
        return [thing.func, thing.args, thing.keywords, vars(thing)]
    if isinstance(thing, functools.partialmethod):
        return [thing.func, thing.args, thing.keywords]
    if isinstance(thing, types.MethodType):
        return [thing.__func__, thing.__self__]
    if isinstance(thing, (staticmethod, classmethod)):
        return [thing.__func__]
    if isinstance(thing, property):
        return [thing.fget, thing.fset, thing.fdel]
    wrapped = attribute(thing, "__wrapped__")  # functools.lru_cache
    return [wrapped] if callable(wrapped) else None


def attribute(thing: Any, name: str) -> Any:
    """Read an attribute; None if there is none, whatever a ``__getattr__`` raises."""
    try:
        return getattr(thing, name, None)
    except Exception:
        return None


def names_in(code: types.CodeType) -> dict[str, None]:
    """Give the names that code uses, those in inner functions included, in their order."""
    names = dict.fromkeys(code.co_names)
    for inner in _inner(code):
        names.update(names_in(inner))
    return names


def imported_by(code: types.CodeType, package: str | None) -> Iterator[str]:
    """Describe the user's modules that a function imports when it is called, by their files.

    Args:
        code: The function's.
        package: That it is in.
    """
    loaded: list[Any] = []  # what was put on the stack before: …, level, names
    for step in dis.get_instructions(code):
        if step.opname == "IMPORT_NAME":
            level = loaded[-2] if len(loaded) > 1 and isinstance(loaded[-2], int) else 0
            yield from _file_of("." * level + step.argval, package)
        elif step.opname.startswith("LOAD_"):
            loaded.append(step.argval)
    for inner in _inner(code):
        yield from imported_by(inner, package)


def _inner(code: types.CodeType) -> list[types.CodeType]:
    return [each for each in code.co_consts if isinstance(each, types.CodeType)]


def _file_of(module: str, package: str | None) -> Iterator[str]:
    """Describe the file of a module that need not be imported yet."""
    with contextlib.suppress(Exception):  # there is none: that is for the import to say
        name = importlib.util.resolve_name(module, package)
        if not is_foreign(name.partition(".")[0]):
            spec = importlib.util.find_spec(name)
            if spec is not None and spec.origin is not None:
                yield name
                yield hashlib.blake2b(Path(spec.origin).read_bytes()).hexdigest()


def is_foreign(root: str) -> bool:
    """Whether a package is not the user's own: Python's, ours, or an installed one."""
    return root in CLOSED or is_library(root)


def home(thing: Any) -> str:
    """Name a function or class, by its module; in a script, by its file."""
    module = thing.__module__
    if module in _SCRIPTS:
        module = os.path.realpath(getattr(sys.modules.get(module), "__file__", None) or "")
    return f"{module}.{thing.__qualname__}"
