"""What a factory depends on, in a few characters: processes share what has the same fingerprint.

That is the function or class with its code (`node/code.py`), and its arguments. Of what it reads
(files, say) the key must speak.
"""

from __future__ import annotations

import functools
import hashlib
import os
import pickle
import platform
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from lit_loader.describe import short_repr
from lit_loader.errors import OptionError
from lit_loader.node.code import PLAIN, code_parts

__all__ = ["environment", "fingerprint"]


def fingerprint(*things: Any) -> str:
    """Give 32 characters that are the same in all processes for equal things.

    Raises:
        OptionError: One of them cannot be told from others.
    """
    digest = hashlib.blake2b(digest_size=16)
    for thing in things:
        for text in _parts(thing, set()):
            digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
    return digest.hexdigest()


def environment() -> tuple[str, ...]:
    """Name what must agree for one process to read what another has pickled."""
    versions = (torch.__version__, np.__version__, platform.machine())
    return sys.version, sys.prefix, str(versions), os.path.dirname(os.path.dirname(__file__))


def _parts(thing: Any, above: set[int]) -> Iterator[str]:
    """Describe a thing, piece by piece."""
    kind = type(thing)
    yield kind.__qualname__
    if kind in PLAIN:
        yield repr(thing)
        return
    if id(thing) in above:
        return
    above = above | {id(thing)}
    if isinstance(thing, functools.partial):
        thing = [thing.func, thing.args, thing.keywords]
    if isinstance(thing, Mapping):
        thing = list(thing.items())
    if isinstance(thing, (list, tuple)):
        yield str(len(thing))
        for each in thing:
            yield from _parts(each, above)
    elif isinstance(thing, (set, frozenset)):
        yield from sorted("\0".join(_parts(each, above)) for each in thing)
    elif callable(getattr(thing, "fingerprint_parts", None)) and not isinstance(thing, type):
        yield from _parts(thing.fingerprint_parts(), above)
    elif isinstance(thing, types.FunctionType):
        yield _home(thing)
        yield from code_parts(thing)
        yield from _parts([thing.__defaults__, thing.__kwdefaults__], above)
        yield from _parts([_contents(cell) for cell in thing.__closure__ or ()], above)
    elif isinstance(thing, types.MethodType):
        yield from _parts([thing.__func__, thing.__self__], above)
    elif isinstance(thing, type):
        yield _home(thing)
        yield from code_parts(thing)
    else:
        yield from code_parts(kind)
        yield _pickled(thing)


def _home(thing: Any) -> str:
    """Name the module of a function or class; of a script, its file."""
    if thing.__module__ != "__main__":
        return str(thing.__module__)
    return os.path.realpath(getattr(sys.modules["__main__"], "__file__", None) or "")


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not bound yet
        return None


def _pickled(thing: Any) -> str:
    try:
        return hashlib.blake2b(pickle.dumps(thing, 5)).hexdigest()
    except Exception as error:
        raise OptionError(
            f"the factory has an argument or variable that cannot be compared, {short_repr(thing)} "
            f"({type(error).__name__}: {error}): shared_dataset must know which processes mean the "
            "same dataset; pass what can be pickled, such as paths and numbers"
        ) from error
