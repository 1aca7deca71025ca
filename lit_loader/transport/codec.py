"""A batch as bytes in a slot, and back without a copy.

::

    slot  │ tensors and arrays, each on a 64-byte boundary │ descriptor                    │
          │ (those collated in place are there already)    │ length │ table │ small pickle │

`encode` takes the batch apart (`transport/reductions.py`), gives every part its place in the slot
(`transport/layout.py`) and writes the descriptor behind them: a table (the form of a simple batch,
and a row a part: kind, dtype, place, shape, strides) and the pickle of a structure that is not
simple. `decode` builds every part over the bytes where they lie and puts them in their places. A
descriptor stands for itself: any worker may have written it, batches may be decoded in any order,
in any thread.

What is promised:

* Values, dtypes, shapes and the order of the dimensions in memory (C, F, channels_last, expanded)
  stay. A view that spans more than twice its own bytes, and overlaps nothing, is packed.
* Tensors and arrays that overlap in memory do so again; overlapping tensors share one storage.
  Other storages have the size of their tensor, however large the one they were cut from.
* Decoded parts are writable, are normal tensors also under ``torch.inference_mode``, and keep
  ``memory`` alive: a weak reference to it dies with the last of them. The consumer's side may have
  them lie elsewhere, each in memory of its own (`memory/held_tensors.py`); what overlaps does so
  there.
"""

from __future__ import annotations

import ctypes  # reach: python: memmove of ctypes is the quickest copy of bytes by address
import marshal
import struct
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from lit_loader.describe import find_failing_object, short_repr
from lit_loader.errors import TransportError
from lit_loader.memory.held_tensors import Pieces, Stretch
from lit_loader.transport.layout import build, lay_out
from lit_loader.transport.reductions import (
    Part,
    Refusal,
    is_plain,
    is_plain_array,
    pickle_apart,
    unpickle_together,
)
from lit_loader.transport.slot_writer import SlotFull, SlotWriter, align

__all__ = ["Divide", "SlotFull", "SlotWriter", "decode", "encode"]

Divide: TypeAlias = Callable[[Any, list[Stretch]], Pieces | None]
"""Given a slot's bytes and the stretches in use, says where these are to lie; None: as they do."""

_LENGTH = struct.Struct("<Q")

# How much more than the bytes already laid out a part may need in another slot: padding, and a
# row whose numbers have grown.
_SLACK_PER_PART = 128


def encode(batch: object, writer: SlotWriter) -> tuple[int, int]:
    """Write a batch into a slot, behind what ``writer`` has handed out.

    Tensors that ``writer`` handed out stay where they are; everything else is copied once. After
    `SlotFull` nothing has changed, and the same batch may be encoded again with another writer.

    Args:
        batch: Any picklable object.
        writer: Of the slot. Its position moves behind the batch.

    Returns:
        Place of the descriptor in the slot: first byte, size in bytes.

    Raises:
        SlotFull: The slot is too small; says how large a one would do.
        TransportError: Something in the batch cannot be carried; names it and its place.
    """
    form, others, parts = _flat(batch)
    skeleton = b""
    if form is None:
        try:
            skeleton, parts = pickle_apart(batch)
        except MemoryError:
            raise
        except Exception as error:
            raise _cannot_carry(batch, error) from error
    rows, stretches, copies, position = lay_out(parts, writer)
    table = marshal.dumps((form, others, rows, stretches))
    offset = align(position)
    middle = offset + _LENGTH.size + len(table)
    end = middle + len(skeleton)
    if end > len(writer.view):
        raise SlotFull(end + _SLACK_PER_PART * (1 + len(parts)))
    for byte, address, nbytes in copies:
        # Bytes and not elements: whatever the strides, a part arrives as it lies in memory.
        ctypes.memmove(writer.base + byte, address, nbytes)
    _LENGTH.pack_into(writer.view, offset, len(table))
    writer.view[offset + _LENGTH.size : middle] = table
    writer.view[middle:end] = skeleton
    writer.position = end
    return offset, end - offset


def decode(
    memory: npt.NDArray[np.uint8], offset: int, nbytes: int, divide: Divide | None = None
) -> object:
    """Return the batch whose descriptor lies at ``memory[offset : offset + nbytes]``.

    Tensors and arrays look into ``memory``, in which they may be written, and keep it alive.

    Args:
        memory: The slot's bytes: uint8, one dimension, contiguous, writable. A weak reference to
            this very object dies with the last tensor, array or storage of the batch.
        offset: First byte of the descriptor.
        nbytes: Its size in bytes.
        divide: Says whether the parts are to lie elsewhere than in ``memory``; None: they are not.

    Raises:
        TransportError: An object of the batch cannot be unpickled in this process.
    """
    if torch.is_inference_mode_enabled():
        with torch.inference_mode(False):  # a batch is normal tensors, wherever it is asked for
            return decode(memory, offset, nbytes, divide)
    view = memory.data[offset : offset + nbytes]
    middle = _LENGTH.size + _LENGTH.unpack_from(view)[0]
    form, others, rows, stretches = marshal.loads(view[_LENGTH.size : middle])
    parts = build(memory, rows, None if divide is None else divide(memory, stretches))
    if form is not None:  # of which `_flat` says what it means
        if others is not None:
            parts = _with_others(parts, others)
        if form == _LONE:
            return parts[0]
        if isinstance(form, tuple):
            return dict(zip(form, parts, strict=True))
        return parts if form == _LIST else tuple(parts)
    try:
        return unpickle_together(view[middle:], parts)
    except MemoryError:
        raise
    except Exception as error:
        raise TransportError(
            f"the batch was pickled in the worker but cannot be unpickled here "
            f"({type(error).__name__}: {error}); make its classes importable and able to be "
            "copied with copy.deepcopy, or return plain containers"
        ) from error


_Form = int | tuple[str, ...]
_LONE, _LIST, _TUPLE = range(3)
_SCALARS = frozenset({int, float, complex, bool, str, bytes, type(None)})
_FEW = 3  # of which one by one is the quicker way to see what they are


_Others = list[Any] | dict[int, Any]
"""Numbers and strings: all that the batch holds, or by their places."""


def _flat(batch: object) -> tuple[_Form | None, _Others | None, list[Part]]:
    """Return the form, the scalars and the tensors of a batch that has no other structure.

    One tensor, or a list, a tuple or a dict (of str) of different plain tensors, arrays, numbers
    and strings: what collation makes nearly always, and a cache's samples are. They need no
    pickler, which would cost as much as all the rest. Otherwise the form is None.
    """
    form: _Form
    values: list[Any]
    if type(batch) is torch.Tensor or type(batch) is np.ndarray or type(batch) in _SCALARS:
        form, values = _LONE, [batch]
    elif type(batch) is dict:
        form, values = tuple(batch), list(batch.values())
        if not all([type(key) is str for key in form]):
            return None, None, []
    elif type(batch) is list or type(batch) is tuple:
        form, values = (_LIST if type(batch) is list else _TUPLE), list(batch)
    else:
        return None, None, []
    if len(values) > _FEW and _SCALARS.issuperset(map(type, values)):
        return form, values, []
    others: dict[int, Any] | None = None
    for place, value in enumerate(values):
        if type(value) is torch.Tensor:
            if not is_plain(value):
                return None, None, []
        elif type(value) in _SCALARS:
            others = others or {}
            others[place] = value
        elif type(value) is not np.ndarray or not is_plain_array(value):
            return None, None, []
    parts = values
    if others is not None:
        parts = [value for place, value in enumerate(values) if place not in others]
    if len(parts) > 1 and len(set(map(id, parts))) < len(parts):
        return None, None, []  # pickle's memo keeps one object met twice one object
    return form, others, parts


def _with_others(parts: list[Any], others: _Others) -> list[Any]:
    """Return all values in their order."""
    if type(others) is list:
        return others
    rest, count = iter(parts), len(parts) + len(others)
    return [others[place] if place in others else next(rest) for place in range(count)]


def _cannot_carry(batch: object, error: Exception) -> TransportError:
    path, value, error = find_failing_object(batch, error, pickle_apart)
    if isinstance(error, Refusal):
        return TransportError(f"{path}: {error}")
    return TransportError(
        f"{path}: {short_repr(value)} of type {type(value).__module__}.{type(value).__qualname__} "
        f"cannot be pickled ({type(error).__name__}: {error}); leave it out of the "
        "batch, or return what it is made from"
    )
