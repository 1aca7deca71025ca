"""What a batch holds, in few bytes: all of it (`digest`, `difference`), or a mark (`mark_of`).

The first where batches are made again and compared: by `insight/exactness_check.py`, and in
`remote/`. The second by streams that are resumed.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch

from lit_loader.core.seeding.generator_state import numpy_state, tape
from lit_loader.core.seeding.seeds import canonical_pickle, of_thread, tensor_bytes, undrawn_states
from lit_loader.core.system.interrupts import let_handlers_through

__all__ = ["Digest", "difference", "digest", "mark_of"]

Digest = dict[str, tuple[str, bytes]]
"""Path in a batch to what is there, in words, and a hash of its value."""


def difference(before: Digest, now: Digest) -> str | None:
    """Say where two batches differ first; None: nowhere."""
    for path in itertools.chain(before, now):
        was, is_ = before.get(path), now.get(path)
        if was != is_:
            there = f"batch{path}"
            if was is None or is_ is None or was[0] != is_[0]:
                words = [side[0] if side else "missing" for side in (was, is_)]
                return f"{there} was {words[0]}, and then {words[1]}"
            return f"{there} ({was[0]}) has other values"
    return None


def digest(batch: Any) -> Digest:
    """Say what a batch holds, tensor by tensor; equal for equal bytes."""
    found: Digest = {}
    _walk(batch, "", found, ())
    return found


def _walk(value: Any, path: str, found: Digest, above: tuple[int, ...]) -> None:
    kind = type(value)
    if id(value) in above:
        found[path] = ("itself", b"")
    elif isinstance(value, torch.Tensor) and not value.is_nested:
        found[path] = _of_tensor(value)
    elif isinstance(value, np.ndarray) and value.dtype != object:
        shape = "x".join(map(str, value.shape)) or "scalar"
        found[path] = (f"array, {value.dtype} {shape}", _hash(value.tobytes()))
    elif isinstance(value, BaseException):
        found[path] = (f"{kind.__name__}: {' '.join(str(value).split())[:100]}", b"")
    elif (parts := _parts(value)) is not None:
        found[path] = (f"{kind.__name__} of {len(parts)}", b"")
        for step, part in parts:
            _walk(part, path + step, found, (*above, id(value)))
    else:
        try:
            data = canonical_pickle(value)
        except Exception:  # its kind must do
            data = b""
        found[path] = (kind.__name__, _hash(data))


def _parts(value: Any) -> list[tuple[str, Any]] | None:
    if isinstance(value, dict):
        return [(f"[{key!r}]", part) for key, part in value.items()]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [(f".{name}", part) for name, part in zip(value._fields, value, strict=False)]
    if isinstance(value, torch.Tensor):
        value = value.unbind()  # of a nested one, whose shape may name no numbers
    if isinstance(value, (list, tuple, np.ndarray)):
        return [(f"[{number}]", part) for number, part in enumerate(value)]
    if isinstance(value, (set, frozenset)):
        return [(f"{{{key!r}}}", None) for key in sorted(value, key=repr)]
    if hasattr(value, "__dict__") and not callable(value):
        return [(f".{name}", part) for name, part in vars(value).items()]
    return None


def _of_tensor(tensor: torch.Tensor) -> tuple[str, bytes]:
    shape = "x".join(map(str, tensor.shape)) or "scalar"
    words = f"{str(tensor.dtype).removeprefix('torch.')} {shape}"
    try:
        return words, _hash(tensor_bytes(tensor).data)
    except Exception:  # sparse, quantized
        return words, _hash(repr(tensor).encode())


def _hash(data: bytes | memoryview) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


# --- marks: a few bytes by which a batch that is read again is known ---

# A mark is made of every batch of a stream and kept in its position (`ReadPoint.marks`), so it
# costs tens of microseconds, however large the batch is: it looks at where the random generators
# are after the batch was read, and at some values of some of its samples. Who draws anything else,
# draws more or less often, or reads other samples gets another mark.

_SAMPLES: Final = 4
"""Samples that are looked at, the first and the last among them."""

_VALUES: Final = 32
"""Values that are looked at in a tensor, an array or a container."""

_DEEPEST: Final = 6


def mark_of(samples: Any, generators: Iterable[Any]) -> str:
    """Make a batch's mark, of its samples and of the generators that are seeded for it."""
    found: list[bytes] = []
    torchs = of_thread.generator or torch.default_generator
    apart = torchs is of_thread.generator
    python, numpy = undrawn_states() if apart else (random.getstate(), numpy_state())
    _, words, reserve = python
    found.append(b"%d %d %r" % (words[0], words[-1], reserve))  # a word, and the place among them
    inner = numpy["state"]
    if "key" in inner:
        found.append(b"%d %d %r" % (inner["key"][0], inner["pos"], numpy["gauss"]))
    else:
        _look(numpy, found, 0, _VALUES)
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
