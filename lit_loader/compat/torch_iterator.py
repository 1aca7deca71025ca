"""What programs of torch's world reach for in an iterator, and which package needs it.

===============================  ==================================================================
``isinstance(it, _Base…Iter)``   Lightning asks whether an object is a loader's iterator
``_workers``                     Ultralytics ends the worker processes that it finds here
``_shutdown_workers``            Lightning and Ultralytics end workers, to start others later
``_num_yielded``                 SpeechBrain saves it as the place in an epoch, and sets it there
``_sampler_iter``                SpeechBrain goes back to that place: each ``next()`` on it, before
                                 the first batch, leaves one batch out
a patched ``__init__``           SpeechBrain does so in the ``__init__`` of all iterators: it is run
===============================  ==================================================================

All else that torch's iterators have is of machinery that is not here, and an AttributeError. An
iterator asks here by `core/epoch/iterator.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lit_loader.core.state.position import PassPosition
from lit_loader.core.transport.messages import listed
from lit_loader.errors import LoaderError

__all__ = ["sampler_iter", "set_num_yielded"]


def set_num_yielded(iterator: Any, value: int) -> None:
    """Refuse another number of batches than there were."""
    if value != iterator._num_yielded:
        raise LoaderError(
            "_num_yielded says how many batches have been yielded, "
            f"{iterator._num_yielded}, and cannot be set to {value}. Use the loader's "
            "load_state_dict to go to another place"
        )


def sampler_iter(iterator: Any, value: object = None) -> SamplerIter:
    """Return the indices of the batches to come; refuse others in their place."""
    if value is not None and not isinstance(value, SamplerIter):
        raise LoaderError(
            "_sampler_iter cannot be exchanged in an iterator. Give the loader a sampler= or "
            "batch_sampler="
        )
    return SamplerIter(iterator)


class SamplerIter(Iterator[object]):
    """The batches of an iterator's sampler; each that is taken from it is left out."""

    def __init__(self, iterator: Any) -> None:
        self._iterator = iterator

    def __next__(self) -> object:
        iterator = self._iterator
        with iterator._core.lock:
            if iterator._tasks is not None:
                raise LoaderError(
                    "_sampler_iter can be taken from before the first batch only: workers are at "
                    "those that follow"
                )
            made = iterator.begin_pass()
            if made.batches is None:  # an endless sampler, which leads nowhere: as with torch
                # reach: torch: the loader's property, which programs exchange
                return next(iter(iterator._data_loader._index_sampler))
            batches, position = made.batches, made.position
            while True:
                number = position.start.batches
                indices = batches.draw(number, position)
                yielded_before = number in position.start.ahead
                _leave_out(position, number)
                if not yielded_before:
                    return listed(indices) if batches.computed else indices


def _leave_out(position: PassPosition, number: int) -> None:
    """Begin after batch ``number``; nothing was yielded yet."""
    ahead = tuple(n for n in position.start.ahead if n > number)
    sampler = position.sampler_at(number + 1)
    start = position.start._replace(batches=number + 1, ahead=ahead, sampler=sampler)
    position.begin_at(start)
