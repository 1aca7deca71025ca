"""Collate samples into a batch, large tensors straight into slot memory.

Results, types and errors are those of ``torch.utils.data.default_collate``; what this module adds
is the memory. A large output is stacked in the slot in which it travels, so that no copy follows.
A small one is stacked in private memory: making a tensor in the slot takes longer than the copy
it saves. Rules that a program adds to torch's ``default_collate_fn_map``, or puts there in place
of torch's own, are followed.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence, Sequence
from operator import attrgetter
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.utils.data._utils import collate as rules  # reach: torch: rules of default_collate

from lit_loader.core.transport.codec import TORCH_DTYPES
from lit_loader.describe import public

Empty: TypeAlias = Callable[[Sequence[int], torch.dtype], "torch.Tensor | None"]
"""Gives an uninitialised contiguous tensor in slot memory, or None where there is no room."""

DIRECT_BYTES = 32_768
"""Outputs of this many bytes and more are stacked in slot memory."""

_dtype_of = attrgetter("dtype")
_shape_of = attrgetter("shape")


@public
def default_collate(samples: Sequence[Any], empty: Empty | None = None) -> Any:
    """Return the samples as one batch, each tensor with a new first dimension.

    Tensors, NumPy arrays and scalars and Python numbers become tensors (floats float64, ints
    int64); str and bytes stay a sequence; mappings, namedtuples and sequences are collated
    entry by entry, tuples becoming lists.

    Args:
        samples: At least one sample; the first one's type decides.
        empty: Gives memory for large outputs; None for private memory.

    Raises:
        TypeError: torch's, for an element type that cannot be collated.
        RuntimeError: torch's, for sequences of uneven length, tensors of different shapes,
            sparse and nested tensors.
        KeyError: A key of the first mapping is missing in another one.
    """
    first, kind = samples[0], type(samples[0])
    registered = rules.default_collate_fn_map
    # torch's rule: that of the exact type, or of the first type that fits.
    rule = registered.get(kind)
    if rule is None and isinstance(first, tuple(registered)):
        rule = next(rule for each, rule in registered.items() if isinstance(first, each))
    if rule is not None:
        own = _OWN_RULES.get(rule)
        if own is not None:
            return own(samples, empty)
        return rule(samples, collate_fn_map=registered)
    if kind is tuple or kind is list:  # as nearly always: what follows asks abstract classes
        return _collate_sequences(samples, empty)
    if isinstance(first, Mapping):
        return _collate_mappings(samples, empty)
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*[default_collate(column, empty) for column in zip(*samples)])  # noqa: B905
    if isinstance(first, Sequence):
        return _collate_sequences(samples, empty)
    return rules.default_collate(samples)  # type: ignore[no-untyped-call]  # raises its TypeError


def collate_privately() -> None:
    """Keep torch's own ``default_collate``, in this process, from using shared memory.

    In a worker it makes a shared-memory file for every tensor, which would cost a custom
    ``collate_fn`` that calls it more than all the rest. A rule of the user's own is left alone.
    """
    table = rules.default_collate_fn_map
    if table.get(torch.Tensor) is rules.collate_tensor_fn:
        table[torch.Tensor] = _stack_privately


def _stack_privately(samples: Sequence[torch.Tensor], **_: object) -> torch.Tensor:
    return _collate_tensors(samples, None)


def _collate_tensors(samples: Sequence[torch.Tensor], empty: Empty | None) -> torch.Tensor:
    first = samples[0]
    if first.is_nested or first.layout is not torch.strided:
        return rules.collate_tensor_fn(samples)  # type: ignore[no-any-return]  # raises
    if (
        empty is not None
        and first.nbytes * len(samples) >= DIRECT_BYTES
        and first.is_cpu
        and set(map(type, samples)) == {torch.Tensor}
        and len(set(map(_dtype_of, samples))) == 1  # else torch.stack finds a common dtype
    ):
        out = empty((len(samples), *first.shape), first.dtype)
        if out is not None:
            try:
                return torch.stack(samples, 0, out=out)  # type: ignore[arg-type]
            except RuntimeError:
                pass  # autograd does without ``out``; any other error comes again, in torch's words
    return torch.stack(samples, 0)  # type: ignore[arg-type]


def _collate_arrays(samples: Sequence[Any], empty: Empty | None) -> torch.Tensor:
    first = samples[0]
    if first.dtype.kind not in "biufc":
        return rules.collate_numpy_array_fn(samples)  # type: ignore[no-any-return]  # raises
    dtype = TORCH_DTYPES.get(first.dtype)
    if (
        dtype is None
        or first.ndim == 0
        or not {np.ndarray, np.memmap}.issuperset(map(type, samples))
        or len(set(map(_dtype_of, samples))) != 1
        or len(set(map(_shape_of, samples))) != 1
    ):
        return _collate_tensors([torch.as_tensor(sample) for sample in samples], empty)
    shape = (len(samples), *first.shape)
    batch = None
    if empty is not None and first.nbytes * len(samples) >= DIRECT_BYTES:
        batch = empty(shape, dtype)
    if batch is None:
        batch = torch.empty(shape, dtype=dtype, device="cpu")
    # Joining along the first dimension is the same bytes as stacking, and three times as quick.
    joined = (len(samples) * len(first), *first.shape[1:])  # not -1: a dimension may be zero
    np.concatenate(samples, out=batch.numpy().reshape(joined))
    return batch


def _collate_scalars(samples: Sequence[Any], empty: Empty | None) -> torch.Tensor:
    """NumPy scalars and Python numbers; through NumPy where the dtype is plain, for speed."""
    first = samples[0]
    if len(set(map(type, samples))) == 1:
        array = np.array(samples)
        # Of integers too large for that torch has its own words.
        if array.dtype in TORCH_DTYPES and (type(first) is not int or array.dtype == np.int64):
            return torch.from_numpy(array)
    is_float = isinstance(first, float) and not isinstance(first, np.generic)
    return torch.as_tensor(samples, dtype=torch.float64 if is_float else None)


def _collate_mappings(samples: Sequence[Mapping[object, object]], empty: Empty | None) -> object:
    first = samples[0]
    made = {key: default_collate([each[key] for each in samples], empty) for key in first}
    return like(first, made, TypeError)


def _collate_sequences(samples: Sequence[Sequence[object]], empty: Empty | None) -> object:
    if len(set(map(len, samples))) != 1:
        raise RuntimeError("each element in list of batch should be of equal size")
    first = samples[0]
    made = [default_collate(column, empty) for column in zip(*samples)]  # noqa: B905
    return made if isinstance(first, tuple) else like(first, made, TypeError)


def like(container: Any, made: Any, passed_over: type[Exception]) -> Any:
    """Return a container of the same class with other contents.

    Args:
        container: A mapping or sequence. One that can be changed is cloned, which keeps what else
            it holds (a default factory).
        made: The contents, a dict or list; returned as it is where the class cannot be filled.
        passed_over: What that raises: no copy, no update or assignment, another constructor.
    """
    if type(container) is type(made):
        return made
    try:
        if isinstance(container, MutableMapping):
            clone = copy.copy(container)
            clone.update(made)
            return clone
        if isinstance(container, MutableSequence):
            copied = copy.copy(container)
            for place, item in enumerate(made):
                copied[place] = item
            return copied
        return type(container)(made)
    except passed_over:
        return made


_OWN_RULES: dict[Callable[..., Any], Callable[[Any, Empty | None], Any]] = {
    rules.collate_tensor_fn: _collate_tensors,
    _stack_privately: _collate_tensors,
    rules.collate_numpy_array_fn: _collate_arrays,
    rules.collate_numpy_scalar_fn: _collate_scalars,
    rules.collate_float_fn: _collate_scalars,
    rules.collate_int_fn: _collate_scalars,
}


# --- which field of which samples did not fit ---


def why_not_collated(samples: Sequence[object], indices: Any = None) -> str | None:
    """Say where a sample differs from the first one; None: nowhere that shows.

    ``indices`` are those of the samples, if they are known.
    """
    known = isinstance(indices, (list, tuple)) and len(indices) == len(samples)
    names = [f"index {indices[n]!r}" if known else f"sample {n}" for n in range(len(samples))]
    with contextlib.suppress(Exception):  # of what a sample is, which would hide the error
        return _difference(samples, names, "")
    return None


def _difference(parts: Sequence[Any], names: Sequence[str], place: str) -> str | None:
    first = parts[0]
    where = f"field {place}: " if place else ""
    for part, name in zip(parts, names, strict=True):
        if (shown := _kind(part)) != (expected := _kind(first)):
            cure = ""
            if shown.startswith("shape") and expected.startswith("shape"):
                cure = " (collate_fn=lit_loader.PadCollate() pads them)"
            return f"{where}{names[0]} has {expected}, {name} has {shown}{cure}"
    inner: Sequence[object] = ()
    if isinstance(first, Mapping):
        inner = list(first)
    elif isinstance(first, Sequence) and not isinstance(first, (str, bytes)):
        inner = range(len(first))
    for key in inner:
        found = _difference([part[key] for part in parts], names, f"{place}[{key!r}]")
        if found is not None:
            return found
    return None


def _kind(part: object) -> str:
    """Return what must be equal: the shape, the keys, the length, or else the type."""
    shape = getattr(part, "shape", None)
    if shape is not None:
        return f"shape {tuple(shape)}"
    if isinstance(part, Mapping):
        return f"keys {sorted(map(str, part))}"
    if isinstance(part, (list, tuple)):
        return f"length {len(part)}"
    return "a number" if isinstance(part, (bool, int, float)) else f"type {type(part).__name__}"
