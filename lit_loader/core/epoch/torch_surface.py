"""`TorchSurface`: an iterator as a subclass of torch's, for programs that are written for that.

What they reach for in it, and for whom it is, an add-on says (`Seams.torch_habits`).
"""

from __future__ import annotations

from typing import Any

from torch.utils.data.dataloader import _BaseDataLoaderIter  # reach: torch: base class


class _Absent:
    """A method of torch's iterators that means nothing here."""

    def __get__(self, iterator: Any, owner: type) -> Any:
        raise AttributeError


class TorchSurface(_BaseDataLoaderIter):
    """Nothing of torch's class runs, its ``__init__`` included. `LoaderIterator` has the rest."""

    _core: Any
    made: Any

    @property
    def _num_yielded(self) -> int:
        """Batches of the epoch that the consumer has had, has left out, or has resumed after."""
        return 0 if self.made is None else self.made.position.now().delivered

    @_num_yielded.setter
    def _num_yielded(self, value: int) -> None:
        self._core.seams.torch_habits().set_num_yielded(self, value)

    @property
    def _sampler_iter(self) -> Any:
        """The indices of the batches to come; those that are taken are left out."""
        return self._core.seams.torch_habits().sampler_iter(self)

    @_sampler_iter.setter
    def _sampler_iter(self, value: Any) -> None:
        self._core.seams.torch_habits().sampler_iter(self, value)

    _next_index = _next_data = _reset = _Absent()

    def __old_init__(self, *_: Any) -> None:
        """Do nothing: it is what SpeechBrain's patch calls torch's ``__init__`` by."""

    @property
    def _workers(self) -> list[Any]:
        """The processes that make batches for it, if there are some now."""
        workers: list[Any] = self._core.keeper.processes(self)
        return workers

    def _shutdown_workers(self) -> None:
        """End the workers, persistent ones too."""
        self._core.keeper.end_idle_workers()


def run_patches(iterator: TorchSurface, loader: Any) -> None:
    """Run what SpeechBrain has put in the place of torch's ``__init__``, if it has."""
    if hasattr(_BaseDataLoaderIter, "__old_init__"):
        _BaseDataLoaderIter.__init__(iterator, loader)
