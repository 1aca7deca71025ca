"""The user's objects as bytes for another machine.

`worker/payload.py` carries them to processes of this machine, by descriptors where it can. Here all
is content, and what ``__main__`` defines goes by value: no other machine has this program's file.
"""

from __future__ import annotations

import io
import operator
import pickle
import sys
from types import FunctionType
from typing import Any, Final

from lit_loader.batch.batch_spec import BatchSpec
from lit_loader.describe import find_failing_object, short_repr
from lit_loader.errors import TransportError

__all__ = ["pack_spec", "unpack_spec"]

_USERS: Final = ("dataset", "collate_fn", "worker_init_fn", "reseed_fn")


def pack_spec(spec: BatchSpec) -> bytes:
    """Write down what batches are made by.

    Raises:
        TransportError: Something cannot be pickled; names the option and the place in it.
    """
    try:
        return _pack(spec)
    except Exception as error:
        for name in _USERS:
            value = getattr(spec, name)
            try:
                _pack(value)
            except Exception as refusal:
                place = find_failing_object(value, refusal, _pack, name, inside=True)
                raise TransportError(
                    f"{place.path}: {short_repr(place.value)} cannot be pickled, as remote workers "
                    f"need ({type(place.error).__name__}: {place.error}); leave it out in "
                    "__getstate__ and make it in the worker (on first use, or in worker_init_fn)"
                ) from error
        raise


def _pack(value: object) -> bytes:
    import cloudpickle

    carried: dict[str, object] = {}

    class ByValue(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, obj: Any) -> Any:
            if _is_in_main(obj):
                carried[obj.__qualname__] = obj
            return super().reducer_override(obj)

    file = io.BytesIO()
    # In this order: the second is filled by pickling the first.
    ByValue(file, protocol=pickle.HIGHEST_PROTOCOL).dump((value, carried))
    return file.getvalue()


def unpack_spec(data: bytes | memoryview) -> BatchSpec:
    """Read what :func:`pack_spec` wrote.

    What came out of the program's ``__main__`` is put into the one here, so that a batch that holds
    an instance of such a class can be pickled by name on its way back.

    Raises:
        Exception: Whatever unpickling raises.
    """
    spec, carried = pickle.loads(data)
    vars(sys.modules["__main__"]).update(carried)
    return spec  # type: ignore[no-any-return]


def _is_in_main(value: object) -> bool:
    """Whether this is a function or class that ``__main__`` has under its own plain name."""
    if not isinstance(value, (type, FunctionType)) or value.__module__ != "__main__":
        return False
    try:
        found = operator.attrgetter(value.__qualname__)(sys.modules["__main__"])
    except AttributeError:
        return False
    return found is value and "." not in value.__qualname__
