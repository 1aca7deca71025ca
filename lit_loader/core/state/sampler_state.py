"""A sampler's part of a state, as the batch plan writes and reads it.

A dict with some of these, all as they were where the epoch began, but for the last:

- ``generator``: the sampler's attribute of this name, packed;
- ``generators``: those that it holds elsewhere, by place;
- ``sampler``, ``iterator``: what the ``state_dict()`` of each gave;
- ``left``: these are of the epoch before, left in its middle;
- ``drawn``: a digest of what was drawn up to the position; whose, where ranks may differ.

Version 0.3 wrote further ones, which are not read.
"""

from __future__ import annotations

import itertools
import json
import marshal
import random
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch

from lit_loader.core.seeding.find_generators import set_children
from lit_loader.core.seeding.generator_state import tape
from lit_loader.core.state.state_validation import damaged, is_count, own_part
from lit_loader.core.system.interrupts import let_handlers_through
from lit_loader.errors import StateError

DIGEST: Final = "drawn"
"""Key of what tells which indices were drawn: each rank's own, if the sampler takes its share."""

_OLDER: Final = ("near", "heads", "head", "counted", "at", "behind")

_MAX_PACKED: Final = 1 << 16
_MAX_UNPACKED: Final = 1 << 17
"""Bytes. torch's largest generator has 5,056, Python's 7,000 as text; a few kB of nothing but zeros
unpack to many MB."""

_LIST_HEADER: Final = 5


def digest(items: Sequence[Any], before: int = 0) -> int:
    """Give 32 bits that tell what was drawn, behind ``before``, in whatever groups it was drawn."""
    try:
        data = marshal.dumps(list(items), 2)  # a version that knows nothing of shared objects
    except ValueError:
        data = marshal.dumps([_told(item) for item in items], 2)
    return zlib.crc32(data[_LIST_HEADER:], before)


def _told(item: Any) -> Any:
    """What of an index is the same in every process."""
    if isinstance(item, (torch.Tensor, np.ndarray, np.generic)):
        return item.tolist()
    if isinstance(item, (list, tuple)):
        return [_told(part) for part in item]
    try:
        marshal.dumps(item, 2)
    except ValueError:
        return type(item).__name__
    return item


def pack_generator(generator: Any) -> bytes:
    """Give a generator's state as bytes: 3 KB of a Mersenne Twister, torch's too."""
    read, _ = tape(generator)  # type: ignore[misc]
    state = read()
    if isinstance(generator, torch.Generator):
        return zlib.compress(state.numpy().tobytes(), level=1)
    if isinstance(generator, np.random.BitGenerator):
        state = [state, getattr(generator.seed_seq, "n_children_spawned", None)]
    return zlib.compress(json.dumps(state, default=_listed).encode(), level=1)


def unpack_generator(packed: Any, generator: Any) -> None:
    """Bring a generator to where `pack_generator` was asked for.

    A StateError if that is not the state of such a generator, which then is as it was.
    """
    data, kind = _unpacked(packed), type(generator).__name__
    read, write = tape(generator)  # type: ignore[misc]
    before = read()
    try:
        if isinstance(generator, torch.Generator):
            kind = f"torch.Generator on {generator.device}"
            state: Any = torch.frombuffer(data, dtype=torch.uint8)
        else:
            state = json.loads(data, object_hook=_arrays)
        if isinstance(generator, random.Random):
            version, words, reserve = state
            state = version, tuple(words), reserve
        elif isinstance(generator, np.random.BitGenerator):
            state, children = state
            if children is not None:
                set_children(generator.seed_seq, children)
        write(state)
    except Exception as error:
        write(before)
        let_handlers_through(error)
        raise damaged(f"generator must be the state of a {kind}", packed) from error


def _listed(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return {"array": value.tolist(), "dtype": str(value.dtype)}
    return value.item()  # a NumPy number


def _arrays(value: Mapping[str, Any]) -> Any:
    if value.keys() == {"array", "dtype"} and value["dtype"] in ("uint32", "uint64"):
        return np.array(value["array"], dtype=value["dtype"])
    return value


def checked_sampler_state(state: Any) -> dict[str, Any] | None:
    """Copy a sampler's part of a state that came from outside; None: nothing.

    A StateError if it is something else, or of an earlier release and has counters.
    """
    if state is None:
        return None
    if not isinstance(state, dict) or not all(type(name) is str for name in state):
        raise damaged("sampler must be a dict of what the sampler must remember, or None", state)
    drawn = state.get(DIGEST, (0, 0, 0))
    if not (isinstance(drawn, (list, tuple)) and len(drawn) == 3 and all(map(is_count, drawn))):
        raise damaged(f"sampler[{DIGEST!r}] must be a list of 3 numbers", drawn)
    own = {
        name: own_part(f"sampler[{name!r:.40}]", part)
        for name, part in state.items()
        if name not in _OLDER
    }
    carried = own.pop("carried", None)
    if carried is not None:
        if not isinstance(carried, dict) or carried.get("attributes", {}) != {}:
            raise StateError(
                "the state has a sampler's counters, which an earlier release of lit_loader kept "
                "and this one does not: resume with that release, or at the start of an epoch "
                "without the state"
                " [LL352]"
            )
        own["generators"] = carried.get("generators")
    generators = own.get("generators", {})
    if not isinstance(generators, dict) or not all(
        type(path) is str and isinstance(packed, (list, tuple))
        for path, packed in generators.items()
    ):
        raise damaged("sampler['generators'] must be a dict of lists", generators)
    named = [own["generator"]] if "generator" in own else []
    for packed in itertools.chain(named, *generators.values()):
        _unpacked(packed)
    return own


def _unpacked(packed: Any) -> bytearray:
    """Unpack what `pack_generator` gave, perhaps, into memory of bounded size."""
    refused = damaged("generator must be a random generator's packed state", packed)
    if type(packed) is not bytes or len(packed) > _MAX_PACKED:
        raise refused
    unpacking = zlib.decompressobj()
    try:
        state = unpacking.decompress(packed, _MAX_UNPACKED)
    except zlib.error as error:
        raise refused from error
    if not state or not unpacking.eof or unpacking.unused_data:
        raise refused
    return bytearray(state)
