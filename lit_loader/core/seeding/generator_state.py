"""Where random generators are: lent out and put back, taken back to a mark, seen to have drawn.

With ``num_workers=0`` batches are made in the parent, whose own global generators must not notice:
they are lent out and taken back unchanged (`preserved`, `OwnStreams`), to one thread at a time. An
attempt to read a sample that failed must not have drawn anything: `Rewind`.

Reading the 624 words of NumPy's generator takes 35 us; so that is done only if they have changed
since the last time, which its raw memory shows, and in the body another bit generator stands behind
``numpy.random``. A body that is not expected to draw has the generators where they are, and it is
seen afterwards whether it has drawn (`global_states.py`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import numpy as np
import torch

from lit_loader.core.seeding import generator_lock
from lit_loader.core.seeding.find_generators import controls
from lit_loader.core.seeding.generator_lock import GeneratorLock
from lit_loader.core.seeding.global_states import (
    GlobalStates,
    StatesKept,
    numpy_memory,
    python_state,
    set_python_state,
)
from lit_loader.core.seeding.seeds import of_thread, seed_streams

__all__ = [
    *("Loan", "OwnStreams", "Rewind", "drawn_since", "global_readers", "numpy_state", "preserved"),
    *("same_state", "tape"),
]

_numpy: Any = np.random  # its stubs do not know all of its functions


# --- the global ones ---


class _Streams(NamedTuple):
    python: Any
    torch: torch.Tensor
    numpy: dict[str, Any]
    bits: Any  # that is behind numpy.random; None: whichever is there when they are installed


def _capture() -> _Streams:
    if (own := of_thread.generator) is not None:
        return _Streams(of_thread.seeds, own.get_state(), {}, None)
    bits = _numpy.get_bit_generator()
    return _Streams(python_state(), torch.default_generator.get_state(), numpy_state(), bits)


def _install(streams: _Streams) -> None:
    global _known
    if (own := of_thread.generator) is not None:
        own.set_state(streams.torch)
        of_thread.seeds = streams.python
        return
    another = streams.bits not in (None, _numpy.get_bit_generator())
    if another:
        _numpy.set_bit_generator(streams.bits)  # it is where it was, with nothing in reserve
    if not another or streams.numpy["has_gauss"]:
        _numpy.set_state(streams.numpy)
        _known = _NONE  # what is in reserve may have changed, and no word
    torch.default_generator.set_state(streams.torch)
    set_python_state(streams.python)


_NONE: tuple[Any, bytes, dict[str, Any]] = (None, b"", {})
_known = _NONE


def numpy_state() -> dict[str, Any]:
    """Read the state of NumPy's global generator."""
    global _known
    bits, memory = _numpy.get_bit_generator(), numpy_memory()
    # A normal deviate in reserve may be used up without a word being drawn.
    if memory and _known[0] is bits and _known[1] == memory and not _known[2]["has_gauss"]:
        return _known[2]
    state: dict[str, Any] = _numpy.get_state(legacy=False)
    if isinstance(key := state["state"].get("key"), np.ndarray):
        # What puts it back goes through the words one by one: 2 us for a list, 36 for an array.
        state["state"]["key"] = key.tolist()
    _known = (bits, memory, state) if memory else _NONE
    return state


class OwnStreams:
    """Global generators of a worker of its own, by its seed, kept from one use to the next."""

    __slots__ = ("_inside", "_seed")

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._inside: _Streams | None = None

    def install(self) -> None:
        """Set the global generators to where these are."""
        _install(self._inside) if self._inside else seed_streams(self._seed)

    def capture(self, spare: Any) -> None:
        """Note where these are now.

        A bit generator that the body has put behind ``numpy.random`` itself stays theirs.
        """
        inside = _capture()
        self._inside = inside if inside.bits is not spare else inside._replace(bits=None)


class Loan(AbstractContextManager[None]):
    """The global generators of the process, lent to one thread; its ``own`` meanwhile, if given.

    After it they are exactly as they were before: the next numbers, a normal deviate that
    ``random.gauss`` or NumPy keep in reserve, and ``torch.initial_seed()``; those of accelerators
    are not touched. Without ``own`` the body must seed before it draws. May be nested.

    ``idle``: the body is not expected to draw, so they stay where they are, as long as it does not
    ask for them (`lend`). Whether it has drawn, ``before`` shows.

    A context; or by `begin` and `end` in ``try`` and ``finally``. Not contextlib's, which sets the
    traceback of exceptions (frozen ones do not take it), and would end when it is collected if an
    exception out of a signal handler breaks off its beginning.
    """

    __slots__ = ("_idle", "_kept", "_lock", "_outside", "_own", "_spare", "before")

    def __init__(self, own: OwnStreams | None = None, idle: bool = False) -> None:
        self._lock: GeneratorLock | None = None  # None: it is had already, or not yet
        self._own, self._idle = own, idle
        self._outside: _Streams | None = None
        self._spare: Any = None
        # Where they were, as long as they stay there; None: they are lent.
        self.before: GlobalStates | None = None
        self._kept: StatesKept | None = None  # all of their states then

    def begin(self) -> None:
        """Note where they are, as soon as no other thread has them."""
        if not generator_lock.lock._is_owned():  # reach: python: as threading.Condition asks
            self._lock = GeneratorLock()
            self._lock.take()
        if self._idle:
            global _plain
            now = GlobalStates.now()
            kept = None if now is None else StatesKept.of(now)
            # It does not see a normal deviate in reserve. None comes without a word being drawn.
            if kept is not None and (kept is _plain or not numpy_state()["has_gauss"]):
                self.before, self._kept, _plain = now, kept, kept
                return
        self.lend()

    def lend(self) -> None:
        """Lend them, if they are not lent yet.

        Behind ``numpy.random`` there is a twister of its own then, as in a new process.
        """
        if self._outside is not None:
            return
        self._put_back()
        self._outside = _capture()
        if of_thread.generator is not None:
            return
        spare = _spares.pop() if _spares else np.random.MT19937(0)
        _numpy.set_bit_generator(spare)
        if self._own is not None:
            self._own.install()
        self._spare = spare

    def _put_back(self) -> None:
        if self.before is not None:
            if GlobalStates.now() != self.before:
                assert self._kept is not None
                self._kept.put_back()
            self.before = None

    def end(self) -> None:
        """Put them back; may be called again, and does then what was not done."""
        if self._spare is not None and self._own is not None:
            self._own.capture(self._spare)
            self._own = None
        self._put_back()
        if self._outside is not None:
            _install(self._outside)
            self._outside = None
            if self._spare is not None and not _spares:
                _spares.append(self._spare)
        if self._lock is not None:
            self._lock.end()

    def __enter__(self) -> None:
        try:
            self.begin()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        try:
            self.end()
        finally:  # an exception out of a signal handler may have come in between
            self.end()


_plain: StatesKept | None = None  # with nothing in NumPy's reserve

preserved = Loan
"""A context after which the global generators are as they were before."""

_spares: list[Any] = []


# --- any ---


_Tape = tuple[Callable[[], Any], Callable[[Any], object]]


def tape(generator: Any) -> _Tape | None:
    """Give the functions that read and write a generator's state; None if it has none."""
    found = controls(generator)
    try:
        if isinstance(generator, random.Random):
            generator.getstate()
    except NotImplementedError:
        return None
    return found and found[:2]


class Rewind(AbstractContextManager[None]):
    """Takes random generators back to a mark: the three global ones, and others at will.

    Made to be marked before every sample that may fail: 45 us for the global generators. As a
    context, in which ``seed`` seeds them, it leaves them where they were. Of those ``held`` one
    that has no state (``random.SystemRandom``) is left alone.
    """

    def __init__(
        self,
        held: Iterable[object] = (),
        *tapes: _Tape,
        seed: Callable[[], object] = lambda: None,
    ) -> None:
        self._tapes: list[_Tape] = [*tapes, (_capture, _install), *filter(None, map(tape, held))]
        self._marks: list[Any] = []
        self._seed = seed

    def mark(self) -> None:
        """Note where the generators are."""
        self._marks = [read() for read, _ in self._tapes]

    def back(self) -> None:
        """Take them back to the last mark; may be called again."""
        for (_, write), mark in zip(self._tapes, self._marks, strict=True):
            write(mark)

    def __enter__(self) -> None:
        self.mark()
        try:
            self._seed()
        except BaseException:
            self.back()
            raise

    def __exit__(self, *_: object) -> None:
        self.back()


def global_readers() -> list[tuple[str, Callable[[], Any]]]:
    """Give what reads the states of the global generators.

    In a worker that is a thread nothing does: whoever has drawn, draws.
    """
    return [] if of_thread.generator is not None else _GLOBAL_READERS


_GLOBAL_READERS: list[tuple[str, Callable[[], Any]]] = [
    ("random", random.getstate),
    ("numpy.random", numpy_state),
    ("torch", torch.default_generator.get_state),
]


def drawn_since(seed: Callable[[], object], held: list[Any]) -> set[int]:
    """Say which generators, global and held, are not where ``seed`` sets them, by number or id."""
    reads = dict(enumerate(read for _, read in global_readers()))
    reads |= {id(each): found[0] for each in held if (found := tape(each)) is not None}
    now = {key: read() for key, read in reads.items()}
    with Rewind(held, seed=seed):
        return {key for key, read in reads.items() if not same_state(now[key], read())}


def same_state(one: Any, other: Any) -> bool:
    """Whether two states of a generator are equal."""
    if one is other:
        return True
    if isinstance(one, torch.Tensor):
        return bool(one.numpy().tobytes() == other.numpy().tobytes())  # quicker than torch.equal
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same_state(one[key], other[key]) for key in one)
    return bool(one == other)
