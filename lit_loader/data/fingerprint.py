"""What a factory or a dataset is, in a few characters: processes share what has the same.

It is what the object is pickled as, with three things in other words:

* of a function or class its name, its code, and the text of the file that defines it;
* of an array or tensor its bytes, of a file that is mapped its place;
* of a set its items in their order.

Other files, global variables that are changed at run time, installed packages' data and the
environment do not count: they are for the key to name.
"""

from __future__ import annotations

import contextlib
import copyreg
import functools
import hashlib
import os
import pickle
import platform
import random
import sys
import types
from pathlib import Path, PurePath
from typing import Any, Final

import numpy as np
import torch
from torch.utils.data import Dataset

from lit_loader import __version__
from lit_loader.core.options.checks import undeferred
from lit_loader.core.seeding.find_generators import CLOSED, root_of
from lit_loader.core.seeding.seeds import tensor_bytes

__all__ = ["environment", "fingerprint"]

_PROTOCOL: Final = 5
_ATOMS: Final = frozenset({str, int, float, bool, bytes, complex, type(None)})
_LONG: Final = 1000  # items of a container that is described once, wherever it is held

_GENERATORS: Final = (
    *(random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator),
    torch.Generator,
)
_COMPILED: Final = (".so", ".pyd", ".pyc")


def fingerprint(*things: Any) -> tuple[str, list[Any]]:
    """Give 32 characters that are the same in all processes for equal things.

    And which objects in them cannot be pickled, and so not compared: only their classes count.
    """
    known = _Known()
    return known.digest(things), known.missing


def environment() -> tuple[str, ...]:
    """Name what must agree for one process to read what another has pickled."""
    versions = (__version__, torch.__version__, np.__version__, platform.machine())
    return sys.version, sys.prefix, str(versions), os.path.dirname(os.path.dirname(__file__))


class _Known:
    """What has been described already."""

    def __init__(self) -> None:
        self.missing: list[Any] = []
        self._held: dict[int, tuple[Any, str]] = {}  # by id, which is kept by holding the object
        self._texts: dict[str, str] = {}

    def digest(self, thing: Any) -> str:
        # Without a memo equal things give equal bytes, whether or not parts are one and the same;
        # but what is in itself needs one.
        for fast in (True, False):
            with contextlib.suppress(Exception):
                pickler = _Pickler(self, thing)
                pickler.fast = fast
                pickler.dump(thing)
                return pickler.hexdigest()
        self.miss(thing)
        return _name(type(thing))

    def miss(self, thing: Any) -> None:
        if not any(each is thing for each in self.missing):
            self.missing.append(thing)

    def once(self, thing: Any, content: Any) -> str:
        """Describe what may be held in many places, or in itself."""
        if id(thing) not in self._held:
            self._held[id(thing)] = thing, "in itself"
            self._held[id(thing)] = thing, self.digest(content)
        return self._held[id(thing)][1]

    def of_code(self, thing: Any) -> Any:
        """Describe a function or class."""
        if root_of(thing) in CLOSED:
            return _name(thing)
        if isinstance(thing, type):
            kinds = [kind for kind in thing.__mro__ if root_of(kind) not in CLOSED]
            return _name(thing), self.once(thing, [self._of_class(kind) for kind in kinds])
        held = thing.__defaults__, thing.__kwdefaults__, vars(thing), _cells(thing)
        content = self.text(thing.__module__), _instructions(thing.__code__), held
        return _name(thing), self.once(thing, content)

    def _of_class(self, kind: type) -> Any:
        methods = [getattr(each, "__func__", each) for each in vars(kind).values()]
        functions = [each for each in methods if isinstance(each, types.FunctionType)]
        codes = [_instructions(each.__code__) for each in functions]
        return _name(kind), self.text(kind.__module__), codes

    def text(self, module: str | None) -> str:
        """Describe the file that defines a module; where it is no text, its package's version."""
        module = module or ""
        root = module.partition(".")[0]
        if module not in self._texts:
            file = getattr(sys.modules.get(module), "__file__", None) or ""
            self._texts[module] = str(getattr(sys.modules.get(root), "__version__", ""))
            if root not in CLOSED and file and not file.endswith(_COMPILED):
                with contextlib.suppress(OSError):
                    self._texts[module] = hashlib.blake2b(Path(file).read_bytes()).hexdigest()
        return self._texts[module]


class _Pickler(pickle.Pickler):
    def __init__(self, known: _Known, root: Any) -> None:
        digest = hashlib.blake2b(digest_size=16)

        def outside(buffer: pickle.PickleBuffer) -> None:
            digest.update(b"%d " % buffer.raw().nbytes)
            digest.update(buffer.raw())

        file: Any = types.SimpleNamespace(write=digest.update)
        super().__init__(file, _PROTOCOL, buffer_callback=outside)
        self.hexdigest = digest.hexdigest
        self._known, self._root = known, root

    def persistent_id(self, thing: Any) -> Any:
        """Say in other words what a thing is; None: as it is pickled."""
        kind = type(thing)
        if kind in _ATOMS:
            return None
        if thing is self._root:
            self._root = None
            return None
        if kind in (list, tuple, dict):
            return self._known.once(thing, thing) if len(thing) >= _LONG else None
        if isinstance(thing, PurePath):
            return str(thing)
        if kind in (set, frozenset):  # whose order is another one in each process
            alike = set(map(type, thing)) in ({str}, {int}, {bytes})
            return sorted(thing if alike else [self._known.digest((each,)) for each in thing])
        if isinstance(thing, (type, types.FunctionType)):
            return self._known.of_code(thing)
        if isinstance(thing, (types.ModuleType, *_GENERATORS)):
            return _name(thing if isinstance(thing, types.ModuleType) else kind)
        if kind is np.memmap and thing.mode == "r":
            with contextlib.suppress(OSError, TypeError):
                return _mapped(thing)
        if kind in (np.ndarray, np.memmap) and not thing.dtype.hasobject:
            return str(thing.dtype), thing.shape, _digest(np.ascontiguousarray(thing))
        if isinstance(thing, torch.Tensor):
            with contextlib.suppress(Exception):  # a sparse one, say
                about = _name(kind), str(thing.dtype), [*thing.shape], {**vars(thing)}
                return about, _digest(tensor_bytes(thing))
        if root_of(kind) == "omegaconf":  # a part of a configuration holds the whole
            with contextlib.suppress(Exception):
                return sys.modules["omegaconf"].OmegaConf.to_container(thing, resolve=True)
        return self._known.once(thing, thing) if isinstance(thing, Dataset) else None

    def reducer_override(self, thing: Any) -> Any:
        try:
            if callable(parts := getattr(type(thing), "fingerprint_parts", None)):
                return tuple, (parts(thing),)
            if isinstance(thing, functools.partial):  # which pickles {} as None until it is read
                thing = undeferred(thing)  # the policy that Hydra's has is no part of it
                return type(thing), (thing.func, thing.args, thing.keywords, vars(thing))
            reduce = copyreg.dispatch_table.get(type(thing))
            reduced = reduce(thing) if reduce else thing.__reduce_ex__(_PROTOCOL)
        except Exception:
            self._known.miss(thing)
            return type, (type(thing),)
        if isinstance(reduced, str):  # the name of what its module has, of a functools.cache, say
            return tuple, ((reduced, self._known.text(getattr(thing, "__module__", None))),)
        return reduced


def _name(thing: Any) -> str:
    if isinstance(thing, types.ModuleType):
        return thing.__name__
    module = "__main__" if thing.__module__ == "__mp_main__" else thing.__module__
    return f"{module}.{thing.__qualname__}"


def _instructions(code: types.CodeType) -> list[Any]:
    """Describe what code does, without the lines on which it stands."""
    constants = [_instructions(c) if isinstance(c, types.CodeType) else c for c in code.co_consts]
    return [code.co_code, code.co_names, constants]


def _cells(function: types.FunctionType) -> list[Any]:
    cells = []
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # not bound yet
            cells.append(cell.cell_contents)
    return cells


def _mapped(array: Any) -> Any:
    """Name the part of a file, which is not read for this."""
    whole = array
    while isinstance(whole.base, np.memmap):
        whole = whole.base
    start = whole.offset + array.ctypes.data - whole.ctypes.data
    status = os.stat(array.filename)
    file = str(array.filename), status.st_size, status.st_mtime_ns
    return file, start, str(array.dtype), array.shape, array.strides


def _digest(array: np.ndarray[Any, Any]) -> str:
    plain: Any = array.reshape(-1).view(np.uint8) if array.nbytes else b""
    return hashlib.blake2b(plain).hexdigest()
