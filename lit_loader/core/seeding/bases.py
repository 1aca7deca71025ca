"""`LoaderSeeds`: what a loader's randomness follows from, drawn once; and what each pass has of it.

::

    seed=  ────────────────────────────────╮
    torch's generator, or generator=  ──┬──┴─▶ Bases ─ order ─────────▶ the order of an epoch
    NumPy's, Python's: seeded alone? ───╯        ╰─ PassSeeds ────────▶ what samples draw
                                                    (epoch, repeats)

- **A loader draws its bases at its first pass.** So loaders of one program are independent, what
  the program seeds is fixed, and a state has the bases: a resume draws nothing.
- **What is drawn differs from pass to pass**, also if a program sets the same epoch again: passes
  that begin at no later epoch than the one before are counted (``repeats``). So (epoch, repeats) is
  another one for each pass, and a single number says so in a state.
- **A pass that begins beside another one, in mid-epoch,** may turn out to be a look, and moves no
  position then. So, but for the first, it has bases of its own (`Position.look`).
- **A generator that the program has seeded for a pass counts**: one that is found freshly seeded as
  a pass begins, and was not as the one before began, gives other bases, and counting begins again.
  So does torch's if it is where it was when the bases were drawn: the program has put it back.
- **Within a batch of another loader each pass draws its bases anew**, from the generators that this
  one has set for the batch. So what it gives follows from that batch, and not from what the process
  has read before.
- NumPy's and Python's generators have bases of their own only if the program has seeded them and
  not torch's. torch's loader, too, takes all of a worker's seeds from one draw of torch's.
- **Ranks that share the data have the first rank's bases** (`streams/rank_store.py`).
"""

from __future__ import annotations

import copy
import hashlib
import operator
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import torch
from torch import Generator

from lit_loader.context import reading
from lit_loader.core.seeding import generator_lock
from lit_loader.core.seeding.global_states import (
    documented,
    note_use,
    numpy_memory,
    python_state,
)
from lit_loader.core.seeding.seeds import derive, extend

_MASK: Final = 0xFFFF_FFFF_FFFF_FFFF
_REPEATS: Final = 0x5EC0  # keeps a later pass of an epoch apart from what else is derived for it
_ANEW: Final = 0xA4E3  # … and bases that follow from others
_BESIDE: Final = 0xBE51  # … and those of a pass that begins beside another
_REHEARSAL: Final = 0x4EA5

UNTOLD: Final = -(2**63)
"""In place of an epoch that a dataset is told; those may be below 0, as with torch's samplers."""


class PassSeeds(NamedTuple):
    """What the seeds of one pass over the data follow from; workers are sent it with each task."""

    torch: int  # bases: of torch's generator, and of all but these two
    numpy: int
    python: int
    first: int = 0  # the epoch that draws are counted from
    repeats: int = 0  # passes so far that began at no later epoch than the one before
    told: int = UNTOLD  # the epoch that the dataset is told by its ``set_epoch``
    older: int = 0  # whether the run was begun by a release before 0.4, which seeded otherwise

    def of(self, epoch: int) -> tuple[int, int, int]:
        """Give the seeds of an epoch: torch's, NumPy's, Python's."""
        main = self._derived(self.torch, epoch)
        if self.torch == self.numpy == self.python:
            return main, main, main
        return main, self._derived(self.numpy, epoch), self._derived(self.python, epoch)

    def _derived(self, base: int, epoch: int) -> int:
        seed = derive(base, epoch - self.first)
        return extend(seed, _REPEATS, self.repeats) if self.repeats else seed

    def ahead(self, epochs: int) -> PassSeeds:
        """Give those of a pass so many epochs later, if the program goes on as it has."""
        return self if self.told == UNTOLD else self._replace(told=self.told + epochs)


@dataclass(frozen=True)
class Bases:
    """64-bit numbers that all randomness of a loader follows from."""

    order: int  # of shuffled orders
    torch: int  # of what is drawn from torch's generator, and from all but these two
    numpy: int
    python: int
    first: int = 0  # the epoch that draws are counted from
    # Whether the run was begun by a release before 0.4: the length was no part of an order's key,
    # and workers of a stream drew alike before their first sample.
    older: bool = False

    @classmethod
    def of(cls, seed: int) -> Bases:
        """Give those of one seed."""
        seed &= _MASK
        return cls(seed, seed, seed, seed)

    def beside(self, look: int) -> Bases:
        """Give those of a pass that begins beside another one; see `Position.look`."""
        order, *drawn = (extend(base, _BESIDE, look) for base in (self.order, *self.drawn))
        return replace(self, order=order, torch=drawn[0], numpy=drawn[1], python=drawn[2])

    @property
    def drawn(self) -> tuple[int, int, int]:
        """Give the bases of what is drawn: torch's, NumPy's, Python's."""
        return self.torch, self.numpy, self.python

    def order_seed(self, epoch: int, length: int) -> int:
        """Give the seed of an epoch's order: datasets that differ in length have unlike ones."""
        seed = derive(self.order, epoch)
        return seed if self.older else extend(seed, length)


class LoaderSeeds:
    """One loader's bases.

    ``seed`` and ``generator`` are its options; ``replicas`` processes share the data. Where these
    are several, ``name_in_job`` gives what the loader is known by among them (`Seams.name_in_job`).
    A distributed sampler of the user's has a seed of its own, ``sampler``, which decides the order.
    """

    def __init__(
        self,
        seed: int | None,
        generator: torch.Generator | None,
        replicas: int,
        name_in_job: Callable[[], Any],
    ) -> None:
        self.sampler: int | None = None
        self._seed, self._generator = seed, generator
        self._replicas = replicas
        self._bases: Bases | None = None
        self._place = Place()  # where the generators were when they were looked at last
        self._origin = b""  # where torch's was before the bases were drawn
        self._kin = object()  # that of its copies, too
        self._name_in_job = name_in_job
        # Counted among those that share data: each rank may have others besides.
        self._name: Any = name_in_job() if replicas > 1 else None

    def is_kin(self, other: object) -> bool:
        """Whether another is of the same loader, or of a copy of that: samplers hold the first."""
        return isinstance(other, LoaderSeeds) and other._kin is self._kin

    def of_ranks(self, replicas: int, seed: Any) -> None:
        """Learn from a distributed sampler how many share the data, and the seed of its order."""
        if replicas > 1 and self._name is None:
            self._name = self._name_in_job()
            if self._origin:  # drawn by this process for itself alone
                self._bases = None
        self._replicas, self.sampler = replicas, seed if isinstance(seed, int) else None

    @property
    def of_job(self) -> bool:
        """Whether several processes share the data, and must have the same orders."""
        return self._replicas > 1

    def choose(self, option: str, value: Any) -> None:
        """Take another ``seed`` or ``generator``, for the passes that begin from now on."""
        setattr(self, f"_{option}", value)
        self._bases = None

    @property
    def chosen(self) -> bool:
        """Whether a seed was given for this loader, which states must have."""
        return self._seed is not None

    def __call__(self) -> int:
        """Give the base of the order; draws the bases if they are not there yet."""
        return self.bases().order

    def bases(self) -> Bases:
        """Give the bases; draws them if they are not there yet."""
        if self._bases is None and self._seed is not None:  # no generator has a part in it
            self._bases = Bases.of(self._seed)
        if self._bases is None:
            with generator_lock.lock:  # a batch of another thread's may have a seed of its own
                self._bases = self._draw()
                self._place = self._look()
        return self._bases

    def of_copy(self) -> LoaderSeeds:
        """Give those of a copy, which draws for itself: it is another loader."""
        copied = copy.copy(self)
        if self._origin and self._name is None:
            copied._bases, copied._origin = None, b""
        return copied

    def adopt(self, bases: Bases) -> None:
        """Have a state's bases, or another loader's: nothing is drawn."""
        self._bases, self._origin = bases, b""
        with generator_lock.lock:
            self._place = self._look()

    def renew(self) -> Literal["", "drawn", "all"]:
        """At the beginning of a pass: draw other bases if the program has seeded for this pass.

        Returns what has changed: nothing, what is drawn, or all, the order too.
        """
        if self._seed is not None or self._replicas > 1:
            self.bases()
            return ""
        with generator_lock.lock:
            if reading.maker is not None:
                self._bases = self._draw()
                return "all"
            if self._bases is None:
                self.bases()
                return ""
            before, now = self._place, self._look()
            new = now.seeded_since(before, self._torch())
            if now.torch == self._origin:
                new = ("torch", *new)
            if "torch" in new:
                self._bases = self._draw()
            elif new:
                old = self._bases
                each = dict(
                    zip(_GENERATORS, (derive(base, _ANEW) for base in old.drawn), strict=True)
                )
                each |= {name: _DRAWS[name]() for name in new}
                self._bases = replace(old, **each)  # type: ignore[arg-type]  # names of seeds
            self._place = self._look() if new else now
        return "all" if "torch" in new else "drawn" if new else ""

    def count_from(self, epoch: int) -> Bases:
        """Count what is drawn from an epoch on, and give the bases."""
        self._bases = replace(self.bases(), first=epoch)
        return self._bases

    def _torch(self) -> torch.Generator:
        return torch.default_generator if self._generator is None else self._generator

    def _look(self) -> Place:
        if reading.maker is not None:  # within a sample, which depends on where they are
            note_use()
        return Place.now(self._torch())

    def _draw(self) -> Bases:
        several = self._replicas > 1
        # Programs seed each rank with a number of its own, and would have an order each.
        order = self.sampler
        given = os.environ.get("PL_GLOBAL_SEED") if several and self._generator is None else None
        if order is None and given:
            order = int(given)
        if several and not self._name.is_in_job:
            if order is None:
                order = 0 if self._generator is None else self._generator.initial_seed()
            return Bases.of(order)
        now, generator = self._look(), self._torch()
        self._origin = now.torch
        number = torch.empty((), dtype=torch.int64, device=generator.device)
        drawn = [int(number.random_(generator=generator))]
        within = reading.maker is not None  # which has set all three
        follow = self._generator is not None or _is_seeded()
        for name in _GENERATORS[1:]:
            own = within or not follow or name in now.seeded_since(Place(), generator)
            drawn.append(_DRAWS[name]() if own else drawn[0])
        if rehearsal.is_on and not within:
            drawn = [derive(each, _REHEARSAL) for each in drawn]
        if self._name is not None:
            drawn = self._name.first_ranks(drawn)
        main, numpy, python = drawn
        bases = Bases(main, main, numpy, python)
        return bases if order is None else replace(bases, order=order & _MASK)


class _Rehearsal:
    """Whether the program will put generators back after what is read now, as for a trial run.

    What is drawn then would be drawn by the next loader once more: it is kept apart.
    """

    is_on = False


rehearsal: Final = _Rehearsal()


# --- what programs seed ---

_GENERATORS: Final = ("torch", "numpy", "python")

_AT_IMPORT: Final = torch.initial_seed()
_SMALL: Final = 1 << 32


def _is_seeded() -> bool:
    """Whether the program has seeded torch's generator.

    Else it was seeded by the operating system, from 53 bits: not by a number that people choose.
    """
    seed = torch.initial_seed()
    return seed < _SMALL or seed != _AT_IMPORT


_numpy: Any = np.random  # NumPy's stubs do not know all of its functions
_DRAWS: Final[dict[str, Callable[[], int]]] = {
    "numpy": lambda: int(_numpy.randint(1 << 62, dtype=np.int64)),
    "python": lambda: random.getrandbits(62),
}
_WORDS: Final = 624
_scratch: Final = torch.Generator()


class Place(NamedTuple):
    """Where the generators of a process are."""

    torch: bytes = b""
    numpy: bytes = b""  # its words, and the place in them
    python: Any = None

    @classmethod
    def now(cls, generator: Generator) -> Place:
        """Look where they are; another kind of NumPy's is not looked at."""
        return cls(_bytes(generator), numpy_memory(), python_state())

    def seeded_since(self, before: Place, generator: Generator) -> tuple[str, ...]:
        """Say which generators were seeded since, and not drawn from after that."""
        new = []
        if self.torch != before.torch and self.torch == _bytes(
            _scratch.manual_seed(generator.initial_seed())
        ):
            new.append("torch")
        if self.numpy != before.numpy:
            words = np.frombuffer(self.numpy, np.uint32).tolist()
            if words and _is_fresh(words):
                new.append("numpy")
        if self.python != before.python:
            _, states, reserve = documented(self.python)
            if reserve is None and _is_fresh(states):
                new.append("python")
        return tuple(new)

    def changed(self, before: Place) -> tuple[int, ...]:
        """Give a number for each generator that is elsewhere than before: where it is; else 0."""
        now = self._replace(python=documented(self.python))
        return tuple(
            0 if same else int.from_bytes(_hash(repr(one).encode()), "little")
            for one, same in zip(now, map(operator.eq, self, before), strict=True)
        )


def _hash(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=8).digest()


def _bytes(generator: torch.Generator) -> bytes:
    return generator.get_state().numpy().tobytes()


def _is_fresh(words: Sequence[int]) -> bool:
    """Whether a twister, its place last, is where a seed (and not the system) has put it."""
    from lit_loader.core.seeding.twister import was_just_seeded  # where one has moved

    return words[_WORDS] == _WORDS and was_just_seeded(words[:_WORDS])
