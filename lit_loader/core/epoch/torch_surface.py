"""`TorchSurface`: what programs of torch's world reach for in an iterator, and for whom it is.

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
one line: so ``hasattr`` says the truth.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from torch import Generator
from torch.utils.data import dataloader
from torch.utils.data.dataloader import _BaseDataLoaderIter  # reach: torch: base class

from lit_loader.core.epoch.epochs import EpochStart
from lit_loader.core.transport.messages import listed
from lit_loader.errors import LoaderError

__all__ = ["TorchSurface", "run_patches"]

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


class TorchSurface(_BaseDataLoaderIter):
    """The part of an iterator that is there for programs written for torch's.

    Nothing of torch's class runs, its ``__init__`` included. The attributes below are those of
    `LoaderIterator`.
    """

    _core: Any
    _data_loader: Any
    _start: EpochStart | None
    _due: bool
    _promised: int | None

    if not TYPE_CHECKING:  # which is not to take any name for one that there is

        def __getattr__(self, name: str) -> Any:
            if name in _OPTIONS:
                return getattr(self._data_loader, _OPTIONS[name])
            if name == "_IterableDataset_len_called":
                return self._promised
            # reach: torch: what programs ask an iterator for
            if name == "_base_seed":
                return 0 if self._start is None else self._core.worker_seed(self._start)
            raise AttributeError(
                f"{type(self).__name__} has no {name}: if torch's iterators have it, it belongs to "
                "torch's way of making batches, which lit_loader does not use"
            )

    @property
    def _num_yielded(self) -> int:
        """Batches of the epoch behind the consumer; also those that it has left out or resumed."""
        return 0 if self._start is None else self._start.position.now().delivered

    @_num_yielded.setter
    def _num_yielded(self, value: int) -> None:
        if value != self._num_yielded:
            raise LoaderError(
                "_num_yielded says how many batches have been given out, "
                f"{self._num_yielded}, and cannot be set to {value}: use the loader's "
                "load_state_dict to go to another place"
                " [LL047]"
            )

    @property
    def _sampler_iter(self) -> _Ahead:
        """The indices of the batches to come; those that are taken are left out."""
        return _Ahead(self)

    @_sampler_iter.setter
    def _sampler_iter(self, value: Any) -> None:
        if not isinstance(value, _Ahead):
            raise LoaderError(
                "_sampler_iter cannot be exchanged in an iterator: give the loader a sampler= or "
                "batch_sampler="
                " [LL046]"
            )

    def _next_index(self) -> Any:
        """Leave a batch out; returns its indices."""
        with self._core.lock:
            if not self._due:
                raise LoaderError(
                    "_sampler_iter can be taken from before the first batch only: workers are at "
                    "those that follow"
                    " [LL045]"
                )
            start = self._start = self._start or self._core.begin_epoch(self)
            if start.batches is None:  # an endless sampler, which leads nowhere: as with torch
                # reach: torch: the loader's property, which programs exchange
                return next(iter(self._index_sampler))
            batches, position = start.batches, start.position
            while True:
                number = position.start.batches
                indices = batches.draw(number, position)
                given_before = number in position.start.ahead
                position.leave_out(number)
                if not given_before:
                    return listed(indices) if batches.computed else indices

    def _next_data(self) -> Any:
        return next(self)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        """Begin the next epoch with this object, by the same workers if they are persistent."""
        if not first_iter:  # as torch's constructor says
            self._core.restart(self)

    @property
    def _workers(self) -> list[Any]:
        """The processes that make batches for it, if there are some now."""
        workers: list[Any] = self._core.workers(self)
        return workers

    def _shutdown_workers(self) -> None:
        """End the workers, persistent ones too."""
        self._core.end_idle_workers()


class _Ahead(Iterator[Any]):
    """What is to be had of an iterator's sampler."""

    def __init__(self, iterator: TorchSurface) -> None:
        self._iterator = iterator

    def __next__(self) -> Any:
        return self._iterator._next_index()


class _Unasked:
    """Stands for a loader before torch's own ``__init__``: nothing is drawn, nothing begun.

    The loader has all else, and is set what is set.
    """

    def __init__(self, loader: Any, iterator: TorchSurface) -> None:
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


def run_patches(iterator: TorchSurface, loader: Any) -> None:
    """Run what a program has put in the place of torch's ``__init__``, if it has.

    It most likely calls torch's, too. What that sets is taken away again: it is told here.
    """
    init = _BaseDataLoaderIter.__init__
    if getattr(init, "__globals__", None) is vars(dataloader):
        return
    before = {*vars(iterator)}
    init(iterator, _Unasked(loader, iterator))  # type: ignore[arg-type]
    for name in vars(iterator).keys() & _OF_TORCH - before:
        delattr(iterator, name)


# reach: torch: what programs ask an iterator for
_OF_TORCH: Final = {*_OPTIONS, "_IterableDataset_len_called", "_base_seed"}
