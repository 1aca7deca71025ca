"""Random generators that a dataset holds in plain sight: found, and seeded for each batch.

Seeding ``random``, ``numpy.random`` and torch does not reach an attribute ``self.rng``. So when a
pass begins in a process, the dataset, ``collate_fn`` and ``worker_init_fn`` are searched, nearest
things first::

    object ─▶ attributes, slots, class attributes ─▶ items of containers ─▶ objects of bound
       ╰────▶ generators among the globals of the module of its class      methods, partials

Of a container of `LONG` items or more the first `FIRST_ITEMS` decide: if there is no generator in
them, the others are not looked at. No code of the user's runs: no property, no ``__getattr__``.
What is hidden elsewhere (a closure, a library's globals) is for ``reseed_fn``,
`lit_loader.get_rng` and `lit_loader.check_determinism`.
"""

from __future__ import annotations

import argparse
import contextlib
import mmap
import random
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import lru_cache, partial
from itertools import chain, islice, repeat
from operator import itemgetter
from typing import Any, Final, NamedTuple

import numpy as np
import torch
import torch.utils.data

from lit_loader.core.seeding.seeds import PassSeeds, canonical_pickle, derive, extend, index_number

MAX_OBJECTS: Final = 20_000
"""Objects that a search looks into, each in 1 to 2 µs."""

LONG: Final = 32
FIRST_ITEMS: Final = 16
"""Items of a long container that are looked into first."""

KINDS: Final = (
    *(random.Random, torch.Generator),
    *(np.random.Generator, np.random.RandomState, np.random.BitGenerator),
)

GLOBAL_GENERATORS: Final[tuple[object, ...]] = (
    random.seed.__self__,  # type: ignore[attr-defined]
    np.random.rand.__self__,  # type: ignore[attr-defined]
    torch.default_generator,
)
_GLOBAL_IDS: Final = frozenset(map(id, GLOBAL_GENERATORS))
_PLAIN: Final = frozenset({str, bytes, bytearray, int, float, complex, bool, type(None), range})
_LEAVES: Final[tuple[type, ...]] = (
    *(str, bytes, bytearray, int, float, complex, type(None), range),
    *(torch.Tensor, np.generic, types.ModuleType, types.CodeType, type),
    *(property, staticmethod, classmethod, types.GetSetDescriptorType),
)
_QUIET: Final = _PLAIN | {
    *(types.FunctionType, types.GetSetDescriptorType, property, staticmethod, classmethod)
}
"""Types of class attributes that lead nowhere, as nearly all are."""

_LISTS: Final = frozenset((list, tuple))
_CONTAINERS: Final = (dict, list, tuple, deque, set, frozenset, np.ndarray)
CLOSED: Final = frozenset(sys.stdlib_module_names) | {"numpy", "torch"}
_NO_GLOBALS: Final = CLOSED | {"lit_loader"}
_ENTERED: Final = (types.SimpleNamespace, argparse.Namespace, torch.utils.data.Dataset)
_OPAQUE: Final = frozenset(
    {  # Trainers, loggers, tables, clients: large, and no data is drawn from what they hold.
        *("lightning", "lightning_fabric", "pytorch_lightning", "tensorboard", "wandb", "mlflow"),
        *("pandas", "polars", "pyarrow", "tokenizers", "boto3", "botocore", "fsspec", "h5py"),
    }
)
_SHARING: Final = frozenset(
    f"multiprocessing.{name}" for name in ("sharedctypes", "shared_memory", "managers", "queues")
)

_Lead = tuple[Any, Any]  # a key, place or name, and what is there
_Show = Callable[[Any], str | int]  # returns a key, place or name as a path has it


class Found(NamedTuple):
    """What a search has found: generators by the path at which each comes first."""

    generators: tuple[tuple[str, object], ...] = ()
    shared: str | None = None  # where something is that another process may change
    cut: str | None = None  # where the search has ended at one of its limits


def find_generators(*roots: object, sharing: bool = False) -> Found:
    """Find the random generators that these objects hold in plain sight.

    Found are ``numpy.random.Generator``, ``BitGenerator`` and ``RandomState``, ``torch.Generator``,
    ``random.Random``, and what derives from them, each once; not the three global ones.
    ``sharing``: look for memory that processes share, too.
    """
    search = _Search(sharing)
    for root in roots:
        if root is None:
            continue
        # Of a function only the module is of interest.
        if type(root) is not types.FunctionType or not _is_closed(root.__module__, _NO_GLOBALS):
            search.look_at(root, -1, type(root).__name__)
    search.run()
    if not (search.found or search.shared or search.cut):
        return _NOTHING
    pairs = [(search.path(number), search.entered[number][0]) for number in search.found]
    return Found(tuple(pairs), search.shared, search.cut)


_NOTHING: Final = Found()


class _Role(Enum):
    """What the search does with objects of a type."""

    LEAF = "leaf"  # nothing is to be found in there
    SLOT = "slot"  # a class attribute that knows where an object has it
    ARRAY = "array"  # a leaf, unless it is of objects
    GENERATOR = "generator"
    BITS = "bits"  # a generator's state is in its ``bit_generator``
    CONTAINER = "container"
    FUNCTION = "function"  # only its module is of interest
    PARTIAL = "partial"
    BOUND = "bound"  # a method of some object, such as rng.normal
    MODEL = "model"  # an object, unless it has parameters
    CLOSED = "closed"  # nothing is looked for in its attributes
    OBJECT = "object"


_ROLES: Final = (
    (_LEAVES, _Role.LEAF),
    (types.MemberDescriptorType, _Role.SLOT),
    (np.random.Generator, _Role.BITS),
    (KINDS, _Role.GENERATOR),
    (np.ndarray, _Role.ARRAY),
    (_CONTAINERS, _Role.CONTAINER),
    (types.FunctionType, _Role.FUNCTION),
    (partial, _Role.PARTIAL),
    ((types.MethodType, types.BuiltinFunctionType), _Role.BOUND),
    (torch.utils.data.DataLoader, _Role.CLOSED),  # its passes have seeds of their own
    (torch.nn.Module, _Role.MODEL),
    (_ENTERED, _Role.OBJECT),
)


def _find_role(kind: type) -> _Role:
    """Return what the search does with objects of a type."""
    for kinds, role in _ROLES:
        if issubclass(kind, kinds):
            return role
    is_far = _is_closed(kind.__module__, CLOSED | _OPAQUE)
    return _Role.CLOSED if is_far else _Role.OBJECT


# Short passes are to pay little: what follows from types alone is remembered.
_role: Final[Callable[[type], _Role]] = lru_cache(4096)(_find_role)


@lru_cache(4096)
def _own_classes(kind: type) -> tuple[tuple[type, object], ...]:
    """Return a type and its bases, each with its module, without those of Python and torch."""
    own: Any = ((base, base.__module__) for base in kind.__mro__)
    return tuple((base, name) for base, name in own if not _is_closed(name))


@lru_cache(4096)
def _may_lead(kinds: frozenset[type]) -> bool:
    """Whether something is to be looked for in objects of these types."""
    return any(_role(kind) is not _Role.LEAF for kind in kinds)


@lru_cache(4096)
def _may_be_generators(kinds: frozenset[type]) -> bool:
    return any(_role(kind) in _GENERATORS for kind in kinds)


def _are_bare(lists: Sequence[Sequence[object]]) -> bool:
    """Whether nothing is to be looked for in lists; of a long one the first items decide."""
    deciding: Iterable[Sequence[object]] = map(_first_items, lists)
    if min(map(len, lists)) < LONG:
        deciding = [each if len(each) < LONG else _first_items(each) for each in lists]
    return not _may_lead(frozenset(map(type, chain.from_iterable(deciding))))


_first_items: Final = itemgetter(slice(FIRST_ITEMS))


def _is_closed(module: object, closed: frozenset[str] = CLOSED) -> bool:
    return isinstance(module, str) and module.partition(".")[0] in closed


class _Search:
    """One walk, breadth first."""

    def __init__(self, sharing: bool) -> None:
        self.found: list[int] = []
        self.shared: str | None = None
        self.cut: str | None = None
        # What is looked into, with the number of what led there, and the step. It is kept alive
        # meanwhile: another object would get its id.
        self.entered: list[tuple[Any, int, str | int]] = []
        self._sharing = sharing
        self._seen = set(_GLOBAL_IDS)
        self._modules: set[str] = set()
        # The rest of long containers, for `_look_at_parts`.
        self._left: dict[int, tuple[Iterable[_Lead], int, _Show]] = {}
        self._holding: set[int] = set()  # what has a generator somewhere within

    def path(self, number: int, *last: str | int) -> str:
        """Return the way from the root to something, such as "Digits.transform.rng"."""
        steps = [*last]
        while number >= 0:
            _, number, step = self.entered[number]
            steps.append(step)
        return "".join(f"[{step}]" if isinstance(step, int) else step for step in reversed(steps))

    def look_at(self, value: Any, parent: int, step: str | int) -> None:
        """Note something for the walk, unless nothing can be in there."""
        role = _role(type(value))
        if role is _Role.LEAF or role is _Role.SLOT or id(value) in self._seen:
            return
        if role is _Role.ARRAY and value.dtype != object:
            return
        if len(self._seen) > MAX_OBJECTS:
            self.cut = self.cut or self.path(parent, step)
            return
        self._seen.add(id(value))
        self.entered.append((value, parent, step))

    def run(self) -> None:
        """Walk."""
        number = 0
        while number < len(self.entered) or self._go_on():
            value = self.entered[number][0]
            kind = type(value)
            role = _role(kind)
            if role is _Role.CONTAINER or role is _Role.ARRAY:
                self._look_into(value, kind, number)
            elif role is _Role.GENERATOR:
                self._note(number)
            elif role is _Role.BITS:
                self.look_at(value.bit_generator, number, "")
            elif role is _Role.FUNCTION:
                self._look_at_module(value.__module__)
            else:
                self._look_at_object(value, kind, role, number)
            number += 1

    def _look_into(self, value: Any, kind: type, number: int) -> None:
        """Look at the items of a container; of a long one at the first ones."""
        leads, show = _items(value, kind)
        first = [*islice(leads, LONG)]
        if len(first) == LONG:
            leads, first = chain(first[FIRST_ITEMS:], leads), first[:FIRST_ITEMS]
        parts = [part for _, part in first]
        kinds = frozenset(map(type, parts))
        bare = not _may_lead(kinds) or (kinds <= _LISTS and _are_bare(parts))
        if bare and not self._sharing:
            return
        self._look_at_parts(first, number, show)
        self._left[number] = leads, number, show

    def _look_at_object(self, value: Any, kind: type, role: _Role, number: int) -> None:
        """Look at attributes and class attributes, and at the modules of the classes."""
        own = _own_classes(kind)
        if role is _Role.PARTIAL:
            self._look_at_parts(_named(value, "func", "args", "keywords"), number, _attribute_step)
        elif role is _Role.BOUND:
            self._look_at_parts(_named(value, "__self__", "__func__"), number, _attribute_step)
        elif role is _Role.OBJECT or (
            role is _Role.MODEL and next(torch.nn.Module.parameters(value), None) is None
        ):
            attributes = instance_dict(value)
            if self._sharing or _may_lead(frozenset(map(type, attributes.values()))):
                leads = [*attributes.items()]
                if hasattr(kind, "set_seed") and issubclass(kind, torch.utils.data.IterDataPipe):
                    # It seeds its own generator once in each pass, equally for all shards.
                    leads = [lead for lead in leads if not isinstance(lead[1], KINDS)]
                self._look_at_parts(leads, number, _attribute_step)
            for base, _ in own:
                self._look_at_parts(_class_attributes(base, value, kind), number, _attribute_step)
        for _, module in own:
            self._look_at_module(module)

    def _look_at_parts(self, leads: Iterable[_Lead], number: int, show: _Show) -> None:
        for step, part in leads:
            if type(part) in _PLAIN:
                continue
            if self._sharing:
                if self.shared is None and _is_shared(part):
                    self.shared = self.path(number, show(step))
            elif type(part) in _LISTS and _are_bare((part,)):  # as in `run`, without entering it
                continue
            self.look_at(part, number, show(step))

    def _look_at_module(self, name: object) -> None:
        """Note the generators among the globals of the module that defines a class or function."""
        if not isinstance(name, str) or name in self._modules or _is_closed(name, _NO_GLOBALS):
            return
        self._modules.add(name)
        names = vars(sys.modules[name]) if name in sys.modules else {}
        if not _may_be_generators(frozenset(map(type, names.values()))):
            return
        shown = "__main__" if name == "__mp_main__" else name  # as spawned workers call it
        for each, value in list(names.items()):
            if _role(type(value)) in _GENERATORS:  # isinstance would call Python code of torch's
                self.look_at(value, -1, f"{shown}.{each}")

    def _note(self, number: int) -> None:
        self.found.append(number)
        while number >= 0 and number not in self._holding:
            self._holding.add(number)
            number = self.entered[number][1]

    def _go_on(self) -> bool:
        """Take up the rest of the containers in whose first items there is a generator."""
        known = len(self.entered)
        for number in self._holding.intersection(self._left):
            with contextlib.suppress(RuntimeError):  # another thread changes the container
                self._look_at_parts(*self._left.pop(number))
        return len(self.entered) > known


def _items(value: Any, kind: type) -> tuple[Iterator[_Lead], _Show]:
    """Return the items of a container by the builtin class: a subclass's method is user code.

    With the function that shows a key or place.
    """
    base = next(each for each in _CONTAINERS if issubclass(kind, each))
    if base is dict:
        return islice(dict.items(value), MAX_OBJECTS), _key_step
    items = islice(value.flat if base is np.ndarray else base.__iter__(value), MAX_OBJECTS)
    if base in (set, frozenset):  # no order that two processes agree on
        return zip(repeat("{}"), items), str
    return enumerate(items), int


def _key_step(key: object) -> str | int:
    return f"[{key!r}]" if type(key) is str else key if type(key) is int else "[?]"


_attribute_step: Final = ".{}".format


def _named(value: object, *names: str) -> list[_Lead]:
    return [(name, getattr(value, name, None)) for name in names]


def _class_attributes(base: type, value: object, kind: type) -> Iterator[_Lead]:
    """Yield what a class has for an object, but for functions and what Python needs itself."""
    for name, member in [*vars(base).items()]:
        if type(member) in _QUIET:
            continue
        role = _role(type(member))
        if role is _Role.SLOT:
            with contextlib.suppress(AttributeError):  # never assigned
                yield name, member.__get__(value, kind)
        elif role is not _Role.LEAF and role is not _Role.FUNCTION and name[:2] != "__":
            yield name, member


_GENERATORS: Final = frozenset({_Role.GENERATOR, _Role.BITS})


def instance_dict(value: object) -> dict[str, object]:
    """Return the ``__dict__`` of an object; an empty one if it has none."""
    try:
        attributes = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return attributes if type(attributes) is dict else {}


def _is_shared(value: Any) -> bool:
    """Whether another process may change what is seen here: a `multiprocessing.Value`, say."""
    kind = type(value)
    if kind is torch.Tensor:
        return value.layout == torch.strided and not value.is_cuda and bool(value.is_shared())
    if issubclass(kind, np.ndarray):
        # One over the buffer of a SharedMemory, or of a file that is open for writing.
        while isinstance(value.base, np.ndarray):
            value = value.base
        inner = value.base.obj if type(value.base) is memoryview else value.base
        return bool(value.flags.writeable) and isinstance(inner, mmap.mmap)
    if kind.__module__ == "multiprocessing.synchronize":
        return kind.__name__ == "Event"
    # reach: python: RawValue and RawArray are ctypes' own, with this attribute
    wrapper = type(instance_dict(value).get("_wrapper"))
    return kind.__module__ in _SHARING or wrapper.__module__ == "multiprocessing.heap"


# --- reading, writing and seeding one generator ---


class Tape(NamedTuple):
    """How to read, write and reseed a generator's state, and to draw a number from it."""

    read: Callable[[], object]
    write: Callable[[Any], object]
    reseed: Callable[[int], object]
    draw: Callable[[], int]


def tape(value: object) -> Tape | None:
    """Return how a generator is read, written and reseeded; None if it has no state."""
    if isinstance(value, np.random.Generator):
        value = value.bit_generator
    if isinstance(value, torch.Generator):
        number = torch.empty((), dtype=torch.int64, device=value.device)
        return Tape(
            *(value.get_state, value.set_state, value.manual_seed),
            lambda: int(number.random_(generator=value)),
        )
    if isinstance(value, random.SystemRandom):
        return None
    if isinstance(value, random.Random):
        return Tape(value.getstate, value.setstate, value.seed, partial(value.getrandbits, 63))
    if isinstance(value, np.random.RandomState):
        return Tape(
            *(partial(value.get_state, legacy=False), value.set_state),
            *(partial(_reseed_random_state, value), lambda: int(value.randint(1 << 62))),
        )
    if isinstance(value, np.random.BitGenerator):
        return Tape(
            *(partial(getattr, value, "state"), partial(setattr, value, "state")),
            *(partial(_reseed_bits, value), value.random_raw),
        )
    return None


def _reseed_bits(bits: np.random.BitGenerator, seed: int) -> None:
    bits.state = type(bits)(seed).state
    # What spawn() returns depends on how often it was called, which the seed sequence counts. Its
    # constructor begins again at 0.
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


# --- the generators of one dataset, batch by batch ---


def own_seeds(
    found: Iterable[tuple[str, object]], known: Mapping[str, int], is_seeded: bool
) -> dict[str, int]:
    """Return the number that each held generator counts from, by its path.

    Those that are not ``known`` draw one. If the loader ``is_seeded``, its seed takes their place,
    and nothing is drawn: the number tells generators apart. Those in equal states, as two
    transforms that must draw the same have them, share one.
    """
    own = dict(known)
    equal: dict[bytes, int] = {}
    for number, (path, generator) in enumerate(found):
        controls = tape(generator)
        if controls is None or path in own:
            continue
        if is_seeded:
            state = canonical_pickle([type(generator).__name__, controls.read()])
            own[path] = equal.setdefault(state, number)
        else:
            own[path] = controls.draw()
    return own


class HeldGenerators:
    """The generators that a dataset and its functions hold, as one pass seeds them.

    ``own`` is what `own_seeds` gave in the training process. A generator that was made since, in a
    worker, has no number there: the pass's seed and its path take that place.
    """

    def __init__(
        self, found: Iterable[tuple[str, object]], own: Mapping[str, int], seeds: PassSeeds
    ) -> None:
        self.tapes: list[Tape] = []
        self.paths: list[str] = []
        self._bases: list[int] = []
        for path, generator in found:
            controls = tape(generator)
            if controls is None:
                continue
            base = own.get(path)
            if base is None:
                start = extend(seeds.seed, index_number(path))
            elif seeds.held:
                start = extend(seeds.seed, base)
            else:
                start = derive(base, seeds.ordinal)
            self.tapes.append(controls)
            self.paths.append(path)
            self._bases.append(start)

    def reseed(self, *parts: int) -> None:
        """Seed each generator in place for a batch or sample, which ``parts`` name."""
        for controls, base in zip(self.tapes, self._bases, strict=True):
            controls.reseed(extend(base, *parts))


NONE_HELD: Final = HeldGenerators((), {}, PassSeeds(0))
