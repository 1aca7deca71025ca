"""`mark_of`: a few bytes by which a batch of a stream is known when it is read again.

A mark is made of every batch of a stream and kept in its position (`ReadPoint.marks`), so it
costs tens of microseconds, however large the batch is: it looks at where the random generators
are after the batch was read, and at some values of some of its samples. Who draws anything else,
draws more or less often, or reads other samples gets another mark.
"""

from __future__ import annotations

import functools
import hashlib
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch

from lit_loader.core.seeding.generator_state import tape
from lit_loader.core.seeding.global_states import numpy_memory, python_state
from lit_loader.core.seeding.seeds import of_thread

__all__ = ["joined", "mark_of"]

_SAMPLES: Final = 4
"""Samples that are looked at, the first and the last among them."""

_VALUES: Final = 32
"""Values that are looked at in a tensor, an array or a container."""

_DEEPEST: Final = 6


def joined(marks: Iterable[str]) -> str:
    """Make one digest of those of several batches; that of a single one is its own."""
    return functools.reduce(_joined, marks)


def _joined(one: str, other: str) -> str:
    return hashlib.blake2b((one + other).encode(), digest_size=8).hexdigest()


def mark_of(samples: Any, generators: Iterable[Any]) -> str:
    """Make a batch's mark, of its samples and of the generators that are seeded for it."""
    found: list[bytes] = []
    torchs = of_thread.generator or torch.default_generator
    apart = torchs is of_thread.generator
    python, numpy = (_UNDRAWN, (of_thread.seeds[1], 624, 0.0)) if apart else (_python(), _numpy())
    found.append(b"%d %d %r" % python)
    if numpy is not None:
        found.append(b"%d %d %r" % numpy)
    else:
        _look(np.random.get_state(legacy=False), found, 0, _VALUES)
    # Behind its initial seed, which is the process's own where there are no workers.
    found.append(torchs.get_state().numpy()[8:].tobytes())
    for each in generators:
        if (reads_and_writes := tape(each)) is not None:
            _look(reads_and_writes[0](), found, 0, _VALUES)
    _look(samples, found, 0, _SAMPLES)
    return hashlib.blake2b(b"\0".join(found), digest_size=8).hexdigest()


_UNDRAWN: Final = 2**31, 624, None
"""Where Python's would be if a thread had it: its words begin alike for each seed."""

_PLACE_AND_WORD: Final = struct.Struct("iI")
_ONE_WORD: Final = struct.Struct("I")
_TWO_WORDS: Final = struct.Struct("2I")


def _python() -> tuple[int, int, float | None]:
    """Give the first word of Python's generator, the place in its words, and what is in reserve."""
    state = python_state()
    if type(state[0]) is bytes:
        place, word = _PLACE_AND_WORD.unpack_from(state[0])
        return word, place, state[1]
    _, words, reserve = state
    return words[0], words[-1], reserve


def _numpy() -> tuple[int, int, float] | None:
    """Give the same of NumPy's generator; None: it is one of another kind.

    What is in reserve lies in no memory that is documented, and asking for it takes 35 us. There is
    nothing where the words are those behind a seed, which the second one shows: it follows from the
    first.
    """
    memory = numpy_memory()
    if memory:
        word, second, place = (*_TWO_WORDS.unpack_from(memory), *_ONE_WORD.unpack_from(memory, -4))
        if place == 624 and second == (1_812_433_253 * (word ^ word >> 30) + 1) % 2**32:
            return word, place, 0.0
    state: Any = np.random.get_state(legacy=False)
    if "key" not in state["state"]:
        return None
    return int(state["state"]["key"][0]), state["state"]["pos"], state["gauss"]


def _look(value: Any, found: list[bytes], depth: int, most: int) -> None:
    """Write down what a value is; never calls code of the user's."""
    kind = type(value)
    found.append(kind.__name__.encode())
    if kind in (int, float, bool, complex, type(None)):
        found.append(repr(value).encode())
    elif kind in (str, bytes, bytearray):
        found.append(b"%d" % len(value))
        for end in (value[:_VALUES], value[-_VALUES:]):
            found.append(end.encode("utf-8", "surrogatepass") if isinstance(end, str) else end)
    elif isinstance(value, torch.Tensor):
        if value.is_nested:
            _look(value.unbind(), found, depth, most)
        else:
            _look_at_tensor(value, found)
    elif isinstance(value, (np.ndarray, np.generic)):
        found.append(f"{value.dtype}{value.shape}".encode())
        if value.dtype != object:
            found.append(value.flat[:: _step(value.size)].tobytes())
    elif depth >= _DEEPEST:
        return
    elif isinstance(value, Mapping):
        found.append(b"%d" % len(value))
        for _, (key, part) in zip(range(_VALUES), value.items(), strict=False):
            _look(key, found, depth + 1, _VALUES)
            _look(part, found, depth + 1, _VALUES)
    elif isinstance(value, (list, tuple)):
        for part in _some(value, most):
            _look(part, found, depth + 1, _VALUES)
    elif isinstance(inside := getattr(value, "__dict__", None), dict):
        _look(inside, found, depth + 1, _VALUES)


def _some(values: Sequence[Any], most: int) -> list[Any]:
    """Choose some, the last one among them."""
    if len(values) <= most:
        return list(values)
    return [*values[:: -(-len(values) // (most - 1))], values[-1]]


def _look_at_tensor(tensor: torch.Tensor, found: list[bytes]) -> None:
    found.append(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
    try:
        if not tensor.is_contiguous():  # a corner of it: all in a row it would be a copy
            tensor = tensor[(slice(2),) * tensor.ndim].contiguous()
        flat = tensor.detach().view(-1)
        if flat.dtype is torch.bfloat16:  # which NumPy has not
            flat = flat.view(torch.int16)
        step = _step(len(flat))
        some = flat.numpy()[::step] if flat.device.type == "cpu" else flat[::step].cpu().numpy()
        found.append(some.tobytes())
    except Exception:  # sparse, quantized: its kind must do
        pass


def _step(size: int) -> int:
    return max(1, size // _VALUES)
