"""Random generators that a dataset holds in plain sight: found, and seeded for each batch.

Seeding ``random``, ``numpy.random`` and torch does not reach an attribute ``self.rng``. So when a
pass begins in a process, the dataset, ``collate_fn`` and ``worker_init_fn`` are searched, nearest
things first::

    object ─▶ attributes, slots, class attributes ─▶ items of containers ─▶ objects of bound
       ╰────▶ generators among the globals of the module of its class      methods, partials

Of a long container the first `FIRST_ITEMS` decide: if there is no generator in them, the others are
not looked at. No code of the user's runs: no property, no ``__getattr__``. What is hidden elsewhere
(a closure, a library's globals) is for ``reseed_fn``, `lit_loader.get_rng` and
`lit_loader.check_determinism`.
"""

from __future__ import annotations

import argparse
import contextlib
import mmap
import random
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple

import numpy as np
import torch
import torch.utils.data

from lit_loader.core.seeding.seeds import PassSeeds, canonical_pickle, derive, extend, index_number

MAX_OBJECTS: Final = 20_000
"""Objects that a search looks into, each in 1 to 2 µs."""

MAX_DEPTH: Final = 16
"""Steps (attribute, item, ...) that a search follows from the dataset."""

FIRST_ITEMS: Final = 16
"""Items of a container that are looked into first."""

KINDS: Final = (
    *(random.Random, torch.Generator),
    *(np.random.Generator, np.random.RandomState, np.random.BitGenerator),
)

GLOBAL_GENERATORS: Final[tuple[Any, ...]] = (
    random.seed.__self__,  # type: ignore[attr-defined]
    np.random.rand.__self__,  # type: ignore[attr-defined]
    torch.default_generator,
)
_GLOBALS: Final = {id(each): each for each in GLOBAL_GENERATORS}
_PLAIN: Final = frozenset({str, bytes, bytearray, int, float, complex, bool, type(None), range})
_LEAVES: Final[tuple[type, ...]] = (
    *(str, bytes, bytearray, int, float, complex, type(None), range),
    *(torch.Tensor, np.generic, types.ModuleType, types.CodeType, type),
    *(property, staticmethod, classmethod, types.MemberDescriptorType),
)
_CONTAINERS: Final = (dict, list, tuple, deque, set, frozenset, np.ndarray)
CLOSED: Final = frozenset(sys.stdlib_module_names) | {"numpy", "torch"}
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

_Lead = tuple[str, Any]


class Found(NamedTuple):
    """What a search has found: generators by the path at which each comes first."""

    generators: tuple[tuple[str, Any], ...] = ()
    shared: str | None = None  # where something is that another process may change
    cut: str | None = None  # where the search has ended at one of its limits


def find_generators(*roots: object) -> Found:
    """Find the random generators that these objects hold in plain sight.

    Found are ``numpy.random.Generator``, ``BitGenerator`` and ``RandomState``, ``torch.Generator``,
    ``random.Random``, and what derives from them, each once; not the three global ones.
    """
    search = _Search()
    for root in roots:
        search.look_at(root, -1, type(root).__name__, 0)
    search.run()
    pairs = [(search.path(number), search.entered[number][0]) for number in search.found]
    return Found(tuple(pairs), search.shared, search.cut)


class _Search:
    """One walk, breadth first."""

    def __init__(self) -> None:
        self.found: list[int] = []
        self.shared: str | None = None
        self.cut: str | None = None
        # What was looked into, with the number of what led there, and the step.
        self.entered: list[tuple[Any, int, str]] = []
        self._queue: deque[tuple[Any, int, str, int]] = deque()
        self._seen = _GLOBALS.copy()
        self._modules: set[str] = set()
        self._left: dict[int, tuple[Iterator[_Lead], int]] = {}  # rest of long containers
        self._holding: set[int] = set()  # what has a generator somewhere within

    def path(self, number: int) -> str:
        """Return the way from the root to something, such as "Digits.transform.rng"."""
        steps = []
        while number >= 0:
            _, parent, step = self.entered[number]
            steps.append(step)
            number = parent
        return "".join(reversed(steps))

    def look_at(self, value: Any, parent: int, step: str, depth: int) -> None:
        """Note something for the walk, unless nothing can be in there."""
        if is_leaf(value) or id(value) in self._seen:
            return
        if depth > MAX_DEPTH or len(self._seen) > MAX_OBJECTS:
            self.cut = self.cut or (self.path(parent) + step)
            return
        self._seen[id(value)] = value  # kept alive: another object would get its id
        self._queue.append((value, parent, step, depth))

    def run(self) -> None:
        """Walk."""
        while self._queue or self._go_on():
            value, parent, step, depth = self._queue.popleft()
            kind, number = type(value), len(self.entered)
            self.entered.append((value, parent, step))
            if issubclass(kind, np.random.Generator):
                self.look_at(value.bit_generator, number, "", depth)
            elif issubclass(kind, KINDS):
                self._note(number)
            elif issubclass(kind, _CONTAINERS):
                leads = _items(value, kind)
                for lead, item in islice(leads, FIRST_ITEMS):
                    if type(item) not in _PLAIN:
                        self._look_at_part(item, number, lead, depth)
                self._left[number] = leads, depth
            else:
                owners = [value] if issubclass(kind, types.FunctionType) else kind.__mro__
                own = [each for each in owners if root_of(each) not in CLOSED]
                for lead, part in _parts(value, kind, own):
                    if type(part) not in _PLAIN:
                        self._look_at_part(part, number, lead, depth)
                for owner in own:
                    self._look_at_module(owner, depth)

    def _look_at_part(self, part: Any, number: int, step: str, depth: int) -> None:
        if self.shared is None and _is_shared(part):
            self.shared = self.path(number) + step
        self.look_at(part, number, step, depth + 1)

    def _look_at_module(self, owner: Any, depth: int) -> None:
        """Note the generators among the globals of the module that defines a class or function."""
        name = getattr(owner, "__module__", None)
        if not isinstance(name, str) or name in self._modules:
            return
        self._modules.add(name)
        shown = "__main__" if name == "__mp_main__" else name  # as spawned workers call it
        for each, value in list(vars(sys.modules[name]).items()) if name in sys.modules else ():
            if issubclass(type(value), KINDS):  # isinstance would call Python code of torch's
                self.look_at(value, -1, f"{shown}.{each}", depth + 1)

    def _note(self, number: int) -> None:
        self.found.append(number)
        while number >= 0 and number not in self._holding:
            self._holding.add(number)
            number = self.entered[number][1]

    def _go_on(self) -> bool:
        """Take up the rest of the containers in whose first items there is a generator."""
        for number in self._holding.intersection(self._left):
            leads, depth = self._left.pop(number)
            with contextlib.suppress(RuntimeError):  # another thread changes the container
                for lead, item in leads:
                    self._look_at_part(item, number, lead, depth)
        return bool(self._queue)


def _items(value: Any, kind: type) -> Iterator[_Lead]:
    """Yield the items of a container by the builtin class: a subclass's method is user code."""
    base = next(each for each in _CONTAINERS if issubclass(kind, each))
    if base is dict:
        for key, item in islice(dict.items(value), MAX_OBJECTS):
            yield f"[{key!r}]" if type(key) in (str, int) else "[?]", item
    elif base in (set, frozenset):  # no order that two processes agree on
        yield from (("{}", item) for item in islice(base.__iter__(value), MAX_OBJECTS))
    else:
        items = value.flat if base is np.ndarray else base.__iter__(value)
        for place, item in enumerate(islice(items, MAX_OBJECTS)):
            yield f"[{place}]", item


def _parts(value: Any, kind: type, own: Iterable[Any]) -> Iterator[_Lead]:
    """Yield what an object that is no container leads to; ``own`` are its classes with members."""
    if issubclass(kind, partial):
        yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
    elif issubclass(kind, (types.MethodType, types.BuiltinFunctionType)):  # rng.normal, too
        yield ".__self__", value.__self__
        yield ".__func__", getattr(value, "__func__", None)
    elif issubclass(kind, (types.FunctionType, torch.utils.data.DataLoader)):
        return  # a loader's passes have seeds of their own
    elif _is_entered(value, kind):
        # A shuffling DataPipe seeds its own generator once in each pass, equally for all shards.
        pipe = issubclass(kind, torch.utils.data.IterDataPipe) and hasattr(kind, "set_seed")
        for name, part in list(instance_dict(value).items()):
            if not (pipe and isinstance(part, KINDS)):
                yield f".{name}", part
        for base in own:
            for name, member in list(vars(base).items()):
                if type(member) is types.MemberDescriptorType:
                    with contextlib.suppress(AttributeError):  # never assigned
                        yield f".{name}", member.__get__(value, kind)
                elif not (name.startswith("__") or isinstance(member, types.FunctionType)):
                    yield f".{name}", member


def _is_entered(value: Any, kind: type) -> bool:
    """Whether to look into an object: not into a model, nor what leads far away."""
    if issubclass(kind, torch.nn.Module):
        return next(torch.nn.Module.parameters(value), None) is None
    return issubclass(kind, _ENTERED) or root_of(kind) not in CLOSED | _OPAQUE


def is_leaf(value: Any) -> bool:
    """Whether nothing is to be found in there."""
    kind = type(value)
    if kind in _PLAIN or issubclass(kind, _LEAVES):
        return True
    return issubclass(kind, np.ndarray) and value.dtype != object


def root_of(code: Any) -> str:
    """Return the package that a class or function is of."""
    module = getattr(code, "__module__", None)
    return module.partition(".")[0] if isinstance(module, str) else ""


def instance_dict(value: Any) -> dict[str, Any]:
    """Return the ``__dict__`` of an object; an empty one if it has none."""
    try:
        attributes = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return attributes if type(attributes) is dict else {}


def _is_shared(value: Any) -> bool:
    """Whether another process may change what is seen here: a `multiprocessing.Value`, say."""
    kind = type(value)
    if kind in _PLAIN:
        return False
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

    read: Callable[[], Any]
    write: Callable[[Any], object]
    reseed: Callable[[int], object]
    draw: Callable[[], int]


def tape(value: Any) -> Tape | None:
    """Return how a generator is read, written and reseeded; None if it has no state."""
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


def _reseed_bits(bits: Any, seed: int) -> None:
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
    found: Iterable[tuple[str, Any]], known: Mapping[str, int], is_seeded: bool
) -> dict[str, int]:
    """Return the number that each held generator counts from, by its path.

    Those that are not ``known`` draw one. If the loader ``is_seeded``, its seed takes their place,
    and nothing is drawn: the number tells generators apart. Those in equal states, as two
    transforms that must draw the same have them, share one.
    """
    own, equal = dict(known), dict[bytes, int]()
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
        self, found: Iterable[tuple[str, Any]], own: Mapping[str, int], seeds: PassSeeds
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

    def __bool__(self) -> bool:
        return bool(self.tapes)

    def reseed(self, *parts: int) -> None:
        """Seed each generator in place for a batch or sample, which ``parts`` name."""
        for controls, base in zip(self.tapes, self._bases, strict=True):
            controls.reseed(extend(base, *parts))


NONE_HELD: Final = HeldGenerators((), {}, PassSeeds(0))
