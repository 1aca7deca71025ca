"""Take a batch apart: a small pickle of its structure, and the tensors and arrays.

The pickle holds everything but bulk bytes. Each plain CPU tensor and each plain NumPy array is
replaced by pickle protocol 5's out-of-band marker, so that unpickling asks for the parts one by
one, in the order in which they were taken out; pickle's own memo keeps one object met twice one
object. Other kinds of tensor are expressed by plain ones: by torch's own reduction, whose storages
become parts too, unless that would carry more than the tensor (a view's whole storage) or keep it.
Refused are tensors on another device, and results of autograd.

`reducer_override` rather than `persistent_id`, which pickle would call for every int and str too.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterable
from functools import partial
from operator import is_not, methodcaller
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

Part: TypeAlias = "torch.Tensor | npt.NDArray[np.generic]"

_SPARSE = {
    *(torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
}
PLAIN_KINDS = frozenset("biufcmMSUV")
"""NumPy dtype kinds whose bytes mean the same in another process (not objects, not StringDType)."""

_MARKER = pickle.PickleBuffer(bytearray(1))
_stays_in_pickle = partial(is_not, _MARKER)


class Refusal(Exception):
    """A tensor that cannot be carried; the message says what it is and what to do."""


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether an exact ``torch.Tensor`` is no more than elements at strides in CPU memory."""
    return (
        tensor.layout is torch.strided
        and tensor.is_cpu
        and not tensor.requires_grad
        and not tensor.__dict__
        and not tensor.is_conj()
        and not tensor.is_neg()
        and not tensor.is_nested
        and not tensor.is_quantized
    )


def is_plain_array(array: npt.NDArray[np.generic]) -> bool:
    """Whether an exact ``numpy.ndarray`` holds numbers that its bytes and dtype's name are."""
    dtype = array.dtype
    return (
        dtype.kind in "biufc"
        and dtype.isbuiltin == 1
        and dtype.metadata is None
        and array.nbytes > 0
        and (array.flags.writeable or 0 not in array.strides)
    )


def pickle_apart(batch: object) -> tuple[bytes, list[Part]]:
    """Return the pickle of ``batch`` and, in the order it asks for them, the parts left out.

    Parts are plain tensors, and plain arrays of one byte or more; the list keeps them alive. A
    Refusal for a tensor that cannot be carried; else whatever pickling an object raises.
    """
    file = io.BytesIO()
    pickler = _Pickler(file, 5, buffer_callback=_stays_in_pickle)
    pickler.parts = []
    pickler.dump(batch)
    # Not a view of the file: Python 3.12.1's garbage collector crashes where it meets the two in a
    # cycle. Nothing is copied so either.
    return file.getvalue(), pickler.parts


def unpickle_together(skeleton: memoryview, parts: Iterable[Part]) -> object:
    """Return the batch that `pickle_apart` took apart, with ``parts`` in their places."""
    return pickle.loads(skeleton, buffers=parts)


class _Pickler(pickle.Pickler):
    parts: list[Part]

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if kind is torch.Tensor:
            if is_plain(obj):
                self.parts.append(obj)
                # A new tuple each time: pickle's memo would take a shared one for the first part.
                return _given, (_MARKER,)
            return _reduce_tensor(obj)
        if kind is np.ndarray:
            return self._reduce_array(obj)
        if isinstance(obj, torch.Tensor):
            return _reduce_subclass(obj)
        if kind is torch.UntypedStorage:
            return methodcaller("untyped_storage"), (_bytes_of(obj),)
        if kind is torch.TypedStorage:  # met inside what torch's own reductions return
            # reach: torch: what is inside of a TypedStorage
            inside = {"wrap_storage": obj._untyped_storage, "dtype": obj.dtype, "_internal": True}
            return partial(torch.TypedStorage, **inside), ()
        return NotImplemented

    def _reduce_array(self, array: npt.NDArray[np.generic]) -> object:
        dtype = array.dtype
        if (
            dtype.kind not in PLAIN_KINDS
            or dtype.hasobject
            or dtype.isbuiltin == 2  # registered by another package (ml_dtypes): its own business
        ):
            return NotImplemented
        if array.nbytes == 0:
            return np.empty, (array.shape, dtype)
        self.parts.append(array)
        if dtype.isbuiltin and dtype.metadata is None:
            if 0 in array.strides and not array.flags.writeable:
                return _broadcast, (_MARKER,)
            return _given, (_MARKER,)
        # Field names, units, byte order and string lengths travel in the dtype's own pickle.
        return methodcaller("view", dtype), (_MARKER,)


def _reduce_tensor(tensor: torch.Tensor) -> object:
    _refuse_uncarried(tensor)
    if tensor.__dict__:
        return _adorned(tensor, _given)
    if tensor.requires_grad:
        return methodcaller("requires_grad_"), (tensor.detach(),)
    if tensor.layout in _SPARSE:
        # Torch's own rebuilding keeps it on a list until the next torch.load: the slot would never
        # come back.
        _, (layout, data) = tensor.__reduce_ex__(5)  # type: ignore[no-untyped-call]
        return _sparse, (layout, *data)
    if tensor.is_conj() or tensor.is_neg():
        return _given, (tensor.resolve_conj().resolve_neg(),)
    if not (tensor.is_nested or tensor.is_meta or tensor.is_quantized):
        raise Refusal(
            f"a tensor of layout {tensor.layout} cannot be carried between processes; "
            "return tensor.to_dense()"
        )
    return tensor.__reduce_ex__(5)  # type: ignore[no-untyped-call]


def _reduce_subclass(tensor: torch.Tensor) -> object:
    kind = type(tensor)
    # reach: torch: attributes are read without __torch_function__
    with torch._C.DisableTorchFunctionSubclass():  # attributes are read here, nothing is computed
        _refuse_uncarried(tensor)
        if (
            _pickles_itself(kind)
            or tensor.layout is not torch.strided
            or tensor.is_quantized
            or tensor.is_nested
        ):
            return NotImplemented
        return _adorned(tensor, methodcaller("as_subclass", kind))


def _pickles_itself(kind: type[torch.Tensor]) -> bool:
    """Whether a subclass says on its own how it is pickled, or has slots that pickle must see."""
    return kind is not torch.nn.Parameter and (
        any(getattr(kind, name, None) is not getattr(torch.Tensor, name, None) for name in _OWN)
        or any(vars(base).get("__slots__") for base in kind.__mro__)
    )


_OWN = ("__reduce_ex__", "__reduce__", "__setstate__", "__getstate__", "__torch_dispatch__")


def _refuse_uncarried(tensor: torch.Tensor) -> None:
    if tensor.device.type not in ("cpu", "meta"):
        raise Refusal(
            f"a tensor of shape {tuple(tensor.shape)} on device {tensor.device} cannot be sent "
            "between processes. Return CPU tensors and use pin_memory=True"
        )
    if tensor.requires_grad and not tensor.is_leaf:
        raise Refusal(
            f"a tensor of shape {tuple(tensor.shape)} with history in autograd "
            f"(grad_fn={type(tensor.grad_fn).__name__}) cannot be sent between processes. "
            "Return tensor.detach()"
        )


def _adorned(tensor: torch.Tensor, build: Callable[[torch.Tensor], object]) -> object:
    """Reduce a tensor to a plain one over the same memory, and what is set on it afterwards."""
    # As pickle's "state" and not as arguments, so that attributes may point back at the tensor.
    state = tensor.requires_grad, dict(tensor.__dict__)
    return build, (tensor.detach(),), state, None, None, _adorn


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    tensor = torch.empty(0, dtype=torch.uint8, device=storage.device)
    return tensor.set_(storage)


# What follows runs while a batch is unpickled. --------------------------------------------------


def _given(part: Part) -> Part:
    return part


def _broadcast(array: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    array.flags.writeable = False  # what is written to one row would be in all
    return array


# reach: torch: an attribute is set without __torch_function__
def _adorn(tensor: torch.Tensor, state: tuple[bool, dict[str, object]]) -> None:
    requires_grad, attributes = state
    tensor.__dict__.update(attributes)
    if requires_grad:
        with torch._C.DisableTorchFunctionSubclass():
            tensor.requires_grad_()


def _sparse(layout: torch.layout, *data: Any) -> torch.Tensor:
    if layout is not torch.sparse_coo:
        return torch.sparse_compressed_tensor(*data, layout=layout, check_invariants=False)
    *parts, coalesced = data
    return torch.sparse_coo_tensor(*parts, is_coalesced=coalesced, check_invariants=False)
