"""`LoaderSeeds`: where the seeds of a loader's passes come from.

::

    seed= ──────────────────────────────────────────────╮
    one draw of rank 0, if ranks share the data ────────┼─▶ base: pass n of an epoch follows from
    PL_GLOBAL_SEED, if they share it outside of a job ──╯        (base, epoch, n)
    a draw in iter(loader), from generator= or torch's ────▶ the seed of that pass

The draw is made where torch's loader makes it, and moves the generator as far. So what a program
seeds before a pass decides the pass, and what it draws afterwards is the same with both loaders.

`GeneratorLock`: one thread at a time makes a batch in this process.

Two threads that seeded, drew and put back at once would draw each other's numbers, and put back
each other's. So a thread that borrows the generators, or asks them for what a borrower changes,
holds this lock. It is re-entrant: a dataset may itself iterate a loader. One that waits for another
thread which does so waits forever, which from outside looks like a batch that takes long: a
warning is logged after `WARN_AFTER`.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

import torch

_MASK: Final = 0xFFFF_FFFF_FFFF_FFFF


class NameInJob(Protocol):
    """What a loader is known by among the ranks that share its data."""

    @property
    def is_in_job(self) -> bool:
        """Whether there is a ``torch.distributed`` job, so that ranks can tell each other."""

    def first_rank(self, numbers: list[int]) -> list[int]:
        """Return rank 0's numbers, on each rank."""


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
        name_in_job: Callable[[], NameInJob],
    ) -> None:
        self.seed, self.generator = seed, generator
        self.replicas = replicas
        self._base: int | None = None  # what the ranks share, once it is known
        self._name_in_job = name_in_job
        # Counted among the loaders that share data: each rank may have others, too.
        self._name = name_in_job() if replicas > 1 else None
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
        with lock:  # a batch of another thread's may have borrowed it
            drawn = torch.empty(numbers, dtype=torch.int64, device=generator.device)
            return int(drawn.random_(generator=generator).tolist()[0])

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
        name = self._name
        assert name is not None
        if name.is_in_job:
            own = self.draw(1) if drawn is None else drawn
            assert own is not None
            base, *numbers = name.first_rank([own, *held.values()])
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
        if self.replicas <= 1:
            return False
        given = self.seed is not None or self.generator is not None or self._base is not None
        given = given or self.own_order or bool(os.environ.get("PL_GLOBAL_SEED"))
        in_job = self._name is not None and self._name.is_in_job
        return not (given or in_job)

    def adopt(self, base: int | None) -> None:
        """Take over what a run followed from that is resumed here."""
        if self.replicas > 1:
            self._base = base

    def place(self) -> int:
        """Return a digest of where the generator is; 0 if nothing is drawn from it."""
        if self.seed is not None:
            return 0
        with lock:
            state = self._generator().get_state().numpy().tobytes()
        return int.from_bytes(hashlib.blake2b(state, digest_size=7).digest(), "little")

    def __call__(self) -> int:
        """Return a base for whoever iterates the loader's sampler without the loader."""
        drawn = self.draw(1)
        base = self.base(drawn, {})
        return (drawn or 0) if base is None else base

    def _generator(self) -> torch.Generator:
        return torch.default_generator if self.generator is None else self.generator


WARN_AFTER: Final = 10.0
"""Seconds that a thread waits for one batch of another thread before it says so, once."""

_log = logging.getLogger("lit_loader.generator_lock")

_WAITS: Final = (
    f"lit_loader: this thread has waited {WARN_AFTER:.0f} s for another one to build a batch. "
    "Loaders with num_workers=0 build one batch at a time, because a process has only one set of "
    "global random generators. A dataset must not wait for a thread that iterates such a loader: "
    "give that loader workers, or iterate it in the thread that waits"
)

lock: Any = threading.RLock()
"""The lock itself, for ``with``; in a forked process perhaps another one than before."""


class GeneratorLock:
    """One time that a thread has the generators; one within another of the same thread is no more.

    For where an exception out of a signal handler may come at any instruction, between the taking
    of the lock and the note that it is taken, too. The lock knows itself who has it; so `end`, in a
    ``finally``, may be called again if it was interrupted.
    """

    __slots__ = ("_mine",)

    def __init__(self) -> None:
        self._mine = False

    def take(self) -> None:
        """Wait until no other thread has the lock, and take it; say so if that takes long."""
        if not lock._is_owned():  # reach: python: as threading.Condition asks an RLock
            self._mine, patience = True, WARN_AFTER
            # To name a time costs more than to take a lock that is free, as nearly always.
            while not (lock.acquire(False) or lock.acquire(timeout=patience)):
                _log.warning(_WAITS)
                patience = -1  # forever

    def end(self) -> None:
        """Release the lock, if this object holds it."""
        if self._mine and lock._is_owned():  # reach: python: as threading.Condition asks an RLock
            lock.release()


@contextlib.contextmanager
def lent_to_others() -> Iterator[None]:
    """Release the lock while this thread waits for others; they restore what it set."""
    held, times = lock, 0
    try:
        while held._is_owned():  # reach: python: as threading.Condition asks an RLock
            held.release()
            times += 1
        yield
    finally:
        for _ in range(times):
            held.acquire()


def _forget_other_threads() -> None:
    """Make a new lock in a forked process, if a thread holds it that was not copied."""
    global lock
    if not lock._is_owned():  # reach: python: as threading.Condition asks an RLock
        lock = threading.RLock()


os.register_at_fork(after_in_child=_forget_other_threads)
