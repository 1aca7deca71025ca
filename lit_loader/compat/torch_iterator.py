"""What programs of torch's world reach for in an iterator, and for whom it is.

===============================  ==================================================================
``isinstance(it, _Base…Iter)``   frameworks that ask whether an object is a loader's iterator
``_num_yielded``                 checkpoints of the place in an epoch (SpeechBrain)
``_sampler_iter``                going back to it: ``next()`` on it, before the first batch, leaves
                                 one batch out (SpeechBrain)
a patched ``__init__``           who does that for all iterators there are (SpeechBrain): it is run
``_workers``                     who ends or watches worker processes (ultralytics)
``_shutdown_workers``            who ends workers, to start others later (Lightning, ultralytics)
``_reset``                       loops that go on with one iterator, and wrappers of it (PyG)
``_next_data``, ``_next_index``  who takes a batch, or leaves one out, past ``next()``
the options in `_OPTIONS`        who asks an iterator what it was made with
===============================  ==================================================================

All else that torch's iterators have is of machinery that is not here. It is an AttributeError, of
one line: so ``hasattr`` says the truth. An iterator asks here by `core/epoch/torch_surface.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Final

from torch import Generator

from lit_loader.core.state.position import PassPosition
from lit_loader.core.transport.messages import listed
from lit_loader.errors import LoaderError

__all__ = ["attribute", "next_index", "run_patch", "sampler_iter", "set_num_yielded"]

# reach: torch: what programs ask an iterator for
_OPTIONS: Final = {
    "_auto_collation": "_auto_collation",
    "_collate_fn": "collate_fn",
    "_dataset": "dataset",
    "_dataset_kind": "_dataset_kind",
    "_drop_last": "drop_last",
    "_in_order": "in_order",
    "_index_sampler": "_index_sampler",
    "_num_workers": "num_workers",
    "_persistent_workers": "persistent_workers",
    "_prefetch_factor": "prefetch_factor",
    "_timeout": "timeout",
    "_worker_init_fn": "worker_init_fn",
}
"""What torch's iterators copy of their loader; here it is asked."""


def attribute(iterator: Any, name: str) -> Any:
    """Give an attribute that torch's iterators have; an AttributeError if it means nothing here."""
    if name in _OPTIONS:
        return getattr(iterator._data_loader, _OPTIONS[name])
    if name == "_IterableDataset_len_called":
        return iterator._promised
    start = iterator._start
    # reach: torch: what programs ask an iterator for
    if name == "_base_seed":
        return 0 if start is None else iterator._core.worker_seed(start)
    raise AttributeError(
        f"{type(iterator).__name__} has no {name}: if torch's iterators have it, it belongs to "
        "torch's way of making batches, which lit_loader does not use"
    )


def set_num_yielded(iterator: Any, value: int) -> None:
    """Refuse another number of batches than there were."""
    if value != iterator._num_yielded:
        raise LoaderError(
            "_num_yielded says how many batches have been given out, "
            f"{iterator._num_yielded}, and cannot be set to {value}: use the loader's "
            "load_state_dict to go to another place [LL047]"
        )


def sampler_iter(iterator: Any, value: Any = None) -> _Ahead:
    """Give the indices of the batches to come; refuse others in their place."""
    if value is not None and not isinstance(value, _Ahead):
        raise LoaderError(
            "_sampler_iter cannot be exchanged in an iterator: give the loader a sampler= or "
            "batch_sampler= [LL046]"
        )
    return _Ahead(iterator)


def next_index(iterator: Any) -> Any:
    """Leave a batch out; returns its indices."""
    with iterator._core.lock:
        if not iterator._due:
            raise LoaderError(
                "_sampler_iter can be taken from before the first batch only: workers are at "
                "those that follow [LL045]"
            )
        start = iterator._start = iterator._start or iterator._core.begin_epoch(iterator)
        if start.batches is None:  # an endless sampler, which leads nowhere: as with torch
            # reach: torch: the loader's property, which programs exchange
            return next(iter(iterator._index_sampler))
        batches, position = start.batches, start.position
        while True:
            number = position.start.batches
            indices = batches.draw(number, position)
            given_before = number in position.start.ahead
            _leave_out(position, number)
            if not given_before:
                return listed(indices) if batches.computed else indices


def _leave_out(position: PassPosition, number: int) -> None:
    """Let a position begin behind the next batch, before anything is given out."""
    start = position.start
    ahead = tuple(n for n in start.ahead if n > number)
    sampler = position.sampler_at(number + 1)
    position.__init__(  # type: ignore[misc]  # what the iterator has stays the same object
        dataclasses.replace(start, batches=number + 1, ahead=ahead, sampler=sampler)
    )


class _Ahead(Iterator[Any]):
    """What is to be had of an iterator's sampler."""

    def __init__(self, iterator: Any) -> None:
        self._iterator = iterator

    def __next__(self) -> Any:
        return self._iterator._next_index()


class _Unasked:
    """Stands for a loader before torch's own ``__init__``: nothing is drawn, nothing begun.

    The loader has all else, and is set what is set.
    """

    def __init__(self, loader: Any, iterator: Any) -> None:
        # reach: torch: what its iterators take of their loader
        own = {
            **{"_loader": loader, "_index_sampler": self, "_iterator": iterator},
            **{"dataset": None, "generator": Generator(), "pin_memory": False},
        }
        self.__dict__.update(own)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._loader, name, value)

    def __iter__(self) -> Iterator[Any]:
        return _Ahead(self._iterator)


def run_patch(init: Callable[..., None], iterator: Any, loader: Any) -> None:
    """Run what a program has put in the place of torch's ``__init__``.

    It most likely calls torch's, too. What that sets is taken away again: it is told here.
    """
    before = {*vars(iterator)}
    init(iterator, _Unasked(loader, iterator))
    for name in vars(iterator).keys() & _OF_TORCH - before:
        delattr(iterator, name)


# reach: torch: what programs ask an iterator for
_OF_TORCH: Final = {*_OPTIONS, "_IterableDataset_len_called", "_base_seed"}
