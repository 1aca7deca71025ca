"""`BorrowedRng`: the process's random generators, lent to one batch and put back.

With ``num_workers=0`` batches are made in the training process, whose own generators must go on as
if no loader were there. Reading and writing the 624 words of a Mersenne Twister takes longer than
many a small batch, so a generator is lent only to datasets that draw from it:

- Around the first `WATCHED` batches of a dataset, then around batches 32, 64, 128, …, all three
  generators are lent, and looked at: has the batch drawn from this one?
- Around all others only those are lent that a batch was seen to draw from. A dataset that begins
  to draw later is reported: batches since the last look were not seeded.

What is learned of a dataset (`Draws`) is kept for later passes and for other loaders of it, since
short passes are to pay nothing. Samplers are lent the generators in the same way.

NumPy's generator is lent by putting another bit generator behind ``numpy.random``, which takes 3 µs
where reading and writing its state takes 70. That drops a normal deviate which
``numpy.random.randn`` keeps in reserve if the program has drawn an odd number of them.
"""

from __future__ import annotations

import random
import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

import numpy as np
import torch

from lit_loader.core.seeding import generator_lock
from lit_loader.core.seeding.generator_lock import GeneratorLock
from lit_loader.core.seeding.held_generators import Tape
from lit_loader.core.seeding.seeds import numpy_seed

__all__ = ["BorrowedRng", "Draws", "draws_of"]

WATCHED: Final = 16
"""Batches of a dataset around which all generators are lent and looked at."""

TORCH, NUMPY, PYTHON = 1, 2, 4
_ALL: Final = TORCH | NUMPY | PYTHON
_NAMES: Final = {TORCH: "torch", NUMPY: "numpy.random", PYTHON: "random"}

_numpy: Any = np.random  # its stubs do not know all of its functions
_torch: Final = torch.default_generator
_scratch: Final = torch.Generator(), np.random.RandomState(0), random.Random(0)
_spares: Final[list[Any]] = []  # bit generators to put behind numpy.random


class Draws:
    """Which of the global generators batches of a dataset were seen to draw from."""

    __slots__ = ("batches", "drawn", "looked")

    def __init__(self) -> None:
        self.batches = 0  # that were made
        self.looked = 0  # the number of batches when the generators were looked at last
        self.drawn = 0

    @property
    def is_due(self) -> bool:
        """Whether the generators are to be looked at around the next batch."""
        number = self.batches + 1
        return number <= WATCHED or not number & (number - 1)

    def note(self, drawn: int) -> str | None:
        """Note what a batch has drawn from; returns what to report if that comes too late."""
        first, self.looked = self.looked + 1, self.batches + 1
        new = drawn & ~self.drawn
        self.drawn |= drawn
        if not new or first > self.batches:
            return None
        names = " and ".join(name for bit, name in _NAMES.items() if new & bit)
        return (
            f"it began to draw random numbers from {names} after {WATCHED} batches, so batches "
            f"{first} to {self.batches} were not seeded: they do not repeat, and differ from "
            'those of workers. Draw from lit_loader.get_rng(), or pass seeding="sample" [LL414]'
        )


_known: Final[dict[int, tuple[weakref.ref[Any], list[tuple[Any, Draws]]]]] = {}
_MOST_FUNCTIONS: Final = 4


def draws_of(dataset: Any, collate_fn: Any) -> Draws:
    """Return what is known of a dataset and a function, in this process."""
    owner, kept = _known.get(id(dataset), (None, None))
    if owner is None or owner() is not dataset or kept is None:
        key, kept = id(dataset), []
        try:
            # ``known``: at the interpreter's end the module's own names are gone.
            forget = lambda _, known=_known: known.pop(key, None)  # noqa: E731
            _known[key] = weakref.ref(dataset, forget), kept
        except TypeError:  # a list, say: each loader learns by itself
            return Draws()
    for function, draws in kept:
        if function is collate_fn or function == collate_fn:
            return draws
    draws = Draws()
    kept[:] = [*kept, (collate_fn, draws)][-_MOST_FUNCTIONS:]
    return draws


class BorrowedRng(AbstractContextManager["BorrowedRng"]):
    """The generators of the process, lent to one thread for one batch.

    ``always``: all are lent, whatever was drawn before. Generators that the dataset ``held`` are
    read and put back, too. After the batch ``late`` is what to report, or None.

    A context; or `begin` and `end` in ``try`` and ``finally``. May be nested.
    """

    __slots__ = (
        *("_always", "_bits", "_draws", "_drawn", "_held", "_lent", "_lock", "_python", "_seed"),
        *("_states", "_torch", "_watched", "late"),
    )

    def __init__(self, draws: Draws, held: Sequence[Tape] = (), always: bool = False) -> None:
        self._draws, self._held, self._always = draws, held, always
        self._lock: GeneratorLock | None = None
        self._lent = self._watched = self._drawn = 0
        self._seed: int | None = None
        self._states: list[Any] = []
        self._torch: Any = None
        self._python: Any = None
        self._bits: Any = None
        self.late: str | None = None

    def begin(self) -> BorrowedRng:
        """Borrow them, as soon as no other thread has them."""
        if not generator_lock.lock._is_owned():  # reach: python: as threading.Condition asks
            self._lock = GeneratorLock()
            self._lock.take()
        draws = self._draws
        self._watched = _ALL if draws.is_due and not self._always else 0
        wanted = _ALL if self._always or self._watched else draws.drawn
        # Noted one by one: an exception out of a signal handler may come in between.
        if wanted & TORCH:
            self._torch = _torch.get_state()
            self._lent |= TORCH
        if wanted & PYTHON:
            self._python = random.getstate()
            self._lent |= PYTHON
        if wanted & NUMPY:
            spare = _spares.pop() if _spares else np.random.MT19937(0)
            self._bits = _numpy.get_bit_generator()
            self._lent |= NUMPY
            _numpy.set_bit_generator(spare)
        if self._held:
            self._states = [each.read() for each in self._held]
        return self

    def seed(self, seed: int) -> None:
        """Seed those that are lent; ``torch.initial_seed()`` then is the seed, if torch's is."""
        if self._watched and self._seed is not None:  # they are seeded for the second time
            self._drawn |= _moved(self._watched, self._seed)
        lent, self._seed = self._lent, seed
        if lent & TORCH:
            _torch.manual_seed(seed)
        if lent & NUMPY:
            _numpy.seed(numpy_seed(seed))
        if lent & PYTHON:
            random.seed(seed)

    def end(self) -> None:
        """Put them back; may be called again, and does then what was not done."""
        draws, seed, self._seed = self._draws, self._seed, None
        if seed is not None:
            if self._watched:
                self.late = draws.note(self._drawn | _moved(self._watched, seed))
            draws.batches += 1
        lent, self._lent = self._lent, 0
        if lent & TORCH:
            _torch.set_state(self._torch)
        if lent & PYTHON:
            random.setstate(self._python)
        if lent & NUMPY:
            spare = _numpy.get_bit_generator()
            _numpy.set_bit_generator(self._bits)
            if not _spares and type(spare) is np.random.MT19937 and spare is not self._bits:
                _spares.append(spare)
        if self._states:
            for each, state in zip(self._held, self._states, strict=True):
                each.write(state)
            self._states = []
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


def _moved(lent: int, seed: int) -> int:
    """Return which generators are not where `BorrowedRng.seed` has put them; draws from them."""
    torchs, numpys, pythons = _scratch
    moved = 0
    if lent & TORCH and not torch.equal(torchs.manual_seed(seed).get_state(), _torch.get_state()):
        moved |= TORCH
    if lent & NUMPY:
        numpys.seed(numpy_seed(seed))
        if numpys.random_sample() != np.random.random_sample():
            moved |= NUMPY
    if lent & PYTHON:
        pythons.seed(seed)
        if pythons.getrandbits(64) != random.getrandbits(64):
            moved |= PYTHON
    return moved
