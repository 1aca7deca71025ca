"""What functions and classes lead to: closures, defaults, the names that their code loads, members.

Used by the search for generators (`seeding/reachable.py`). Code is read, never run: the names are
taken out of its instructions.

*Library code* (installed packages) is followed for `LIBRARY_CALLS` calls, within its own package;
the code of the standard library, NumPy, torch and this package is not followed.
"""

from __future__ import annotations

import dis
import functools
import sys
import types
from collections.abc import Iterator
from typing import Any

from lit_loader.seeding.plain_data import CLOSED, root_of
from lit_loader.seeding.searched_places import SearchedPlaces

__all__ = ["LIBRARY_CALLS", "Lead", "leads_of_class", "leads_of_function"]

LIBRARY_CALLS = 2
"""So many calls deep the code of installed packages is looked into."""

Lead = tuple[str, Any, int]
"""A step, what it leads to, and how many calls deep in library code that is (0: none)."""


def leads_of_class(kind: type, calls: int, searched: SearchedPlaces) -> Iterator[Lead]:
    """Give the members of a class; arguments as of `seeding/reachable.py`'s ``leads``."""
    root = root_of(kind)
    if root in CLOSED or calls > LIBRARY_CALLS:
        return
    # What is wrong with a library's own objects (schemas, registries) is not the user's to mend.
    calls = max(calls, is_library(root))
    members = type.__dict__["__dict__"].__get__(kind)
    searched.places.append(members.values())
    for name, member in list(members.items()):
        if name not in ("__dict__", "__weakref__"):
            yield f".{name}", member, calls


def leads_of_function(
    function: types.FunctionType, calls: int, searched: SearchedPlaces
) -> Iterator[Lead]:
    """Give what a function was given, and what it names; arguments as of ``leads_of_class``."""
    root = root_of(function)
    if root in CLOSED:
        # Not its code; but what it was given, and what it wraps.
        yield from _given(function, calls, searched)
        return
    package = root if is_library(root) else ""
    inner = calls + 1 if package else calls
    if inner > LIBRARY_CALLS + 1:
        return
    yield from _given(function, calls, searched)
    loaded, imported, members, attributes = _names(function.__code__)
    package_name = function.__globals__.get("__package__")
    if imported and isinstance(package_name, str):  # perhaps by a relative name
        imported = [*imported, *(f"{package_name}.{name}".rstrip(".") for name in imported)]
    for namespace, names in ((function.__globals__, loaded), (sys.modules, imported)):
        searched.note_names(namespace, names)
        for name in names:
            if name in namespace:
                value, step = namespace[name], f"<global {name}>"
                if issubclass(type(value), types.ModuleType):
                    searched.note_names(object.__getattribute__(value, "__dict__"), members)
                    yield from _of_module(value, step, attributes, inner, searched, package)
                elif not _is_foreign(value, package):
                    yield step, value, inner


def _given(function: types.FunctionType, calls: int, searched: SearchedPlaces) -> Iterator[Lead]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        read = functools.partial(_cell, cell)
        searched.readers.append(read)
        yield f"<{name}>", read(), calls
    yield "<defaults>", function.__defaults__, calls
    yield "<defaults>", function.__kwdefaults__, calls
    yield "", function.__dict__, calls


def _of_module(
    module: types.ModuleType,
    step: str,
    attributes: frozenset[str],
    calls: int,
    searched: SearchedPlaces,
    package: str,
    depth: int = 3,
) -> Iterator[Lead]:
    """Give what code that knows a module and these attributes may get from it."""
    namespace = object.__getattribute__(module, "__dict__")
    root = module.__name__.partition(".")[0]
    if root in CLOSED or (package and root != package):
        return
    calls = max(calls, is_library(root))  # a library's own objects are not the user's to mend
    names = attributes & namespace.keys()
    searched.note_names(namespace, names)
    for name in sorted(names):
        value = namespace[name]
        if not issubclass(type(value), types.ModuleType):
            if not _is_foreign(value, package):
                yield f"{step}.{name}", value, calls
        elif depth:
            yield from _of_module(
                value, f"{step}.{name}", attributes, calls, searched, package, depth - 1
            )


def _cell(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None  # never assigned


def _is_foreign(value: Any, package: str) -> bool:
    """Whether a value is code that is not to be followed.

    Args:
        value: What other code names.
        package: The installed package that this other code is of; "": it is the user's.
    """
    if issubclass(
        type(value), type
    ):  # a library's classes are looked into where objects of them are
        return is_library(root_of(value))
    return bool(package) and type(value) is types.FunctionType and root_of(value) != package


@functools.cache
def is_library(root: str) -> bool:
    """Whether a package is an installed one, and not the user's own."""
    file = getattr(sys.modules.get(root), "__file__", None) or ""
    return "site-packages" in file or "dist-packages" in file


_LOAD_GLOBAL, _LOAD_NAME = dis.opmap["LOAD_GLOBAL"], dis.opmap["LOAD_NAME"]
_IMPORT, _IMPORT_FROM = dis.opmap["IMPORT_NAME"], dis.opmap["IMPORT_FROM"]
_EXTENDED = dis.opmap["EXTENDED_ARG"]
_SHIFT = sys.version_info >= (3, 11)  # the lowest bit of LOAD_GLOBAL's argument is none of the name


@functools.lru_cache(maxsize=100_000)
def _names(code: types.CodeType) -> tuple[list[str], list[str], list[str], frozenset[str]]:
    """Give the names that a function, or one defined in it, uses.

    Returns:
        Those that it loads as globals, the modules that it imports, what it imports from modules,
        and all that may be attributes.
    """
    loaded = _arguments(code, _LOAD_GLOBAL, _SHIFT) | _arguments(code, _LOAD_NAME, 0)
    imported = _arguments(code, _IMPORT, 0)
    members = _arguments(code, _IMPORT_FROM, 0)
    attributes = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            inner = _names(constant)
            loaded.update(inner[0])
            imported.update(inner[1])
            members.update(inner[2])
            attributes |= inner[3]
    return sorted(loaded), sorted(imported), sorted(members), frozenset(attributes)


def _arguments(code: types.CodeType, operation: int, shift: int) -> set[str]:
    """Give the names that instructions of one kind have as their argument.

    `dis.get_instructions` says the same, and takes a hundred times as long.
    """
    data, names = code.co_code, code.co_names
    found, at = set(), data.find(operation)
    while at >= 0:
        if at % 2 == 0:
            argument, before = data[at + 1], at - 2
            place = 8
            while before >= 0 and data[before] == _EXTENDED:
                argument |= data[before + 1] << place
                place, before = place + 8, before - 2
            if argument >> shift < len(names):
                found.add(names[argument >> shift])
        at = data.find(operation, at + 1)
    return found
