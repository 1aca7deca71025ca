"""Random generators that a dataset holds itself, found once and reseeded like the global ones.

Seeding ``random``, ``numpy.random`` and torch does not reach an attribute ``self.rng``. Between
workers that pull their tasks such a generator would make results depend on who did what.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import random
import types
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import numpy as np
import torch

from lit_loader.seeding.plain_data import is_leaf
from lit_loader.seeding.reachable import Cut, leads
from lit_loader.seeding.searched_places import SearchedPlaces
from lit_loader.seeding.seeds import derive

__all__ = ["HeldGenerators", "MAX_DEPTH", "MAX_OBJECTS", "find_generators", "has_seed"]

MAX_DEPTH = 16
"""Steps (attribute, item, closure cell, ...) that are followed from a root."""

MAX_OBJECTS = 20_000
"""Objects that are looked into, breadth first, data before code; as much again of code. The search
takes 1 to 5 us for each."""

_BEAT = 512

_GLOBALS: tuple[Any, ...] = (
    random.seed.__self__,  # type: ignore[attr-defined]
    np.random.mtrand._rand,
    torch.default_generator,
)
_Reseed = Callable[[int], object]


class HeldGenerators:
    """The generators that `find_generators` found.

    Attributes:
        paths: Where each was found first, such as ``Digits.transform.rng``, sorted.
        generators: The generators themselves, in the order of ``paths``.
        cuts: Where the search ended at one of its limits, in words; empty: it ended by itself.
        unseedable: Paths of generators that no seed determines (``random.SystemRandom``).
    """

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.generators: list[Any] = []
        self.cuts: list[str] = []
        self.unseedable: list[str] = []
        self._reseeds: list[tuple[int, _Reseed]] = []
        self._places: list[tuple[dict[Any, Any], Any, Any, str]] = []
        self._searched = SearchedPlaces()

    def note_place(self, parent: Any, generator: Any, path: str) -> None:
        """Note the attribute (or the item of a dict) that a generator was found in."""
        place = parent
        if type(parent) is not dict:
            try:
                place = object.__getattribute__(parent, "__dict__")
            except AttributeError:
                return
        if type(place) is dict:
            for key, value in place.items():
                if value is generator:
                    self._places.append((place, key, generator, path))

    def take(self, found: dict[str, list[tuple[Any, _Reseed]]], searched: SearchedPlaces) -> None:
        """Take what a search has found, and the places that it has looked at."""
        pairs = [(path, *pair) for path in sorted(found) for pair in found[path]]
        self.paths = [path for path, _, _ in pairs]
        self.generators = [generator for _, generator, _ in pairs]
        # By path and not by number: what else is found must not change a generator's stream.
        self._reseeds = [(_hash(path), reseed) for path, _, reseed in pairs]
        self._searched = searched
        searched.take()

    def in_a_copy(self, generators: Sequence[Any]) -> HeldGenerators:
        """The same for a copy of the objects that were searched, which is not searched for it.

        Args:
            generators: The copy's, in the order of ``generators``.
        """
        held = copy.copy(self)
        held.put_in_place(generators)
        return held

    def put_in_place(self, generators: Sequence[Any]) -> None:
        """Take these for those that were found, and look at no place from now on."""
        self.generators = [*generators]
        self._reseeds = [
            (name, _reseeder(generator))  # type: ignore[misc]
            for (name, _), generator in zip(self._reseeds, generators, strict=True)
        ]
        self._places, self._searched = [], SearchedPlaces()
        self._searched.take()

    @property
    def states(self) -> list[Any]:
        """All that a draw changes: the generators, and the seed sequences that they spawn from."""
        sequences = (getattr(generator, "seed_seq", None) for generator in self.generators)
        return [*self.generators, *(each for each in sequences if each is not None)]

    @property
    def complete(self) -> bool:
        """Whether the search ended by itself and not at one of its limits."""
        return not self.cuts

    def __len__(self) -> int:
        """Give the number of generators found."""
        return len(self._reseeds)

    def outdated(self) -> bool:
        """Whether a search might find others now; it costs 50 ns for each place looked at."""
        return self._searched.changed()

    @property
    def has_places(self) -> bool:
        """Whether there are attributes that :meth:`moved` compares."""
        return bool(self._places)

    def moved(self) -> bool:
        """Whether an attribute holds another generator now; 60 ns for each."""
        for place, key, generator, _ in self._places:  # noqa: SIM110  any() takes twice as long
            if place.get(key) is not generator:
                return True
        return False

    def without_places(self, paths: Collection[str]) -> None:
        """Let :meth:`moved` pass over some of the attributes."""
        self._places = [place for place in self._places if place[3] not in paths]

    def keep(self, paths: Collection[str]) -> None:
        """Forget the generators that were found elsewhere."""
        kept = [number for number, path in enumerate(self.paths) if path in paths]
        self.paths = [self.paths[number] for number in kept]
        self.generators = [self.generators[number] for number in kept]
        self._reseeds = [self._reseeds[number] for number in kept]
        self._places = [place for place in self._places if place[3] in paths]

    def reseed(self, seed: int) -> None:
        """Reseed each generator in place, with a stream of its own derived from ``seed``.

        Args:
            seed: 64-bit seed; a batch's or a sample's.
        """
        for name, reseed in self._reseeds:
            reseed(derive(seed, name))


def find_generators(
    *roots: object,
    apart_from: Iterable[object] = (),
    beat: Callable[[], object] = lambda: None,
) -> HeldGenerators:
    """Find the random generators that objects hold or functions use.

    Looked into: attributes (``__dict__``, ``__slots__``, class attributes), items of containers and
    of arrays of objects, what the standard library's and NumPy's objects hold (partial functions,
    caches, iterators, `UserDict`, ...), and of functions closures, defaults, the global names that
    they load and the attributes of modules and classes that they name. No code of the user's is
    run: no property, no ``__getattr__``. What is left out is said in `seeding/reachable.py`.

    Found: ``numpy.random.Generator``, ``BitGenerator``, ``RandomState`` and ``SeedSequence``,
    ``torch.Generator``, ``random.Random``, and what derives from them; not the three global ones.
    Members of a set have no order that two processes agree on, so they share a path, and thereby
    their seeds.

    Args:
        *roots: The dataset, the collate_fn, ...
        apart_from: Objects that are not looked into.
        beat: Called now and then: on a loaded machine the search may take seconds.
    """
    found: dict[str, list[tuple[Any, _Reseed]]] = {}
    held, searched = HeldGenerators(), SearchedPlaces()
    # What objects hold comes before what their code uses: that may lead far.
    values: deque[_Entry] = deque((root, _name(root), 0, 0, None) for root in roots)
    code: deque[_Entry] = deque()
    # Objects made on the way (bound methods, say) must live on, or another would get their id.
    seen: dict[int, object] = {id(known): known for known in (*_GLOBALS, *apart_from)}
    looked = 0
    while queue := values or code:
        value, path, depth, calls, parent = queue.popleft()
        if is_leaf(value) or id(value) in seen:
            continue
        kind = type(value)
        if kind is Cut:
            held.cuts.append(f"{value.what} in {path}")
            continue
        if calls and depth > MAX_DEPTH // 2:
            continue  # what a library keeps for itself may lead anywhere
        if depth > MAX_DEPTH or looked > (MAX_OBJECTS if queue is values else 2 * MAX_OBJECTS):
            if not calls and not (held.cuts and depth <= MAX_DEPTH):
                what = "more than so many steps deep" if depth > MAX_DEPTH else "among so many"
                held.cuts.append(f"{path} ({what})")
            continue
        seen[id(value)] = value
        looked += 1
        if looked % _BEAT == 0:
            beat()
        if issubclass(kind, np.random.Generator):
            held.note_place(parent, value, path)
            values.appendleft((value.bit_generator, path, depth, calls, None))
        elif (reseed := _reseeder(value)) is not None:
            held.note_place(parent, value, path)
            found.setdefault(path, []).append((value, reseed))
            if issubclass(kind, random.SystemRandom) and not calls:
                held.unseedable.append(path)
        else:
            for step, child, inner in leads(value, calls, searched, seen):
                entry = (child, path + step, depth + 1, inner, value)
                (code if issubclass(type(child), _CODE) else values).append(entry)
    beat()
    held.take(found, searched)
    return held


_Entry = tuple[Any, str, int, int, Any]
_CODE = (type, types.FunctionType, property, staticmethod, classmethod)


def _name(root: object) -> str:
    return getattr(type(root), "__name__", "?")


def _reseeder(value: Any) -> _Reseed | None:
    """Give the function that reseeds a generator; None if ``value`` is none that can be."""
    kind = type(value)
    if issubclass(kind, torch.Generator):
        return value.manual_seed  # type: ignore[no-any-return]
    if issubclass(kind, random.Random):
        return value.seed  # type: ignore[no-any-return]
    if issubclass(kind, np.random.SeedSequence):
        return functools.partial(np.random.SeedSequence.__init__, value)
    if issubclass(kind, np.random.BitGenerator):
        return functools.partial(_reseed_bits, value)
    if issubclass(kind, np.random.RandomState):
        return functools.partial(_reseed_random_state, value)
    return None


def has_seed(generator: Any) -> bool:
    """Whether a generator is known to be made with a seed, and not from the system's entropy."""
    if issubclass(type(generator), torch.Generator):
        return True  # a new one has a seed that is always the same
    sequence = getattr(generator, "seed_seq", generator)
    if type(sequence) is not np.random.SeedSequence:
        return False
    entropy = sequence.entropy
    return not isinstance(entropy, int) or entropy < 2**64


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
