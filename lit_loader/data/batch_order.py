"""`BatchOrder`: orders of batches that are computed, for samplers that choose what a batch holds.

A loader asks one for a batch by its number, as it asks its own orders for an index. Torch's loader
iterates it, and finds the same batches.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final

import numpy as np
from torch.utils.data import Sampler

from lit_loader.core.sampling.orders import EpochOrder, Indices
from lit_loader.core.state.fingerprint import Fingerprint
from lit_loader.core.state.state_validation import damaged, is_count
from lit_loader.errors import StateError

__all__ = ["BatchOrder", "summarise"]

_SHORT: Final = 60
"""Characters that are written out; of more a digest stands in the state, which is to stay small."""


class BatchOrder(EpochOrder, Sampler[list[int]]):
    """Mixin of batch samplers whose batches are computed, by their number in the epoch."""

    of_batches = True

    def batches(self, epoch: int) -> Callable[[int], Indices]:
        """Give one epoch's batches: a function from a batch's number to its indices, int64."""
        raise NotImplementedError

    def state_fingerprint(self) -> Fingerprint:
        """Name what the batches depend on, besides the epoch; see `core/state/fingerprint.py`."""
        raise NotImplementedError

    @property
    def data_source(self) -> Any:
        """What is ordered: batches."""
        return self

    def order(self, epoch: int) -> Callable[[Indices], Any]:
        """Give one epoch's batches: a function from their numbers to a list of arrays."""
        # An epoch's first batches are asked for as they are made ahead, compared, and begun.
        kept: dict[int, Callable[[int], Indices]] = self.__dict__.setdefault("_epochs", {})
        if (batch := kept.get(epoch)) is None:
            for old in [*kept][:-1]:
                kept.pop(old, None)
            batch = kept[epoch] = self.batches(epoch)
        return lambda numbers: [batch(number) for number in numbers.tolist()]

    def forget(self) -> None:
        """Compute all batches anew, by options that have changed."""
        self.__dict__.pop("_epochs", None)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_epochs"}

    def __iter__(self) -> Iterator[Any]:
        return _BatchIterator(self)


class _BatchIterator(Iterator[list[int]]):
    """The batches of one epoch for whom they are not computed; its place can be asked for."""

    def __init__(self, sampler: BatchOrder) -> None:
        self._name, self._length = type(sampler).__name__, len(sampler)
        self._order, self._next = sampler.order(sampler.epoch), 0
        options = sampler.state_fingerprint().items(), sampler.order_state()
        self._of = summarise([*options, self._length, "batches"])

    def __next__(self) -> list[int]:
        if self._next >= self._length:
            raise StopIteration
        self._next += 1
        batch: list[int] = self._order(np.array([self._next - 1]))[0].tolist()
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Give the place among the epoch's batches; two primitives."""
        return {"batches": self._next, "of": self._of}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was taken; a StateError if it is of other batches."""
        if not isinstance(state, Mapping):
            raise damaged("place among the batches must be a dict", state)
        of, batches = state.get("of"), state.get("batches")
        if type(of) is not str or of != self._of:
            raise StateError(
                f"the state is of other batches than this {self._name} makes: resume with the same "
                "lengths, seed and options (num_replicas and group among them, which without being "
                "given follow from the number of processes)"
                " [LL340]"
            )
        if not is_count(batches, self._length + 1):
            raise damaged(f"batches must be a whole number from 0 to {self._length}", batches)
        self._next = batches


def summarise(values: Collection[object]) -> str:
    """Write values out if that is short; else their number and a digest of them."""
    if isinstance(values, np.ndarray) and len(values) > _SHORT:  # not number by number
        data = values.tobytes()
    else:
        text = ", ".join(map(str, values))
        if len(text) <= _SHORT:
            return text
        data = text.encode()
    return f"{len(values)} values, digest {hashlib.blake2b(data, digest_size=8).hexdigest()}"
