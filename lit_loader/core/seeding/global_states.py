"""Where the three global generators are, in 1 us: who looks twice sees whether one has moved.

::

    Python   the place in its 624 words, some of them ─ memory of the generator ─╮
             a normal deviate in reserve ────────────── an attribute ────────────┤
    NumPy    place and words ────────────────────────── memory, documented ──────┼─▶ GlobalStates
    torch    place, words, deviates in reserve ──────── memory of the generator ─┤
    uses     of a copy, which leave no trace in a generator ─────────────────────╯

A draw moves the place; after the last word all words are others. So place and some words show that
a generator has moved, and `StatesKept` has all of them, to put it back.

By what the libraries document it takes 70 us, most of it for making numbers of words. Memory is
read, and never written. Where it does not lie as expected (another interpreter, threads without a
lock, another bit generator behind ``numpy.random``) nothing is seen, and batches are seeded; torch
is asked for its state then.
"""

from __future__ import annotations

import ctypes  # reach: python: 624 words in memory show whether anybody has drawn
import os
import random
import struct
import sys
import sysconfig
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from lit_loader.core.seeding.seeds import of_thread

__all__ = [
    *("GlobalStates", "StatesKept", "documented", "note_use", "numpy_memory"),
    *("python_state", "set_python_state"),
]

_numpy: Any = np.random  # its stubs do not know all of its functions
_bits: Final = _numpy.get_bit_generator

_new, _join = tuple.__new__, b"".join
_torch: Final = torch.default_generator
_WORDS: Final = 624
_BYTES: Final = 4 * _WORDS + 4
_SOME: Final = 16
"""Bytes of words that are looked at: four of them, which no two states have in common."""


class GlobalStates(NamedTuple):
    """Where they are; equal if nothing was drawn in between, from none of them.

    A normal deviate that NumPy's generator has in reserve is not seen. There is none after a seed,
    and none comes without a word being drawn.
    """

    words: bytes  # places in them, and some of them; torch's reserve
    reserve: float | None  # a normal deviate of Python's
    bits: Any  # the bit generator behind numpy.random
    uses: int

    @classmethod
    def now(cls) -> GlobalStates | None:
        """Look where they are; None: that cannot be seen."""
        # reach: python: reloading the module makes another one
        if _python_view is None or _random._inst is not _PYTHON or of_thread.generator is not None:
            return None
        if _bits() is not _view[0] and not numpy_memory():
            return None
        bits, _, seen = _view
        words = _join(seen)  # in one step, out of the memory of all three
        if not _torch_views:
            words += _torch.get_state().numpy().tobytes()
        # Without the call of a constructor that is written in Python.
        return _new(cls, (words, _PYTHON.gauss_next, bits, _uses))


class StatesKept(NamedTuple):
    """All of their states, which were read where `GlobalStates` were ``at``."""

    at: GlobalStates
    python: bytes
    numpy: bytes
    torch: torch.Tensor

    @classmethod
    def of(cls, now: GlobalStates) -> StatesKept:
        """Read them, unless they are where they were the last time."""
        global _kept
        if _kept is None or _kept.at != now:
            assert _python_view is not None
            _kept = cls(now, bytes(_python_view), bytes(_view[1]), _torch.get_state())
        return _kept

    def put_back(self) -> None:
        """Set them to where they were; may be called again."""
        set_python_state((self.python, self.at.reserve))
        if _bits() is not self.at.bits:
            _numpy.set_bit_generator(self.at.bits)
        *words, place = np.frombuffer(self.numpy, np.uint32).tolist()
        _numpy.set_state(("MT19937", words, place, 0, 0.0))
        _torch.set_state(self.torch)


_kept: StatesKept | None = None


# --- what shows in no state ---

_uses = 0


def note_use() -> None:
    """Note that what is made now depends on where a generator is, which is left there."""
    global _uses
    _uses += 1


os.register_at_fork(before=note_use)  # who goes on in the copy, draws from a copy


# --- Python's ---

_random: Final[Any] = random
# reach: python: what the functions of the module are methods of
_PYTHON: Final[Any] = _random._inst
_LAYOUT: Final = struct.Struct(f"i{_WORDS}I")


def _view_of_python() -> memoryview | None:
    """Give a view of the memory, if a generator of that kind has its words there.

    That is checked on one of our own, and on the global one.
    """
    start = object.__basicsize__
    if (
        sys.implementation.name != "cpython"
        or sysconfig.get_config_var("Py_GIL_DISABLED")
        or random.Random.__basicsize__ < start + _BYTES
        or type(_PYTHON) is not random.Random
    ):
        return None
    probe = random.Random(1)
    probe.getrandbits(32 * 700)
    for each in (probe, _PYTHON):
        view = memoryview((ctypes.c_char * _BYTES).from_address(id(each) + start))
        _, (*words, place), _ = each.getstate()
        if bytes(view) != _LAYOUT.pack(place, *words):
            return None
    return view


_python_view: Final = _view_of_python()
_python_some: Final = memoryview(b"") if _python_view is None else _python_view[: 4 + _SOME]


def _python_memory() -> bytes:
    """Give the place in the words of Python's generator, and these; empty: they cannot be seen."""
    # reach: python: reloading the module makes another one
    return b"" if _python_view is None or random._inst is not _PYTHON else bytes(_python_view)


def python_state() -> Any:
    """Read the state of Python's generator, for `set_python_state`."""
    memory = _python_memory()
    return (memory, _PYTHON.gauss_next) if memory else random.getstate()


def set_python_state(state: Any) -> None:
    """Set Python's generator to a state that was read."""
    random.setstate(documented(state))


def documented(state: Any) -> Any:
    """Give a state that `python_state` has read as ``random.getstate()`` does."""
    global _numbers
    if type(state[0]) is not bytes:
        return state
    memory, numbers = _numbers
    if memory != state[0]:  # 10 us, once for a place that it is set to again and again
        place, *words = _LAYOUT.unpack(state[0])
        numbers = *words, place
        _numbers = state[0], numbers
    return _VERSION, numbers, state[1]


_VERSION: Final = random.getstate()[0]
_numbers: tuple[bytes, tuple[int, ...]] = (b"", ())


# --- NumPy's ---


def numpy_memory() -> bytes:
    """Give the words of NumPy's global generator and the place in them; empty: of another kind.

    Takes no lock, which a thread of the program's may hold.
    """
    global _view
    bits = _bits()
    if _view[0] is not bits:
        if type(bits) is not np.random.MT19937 or not _memory_is_the_state():
            return b""
        memory = _view_of(bits)
        _view = bits, memory, (_python_some, memory[-4 - _SOME :], *_torch_views)
    return bytes(_view[1])


def _view_of(bits: Any) -> memoryview:
    return memoryview((ctypes.c_char * _BYTES).from_address(bits.ctypes.state_address))


@cache
def _memory_is_the_state() -> bool:
    """Check once a process that the words and the place in them lie where NumPy says."""
    bits = np.random.MT19937(1)
    bits.random_raw(700, output=False)
    state: Any = bits.state["state"]
    words = np.append(state["key"], state["pos"]).astype(np.uint32)
    return bytes(_view_of(bits)) == words.tobytes()


# The bit generator that was seen last, its memory, and what is looked at of all three generators.
_view: tuple[Any, memoryview, tuple[memoryview, ...]] = (None, memoryview(b""), ())


# --- torch's ---

_HEAD: Final = 20  # bytes before the words: the seed, how many words are left, the next one
_RESERVE: Final = 21  # bytes behind them: a float and a double, if they are there
_BEFORE_WORDS: Final = 128  # bytes within which the words begin: more are read past its end


def _views_of_torch() -> tuple[memoryview, ...]:
    """Give views of the place and some words, and of the reserve, in the memory of torch's; or ().

    Where they are is found, and checked, on a generator of our own; then on the global one.
    """
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return ()
    probe = torch.Generator().manual_seed(1)
    offset = _torch_words_in(probe)
    if offset is None or offset != _torch_words_in(_torch):
        return ()

    def views(generator: Any) -> tuple[memoryview, memoryview]:
        start = generator._cdata + offset  # reach: torch: where the object behind it lies
        head = (ctypes.c_char * (_HEAD + _SOME)).from_address(start - _HEAD)
        reserve = (ctypes.c_char * _RESERVE).from_address(start + 4 * _WORDS)
        return memoryview(head), memoryview(reserve)

    seen, own = set(), views(probe)
    for dtype, count in _PROBES:
        seen.add((bytes(own[0]), bytes(own[1])))
        torch.randn(count, dtype=dtype, generator=probe)
    return views(_torch) if len(seen) == len(_PROBES) else ()


_PROBES: Final = (
    *((torch.float64, 1),) * 2,  # the second one is out of the reserve
    *((torch.float32, 1),) * 2,
    *((torch.float32, _WORDS),) * 3,  # the same place in other words
    (torch.float32, 1),
)


def _torch_words_in(generator: Any) -> int | None:
    """Where in its memory a generator's words lie, as its state has them; None: elsewhere."""
    start = getattr(generator, "_cdata", None)  # reach: torch: where the object behind it lies
    if start is None:
        return None
    words = np.frombuffer(generator.get_state().numpy().tobytes(), np.uint64)[3 : 3 + _WORDS]
    memory = ctypes.string_at(start, _BEFORE_WORDS + 4 * _WORDS)
    found = memory.find(words.astype(np.uint32).tobytes(), _HEAD)
    return None if found < 0 else found


_torch_views: Final = _views_of_torch()
