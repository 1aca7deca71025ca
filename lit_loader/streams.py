"""Random generators put back to where they were.

With ``num_workers=0`` batches are made in the parent, whose own global generators must not notice:
they are lent out and taken back unchanged (`preserved`, `OwnStreams`). And an attempt to read a
sample that failed must not have drawn anything: `Rewind`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch

from lit_loader.seeding import seed_streams
from lit_loader.twister import TwisterState, twister_state

__all__ = ["OwnStreams", "Rewind", "preserved"]

_mtrand: Any = np.random.mtrand  # NumPy's stubs do not know all of its functions


def preserved() -> AbstractContextManager[None]:
    """Give a context after which the global generators are exactly as they were before.

    Exactly means: the next numbers, a normal deviate that ``random.gauss`` or NumPy keep in
    reserve, and ``torch.initial_seed()``; also when the body raises. In the body ``numpy.random``
    draws from a spare bit generator, so the body must seed before it draws; the other two go on
    from where they are. May be nested.
    """
    return _Preserved()


class _Preserved:
    __slots__ = ("_outside", "_spare")

    def __enter__(self) -> None:
        self._outside = _capture()
        self._spare = _spares.pop() if _spares else np.random.MT19937(0)
        _mtrand.set_bit_generator(self._spare)

    def __exit__(self, *error: object) -> None:
        _spares.append(self._spare)
        _install(self._outside)


class OwnStreams:
    """Context manager: in its body the global generators are those of a worker of its own.

    They are seeded as `seed_worker` does it when the body is entered first, and go on where they
    were when it is entered again. Outside, the global generators are as if there were no body,
    exactly as with `preserved`; those of accelerators are not touched.

    Args:
        seed: ``base_seed + worker_id``, taken modulo 2**64.
    """

    __slots__ = ("_inside", "_outside", "_seed")

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._inside: _Streams | None = None

    def __enter__(self) -> None:
        """Take the global generators over."""
        self._outside = _capture()
        if self._inside is None:
            _mtrand.set_bit_generator(np.random.MT19937(0))
            seed_streams(self._seed)
        else:
            _install(self._inside)

    def __exit__(self, *error: object) -> None:
        """Give them back."""
        self._inside = _capture()
        _install(self._outside)


class _Streams(NamedTuple):
    python: Any
    torch: torch.Tensor
    bits: Any
    reserve: dict[str, Any]


def _capture() -> _Streams:
    return _Streams(
        _python_tape()[0](),
        torch.default_generator.get_state(),
        _mtrand.get_bit_generator(),
        _get_reserve(),
    )


def _install(streams: _Streams) -> None:
    _mtrand.set_bit_generator(streams.bits)
    _set_reserve(streams.reserve)
    torch.default_generator.set_state(streams.torch)
    _python_tape()[1](streams.python)


class Rewind:
    """Takes random generators back to a mark: the three global ones, and others at will.

    Made to be marked before every sample: 3 us for the global generators.

    Args:
        held: Further generators, of the kinds that `lit_loader.generators` finds. One that cannot
            tell its state (``random.SystemRandom``) is left alone.
    """

    def __init__(self, held: Iterable[object] = ()) -> None:
        own: list[object] = [_python, _mtrand._rand, torch.default_generator]
        self._tapes = [tape for each in (*own, *held) if (tape := _tape(each)) is not None]
        self._marks: list[Any] = []

    def mark(self) -> None:
        """Note where the generators are."""
        self._marks = [read() for read, _ in self._tapes]

    def back(self) -> None:
        """Take them back to the last mark; may be called again."""
        for (_, write), mark in zip(self._tapes, self._marks, strict=True):
            write(mark)


_python: Any = random.seed.__self__  # type: ignore[attr-defined]
_Tape = tuple[Callable[[], Any], Callable[[Any], object]]


@cache
def _python_tape() -> _Tape:
    tape = _tape(_python)
    assert tape is not None
    return tape


def _tape(generator: Any) -> _Tape | None:
    """Give the functions that read and write a generator's state; None if it has none."""
    if isinstance(generator, torch.Generator):
        return generator.get_state, generator.set_state
    if isinstance(generator, random.Random):
        try:
            generator.getstate()
        except NotImplementedError:
            return None
        twister = twister_state(generator)
        if twister is None:
            return generator.getstate, generator.setstate
        return partial(_get_python, generator, twister), partial(_set_python, generator, twister)
    if isinstance(generator, np.random.RandomState):
        return lambda: _get_legacy(generator), lambda mark: _set_legacy(generator, mark)
    if isinstance(generator, np.random.SeedSequence):
        return lambda: generator.n_children_spawned, partial(_set_children, generator)
    if isinstance(generator, np.random.BitGenerator):
        return lambda: _get_bits(generator), lambda mark: _set_bits(generator, mark)
    return None


def _set_children(sequence: Any, count: int) -> None:
    """Bring a seed sequence back to where it had spawned so many; its constructor begins anew."""
    np.random.SeedSequence.__init__(
        sequence,
        sequence.entropy,
        spawn_key=sequence.spawn_key,
        pool_size=sequence.pool_size,
        n_children_spawned=count,
    )


def _get_legacy(generator: Any) -> tuple[Any, Any]:
    """Read a RandomState: its bit generator's state, and the normal deviate in reserve."""
    if not _stand_in_works():
        return None, generator.get_state(legacy=False)
    # Asked for each time: batches of num_workers=0 are made with a spare one.
    return _get_bits(generator._bit_generator), _get_behind_stand_in(generator)


def _set_legacy(generator: Any, mark: tuple[Any, Any]) -> None:
    bits, reserve = mark
    if bits is None:
        generator.set_state(reserve)
    else:
        _set_bits(generator._bit_generator, bits)
        _set_behind_stand_in(generator, reserve)


def _get_python(generator: random.Random, twister: TwisterState) -> tuple[bytes, Any]:
    """Read a Mersenne Twister of Python's, and the normal deviate in reserve."""
    return twister.read(), generator.gauss_next  # type: ignore[attr-defined]


def _set_python(generator: random.Random, twister: TwisterState, mark: tuple[bytes, Any]) -> None:
    state, generator.gauss_next = mark  # type: ignore[attr-defined]
    twister.write(state)


def _get_bits(bits: Any) -> Any:
    twister = twister_state(bits)
    return bits.state if twister is None else twister.read()


def _set_bits(bits: Any, mark: Any) -> None:
    twister = twister_state(bits)
    if twister is None:
        bits.state = mark
    else:
        twister.write(mark)


# Swapping the bit generator is cheap; reading or writing a Mersenne Twister's state as a dict takes
# NumPy 35 us a time. The swap forgets the normal deviate in reserve, which is kept beside the bit
# generator, so that one is read and written apart, behind a stand-in that has no state.
_spares: list[Any] = []


class _StandIn:
    """A bit generator as far as ``RandomState.get_state`` and ``set_state`` look at one."""

    @property
    def state(self) -> dict[str, Any]:
        return {"bit_generator": "MT19937", "state": {}}

    @state.setter
    def state(self, value: dict[str, Any]) -> None:
        pass


def _get_reserve() -> dict[str, Any]:
    if not _stand_in_works():
        return np.random.get_state(legacy=False)
    return _get_behind_stand_in(_mtrand._rand)


def _set_reserve(reserve: dict[str, Any]) -> None:
    if not reserve["has_gauss"]:
        return  # nor has NumPy, after the swap
    if _stand_in_works():
        _set_behind_stand_in(_mtrand._rand, reserve)
    else:
        np.random.set_state(reserve)


def _get_behind_stand_in(generator: Any) -> dict[str, Any]:
    held, generator._bit_generator = generator._bit_generator, _StandIn()
    try:
        return generator.get_state(legacy=False)  # type: ignore[no-any-return]
    finally:
        generator._bit_generator = held


def _set_behind_stand_in(generator: Any, reserve: dict[str, Any]) -> None:
    held, generator._bit_generator = generator._bit_generator, _StandIn()
    try:
        generator.set_state(reserve)
    finally:
        generator._bit_generator = held


@cache
def _stand_in_works() -> bool:
    """Check once a process that NumPy's internals are as the stand-in supposes.

    Where they are not, `preserved` is slower by 70 us and as exact.
    """
    ours, theirs = np.random.RandomState(1), np.random.RandomState(1)
    try:
        pair = ours.standard_normal(2)
        theirs.standard_normal()  # the first of the pair: the second one is in reserve
        reserve = _get_behind_stand_in(theirs)
        _set_behind_stand_in(ours, reserve)
        return bool(
            reserve["has_gauss"] == 1
            and ours.standard_normal() == theirs.standard_normal() == pair[1]
            and ours.standard_normal() == theirs.standard_normal()
        )
    except Exception:
        return False
