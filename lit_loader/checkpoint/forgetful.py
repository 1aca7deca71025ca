"""Streams of other libraries whose own state leaves out samples that they hold.

A Hugging Face stream with ``.shuffle()`` reads ahead into a buffer, and its state says how far it
has read, not what it has given: who goes on from it never gets what was in the buffer (with several
input shards the library's own ``load_state_dict`` fails, besides). So such a state is not taken.
The stream is read again up to the place, which is slower and loses nothing.

Private reach into the library, with no public way: what a stream is made of. A version that calls
it otherwise is taken at its word, as before.
"""

from __future__ import annotations

from typing import Any, Final

__all__ = ["advice_on_reading_again", "forgets"]

_BUFFERS: Final = "BufferShuffledExamplesIterable"
_MOST: Final = 10_000


def forgets(stream: Any) -> bool:
    """Whether this is a stream whose state is known to leave out samples."""
    waiting = [getattr(stream, "_ex_iterable", None)]
    for _ in range(_MOST):
        if not waiting:
            return False
        stage = waiting.pop()
        if type(stage).__name__ == _BUFFERS:
            return True
        parts = getattr(stage, "ex_iterables", None)  # of concatenated and interleaved streams
        waiting += parts if isinstance(parts, (list, tuple)) else ()
        waiting += [part] if (part := getattr(stage, "ex_iterable", None)) is not None else []
    return False


def advice_on_reading_again(dataset: Any) -> str:
    """Say why a resume reads again what was given out, and what to do about it."""
    name = type(dataset).__name__
    if forgets(dataset):
        return (
            f"the state_dict of this {name} leaves out what is in its shuffle buffer: resuming "
            "reads again all that it has given out before; shuffle by other means if that takes "
            "too long"
        )
    if getattr(dataset, "state_is_that_of_sources", False):
        name += " has a source that"
    return (
        f"{name} has no state_dict and load_state_dict: resuming reads again all that it has given "
        "out before; add these methods if that takes too long"
    )
