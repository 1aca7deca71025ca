"""The loader's own orders of a dataset: as it is, shuffled, and none at all.

They are what ``loader.sampler`` shows where the user gives no sampler, and are arithmetic on
positions: nothing is drawn from a generator, nothing is stored, and any position of any epoch is
reached at once.

A Feistel network (Luby, Rackoff: How to construct pseudorandom permutations, 1988) is a bijection
whatever its round function is. Here it works on pairs of digits (left, right) in the mixed radix
``rows x columns``, the two factors about the root of the length, with addition modulo the digit's
radix instead of exclusive or (Black, Rogaway: Ciphers with arbitrary finite domains, 2002). The
domain then is at most one row larger than the length, so that the results beyond the end, which
are enciphered again until they fall inside ("cycle walking"), are rare. A network over a power of
two would throw away up to three of four results.

For a few elements a Feistel network cannot reach every order equally often. Up to `TABLE_LENGTH`
the order is therefore a table, sorted by one random key an element: exactly uniform.
"""

from __future__ import annotations

import functools
import itertools
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sized
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import RandomSampler, Sampler, SequentialSampler

from lit_loader.core.options.checks import plain, whole_number
from lit_loader.core.seeding.seeds import extend, mix, order_seed
from lit_loader.core.state.state_validation import is_epoch
from lit_loader.describe import callers, short_repr
from lit_loader.errors import OptionError

MAX_LENGTH = 2**62
TABLE_LENGTH = 1024
"""Up to this many elements the order is stored (8 KiB at most), beyond it is computed."""

# Even, so that both digits are changed equally often. With 4, elements a row apart are related in
# the shortest computed orders (chi-square over 25,000 seeds: p = 3e-7); with 6 no test finds
# anything; 8 leave a margin.
_ROUNDS = 8

_Words = npt.NDArray[np.uint64]


def _word(value: int) -> _Words:
    """Return an array without dimensions: NumPy takes half the time for it that scalars take."""
    return np.array(value, dtype=np.uint64)


_GOLDEN = _word(0x9E37_79B9_7F4A_7C15)
_MULTIPLIER_1 = _word(0xBF58_476D_1CE4_E5B9)
_MULTIPLIER_2 = _word(0x94D0_49BB_1331_11EB)
_30, _27, _31, _32 = map(_word, (30, 27, 31, 32))
_STEPS: _Words = np.arange(1, TABLE_LENGTH + 1, dtype=np.uint64) * _GOLDEN


class Permutation:
    """A bijection of ``range(length)``, up to 2**62, onto itself, chosen by a seed modulo 2**64.

    It is the same on every platform and with every version of NumPy. Memory and the time to reach a
    position do not depend on the length.
    """

    def __init__(self, length: int, seed: int) -> None:
        if not 0 <= length <= MAX_LENGTH:
            raise ValueError(f"length must be between 0 and 2**62, got {length}")
        self.length = length
        self._table: npt.NDArray[np.int64] | None = None
        if length <= TABLE_LENGTH:
            self._table = _random_words(length, seed).argsort(kind="stable")
            return
        rows = math.isqrt(length - 1) + 1
        columns = -(-length // rows)
        self._rows, self._columns = _word(rows), _word(columns)
        self._keys = [*map(_word, _random_words(_ROUNDS, seed).tolist())]

    def take(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Return the elements, int64, at positions ``start`` to ``stop``, cut at the end."""
        return self.at(np.arange(start, min(stop, self.length), dtype=np.int64))

    def at(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the elements at positions, each in ``range(length)`` (not checked), at once."""
        if self._table is not None:
            return self._table[positions]
        length = _word(self.length)
        result = self._encipher(positions.astype(np.uint64))
        outside = np.nonzero(result >= length)
        while outside[0].size:
            walked = self._encipher(result[outside])
            result[outside] = walked
            still = walked >= length
            outside = tuple(axis[still] for axis in outside)
        return result.view(np.int64)

    def _encipher(self, words: _Words) -> _Words:
        left = words // self._columns
        right = words - left * self._columns
        for key in range(0, _ROUNDS, 2):
            left = _add_random(left, self._rows, right, self._keys[key])
            right = _add_random(right, self._columns, left, self._keys[key + 1])
        left *= self._columns
        joined: _Words = left + right
        return joined


def _add_random(digit: _Words, radix: _Words, other: _Words, key: _Words) -> _Words:
    """Add to one digit, modulo its radix, a keyed pseudorandom function of the other digit."""
    noise = other ^ key
    noise *= _MULTIPLIER_1
    noise ^= noise >> _32
    noise *= _MULTIPLIER_2
    noise >>= _32
    noise *= radix  # 32 random bits times radix < 2**32: scaled to range(radix) without a division
    noise >>= _32
    noise += digit
    # The smaller one is the remainder: below the radix, the difference wraps to a huge number.
    remainder: _Words = np.minimum(noise, noise - radix)
    return remainder


def _random_words(count: int, seed: int) -> _Words:
    """Return up to `TABLE_LENGTH` words of the SplitMix64 stream that starts at a mixed seed."""
    return _mix(_STEPS[:count] + _word(mix(seed)))


def _mix(words: _Words) -> _Words:
    words = (words ^ (words >> _30)) * _MULTIPLIER_1
    words = (words ^ (words >> _27)) * _MULTIPLIER_2
    mixed: _Words = words ^ (words >> _31)
    return mixed


Seed = int | Callable[[], int]
Indices = npt.NDArray[np.int64]

CHUNK = 4096
"""Indices are computed that many at a time: 0.1 ms for the first, 30 ns for each."""

ORDER: Final = "order"
"""The key, in a sampler's part of a state, of what `ComputedOrder.order_state` returned."""


class ComputedOrder:
    """Mixin of the loader's own samplers: an order by position, which nothing is drawn for."""

    data_source: Any
    dataset_length: int | None = None
    """Samples that it knows of a dataset; None: it asks the dataset each time."""
    of_batches = False
    """Whether it is an order of batches: positions lead to a list of them, each int64 indices."""

    def order(self, epoch: int) -> Callable[[Indices], Indices]:
        """Return one epoch's order, for the length that the dataset has now.

        It is a vectorised function from positions to dataset indices, both int64.
        """
        raise NotImplementedError

    def order_state(self) -> Mapping[str, object] | None:
        """Return what a state must have of the order, besides its fingerprint; None: nothing."""
        return None

    def place_in(self, state: object, epoch: int, items: int) -> int:
        """Return how many items of this order an epoch has had, of which a state counts ``items``.

        ``state`` is what `order_state` gave, or anything else. A StateError if no place of this
        order is that one. Changes nothing.
        """
        return items

    def __len__(self) -> int:
        return len(self.data_source)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self.data_source).__name__})"


class EpochOrder(ComputedOrder):
    """Mixin of samplers with an order for each epoch, by a seed of their own."""

    epoch: int = 0
    requested_epoch: int | None = None

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order comes next; an OptionError if it is none."""
        self.epoch = self.requested_epoch = epoch_number(epoch)

    def indices(self, epoch: int, start: int, stop: int) -> Indices:
        """Return the dataset indices, int64, at positions of an epoch's order; cut at its end."""
        stop = min(stop, len(self))
        return self.order(epoch)(np.arange(start, stop, dtype=np.int64))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self.data_source).__name__}, epoch={self.epoch})"

    def __iter__(self) -> Iterator[int]:
        """Yield the order of the epoch; the loader itself computes batches without this."""
        _is_iterated_elsewhere(self)
        length, order = len(self), self.order(self.epoch)
        for start in range(0, length, CHUNK):
            stop = min(start + CHUNK, length)
            yield from order(np.arange(start, stop, dtype=np.int64)).tolist()


class OrderedSampler(ComputedOrder, SequentialSampler):
    """The order of the dataset itself: 0, 1, 2, ..., for the length that it has each epoch."""

    def order(self, epoch: int) -> Callable[[Indices], Indices]:  # noqa: D102
        return lambda positions: positions

    def __iter__(self) -> Iterator[int]:
        _is_iterated_elsewhere(self)
        return iter(range(len(self)))


class ShuffledSampler(ComputedOrder, RandomSampler):
    """Each element once, in an order that a pass's seed chooses; nothing is drawn or stored.

    Its public attributes are those of ``torch.utils.data.RandomSampler``, and so is what it does in
    a program that iterates it. ``seed`` is a base seed, or a function that returns it, for the
    orders of a sharded loader. ``distributed``: the order is that of torch's
    ``DistributedSampler`` with this seed, which takes memory for all indices.
    """

    def __init__(
        self,
        data_source: Sized,
        generator: torch.Generator | None = None,
        seed: Seed = 0,
        distributed: int | None = None,
    ) -> None:
        super().__init__(data_source, generator=generator)
        self.seed, self.distributed = seed, distributed

    def __iter__(self) -> Iterator[int]:
        _is_iterated_elsewhere(self)
        return RandomSampler.__iter__(self)

    def order(self, epoch: int) -> Callable[[Indices], Indices]:
        """Return an epoch's order by the base seed, for programs that make batches themselves."""
        seed = self.seed() if callable(self.seed) else self.seed
        return self.order_of(epoch, order_seed(seed, epoch), self.distributed)

    def order_of(
        self, epoch: int, seed: int, distributed: int | None
    ) -> Callable[[Indices], Indices]:
        """Return the order of a pass that has this seed."""
        length = len(self.data_source)
        if distributed is not None:
            return _randperm(length, distributed + epoch).__getitem__
        return _permutation(length, extend(seed, length)).at


def _is_iterated_elsewhere(sampler: object) -> None:
    """Warn once if torch's own loader iterates a loader's sampler: it makes the batches then.

    Programs that rebuild the loaders they are given (accelerate's ``prepare``) take the sampler
    along, and leave workers, seeding, state and statistics behind.
    """
    global _warned
    callers_ = callers()[:_FRAMES_TO_LOADER]
    if not _warned and any(module.startswith(_OTHER_LOADERS) for module, _ in callers_):
        _warned = True
        warnings.warn(
            f"lit_loader: torch's DataLoader builds the batches of a lit_loader.DataLoader "
            f"({type(sampler).__name__}), because the program rebuilds the loaders it is given, as "
            "accelerate's prepare() does. Call lit_loader.replace_torch() first to keep "
            "lit_loader's workers [LL706]",
            stacklevel=2,
        )


_OTHER_LOADERS: Final = ("torch.utils.data.dataloader", "torchdata.stateful_dataloader")
_warned = False
_FRAMES_TO_LOADER: Final = 12  # samplers around samplers in between


# An epoch's order is computed when it is made ahead, when that is compared, and when it begins.
_permutation = functools.lru_cache(maxsize=4)(Permutation)


@functools.lru_cache(maxsize=2)
def _randperm(length: int, seed: int) -> Indices:
    generator = torch.Generator().manual_seed(seed & _TORCH_SEEDS)
    return torch.randperm(length, generator=generator).numpy()


_TORCH_SEEDS = 0xFFFF_FFFF_FFFF_FFFF


def epoch_number(epoch: object) -> int:
    """Return an epoch's number as an int; an OptionError if it is none that travels to workers."""
    number = whole_number("epoch", epoch)
    if not is_epoch(number):
        raise OptionError(f"epoch must be below 2**62, got epoch={short_repr(number)}")
    return number


def shown_epoch(owner: object) -> int | None:
    """The epoch that a sampler with ``set_epoch`` shows as its attribute; None: it shows none."""
    if not callable(getattr(owner, "set_epoch", None)):
        return None
    epoch = plain(getattr(owner, "epoch", None))
    return epoch if isinstance(epoch, int) and epoch >= 0 else None


class EndlessSampler(Sampler[None]):
    """What ``loader.sampler`` shows for an iterable dataset: None forever, for no index is."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def __iter__(self) -> Iterator[None]:
        return itertools.repeat(None)
