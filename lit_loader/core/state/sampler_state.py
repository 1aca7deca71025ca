"""A sampler's part of a state, as `sampling/sampler_batches.py` writes and reads it.

A dict with some of these:

- ``sampler``, ``iterator``: what the ``state_dict()`` of each gave after the last batch;
- ``over``: these are of a pass that has ended;
- ``due``: items that these have passed, and that are still to come;
- ``head``: the first items of the pass, where ranks repeat some at its end;
- ``generator``: the sampler's attribute of this name, as it was when the pass began, as bytes;
- ``drawn``: a digest of what was drawn up to the position, and whose, where ranks may differ.
"""

from __future__ import annotations

import json
import marshal
import random
import zlib
from typing import Any, Final

import numpy as np
import torch

from lit_loader.core.seeding.held_generators import tape
from lit_loader.core.state.state_validation import damaged

_LIST_HEADER: Final = 5


def digest(items: list[object], before: int = 0) -> int:
    """Return 32 bits that tell what was drawn behind ``before``, in whatever groups."""
    try:
        data = marshal.dumps(items, 2)  # a version that knows nothing of shared objects
    except ValueError:
        data = marshal.dumps([_told(item) for item in items], 2)
    return zlib.crc32(data[_LIST_HEADER:], before)


def _told(item: Any) -> object:
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


def pack_generator(generator: object) -> bytes | None:
    """Return a generator's state as bytes; None if it has none."""
    controls = tape(generator)
    if controls is None:
        return None
    state = controls.read()
    if isinstance(state, torch.Tensor):
        return state.numpy().tobytes()
    return json.dumps(state, default=lambda part: part.tolist()).encode()  # NumPy's arrays


def unpack_generator(packed: bytes, generator: object) -> None:
    """Bring a generator to where `pack_generator` was called.

    A StateError if that is not the state of such a generator, which then is as it was.
    """
    kind = type(generator).__name__
    controls = tape(generator)
    if controls is None:
        raise damaged("generator must be left out, for the sampler has none", packed)
    before = controls.read()
    try:
        if isinstance(generator, torch.Generator):
            kind = f"torch.Generator on {generator.device}"
            state: Any = torch.frombuffer(bytearray(packed), dtype=torch.uint8)
        else:
            state = json.loads(packed)
        if isinstance(generator, random.Random):
            version, words, reserve = state
            state = version, tuple(words), reserve
        controls.write(state)
    except Exception as error:
        controls.write(before)
        raise damaged(f"generator must be the state of a {kind}", packed) from error
