"""A sampler's part of a state, as the batch plan writes and reads it.

A dict with some of these:

- ``generator``: where the sampler's own one was when the epoch began, packed;
- ``sampler``, ``iterator``: what the ``state_dict()`` of each gave;
- ``behind``: how many items before the position these were asked: none, or a batch of all ranks;
- ``between``: True, where they were asked behind an epoch, before the next one was begun;
- ``fresh``: True, where the sampler has come to the position from its start, without a state;
- ``head``: the stream's first items, of which ranks get some again at its end.
"""

from __future__ import annotations

import zlib
from typing import Any, Final

import torch

from lit_loader.checkpoint.untrusted_state import damaged, own_part

__all__ = ["check_packed", "checked_sampler_state", "pack_generator", "unpack_generator"]

_MAX_PACKED: Final = 1 << 16
_MAX_UNPACKED: Final = 1 << 17
"""Bytes. torch's largest generator has 5,056; a few kB of nothing but zeros unpack to many MB."""


def pack_generator(generator: torch.Generator) -> bytes:
    """Give a generator's state as bytes: 3.2 KB, and 5 KB unpacked (half of them are zero)."""
    return zlib.compress(generator.get_state().numpy().tobytes(), level=1)


def unpack_generator(packed: Any, generator: torch.Generator) -> None:
    """Bring a generator to where `pack_generator` was asked for.

    Raises:
        StateError: That is not the state of such a generator; this one is as it was.
    """
    state = torch.frombuffer(check_packed(packed), dtype=torch.uint8)
    before = generator.get_state()
    try:
        generator.set_state(state)
    except Exception as error:
        generator.set_state(before)
        raise damaged(
            f"generator must be the state of a torch.Generator on {generator.device}", packed
        ) from error


def checked_sampler_state(state: Any) -> dict[str, Any] | None:
    """Copy a sampler's part of a state that came from outside.

    Args:
        state: What `EpochBatches.state` gave, perhaps; None: nothing.

    Raises:
        StateError: It is something else.
    """
    if state is None:
        return None
    if not isinstance(state, dict) or not all(type(name) is str for name in state):
        raise damaged("sampler must be a dict of what the sampler must remember, or None", state)
    if not isinstance(state.get("head", []), (list, tuple)):
        raise damaged("sampler['head'] must be a list of items", state["head"])
    for name in ("between", "fresh"):
        if state.get(name, True) is not True:
            raise damaged(f"sampler[{name!r}] must be True where it stands", state[name])
    return {name: own_part(f"sampler[{name!r:.40}]", part) for name, part in state.items()}


def check_packed(packed: Any) -> bytearray:
    """Unpack what `pack_generator` gave, into memory of bounded size.

    Raises:
        StateError: It is something else.
    """
    refused = damaged("generator must be a torch.Generator's packed state", packed)
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
