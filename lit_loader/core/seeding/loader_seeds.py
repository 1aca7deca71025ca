"""`LoaderSeeds`: where the seeds of a loader's passes come from.

::

    seed= ──────────────────────────────────────────────╮
    one draw of rank 0, if ranks share the data ────────┼─▶ base: pass n of an epoch follows from
    PL_GLOBAL_SEED, if they share it outside of a job ──╯        (base, epoch, n)
    a draw in iter(loader), from generator= or torch's ────▶ the seed of that pass

The draw is made where torch's loader makes it, and moves the generator as far. So what a program
seeds before a pass decides the pass, and what it draws afterwards is the same with both loaders.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from typing import Any, Final

import torch

from lit_loader.core.seeding import generator_lock

_MASK: Final = 0xFFFF_FFFF_FFFF_FFFF


class LoaderSeeds:
    """The seeds of one loader.

    ``seed`` and ``generator`` are its options; ``replicas`` processes share the data. Where these
    are several, ``name_in_job`` returns what the loader is known by among them.
    """

    def __init__(
        self,
        seed: int | None,
        generator: torch.Generator | None,
        replicas: int,
        name_in_job: Callable[[], Any],
    ) -> None:
        self.seed, self.generator = seed, generator
        self.replicas = replicas
        self._base: int | None = None  # what the ranks share, once it is known
        self._name_in_job = name_in_job
        # Counted among the loaders that share data: each rank may have others, too.
        self._name: Any = name_in_job() if replicas > 1 else None
        self.own_order = False  # whether a distributed sampler of the user's decides the order

    def of_ranks(self, replicas: int, own_order: bool = True) -> None:
        """Learn from a sampler how many processes share the data.

        ``own_order``: it is a distributed sampler of the user's, which decides the order.
        """
        if replicas > 1 and self._name is None:
            self._name = self._name_in_job()
        self.replicas, self.own_order = replicas, own_order

    def follow(self, other: LoaderSeeds) -> None:
        """Take over what the order of another loader follows from, which a sampler here shows."""
        if self.seed is None and self.generator is None:
            self.seed, self.generator, self._base = other.seed, other.generator, other._base

    def draw(self, numbers: int) -> int | None:
        """Draw numbers as torch's loader does in ``iter(loader)``; return the first.

        Return None if the loader has a ``seed``: then nothing is drawn.
        """
        if self.seed is not None or not numbers:
            return None
        generator = self._generator()
        with generator_lock.lock:  # a batch of another thread's may have borrowed it
            number = torch.empty((), dtype=torch.int64, device=generator.device)
            drawn = [int(number.random_(generator=generator)) for _ in range(numbers)]
        return drawn[0]

    def base(self, drawn: int | None, held: dict[str, int]) -> int | None:
        """Return what all passes follow from; None: each has the seed that it has drawn.

        Ranks that share the data take what rank 0 has ``drawn`` in its first pass, and wait for it.
        The numbers of generators that their datasets have ``held`` become those of rank 0, too,
        for all ranks resume by its state.
        """
        if self.seed is not None:
            return self.seed & _MASK
        if self._base is None and self.replicas > 1:
            self._base = self._shared(drawn, held)
        return self._base

    def _shared(self, drawn: int | None, held: dict[str, int]) -> int | None:
        if self._name.is_in_job:
            own = self.draw(1) if drawn is None else drawn
            base, *numbers = self._name.first_rank([own, *held.values()])
            if len(numbers) == len(held):
                held.update(zip(held, numbers, strict=True))
            return int(base)
        if self.own_order:
            return None
        if self.generator is not None:
            return self.generator.initial_seed()
        return int(os.environ.get("PL_GLOBAL_SEED") or 0)

    @property
    def lacks_seed(self) -> bool:
        """Whether processes share the data, and nothing makes their orders the same."""
        return not (
            self.replicas <= 1
            or self.own_order
            or self.seed is not None
            or self.generator is not None
            or os.environ.get("PL_GLOBAL_SEED")
            or self._base is not None
            or self._name.is_in_job
        )

    def adopt(self, base: int | None) -> None:
        """Take over what a run followed from that is resumed here."""
        if self.replicas > 1:
            self._base = base

    def place(self) -> int:
        """Return a digest of where the generator is; 0 if nothing is drawn from it."""
        if self.seed is not None:
            return 0
        with generator_lock.lock:
            state = self._generator().get_state().numpy().tobytes()
        return int.from_bytes(hashlib.blake2b(state, digest_size=7).digest(), "little")

    def __call__(self) -> int:
        """Return a base for whoever iterates the loader's sampler without the loader."""
        drawn = self.draw(1)
        base = self.base(drawn, {})
        return (drawn or 0) if base is None else base

    def _generator(self) -> torch.Generator:
        return torch.default_generator if self.generator is None else self.generator
