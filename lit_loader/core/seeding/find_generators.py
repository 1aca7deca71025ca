"""Random generators that a dataset holds itself, found once and seeded like the global ones.

Seeding ``random``, ``numpy.random`` and torch does not reach an attribute ``self.rng``. Between
workers such a generator would make results depend on who did what. So the dataset and its functions
are walked through, breadth first, data before code::

    object ─▶ attributes, slots ─▶ items of containers ─▶ functions, bound methods, partials
       ╰─▶ its classes ─▶ members               closures, defaults, globals that they name ◀─╯

No code of the user's is run: no property, no ``__getattr__``. In the code of installed packages
only what is itself a generator counts; the standard library's, NumPy's, torch's and this package's
is not read. Nothing else is looked at: what is missed is for ``reseed_fn``, `get_rng` and
``check_determinism``.
"""

from __future__ import annotations

import contextlib
import dis  # reach: python: which globals a user's function names
import hashlib
import logging
import mmap
import operator
import random
import sys
import threading
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import cache, lru_cache, partial
from itertools import chain, islice
from typing import Any, Final

import numpy as np
import torch
import torch.utils.data

from lit_loader.core.seeding.seeds import derive

GLOBAL_GENERATORS: Final[tuple[Any, ...]] = (
    random.seed.__self__,  # type: ignore[attr-defined]
    np.random.rand.__self__,  # type: ignore[attr-defined]
    torch.default_generator,
)
"""The random generators that a process has once, which loaders seed for each batch."""

MAX_DEPTH = 16
"""Steps (attribute, item, closure cell, ...) that are followed from a root."""

MAX_OBJECTS = 20_000
"""Objects that are looked into; each takes 1 to 3 us."""

FIRST_OBJECTS = 64
"""Objects that are asked for tables of random numbers."""

MAX_ITEMS = 256
"""Containers with more items hold things that are alike: `ALIKE` items of a type are looked into,
and the others only if there is a generator in one of these."""

ALIKE = 16

FIRST_ITEMS = 2048
"""Items of a container that are looked at first: a list of so many numbers has but numbers."""

MAX_PLAIN = 200_000
"""Short lists, tuples and dicts of numbers and the like, of which nothing more is asked."""

LARGE = 256
"""Items of a container, or objects in it, from which on later searches pass it by, if it holds no
generator."""

CLOSED = frozenset(sys.stdlib_module_names) | {"numpy", "torch", "lit_loader"}
_OPAQUE = frozenset(
    {  # Their objects lead far away and hold no generator that data is drawn from.
        *("asyncio", "concurrent", "ctypes", "enum", "importlib", "inspect", "io", "logging"),
        *("multiprocessing", "pathlib", "queue", "re", "sched", "socket", "sqlite3", "ssl"),
        *("subprocess", "tempfile", "threading", "typing", "unittest", "weakref", "zipfile"),
        # Trainers, loggers, progress bars.
        *("comet_ml", "lightning", "lightning_fabric", "loguru", "matplotlib", "mlflow", "neptune"),
        *("pytorch_lightning", "rich", "tensorboard", "tensorboardX", "torchmetrics", "tqdm"),
        "wandb",
        # Sessions, connections, files.
        *("adlfs", "aiobotocore", "aiohttp", "boto3", "botocore", "fsspec", "gcsfs", "h5py"),
        *("httpx", "lmdb", "psycopg", "psycopg2", "pymongo", "redis", "requests", "s3fs"),
        *("sqlalchemy", "urllib3"),
        # Tables, vocabularies.
        *("anndata", "pandas", "polars", "pyarrow", "tokenizers"),
    }
)
_LEAVES = (str, bytes, bytearray, int, float, complex, type(None), slice, range, np.generic)
_LEAF_KINDS = (*_LEAVES, torch.Tensor, types.ModuleType, types.CodeType)
_PLAIN = frozenset({*_LEAVES, bool})
_CONTAINERS = (list, tuple, deque, dict, set, frozenset, np.ndarray)
_PASSED = (list, tuple, dict)
_CODE = (type, types.FunctionType, property, staticmethod, classmethod)
_LIBRARY_CODE = (type, types.FunctionType)
_KINDS = (
    *(random.Random, torch.Generator, np.random.Generator, np.random.RandomState),
    *(np.random.BitGenerator, np.random.SeedSequence),
)

_COPYING = frozenset(
    ("clone_state", "fork_rng", "get_rng_state", "get_state", "getstate", "isolate_rng")
)
"""Names by which a function reads where a generator is, to draw from a copy, or to put it back."""

_SHARING = frozenset(
    f"multiprocessing.{name}" for name in ("sharedctypes", "shared_memory", "managers", "queues")
)

_Lead = tuple[str, Any]
_Entry = tuple[Any, int, str, int]
_Passed = dict[int, tuple[Any, int]]  # containers by id, and how many items they had


class HeldGenerators:
    """The generators that `find_generators` found, and the ``paths`` at which it did first.

    A path is such as ``Digits.transform.rng``. ``cuts`` says where the search ended at one of its
    limits, in words; ``shared`` where it came across something that another process may change;
    ``copies`` whether the program's code names what reads where a generator is.
    """

    def __init__(
        self,
        pairs: Iterable[tuple[str, Any]],
        cuts: Iterable[str] = (),
        shared: str | None = None,
        copies: bool = False,
    ) -> None:
        self.pairs, self.cuts, self.shared = list(pairs), [*cuts], shared
        self.paths = [path for path, _ in self.pairs]
        self.generators = [generator for _, generator in self.pairs]
        # Whether a batch must be seeded, although no global generator is seen to be drawn from.
        self.needs_seeds = bool(self.generators) or copies
        # By path and not by number: what else is found must not change a generator's stream.
        known = ((path, controls(generator)) for path, generator in self.pairs)
        self._reseeds = [(_hash(path), found[2]) for path, found in known if found]

    @property
    def states(self) -> list[Any]:
        """All that a draw changes."""
        return states_of(self.generators)

    def reseed(self, seed: int) -> None:
        """Reseed each generator in place, with a stream of its own derived from a 64-bit seed."""
        for name, reseed in self._reseeds:
            reseed(derive(seed, name))


def states_of(generators: list[Any]) -> list[Any]:
    """Give generators, and the seed sequences that they spawn from."""
    sequences = (getattr(generator, "seed_seq", None) for generator in generators)
    return [*generators, *(each for each in sequences if each is not None)]


def find_generators(*roots: object, apart_from: Iterable[object] = ()) -> HeldGenerators:
    """Find the random generators that objects hold or functions use.

    Found: ``numpy.random.Generator``, ``BitGenerator``, ``RandomState`` and ``SeedSequence``,
    ``torch.Generator``, ``random.Random``, and what derives from them; not the three global ones,
    nor what is only in ``apart_from``. Members of a set have no order that two processes agree on,
    so they share a path, and thereby their seeds.
    """
    search = _Search(roots, apart_from)
    return HeldGenerators(search.pairs, search.cuts, search.shared)


class _Search:
    """One walk. It passes by the large containers of ``passed`` that are as long as they were."""

    def __init__(
        self,
        roots: tuple[object, ...],
        apart_from: Iterable[object] = (),
        passed: _Passed | None = None,
        for_shared: bool = True,
    ) -> None:
        self.cuts: list[str] = []
        self.shared: str | None = None
        self.copies = False
        self._for_shared = for_shared
        self._before = passed or {}
        self._found: list[int] = []
        # What was looked into, each with the number of what has led there first, and the step.
        self._walked: list[tuple[Any, int, str]] = []
        self._long: list[tuple[Iterable[_Lead], int, int]] = []  # what was left out of containers
        self._data: deque[_Entry] = deque((root, -1, type(root).__name__, 0) for root in roots)
        self._code: deque[_Entry] = deque()
        # Objects made on the way (bound methods, say) must live on, or another would get their id.
        self._seen = {id(known): known for known in (*GLOBAL_GENERATORS, *apart_from)}
        _forget_if_set()
        self._plain = 0
        self._dataset = id(roots[0]) if roots else None
        self._back: list[int] = []  # what leads back to the dataset
        self._walk()
        # Those that have the same path (in a set) stay in the order in which they were found.
        pairs = ((self._path(number), self._walked[number][0]) for number in self._found)
        self.pairs = sorted(pairs, key=lambda pair: pair[0])

    def _walk(self) -> None:
        data, code, seen, walked, before = (
            *(self._data, self._code, self._seen, self._walked, self._before),
        )
        while data or code or self._resume():
            value, parent, step, depth = (data or code).popleft()
            if is_leaf(value) or id(value) in seen:
                continue
            if depth > MAX_DEPTH:
                self.cuts.append(f"{self._path(parent)}{step} (more than {MAX_DEPTH} steps deep)")
                continue
            if len(seen) > MAX_OBJECTS:
                place = self._path(parent) + step
                self.cuts.append(f"{place} (among more than {MAX_OBJECTS:,} objects)")
                break
            seen[id(value)] = value
            kind, number = type(value), len(walked)
            walked.append((value, parent, step))
            if issubclass(kind, np.random.Generator):
                data.appendleft((value.bit_generator, number, "", depth))
                continue
            if issubclass(kind, _KINDS):
                self._found.append(number)
                continue
            leads: Iterable[_Lead] = ()
            if issubclass(kind, _CONTAINERS):
                if id(value) in before and before[id(value)][1] == _length(value, kind):
                    continue
                leads, left_out = _items(value, kind)
                if left_out:
                    self._long.append((left_out, number, depth))
            elif _is(value, _LIBRARY_CODE) and _leads_nowhere(value):
                continue
            elif kind is types.FunctionType and _is_users(value):
                self.copies |= not _COPYING.isdisjoint(_names(value.__code__))
            for step, child in chain(leads, _leads(value, kind)):
                if self._for_shared and self.shared is None and _is_shared(child):
                    self.shared = self._path(number) + step
                if is_leaf(child):
                    continue
                if id(child) in seen:
                    if id(child) == self._dataset:
                        self._back.append(number)
                elif self._plain < MAX_PLAIN and _is_plain(child):
                    self._plain += 1
                else:
                    (code if _is(child, _CODE) else data).append((child, number, step, depth + 1))

    def _resume(self) -> bool:
        """Take up what was left out of long containers in which there is a generator."""
        for place in [*self._long]:
            left_out, holder, depth = place
            if any(holder in self._way(number) for number in self._found):
                self._long.remove(place)
                self._data.extend((item, holder, step, depth + 1) for step, item in left_out)
        return bool(self._data)

    def _way(self, number: int) -> Iterator[int]:
        while number >= 0:
            yield number
            number = self._walked[number][1]

    def _path(self, number: int) -> str:
        return "".join(reversed([self._walked[each][2] for each in self._way(number)]))

    def objects(self) -> list[Any]:
        """Give the objects with attributes that come first: the dataset, its transforms."""
        objects = (value for value, _, _ in self._walked if instance_dict(value))
        return list(islice(objects, FIRST_OBJECTS))

    def passed(self) -> _Passed:
        """Give the large containers in which there is no generator, the outermost ones.

        None that leads back to the dataset, which must not live as long as they are remembered.
        """
        walked = self._walked
        counts, holding = [1] * len(walked), set(self._found)
        for number in range(len(walked) - 1, 0, -1):
            _, parent, _ = walked[number]
            if parent >= 0:
                counts[parent] += counts[number]
                if number in holding:
                    holding.add(parent)
        within: set[int] = set()
        passed: _Passed = {}
        for number, (value, parent, _) in enumerate(walked):
            if parent in within:
                within.add(number)
                continue
            if (kind := type(value)) not in _PASSED or number in holding:
                continue
            length = _length(value, kind)
            # Of a long one few items were looked into.
            if max(length, counts[number]) >= LARGE or id(value) in self._before:
                within.add(number)
                passed[id(value)] = value, length
        return {} if self.copies or within.intersection(self._back) else passed


_passed_in: dict[int, tuple[weakref.ref[Any], _Passed]] = {}  # by a dataset's id


def _recall(dataset: Any) -> _Passed | None:
    """Give what a search over a dataset may pass by; None: no batch was made of it yet."""
    owner, passed = _passed_in.get(id(dataset), (None, None))
    return passed if owner is not None and owner() is dataset else None


def _remember(dataset: Any, passed: _Passed) -> None:
    with contextlib.suppress(TypeError):  # cannot be referred to weakly: a list, say
        owner = weakref.ref(dataset, partial(_drop, _passed_in, id(dataset)))
        _passed_in[id(dataset)] = owner, passed


def _drop(memory: dict[int, Any], key: int, _: object) -> None:
    memory.pop(key, None)


def _is(value: Any, kinds: Any) -> bool:
    """Do as `isinstance` does, and ask no ``__class__`` of the user's."""
    return issubclass(type(value), kinds)


def _is_shared(value: Any) -> bool:
    """Whether another process may change what is seen here: a `multiprocessing.Value`, say."""
    kind = type(value)
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        plain = value.layout == torch.strided and value.device.type == "cpu"
        return plain and bool(value.is_shared())
    if issubclass(kind, np.ndarray):
        # One over the buffer of a SharedMemory, or of a file that is open for writing.
        while value.flags.writeable and _is(value.base, np.ndarray):
            value = value.base
        inner = value.base if value.flags.writeable else None
        return _is(inner.obj if type(inner) is memoryview else inner, mmap.mmap)
    module = kind.__module__
    if module == "multiprocessing.synchronize":
        return kind.__name__ == "Event"
    if module in _SHARING:
        return True
    # reach: python: RawValue and RawArray are ctypes' own, with this
    wrapper = instance_dict(value).get("_wrapper")
    return type(wrapper).__module__ == "multiprocessing.heap"


def is_leaf(value: Any) -> bool:
    """Whether nothing is to be found in there."""
    kind = type(value)
    if kind in _PLAIN or issubclass(kind, _LEAF_KINDS):
        return True
    return issubclass(kind, np.ndarray) and value.dtype != object


def _is_plain(value: Any) -> bool:
    """Whether it is a short builtin container of numbers and the like, or an empty one."""
    kind = type(value)
    if kind not in _SHORT or len(value) > ALIKE:
        return False
    return _PLAIN.issuperset(map(type, value.values() if kind is dict else value))


_SHORT = frozenset({list, tuple, dict})


def _length(value: Any, kind: type) -> int:
    if issubclass(kind, np.ndarray):
        return int(value.size)
    return next(each for each in _CONTAINERS if issubclass(kind, each)).__len__(value)


def _items(value: Any, kind: type) -> tuple[Iterable[_Lead], Iterable[_Lead]]:
    """Give items of a container, and what is left out: of a long one all but few of each type."""
    array = issubclass(kind, np.ndarray)
    # By the builtin class: a subclass's own __iter__ is the user's code, and may raise.
    base = next(each for each in _CONTAINERS if issubclass(kind, each))
    whole = _length(value, kind) <= MAX_ITEMS
    items = enumerate(value.flat if array else base.__iter__(value))
    pairs = iter(dict.items(value)) if base is dict else items

    def leads(found: Iterable[tuple[Any, Any]]) -> Iterator[_Lead]:
        for key, item in found:
            step = f"[{key!r}]" if type(key) in (str, int) else "[?]"
            yield "{}" if base in (set, frozenset) else step, item

    counts: dict[type, int] = {}
    few: list[tuple[Any, Any]] = []
    others: list[tuple[Any, Any]] = []
    for pair in islice(pairs, FIRST_ITEMS):
        if (kind_of_item := type(pair[1])) not in _PLAIN:
            count = counts[kind_of_item] = counts.get(kind_of_item, 0) + 1
            (few if whole or count <= ALIKE else others).append(pair)
    return leads(few), leads(chain(others, islice(pairs, MAX_OBJECTS))) if others else ()


def _leads(value: Any, kind: type) -> Iterator[_Lead]:
    """Give what an object that is no container leads to, each with the step that leads there."""
    root = root_of(kind)
    if kind is types.FunctionType:
        yield from _of_function(value)
    elif issubclass(kind, type):
        yield from _of_class(value)
    elif issubclass(kind, torch.utils.data.DataLoader):
        # What it makes is its own; the dataset may be used besides.
        yield from (("." + name, vars(value).get(name)) for name in ("dataset", "collate_fn"))
    elif kind is threading.local or not (
        root in _OPAQUE or (root == "lit_loader" and hasattr(kind, "__next__"))
    ):
        for name in _PARTS.get(kind, ()):
            yield f".{name}", getattr(value, name)
        attributes = instance_dict(value)
        model = issubclass(kind, torch.nn.Module) and _has_parameters(value)
        # A shuffling DataPipe seeds its own once for each epoch, alike for all who take shares.
        pipe = issubclass(kind, torch.utils.data.IterDataPipe) and hasattr(kind, "set_seed")
        for name, item in list(attributes.items()):
            if not (model and name in _OF_MODELS) and not (pipe and _is(item, _KINDS)):
                yield f".{name}", item
        if model:  # Its transforms and the like are looked into, and no part that learns.
            for name, item in _parts_of(value):
                if not _has_parameters(item):
                    yield f".{_PARTS_OF_MODEL}[{name!r}]", item
        for base in kind.__mro__:
            yield "", base
            for name, slot in base.__dict__.items() if "__slots__" in base.__dict__ else ():
                if type(slot) is types.MemberDescriptorType:
                    with contextlib.suppress(AttributeError):  # never assigned
                        yield f".{name}", slot.__get__(value, kind)


# reach: torch: where modules keep theirs
_OF_MODELS = _PARAMETERS, _, _PARTS_OF_MODEL = "_parameters", "_buffers", "_modules"


def _parts_of(module: Any) -> list[_Lead]:
    parts: Any = instance_dict(module).get(_PARTS_OF_MODEL)
    return list(parts.items()) if _is(parts, dict) else []


def _has_parameters(module: Any) -> bool:
    """Whether a module, or one in it, has any: the model, and not a transform."""
    if instance_dict(module).get(_PARAMETERS):
        return True
    return any(_has_parameters(part) for _, part in _parts_of(module))


_PARTS: dict[type, tuple[str, ...]] = {
    partial: ("func", "args", "keywords"),
    types.MethodType: ("__self__", "__func__"),
    types.BuiltinFunctionType: ("__self__",),  # rng.normal, say
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    property: ("fget", "fset"),
}


def instance_dict(value: Any) -> dict[str, Any]:
    """Give the ``__dict__`` of an object that is neither function nor class; else an empty one."""
    if _is(value, (types.FunctionType, type)):
        return {}
    try:
        reads = threading.local if _is(value, threading.local) else object
        attributes = reads.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return attributes if type(attributes) is dict else {}


def root_of(code: Any) -> str:
    """Give the package that a class or function is of."""
    module = getattr(code, "__module__", None)
    return module.partition(".")[0] if isinstance(module, str) else ""


def _of_class(kind: type) -> Iterator[_Lead]:
    """Give the members of a class; of an installed package its methods, and generators."""
    if (root := root_of(kind)) in CLOSED:
        return
    for name, member in list(type.__dict__["__dict__"].__get__(kind).items()):
        if name not in ("__dict__", "__weakref__") and (
            not _is_library(root) or _is(member, (*_CODE[1:], *_KINDS))
        ):
            yield f".{name}", member


def _of_function(function: types.FunctionType) -> Iterator[_Lead]:
    """Give what a function was given, and the globals that it names."""
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # never assigned
            yield f"<{name}>", cell.cell_contents
    for given in (function.__defaults__, function.__kwdefaults__):
        yield "<defaults>", given
    if function.__dict__:
        yield "", function.__dict__
    if root_of(function) not in CLOSED:
        names = _names(code)
        yield from _of_namespace(function.__globals__, names, function)
        for name in sorted(filter(sys.modules.__contains__, names)):  # imported by its own code
            yield from _of_namespace(
                instance_dict(sys.modules[name]), names, function, f"<global {name}>"
            )


def _of_namespace(
    namespace: dict[str, Any], names: frozenset[str], function: types.FunctionType, module: str = ""
) -> Iterator[_Lead]:
    """Give what a function that knows these names may get from its globals, or a user's module."""
    root = str(namespace.get("__name__")).partition(".")[0]
    if module and (root in CLOSED or _is_library(root)):
        return
    for name in sorted(names & namespace.keys()):
        value, place = namespace[name], f"{module}.{name}" if module else f"<global {name}>"
        if _is(value, types.ModuleType):
            if module.count(".") < 2:
                yield from _of_namespace(instance_dict(value), names, function, place)
        elif _is(value, _KINDS):
            if module or _loads(function.__code__, name):
                yield place, value
        elif _is_library(root_of(function)):
            if value is None:
                _unset[id(namespace), name] = namespace
        elif not (_is(value, type) and _is_library(root_of(value))):
            yield place, value


@cache
def _is_library(root: str) -> bool:
    """Whether a package is an installed one, and not the user's own."""
    module = sys.modules.get(root)
    file = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), "")
    return "site-packages" in file or "dist-packages" in file


def _is_users(value: Any) -> bool:
    """Whether an object, function or class is of the program's own code."""
    root = root_of(value if _is(value, _LIBRARY_CODE) else type(value))
    return root in sys.modules and not (root in CLOSED or _is_library(root))


# Code of installed packages leads far, and to the same each time: a process goes through it once.
_known_code: dict[int, tuple[weakref.ref[Any], bool]] = {}  # by id: whether it leads nowhere
_unset: dict[tuple[int, str], dict[str, Any]] = {}  # where they may yet put a generator


def _leads_nowhere(code: Any) -> bool:
    """Whether code leads to no generator, nothing shared and nothing of the program's own.

    Remembered for that of installed packages.
    """
    if not _is_library(root_of(code)):
        return False
    if id(code) not in _known_code:
        _learn(code)
    return bool(_known_code.get(id(code), _NO_CODE)[1])  # another thread may have begun anew


def _learn(code: Any) -> None:
    seen, leading = {id(code): code}, {}
    ways: dict[int, list[int]] = {}  # from each object to those that lead to it
    queue = [code]
    while queue:
        value = queue.pop()
        kind = type(value)
        if _is(value, _KINDS) or _is_users(value) or len(seen) > MAX_OBJECTS:
            leading[id(value)] = value
            continue
        items, left_out = _items(value, kind) if issubclass(kind, _CONTAINERS) else ((), ())
        for _, child in chain(items, left_out, _leads(value, kind)):
            if _is_shared(child):
                leading[id(value)] = value
            if is_leaf(child) or (known := _known_code.get(id(child), _NO_CODE))[1]:
                continue
            ways.setdefault(id(child), []).append(id(value))
            if known is not _NO_CODE:
                leading[id(child)] = child
            elif id(child) not in seen and all(child is not each for each in GLOBAL_GENERATORS):
                seen[id(child)] = child
                queue.append(child)
    queue = [*leading]
    while queue:
        for way in ways.pop(queue.pop(), ()):
            if way not in leading:
                leading[way] = seen[way]
                queue.append(way)
    for key, value in seen.items():
        if _is(value, _LIBRARY_CODE) and _is_library(root_of(value)):
            known_as = weakref.ref(value, partial(_drop, _known_code, key))
            _known_code[key] = known_as, key not in leading


_NO_CODE: tuple[Any, bool] = (None, False)


def _forget_if_set() -> None:
    """Begin anew if an installed package has made a generator of its own meanwhile."""
    if any(_is(namespace.get(name), _KINDS) for (_, name), namespace in [*_unset.items()]):
        _known_code.clear()
        _unset.clear()


@lru_cache(maxsize=100_000)
def _names(code: types.CodeType) -> frozenset[str]:
    """Give the names (of globals, attributes, imports) in a function and those defined in it."""
    inner = (_names(each) for each in code.co_consts if isinstance(each, types.CodeType))
    return frozenset(code.co_names).union(*inner)


def _loads(code: types.CodeType, name: str) -> bool:
    """Whether a function loads a global of this name, and has not only an attribute that is so.

    Asked of generators alone: one of the program's own must not be set.
    """
    return any(  # reach: the names of two instructions
        each.argval == name and each.opname in ("LOAD_GLOBAL", "LOAD_NAME")
        for each in dis.get_instructions(code)
    ) or any(_loads(each, name) for each in code.co_consts if isinstance(each, types.CodeType))


def controls(value: Any) -> _Controls | None:
    """Give the functions that read, write and reseed a generator's state; None: it is none."""
    if _is(value, torch.Generator):
        return value.get_state, value.set_state, value.manual_seed
    if _is(value, random.Random):
        return value.getstate, value.setstate, value.seed
    if _is(value, np.random.RandomState):
        read, reseed = partial(value.get_state, legacy=False), partial(_reseed_random_state, value)
        return read, value.set_state, reseed
    if _is(value, np.random.SeedSequence):
        reseed = partial(np.random.SeedSequence.__init__, value)
        return lambda: value.n_children_spawned, partial(set_children, value), reseed
    if _is(value, np.random.BitGenerator):
        read, write = partial(getattr, value, "state"), partial(setattr, value, "state")
        return read, write, partial(_reseed_bits, value)
    return None


_Controls = tuple[Callable[[], Any], Callable[[Any], object], Callable[[int], object]]


def set_children(sequence: Any, count: int) -> None:
    """Bring a seed sequence back to where it had spawned so many; its constructor begins anew."""
    np.random.SeedSequence.__init__(
        sequence,
        sequence.entropy,
        spawn_key=sequence.spawn_key,
        pool_size=sequence.pool_size,
        n_children_spawned=count,
    )


def _reseed_bits(bits: Any, seed: int) -> None:
    bits.state = type(bits)(seed).state
    # What spawn() gives depends on how often it was called, which the seed sequence counts. Its
    # constructor begins anew; who does not know it (NumPy < 1.25) has no spawn().
    sequence = getattr(bits, "seed_seq", None)
    if type(sequence) is np.random.SeedSequence:
        sequence.__init__(seed)  # type: ignore[misc]


def _reseed_random_state(generator: np.random.RandomState, seed: int) -> None:
    try:
        generator.seed(seed >> 32)
    except TypeError:  # not a Mersenne Twister
        kind = generator.get_state(legacy=False)["bit_generator"]
        fresh = np.random.RandomState(getattr(np.random, kind)(seed))
        generator.set_state(fresh.get_state(legacy=False))


def _hash(path: str) -> int:
    digest = hashlib.blake2b(path.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


# --- while the dataset is used ---


def _searched(roots: tuple[object, ...], passed: _Passed | None) -> _Search:
    """Walk; once more where another worker thread has changed a container on the way."""
    for _ in range(_WALKS):
        with contextlib.suppress(RuntimeError):
            return _Search(roots, passed=passed, for_shared=False)
    return _Search(roots, passed=passed, for_shared=False)


_WALKS: Final = 20

_log = logging.getLogger("lit_loader.generator_watch")
ADVICE: Final = "draw from lit_loader.get_rng(), or pass reseed_fn"


class GeneratorWatch:
    """The generators that a dataset and its functions hold now.

    One that is made on first use is not there at the start. So it is looked for again after the
    first batch, which is then made again with it seeded; and at the start of each epoch, for what
    the program or ``set_epoch`` has put in place. Where it is to ``warn``, ``notes`` are warnings
    for the user, to be taken out by what gives them.
    """

    def __init__(self, *roots: object, warn: bool = True) -> None:
        self.roots = roots
        self.warns = warn
        self.notes: list[str] = []
        self.objects: list[Any] = []
        self.held = HeldGenerators([])

    def is_of(self, other: GeneratorWatch) -> bool:
        """Whether another one looks at the same objects."""
        mine, others = self.roots, other.roots
        return len(mine) == len(others) and all(map(operator.is_, mine, others))

    def search(self, late: bool = False, first_batch: bool = False) -> bool:
        """Search; returns whether there are generators that were not known.

        After the ``first_batch`` all is there that is made on first use: large containers in which
        there is nothing by then are passed by later on. Those that a ``late`` search finds were not
        seeded for some batches, which is noted.
        """
        known, paths = set(map(id, self.held.generators)), self.held.paths
        passed = _recall(self.roots[0]) if self.roots else None
        search = _searched(self.roots, passed)
        if first_batch or passed is not None:
            _remember(self.roots[0], search.passed())
        self.objects = search.objects()
        held = self.held = HeldGenerators(search.pairs, search.cuts, copies=search.copies)
        if held.paths:
            _log.debug("generators seeded with the global ones: %s", ", ".join(held.paths))
        for where in held.cuts[:1]:
            self.note(
                f"the search for random generators has not looked into {where}: generators there "
                f"are not seeded, and batches may depend on the number of workers; {ADVICE} "
                "[LL411]"
            )
        for path, generator in held.pairs:
            if isinstance(generator, random.SystemRandom):
                self.note(
                    f"{path} is a random.SystemRandom, which no seed determines: batches differ "
                    "from run to run; use random.Random, which is seeded for each batch [LL415]"
                )
            elif late and path not in paths:
                self.note(
                    f"{path} is a random generator that was made after the first batch: some "
                    "batches before it was found may depend on the number of workers; make it in "
                    f"__init__, {ADVICE} [LL412]"
                )
        return not known.issuperset(map(id, held.generators))

    def note_tables(self, tables: Iterable[str], batch: str = "the first batch") -> None:
        """Note attributes that were drawn in a batch."""
        for name in tables:
            self.note(
                f"{name} was drawn from a random generator in {batch}: generators are "
                "seeded for each batch, so each worker has other numbers there, and a resumed run "
                "too; build it in __init__ [LL414]"
            )

    def note(self, text: str) -> None:
        """Have the user warned of something, once."""
        if self.warns and text not in self.notes:
            self.notes.append(text)

    def follow(self) -> None:
        """Take those that a dataset has put in the places of the known ones, from its state."""
        if known := self.held.paths:
            pairs = find_generators(*self.roots).pairs
            self.held = HeldGenerators(pair for pair in pairs if pair[0] in known)


_BATCHES: Final = 3
"""Batches in which a table has stayed what it was, before it is taken for one."""


class DrawnTables:
    """Tables of random numbers that a dataset makes in its first batch, where it should not.

    Generators are seeded for each batch. So a table that is drawn in ``__getitem__`` and kept
    depends on which batch a process made first: each worker has another one. What is seen of it: an
    attribute that was not set before the batch and holds numbers after it and two more, beside a
    generator that was drawn from in the first batch alone. One that samples draw from anyway says
    nothing: the attribute may be read from a file.

    One that is made in a later batch is seen where that batch is made again with a seed, for it has
    drawn: if it draws no more then, the table has the numbers of the first time.
    """

    def __init__(self, objects: Iterable[Any]) -> None:
        self._objects = [
            (each, {name for name, value in instance_dict(each).items() if value is not None})
            for each in objects
        ]
        self._tables: list[tuple[Any, str, Any]] = []
        self._drawn: set[int] = set()
        self._batches = 0

    def after_batch(self, drawn: Callable[[], set[int]]) -> list[str] | None:
        """Give the tables as "class.attribute", once known; None: it is to be asked again.

        ``drawn`` says which generators the batch has drawn from, by their ids.
        """
        self._batches += 1
        if self._batches == 1:
            self._tables = self._made()
            self._drawn = drawn() if self._tables else set()
        else:
            self._tables = [
                (owner, name, value)
                for owner, name, value in self._tables
                if instance_dict(owner).get(name) is value
            ]
            self._drawn -= drawn()
        if not (self._tables and self._drawn):
            return []
        return _table_names(self._tables) if self._batches == _BATCHES else None

    def made(self) -> list[str]:
        """Give the attributes that hold numbers and were not set before, as "class.attribute"."""
        return _table_names(self._made())

    def _made(self) -> list[tuple[Any, str, Any]]:
        return [
            (owner, name, value)
            for owner, before in self._objects
            for name, value in instance_dict(owner).items()
            if name not in before and _holds_numbers(value)
        ]


def _table_names(tables: list[tuple[Any, str, Any]]) -> list[str]:
    return [f"{type(owner).__name__}.{name}" for owner, name, _ in tables]


def _holds_numbers(value: Any) -> bool:
    kind = type(value)
    if kind in (list, tuple):
        return bool(value) and all(map(_holds_numbers, value[:16]))
    if kind is np.ndarray:
        return value.size > 0 and value.dtype.kind in "biufc"
    return kind in (int, float) or issubclass(kind, (torch.Tensor, np.number))
