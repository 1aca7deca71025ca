"""The global random generators lent out, and put back to where they were.

With ``num_workers=0`` batches are made in the parent, whose own global generators must not notice:
they are lent out and taken back unchanged (`preserved`, `OwnStreams`), to one thread at a time. And
an attempt to read a sample that failed must not have drawn anything: `Rewind`.

Nothing but what the three libraries document is used to read and write their states. Most of what
it costs is NumPy's: 35 us to read the 624 words of its generator.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from lit_loader.generator_lock import Turn
from lit_loader.seeding import seed_streams

__all__ = ["OwnStreams", "Rewind", "preserved"]

_numpy: Any = np.random  # its stubs do not know all of its functions


@contextmanager
def preserved() -> Iterator[None]:
    """Give a context after which the global generators are exactly as they were before.

    Exactly means: the next numbers, a normal deviate that ``random.gauss`` or NumPy keep in
    reserve, and ``torch.initial_seed()``; also when the body raises. The body must seed before it
    draws. Other threads that borrow the generators wait meanwhile. May be nested.
    """
    loan = _Loan()
    try:
        try:
            loan.begin()
            yield
        finally:
            loan.end()
    finally:  # an exception out of a signal handler may have come in between
        loan.end()


class OwnStreams:
    """Global generators of a worker of its own, kept between the times that they are used.

    Args:
        seed: ``base_seed + worker_id``, taken modulo 2**64.
    """

    __slots__ = ("_inside", "_seed")

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._inside: _Streams | None = None

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Give a context in whose body the global generators are these.

        They are seeded as `seed_worker` does it when the body is entered first, and go on where
        they were when it is entered again. Outside, the global generators are as if there were no
        body, exactly as with `preserved`; those of accelerators are not touched.
        """
        with preserved():
            own = _numpy.get_bit_generator()
            if self._inside is None:
                seed_streams(self._seed)
            else:
                _install(self._inside)
            try:
                yield
            finally:
                inside = _capture()
                # One that the body has put there itself stays behind numpy.random.
                self._inside = inside if inside.bits is not own else inside._replace(bits=None)


class _Loan:
    """The global generators of the process, lent to one thread."""

    __slots__ = ("_outside", "_turn")

    def __init__(self) -> None:
        self._turn = Turn()
        self._outside: _Streams | None = None

    def begin(self) -> None:
        """Note where they are, as soon as no other thread has them.

        Behind ``numpy.random`` there is a twister then, as in a new process.
        """
        self._turn.take()
        self._outside = _capture()
        if type(self._outside.bits) is not np.random.MT19937:
            _numpy.set_bit_generator(np.random.MT19937(0))

    def end(self) -> None:
        """Put them back; may be called again, and does then what was not done."""
        if self._outside is not None:
            _install(self._outside)
            self._outside = None
        self._turn.end()


class _Streams(NamedTuple):
    python: Any
    torch: torch.Tensor
    numpy: dict[str, Any]
    bits: Any


def _capture() -> _Streams:
    numpy = _numpy.get_state(legacy=False)
    key = numpy["state"].get("key")
    if isinstance(key, np.ndarray):
        # What puts it back goes through the words one by one: 2 us for a list, 36 for an array.
        numpy["state"]["key"] = key.tolist()
    return _Streams(
        random.getstate(),
        torch.default_generator.get_state(),
        numpy,
        _numpy.get_bit_generator(),
    )


def _install(streams: _Streams) -> None:
    if streams.bits is not None and streams.bits is not _numpy.get_bit_generator():
        _numpy.set_bit_generator(streams.bits)
    _numpy.set_state(streams.numpy)
    torch.default_generator.set_state(streams.torch)
    random.setstate(streams.python)


class Rewind:
    """Takes random generators back to a mark: the three global ones, and others at will.

    Made to be marked before every sample that may fail: 45 us for the global generators.

    Args:
        held: Further generators, of the kinds that `lit_loader.generators` finds. One that cannot
            tell its state (``random.SystemRandom``) is left alone.
    """

    def __init__(self, held: Iterable[object] = ()) -> None:
        self._tapes: list[_Tape] = [
            (random.getstate, random.setstate),
            (partial(_numpy.get_state, legacy=False), _numpy.set_state),
            (torch.default_generator.get_state, torch.default_generator.set_state),
        ]
        self._tapes += [tape for each in held if (tape := _tape(each)) is not None]
        self._marks: list[Any] = []

    def mark(self) -> None:
        """Note where the generators are."""
        self._marks = [read() for read, _ in self._tapes]

    def back(self) -> None:
        """Take them back to the last mark; may be called again."""
        for (_, write), mark in zip(self._tapes, self._marks, strict=True):
            write(mark)


_Tape = tuple[Callable[[], Any], Callable[[Any], object]]


def _tape(generator: Any) -> _Tape | None:
    """Give the functions that read and write a generator's state; None if it has none."""
    if isinstance(generator, torch.Generator):
        return generator.get_state, generator.set_state
    if isinstance(generator, random.Random):
        try:
            generator.getstate()
        except NotImplementedError:
            return None
        return generator.getstate, generator.setstate
    if isinstance(generator, np.random.RandomState):
        return partial(generator.get_state, legacy=False), generator.set_state
    if isinstance(generator, np.random.BitGenerator):
        return partial(getattr, generator, "state"), partial(setattr, generator, "state")
    return None
