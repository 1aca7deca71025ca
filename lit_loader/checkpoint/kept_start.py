"""Streams of other libraries that keep the place they were once brought to, and begin there again.

A Hugging Face stream notes the state that it is given, and goes on there whenever it is iterated in
the state's epoch: also where it is to begin anew, as a source of a mixture that repeats it, or as a
loader's dataset in the same epoch once more. What was before that place would be lost. So one that
has been given a state, and is to begin at its start, first gets back what it had before.

Private reach into the library, with no public way: what a stream has been given. A version that
calls it otherwise is left as it is.
"""

from __future__ import annotations

import contextlib
from typing import Any, Final
from weakref import WeakKeyDictionary

__all__ = ["begin_at_start", "note_start"]

_START: Final = "_starting_state_dict"

_noted: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


def note_start(stream: Any) -> None:
    """Note where a stream begins that is about to be given a state."""
    kept = getattr(stream, "__dict__", {})
    if _START in kept:
        with contextlib.suppress(TypeError):  # it cannot be noted
            _noted.setdefault(stream, kept[_START])


def begin_at_start(stream: Any) -> None:
    """Let a stream begin, at the next ``iter()``, where it did before it was given a state."""
    with contextlib.suppress(TypeError):
        if stream in _noted:
            stream.load_state_dict(_noted.pop(stream))
