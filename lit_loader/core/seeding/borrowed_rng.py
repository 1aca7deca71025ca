"""`BorrowedRng`: the process's random generators, lent to one batch and put back.

With ``num_workers=0`` batches are made in the training process, whose own generators must go on as
if no loader were there. Reading and writing the 624 words of a Mersenne Twister takes longer than
many a small batch, so a generator is lent only to datasets that draw from it:

- Around the first `WATCHED` batches of a dataset, then around batches 32, 64, 128, …, all three
  generators are lent, and looked at: has the batch drawn from this one?
- Around all others only those are lent that a batch was seen to draw from. A dataset that begins
  to draw later is reported: batches since the last look were not seeded.

What is learned of a dataset (`Draws`) is kept for later passes and for other loaders of it, since
short passes are to pay nothing. A sampler is lent all of them at each batch, unless all its items
are there from the beginning.

NumPy's generator is lent by putting another bit generator behind ``numpy.random``, which takes 3 µs
where reading and writing its state takes 70. NumPy forgets then the second of the two normal
deviates that ``numpy.random.randn`` draws at once, so that one is kept here (`_reserve`).
"""

from __future__ import annotations

import random
import weakref
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from types import MethodType, SimpleNamespace
from typing import Any, Final
from weakref import WeakMethod

import numpy as np
import torch

from lit_loader.core.seeding import loader_seeds
from lit_loader.core.seeding.held_generators import Tape
from lit_loader.core.seeding.loader_seeds import GeneratorLock
from lit_loader.core.seeding.seeds import numpy_seed

WATCHED: Final = 16
"""Batches of a dataset around which all generators are lent and looked at."""

TORCH, NUMPY, PYTHON = 1, 2, 4
_NAMES: Final = {TORCH: "torch", NUMPY: "numpy.random", PYTHON: "random"}

_numpy: Any = np.random  # its stubs do not know all of its functions
_torch: Final = torch.default_generator
_scratch: Final = torch.Generator(), np.random.RandomState(0), random.Random(0)
_spares: Final[list[np.random.BitGenerator]] = []  # bit generators to put behind numpy.random


class Draws:
    """Which of the global generators batches of a dataset were seen to draw from."""

    __slots__ = ("batches", "drawn", "due", "looked")

    def __init__(self) -> None:
        self.batches = 0  # that were made
        self.looked = 0  # the number of batches when all generators were lent last
        self.due = 0  # … and when they are to be lent, and looked at, again
        self.drawn = 0

    def count(self, all_lent: bool) -> None:
        """Count a batch; all generators were lent to it, or those that it was to draw from."""
        self.batches = number = self.batches + 1
        if all_lent:
            self.looked = number
            self.due = number if number < WATCHED else (1 << number.bit_length()) - 1

    def note(self, new: int) -> str | None:
        """Note draws that were not known; returns what to report if they come too late."""
        first = self.looked + 1
        self.drawn |= new
        if first > self.batches:
            return None
        names = " and ".join(name for bit, name in _NAMES.items() if new & bit)
        return (
            f"it began to draw random numbers from {names} after {WATCHED} batches, so batches "
            f"{first} to {self.batches} were not seeded: what they may have drawn does not repeat. "
            'Draw from lit_loader.get_rng(), or pass seeding="sample" [LL414]'
        )


_known: Final[dict[int, tuple[weakref.ref[object], list[tuple[object, Draws]]]]] = {}
_MOST_FUNCTIONS: Final = 4


def draws_of(dataset: object, collate_fn: object, owner: object = None) -> Draws:
    """Return what is known of a dataset and a function, in this process.

    ``owner`` is what remembers it of a dataset that has no weak references.
    """
    key = id(dataset)
    if key not in _known or _known[key][0]() is not dataset:
        try:
            # ``known``: at the interpreter's end the module's own names are gone.
            forget = lambda _, known=_known: known.pop(key, None)  # noqa: E731
            _known[key] = weakref.ref(dataset, forget), []
        except TypeError:  # a list, say: each loader learns by itself
            return Draws() if owner is None else draws_of(owner, (key, id(collate_fn)))
    kept, wanted = _known[key][1], _weakly(collate_fn)
    for function, draws in kept:
        if function == wanted:
            return draws
    draws = Draws()
    kept[:] = [*kept, (wanted, draws)][-_MOST_FUNCTIONS:]
    return draws


def _weakly(function: Any) -> object:
    """Return what is equal for the same function, and keeps no dataset alive of which it is one."""
    try:
        return (WeakMethod if isinstance(function, MethodType) else weakref.ref)(function)
    except TypeError:
        return function


class BorrowedRng(AbstractContextManager["BorrowedRng"]):
    """The generators of the process, lent to one thread for one batch.

    ``always``: all are lent, whatever was drawn before. ``watched``: they are looked at, too.
    Generators that the dataset ``held`` are read and put back. After the batch ``late`` is what to
    report, or None.

    A context; or `begin` and `end` in ``try`` and ``finally``. May be nested.
    """

    _lock: GeneratorLock | None = None
    # The states of what is lent, and NumPy's bit generator; None: that one is not lent.
    _torch: torch.Tensor | None = None
    _python: tuple[object, ...] | None = None
    _bits: np.random.BitGenerator | None = None
    _kept: Mapping[str, Any] = {}
    _states: Sequence[object] = ()
    _drawn = 0
    _seed: int | None = None  # the batch's
    late: str | None = None

    def __init__(
        self, draws: Draws, held: Sequence[Tape] = (), always: bool = False, watched: bool = False
    ) -> None:
        self._draws, self._held, self._is_watched = draws, held, watched
        self._lends_all = always or watched

    def begin(self) -> BorrowedRng:
        """Borrow them, as soon as no other thread has them."""
        if not loader_seeds.lock._is_owned():  # reach: python: as threading.Condition asks
            self._lock = GeneratorLock()
            self._lock.take()
        wanted = TORCH | NUMPY | PYTHON if self._lends_all else self._draws.drawn
        # Noted one by one: an exception out of a signal handler may come in between.
        if wanted & TORCH:
            self._torch = _torch.get_state()
        if wanted & PYTHON:
            self._python = random.getstate()
        if wanted & NUMPY:
            spare = _spares.pop() if _spares else np.random.MT19937(0)
            self._kept = _reserve()
            self._bits = _numpy.get_bit_generator()
            _numpy.set_bit_generator(spare)
        if self._held:
            self._states = [each.read() for each in self._held]
        return self

    def seed(self, seed: int) -> None:
        """Seed those that are lent; ``torch.initial_seed()`` then is the seed, if torch's is."""
        if self._is_watched and self._seed is not None:  # they are seeded for the second time
            self._drawn |= _moved(self._seed)
        self._seed = seed
        if self._torch is not None:
            _torch.manual_seed(seed)
        if self._bits is not None:
            _numpy.seed(numpy_seed(seed))
        if self._python is not None:
            random.seed(seed)

    def end(self) -> None:
        """Put them back; may be called again, and does then what was not done."""
        draws, seed, self._seed = self._draws, self._seed, None
        if seed is not None:
            if self._is_watched and (new := (self._drawn | _moved(seed)) & ~draws.drawn):
                self.late = draws.note(new)
            draws.count(self._lends_all)
        if self._torch is not None:
            _torch.set_state(self._torch)
            self._torch = None
        if self._python is not None:
            random.setstate(self._python)
            self._python = None
        if self._bits is not None:
            spare, bits = _numpy.get_bit_generator(), self._bits
            _numpy.set_bit_generator(bits)
            if self._kept["has_gauss"]:
                _reserve(self._kept)
            self._bits = None
            if not _spares and type(spare) is np.random.MT19937 and spare is not bits:
                _spares.append(spare)
        if self._states:
            for each, state in zip(self._held, self._states, strict=True):
                each.write(state)
            self._states = ()
        if self._lock is not None:
            self._lock.end()

    def __enter__(self) -> BorrowedRng:
        try:
            return self.begin()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        try:
            self.end()
        finally:  # an exception out of a signal handler may have come in between
            self.end()


# reach: numpy: asks for what is in reserve without copying the bit generator's state
def _reserve(kept: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
    """Return, or put back, the normal deviate that ``numpy.random`` has in reserve.

    NumPy gives it only together with the bit generator's state, whose 624 words take 25 µs. So
    another object stands in for the bit generator, with a state of nothing.
    """
    of_numpy: Any = np.random.mtrand._rand
    bits = of_numpy._bit_generator
    try:  # an exception out of a signal handler may come at any call
        of_numpy._bit_generator = SimpleNamespace(state={"bit_generator": "", "state": None})
        if kept is not None:
            of_numpy.set_state(kept)
        state: Mapping[str, Any] = of_numpy.get_state(legacy=False)
        return state
    finally:
        of_numpy._bit_generator = bits


def _moved(seed: int) -> int:
    """Return which generators are not where `BorrowedRng.seed` has put them; draws from them."""
    torchs, numpys, pythons = _scratch
    numpys.seed(numpy_seed(seed))
    pythons.seed(seed)
    moved = 0
    if not torch.equal(torchs.manual_seed(seed).get_state(), _torch.get_state()):
        moved |= TORCH
    if numpys.random_sample() != np.random.random_sample():
        moved |= NUMPY
    if pythons.getrandbits(64) != random.getrandbits(64):
        moved |= PYTHON
    return moved
