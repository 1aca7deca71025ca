"""How messages name things: values in short, the path to a failing object, the program's line.

Used wherever something is raised or warned of. Finding the object inside a batch that fails may
take its time, for it is used only after a failure: it tries again with every child.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import os
import reprlib
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType, MethodType
from typing import Any, Final, NamedTuple, TypeVar

PACKAGE: Final = os.path.join(os.path.dirname(__file__), "")
"""What the files of all our own frames in a traceback begin with."""

_T = TypeVar("_T")


def public(thing: _T) -> _T:
    """Make a class or function belong to the package itself: pickles survive moves of its file.

    Type hints of a class are looked up in the module that it belongs to. So they are resolved here,
    where the names in them are known.
    """
    named: Any = thing
    if isinstance(thing, type):
        known, hints = vars(sys.modules[thing.__module__]), inspect.get_annotations(thing)
        for name, hint in hints.items():
            text = getattr(hint, "__forward_arg__", hint)  # a NamedTuple has ForwardRefs
            hints[name] = eval(text, known) if isinstance(text, str) else text
        named.__annotations__ = hints
    named.__module__ = __package__
    return thing


_REPR = reprlib.Repr()
_REPR.maxother = 100  # room for a function's whole name, whose end says most
_REPR.maxlevel = 3


class FailingObject(NamedTuple):
    """The innermost object that fails, and what it fails with."""

    path: str  # the expression that reaches it, as in batch['x'][3].label
    value: object
    error: Exception


def _is_too_deep(error: BaseException) -> bool:
    return isinstance(error, RecursionError) or isinstance(error.__cause__, RecursionError)


def find_failing_object(
    value: object,
    error: Exception,
    attempt: Callable[[object], object],
    name: str = "batch",
    inside: bool = False,
) -> FailingObject:
    """Follow a failure from ``value`` down to the innermost object that fails on its own.

    ``attempt`` does again, with one object, what failed; ``inside``: it needs the variables of
    functions, too.
    """
    seen: set[int] = set()  # a structure may contain itself
    # Of a structure too deep to follow, the whole is named: going down level by level takes ages.
    while id(value) not in seen and not _is_too_deep(error):
        seen.add(id(value))
        for step, child in _children(value, inside):
            try:
                attempt(child)
            except Exception as child_error:
                name, value, error = name + step, child, child_error
                break
    return FailingObject(name, value, error)


def class_name(kind: type) -> str:
    """Return a class's name with its module, as tracebacks have it: a builtin's without."""
    name = kind.__qualname__
    return name if kind.__module__ == "builtins" else f"{kind.__module__}.{name}"


def message_of(error: BaseException) -> str:
    """Return ``str(error)``, of an exception too whose own ``__str__`` fails."""
    try:
        return str(error)
    except Exception as broken:
        return f"<str() of the exception raised {type(broken).__name__}>"


def short_repr(value: object) -> str:
    """Return a repr of bounded length on one line, of objects too whose own repr fails."""
    try:
        return " ".join(_REPR.repr(value).split())
    except Exception:  # a collection's own methods, or an integer of more digits than Python writes
        return f"<{type(value).__qualname__}>"


def program_stacklevel() -> int:
    """The ``stacklevel`` by which a warning names the line of the program that calls the package.

    It is that of a ``warnings.warn`` in the function that asks.
    """
    found = callers()
    # Of torch's loader, from which ours is derived, too: it sets our attributes.
    theirs = (
        level
        for level, (module, file) in enumerate(found, 1)
        if not file.startswith(PACKAGE) and module != "torch.utils.data.dataloader"
    )
    return next(theirs, len(found))


def warn(text: str, category: type[Warning] = UserWarning) -> None:
    """Warn, at the line of the program that calls the package."""
    warnings.warn(f"lit_loader: {text}", category, stacklevel=program_stacklevel())


# reach: python: frames, by which alone a function learns who has called it
def callers() -> list[tuple[str, str]]:
    """Module and file of what has called the function that asks; the innermost one first."""
    found, frame = [], inspect.currentframe()
    frame = frame and frame.f_back
    while frame := frame and frame.f_back:
        found.append((frame.f_globals.get("__name__", ""), frame.f_code.co_filename))
    return found


def _children(value: object, inside: bool) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        for key in value:
            yield f"[key {short_repr(key)}]", key
            yield f"[{short_repr(key)}]", value[key]
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        for field, child in zip(value._fields, value, strict=True):
            yield f".{field}", child
    elif isinstance(value, (list, tuple)):
        for index, child in enumerate(value):
            yield f"[{index}]", child
    elif isinstance(value, (set, frozenset)):
        for child in value:
            yield f"[{short_repr(child)}]", child
    elif isinstance(value, functools.partial):
        yield ".func", value.func
        yield ".args", value.args
        yield ".keywords", value.keywords
    elif isinstance(value, MethodType):
        yield ".__self__", value.__self__
    elif isinstance(value, FunctionType) and inside:
        variables = inspect.getclosurevars(value)
        for variable, child in {**variables.nonlocals, **variables.globals}.items():
            yield f" (its variable {variable!r})", child
    if not isinstance(value, type):
        yield from _attributes(value)


def _attributes(value: object) -> Iterator[tuple[str, object]]:
    """What pickle would save of an object: its state, and not simply its ``__dict__``."""
    try:
        state = value.__reduce_ex__(5)[2]
    except Exception:  # the object cannot even say what it consists of: it is the one
        return
    for part in state if isinstance(state, tuple) else (state,):
        if isinstance(part, dict):
            for attribute, child in part.items():
                yield f".{attribute}", child


def annotate(error: Exception, note: str) -> None:
    """Add a line to what is shown of an exception; before Python 3.11, which shows none, log it."""
    # An exception may refuse new attributes (a frozen dataclass): it comes as it is then.
    with contextlib.suppress(Exception):
        notes = [*getattr(error, "__notes__", ()), note]
        error.__notes__ = notes  # type: ignore[attr-defined]  # which PEP 678 names
    if sys.version_info < (3, 11):
        logging.getLogger("lit_loader").warning("%s: %s", type(error).__name__, note)
