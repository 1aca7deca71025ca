"""The loader's own orders of a dataset: as it is, shuffled, and none at all.

They are what ``loader.sampler`` shows where the user gives no sampler, and are arithmetic on
positions: nothing is drawn from a generator, nothing is stored, and any position of any epoch is
reached at once.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import RandomSampler, Sampler, SequentialSampler

from lit_loader.core.options.checks import plain, whole_number
from lit_loader.core.sampling.permutation import Permutation
from lit_loader.core.seeding.bases import Bases, LoaderSeeds
from lit_loader.core.state.fingerprint import Fingerprint, fingerprint_of
from lit_loader.core.state.state_validation import is_epoch
from lit_loader.describe import short_repr
from lit_loader.errors import OptionError

Seed = int | Callable[[], int]
Indices = npt.NDArray[np.int64]

CHUNK = 4096
"""Indices are computed that many at a time: 0.1 ms for the first, 30 ns for each."""

ORDER: Final = "order"
"""The key, in a sampler's part of a state, of what `EpochOrder.order_state` gave."""


class EpochOrder:
    """Mixin of the loader's own samplers: an epoch's order by position."""

    data_source: Any
    epoch: int = 0
    requested_epoch: int | None = None
    dataset_length: int | None = None
    """Samples that it knows of a dataset; None: it asks the dataset each time."""
    of_batches = False
    """Whether it is an order of batches: positions lead to a list of them, each int64 indices."""

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order comes next; an OptionError if it is none."""
        self.epoch = self.requested_epoch = epoch_number(epoch)

    def order(self, epoch: int) -> Callable[[Indices], Indices]:
        """Give one epoch's order, for the length that the dataset has now.

        It is a vectorised function from positions to dataset indices, both int64.
        """
        raise NotImplementedError

    def indices(self, epoch: int, start: int, stop: int) -> Indices:
        """Give the dataset indices, int64, at positions of an epoch's order; cut at its end."""
        stop = min(stop, len(self))
        return self.order(epoch)(np.arange(start, stop, dtype=np.int64))

    def elastic(self, state: Any) -> frozenset[str]:
        """Name the fields of a loader's fingerprint in which a state may differ.

        What counts of them is in ``state``, which `order_state` gave, and compared by `place_in`.
        """
        return frozenset()

    def order_state(self) -> dict[str, Any] | None:
        """Give what a state must have of the order, besides its fingerprint; None: nothing."""
        return None

    def place_in(self, state: Any, epoch: int, items: int) -> int:
        """Give how many items of this order an epoch has had, of which a state counts ``items``.

        ``state`` is what `order_state` gave, or anything else. A StateError if no place of this
        order is that one. Changes nothing.
        """
        return items

    def go_on(self, state: Any, epoch: int, items: int) -> None:
        """Go on from a state whose place `place_in` has found."""

    def __len__(self) -> int:
        return len(self.data_source)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self.data_source).__name__}, epoch={self.epoch})"

    def __iter__(self) -> Iterator[int]:
        """Give the order of the epoch; the loader itself computes batches without this."""
        _is_iterated_elsewhere(self)
        length, order = len(self), self.order(self.epoch)
        for start in range(0, length, CHUNK):
            stop = min(start + CHUNK, length)
            yield from order(np.arange(start, stop, dtype=np.int64)).tolist()


class OwnSampler:
    """One of the loader's own samplers between two epochs, as `UserSampler` is a user's."""

    has_generators = is_programs = wanders = False

    def __init__(self, source: EpochOrder) -> None:
        self.source = source
        self.fingerprint()  # one that cannot be part of a state is refused at once

    def requested_epoch(self) -> int | None:
        """Give the epoch that was set on it since the last epoch began; None if none."""
        return self.source.requested_epoch

    def choose(self, epoch: int) -> None:
        """Ask for an epoch."""
        self.source.set_epoch(epoch)

    def tell(self, epoch: int) -> None:
        """Do nothing: it is no sampler of the program's."""

    def begin(self, epoch: int) -> None:
        """Note that an epoch begins."""
        self.source.epoch, self.source.requested_epoch = epoch, None

    def take_up(self, state: Mapping[str, Any], at_start: bool) -> None:
        """Note that a state is loaded: what was set before is part of what is resumed."""
        self.source.requested_epoch = None

    def state(self, left: bool) -> dict[str, Any] | None:
        """Give what must be remembered where no epoch is begun: nothing."""
        return None

    def fingerprint(self) -> Fingerprint:
        """Give its part of a state's fingerprint: its fields "sampler.…"."""
        return fingerprint_of("sampler", self.source)


class OrderedSampler(EpochOrder, SequentialSampler):
    """The order of the dataset itself: 0, 1, 2, ..., for the length that it has each epoch."""

    def order(self, epoch: int) -> Callable[[Indices], Indices]:  # noqa: D102
        return lambda positions: positions


class ShuffledSampler(EpochOrder, RandomSampler):
    """Each element once, in an order that (seed, epoch) chooses; nothing is drawn or stored.

    Its public attributes are those of ``torch.utils.data.RandomSampler``. ``generator`` is the
    loader's option, kept for those who look at it, and ``seed`` a base seed, or a function that
    gives it when an order is asked for. ``as_distributed``: the order is that of torch's
    ``DistributedSampler`` with this seed, which takes memory for all indices.
    """

    def __init__(
        self, data_source: Any, generator: torch.Generator | None = None, seed: Seed = 0
    ) -> None:
        super().__init__(data_source, generator=generator)
        self.seed = seed
        self.as_distributed = False
        self._given_generator = generator

    def __iter__(self) -> Iterator[int]:
        """Give the order of the epoch that was asked for; as torch's class does where none was.

        A program that makes the batches itself may iterate a loader's sampler again and again, and
        means another order each time; or it puts a generator in here that it keeps equal on all
        ranks. In torch's own loader it is torch's class altogether: whoever rebuilds loaders may
        set epochs that it counts itself, from 0 again after a resume, for torch's has no epochs.
        """
        elsewhere = _is_iterated_elsewhere(self)
        asked = self.requested_epoch is not None and not elsewhere
        fixed = asked or not isinstance(self.seed, LoaderSeeds)  # no loader's
        if fixed and self.generator is self._given_generator:
            return EpochOrder.__iter__(self)
        return RandomSampler.__iter__(self)

    def order(self, epoch: int, bases: Bases | None = None) -> Callable[[Indices], Indices]:
        """Give an epoch's order; of a running one by the bases that it has begun with."""
        bases, length = bases or self._bases(), len(self.data_source)
        if self.as_distributed:
            return _randperm(length, bases.order + epoch).__getitem__
        return _permutation(length, bases.order_seed(epoch, length)).at

    def _bases(self) -> Bases:
        seed = self.seed
        return seed.bases() if isinstance(seed, LoaderSeeds) else Bases.of(resolve(seed))


def _is_iterated_elsewhere(sampler: EpochOrder) -> bool:
    from lit_loader import torch_samplers  # a loader itself does not iterate it

    return torch_samplers.tell_of_other_loader(sampler)


# An epoch's order is asked for when it is made ahead, when that is compared, and when it begins.
_permutation = functools.lru_cache(maxsize=4)(Permutation)


@functools.lru_cache(maxsize=2)
def _randperm(length: int, seed: int) -> Indices:
    generator = torch.Generator().manual_seed(seed & _TORCH_SEEDS)
    return torch.randperm(length, generator=generator).numpy()


_TORCH_SEEDS = 0xFFFF_FFFF_FFFF_FFFF


def resolve(seed: Seed) -> int:
    """Give the base seed that a number or a function stands for."""
    return seed() if callable(seed) else seed


def epoch_number(epoch: Any) -> int:
    """Give an epoch's number as an int; an OptionError if it is none that travels to workers."""
    number = whole_number("epoch", epoch)
    if not is_epoch(number):
        raise OptionError(f"epoch must be below 2**62, got epoch={short_repr(number)} [LL623]")
    return number


def shown_epoch(owner: Any) -> int | None:
    """The epoch that a sampler with ``set_epoch`` shows as its attribute; None: it shows none."""
    if not callable(getattr(owner, "set_epoch", None)):
        return None
    epoch = plain(getattr(owner, "epoch", None))
    return epoch if isinstance(epoch, int) and epoch >= 0 else None


class EndlessSampler(Sampler[None]):
    """What ``loader.sampler`` shows for an iterable dataset: None without end, for no index is."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def __iter__(self) -> Iterator[None]:
        return itertools.repeat(None)
