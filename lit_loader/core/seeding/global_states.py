"""Where the three global generators are, in 3 us: who looks twice sees whether one has moved.

::

    Python   624 words, the place in them ─ memory of the generator ─╮
             a normal deviate in reserve ── an attribute ────────────┤
    NumPy    624 words, the place in them ─ memory, documented ──────┼─▶ GlobalStates
    torch    get_state() ────────────────────────────────────────────┤
    uses     of a copy, which leave no trace in a generator ─────────╯

By what the libraries document it takes 70 us, most of it for making numbers of words. Memory is
read, and never written. Where it does not lie as expected (another interpreter, threads without a
lock, another bit generator behind ``numpy.random``) nothing is seen, and batches are seeded.
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

__all__ = ["GlobalStates", "note_use", "numpy_memory", "python_state", "set_python_state"]

_numpy: Any = np.random  # its stubs do not know all of its functions
_bits: Final = _numpy.get_bit_generator

_new: Final = tuple.__new__
_torch: Final = torch.default_generator
_torch_state: Final = _torch.get_state
_TorchBytes: Final = ctypes.c_char * _torch_state().nbytes
_WORDS: Final = 624
_BYTES: Final = 4 * _WORDS + 4


class GlobalStates(NamedTuple):
    """Where they are; equal if nothing was drawn in between, from none of them.

    A normal deviate that NumPy's generator has in reserve is not seen. There is none after a seed,
    and none comes without a word being drawn.
    """

    python: bytes  # the place in its words, and they
    reserve: float | None  # a normal deviate
    numpy: bytes  # its words, and the place in them
    bits: Any  # the bit generator behind numpy.random
    torch: bytes
    uses: int

    @classmethod
    def now(cls) -> GlobalStates | None:
        """Look where they are; None: that cannot be seen."""
        # reach: python: reloading the module makes another one
        if _python_view is None or _random._inst is not _PYTHON or of_thread.generator is not None:
            return None
        if _bits() is not _view[0] and not numpy_memory():
            return None
        (bits, words), state = _view, _torch_state()
        python, numpy = bytes(_python_view), bytes(words)
        torchs = _TorchBytes.from_address(state.data_ptr()).raw
        # Without the call of a constructor that is written in Python.
        return _new(cls, (python, _PYTHON.gauss_next, numpy, bits, torchs, _uses))

    def put_back(self) -> None:
        """Set them to where they were; may be called again."""
        set_python_state((self.python, self.reserve))
        if _bits() is not self.bits:
            _numpy.set_bit_generator(self.bits)
        *words, place = np.frombuffer(self.numpy, np.uint32).tolist()
        _numpy.set_state(("MT19937", words, place, 0, 0.0))
        _torch.set_state(torch.frombuffer(bytearray(self.torch), dtype=torch.uint8))


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
    global _numbers
    if type(state[0]) is bytes:
        memory, numbers = _numbers
        if memory != state[0]:  # 10 us, once for a place that it is set to again and again
            place, *words = _LAYOUT.unpack(state[0])
            numbers = *words, place
            _numbers = state[0], numbers
        state = _VERSION, numbers, state[1]
    random.setstate(state)


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
        _view = bits, _view_of(bits)
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


_view: tuple[Any, memoryview] = (None, memoryview(b""))  # of the bit generator that was seen last
