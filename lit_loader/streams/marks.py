"""`mark_of`: a few bytes by which a batch of a stream is known when it is read again.

A mark is made of every batch of a stream and kept in its position (`ReadPoint.marks`), so it
costs tens of microseconds, however large the batch is: it looks at where the random generators
are after the batch was read, and at some values of some of its samples. Who draws anything else,
draws more or less often, or reads other samples gets another mark.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch

from lit_loader.core.seeding.generator_state import tape
from lit_loader.core.seeding.global_states import numpy_place, python_place
from lit_loader.core.seeding.seeds import of_thread, undrawn_places
from lit_loader.core.system.interrupts import let_handlers_through

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
    python, numpy = undrawn_places() if apart else (python_place(), numpy_place())
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
    except Exception as error:  # sparse, quantized: its kind must do
        let_handlers_through(error)


def _step(size: int) -> int:
    return max(1, size // _VALUES)
