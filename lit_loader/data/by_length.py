"""`ByLength`: what batch samplers that know the samples' lengths have in common.

::

    lengths ─▶ one order of (seed, epoch) ─▶ batches, by number ─▶ batch j goes to rank j % ranks

- One order: `ByLength.shuffled`, a permutation that any position is known of at once.
- One division: batches come in groups, one batch for each rank's step (or several, for batches that
  a step accumulates). A group is what is made equal, and the number of batches is a multiple of it.
- One way to get more batches: `halved`.

A loader asks for a batch by its number, as it asks its own orders for an index. Torch's loader
iterates the sampler, and finds the same batches.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Collection, Iterator
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Sampler

from lit_loader.core.options.checks import flag, one_of, or_none, positive, whole_number
from lit_loader.core.sampling.orders import EpochOrder, Indices, Permutation
from lit_loader.core.seeding.seeds import derive
from lit_loader.core.state.state_validation import Fingerprint, damaged, is_count
from lit_loader.describe import short_repr
from lit_loader.errors import OptionError, StateError

__all__ = ["ByLength", "ByTokens", "halved", "in_order", "summarise"]

SAMPLES: Final = 1
BATCHES: Final = 2
"""What is shuffled; keeps the two orders of an epoch apart."""

_SHORT: Final = 60
"""Characters that are written out; of more a digest stands in the state, which is to stay small."""

_MOST_TOKENS: Final = 2**30
"""What is left of a batch is counted in 32 bits."""

_TOO_LONG: Final = ("raise", "skip", "truncate")


class ByLength(EpochOrder, Sampler[list[int]]):
    """The base: lengths, the order, groups of batches, states.

    ``lengths`` are numbers, or a dataset whose attribute ``lengths_from`` has them. A ``group`` of
    None is the number of processes.
    """

    of_batches = True
    numbers: ClassVar[str] = "ui"
    """NumPy's letters for the dtypes that lengths may have."""
    group_option: ClassVar[str] = "num_replicas"
    """The argument that sets `group`."""

    def __init__(
        self,
        lengths: object,
        lengths_from: str,
        *,
        group: int | None,
        shuffle: bool,
        drop_last: bool,
        seed: int,
    ) -> None:
        self.lengths = _lengths(lengths, lengths_from, self.numbers)
        self.dataset_length = len(self.lengths)
        self.group_is_given = group is not None
        self.group: int = or_none(positive)(self.group_option, group) or _processes()
        self.shuffle, self.drop_last = flag("shuffle", shuffle), flag("drop_last", drop_last)
        self.seed = whole_number("seed", seed, low=0)

    @property
    def data_source(self) -> ByLength:
        """What is ordered: batches."""
        return self

    def plan(self, epoch: int) -> tuple[Indices, Indices]:
        """Return what an epoch's batches hold.

        Args:
            epoch: Epoch number.

        Returns:
            The samples' indices, batch after batch, and where batches begin and end among them:
            batch ``i`` is ``samples[starts[i] : starts[i + 1]]``. Both int64.
        """
        raise NotImplementedError

    def batches(self, epoch: int) -> Callable[[int], Indices]:
        """Return one epoch's batches: a function from a batch's number to its indices, int64."""
        samples, starts = self.plan(epoch)
        return lambda number: samples[starts[number] : starts[number + 1]]

    def shuffled(self, epoch: int, length: int, what: int = SAMPLES) -> Permutation:
        """Return an epoch's order of ``length`` samples, or batches."""
        return Permutation(length, derive(self.seed, epoch, what))

    def order(self, epoch: int) -> Callable[[Indices], Any]:
        """Return one epoch's batches: a function from their numbers to a list of arrays."""
        # An epoch's batches are asked for as they are made ahead, compared, and begun.
        kept: dict[int, Callable[[int], Indices]] = self.__dict__.setdefault("_epochs", {})
        if (batch := kept.get(epoch)) is None:
            for old in [*kept][:-1]:
                kept.pop(old, None)
            batch = kept[epoch] = self.batches(epoch)
        return lambda numbers: [batch(number) for number in numbers.tolist()]

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "_epochs"}

    def __iter__(self) -> Iterator[Any]:
        batch = self.batches(self.epoch)
        return (batch(number).tolist() for number in range(len(self)))

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({len(self.lengths):,} samples in {len(self):,} batches, "
            f"shuffle={self.shuffle}, {self.group_option}={self.group}, seed={self.seed})"
        )

    # --- states ---

    def state_fingerprint(self) -> Fingerprint:
        """Name what the batches depend on, besides epoch and group; see `core/state`."""
        return {
            "seed": self.seed,
            "lengths": self._summary,
            "shuffle": self.shuffle,
            "drop_last": self.drop_last,
        }

    @functools.cached_property
    def _summary(self) -> str:
        return summarise(self.lengths)  # once: there may be millions of them

    def order_state(self) -> dict[str, object]:
        """Return what a state has of the order: the group, and the number of batches."""
        return {"group": self.group, "batches": len(self)}

    def place_in(self, state: object, epoch: int, items: int) -> int:
        """Find the place of a state, which may be of another group where that moves no batch."""
        theirs = state if isinstance(state, dict) else {}
        group, batches = theirs.get("group"), theirs.get("batches")
        if not (is_count(group) and group and is_count(batches)):
            raise damaged("sampler['order'] must have the group and the batches", state)
        if group == self.group or not items:
            return items
        if items >= batches:
            return len(self)
        if not self._begins_alike(items, group):
            raise StateError(
                f"the state is {items:,} batches into an epoch with {self.group_option}={group}, "
                f"and this {type(self).__name__} has {self.group_option}={self.group}, which "
                f"divides the samples differently. Resume with {self.group_option}={group} of the "
                "sampler, or at an epoch's start"
            )
        return items

    def _begins_alike(self, items: int, group: int) -> bool:
        """Whether the same samples come before a batch, also with another group."""
        return False


class ByTokens(ByLength):
    """The base of samplers that bound the tokens of a batch: `_tokens` of each sample."""

    _tokens: Indices

    def __init__(
        self,
        lengths: object,
        lengths_from: str,
        max_tokens: int,
        *,
        too_long: str,
        num_replicas: int | None,
        **options: Any,
    ) -> None:
        super().__init__(lengths, lengths_from, group=num_replicas, **options)
        self.max_tokens = whole_number("max_tokens", max_tokens, low=1, below=_MOST_TOKENS)
        self.too_long = one_of("too_long", too_long, _TOO_LONG)
        self.num_replicas = self.group

    def _fitting(self, tokens: Indices, most: int) -> Indices:
        """Return the samples, int64, that are not left out for having more than ``most`` tokens."""
        fits = tokens <= most
        if self.too_long == "raise" and not fits.all():
            first = int(np.argmin(fits))
            raise OptionError(
                f"samples are longer than max_tokens={most} allows ({np.count_nonzero(~fits)} of "
                f"{len(fits)}; sample {first} has {self.lengths[first]} tokens). Raise max_tokens, "
                "or set too_long to 'skip' or 'truncate'"
            )
        return np.flatnonzero(fits) if self.too_long == "skip" else np.arange(len(tokens))

    def state_fingerprint(self) -> Fingerprint:
        """Name what the batches depend on, besides epoch and group."""
        own: Fingerprint = {"max_tokens": self.max_tokens, "too_long": self.too_long}
        return {**super().state_fingerprint(), **own}


def in_order(samples: Indices, starts: Indices, order: Indices) -> tuple[Indices, Indices]:
    """Bring batches, as `ByLength.plan` returns them, into another order."""
    sizes = np.diff(starts)[order]
    begins = np.concatenate([[0], np.cumsum(sizes)])
    places = np.arange(begins[-1]) + np.repeat(starts[:-1][order] - begins[:-1], sizes)
    return samples[places], begins


def halved(starts: Indices, wanted: int, tokens: Indices) -> Indices:
    """Cut the batches of most tokens in two until there are ``wanted``, or only single samples.

    ``starts``: where batches begin and end, as `ByLength.plan` returns them; ``tokens`` of each
    sample, in that order.
    """
    while (missing := wanted - (len(starts) - 1)) > 0 and len(starts) > 1:
        sizes, weights = np.diff(starts), np.add.reduceat(tokens, starts[:-1])
        largest = np.argsort(-np.where(sizes > 1, weights, -1), kind="stable")[:missing]
        largest = largest[sizes[largest] > 1]
        if not len(largest):
            break
        starts = np.sort(np.concatenate([starts, starts[largest] + sizes[largest] // 2]))
    return starts


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


def _lengths(source: Any, attribute: str, kinds: str) -> npt.NDArray[Any]:
    """Return the length of each sample, int64 or float64; OptionError: there are none."""
    given = getattr(source, attribute, source)
    name = "lengths" if given is source else f"{type(source).__name__}.{attribute}"
    values: npt.NDArray[Any] = np.empty((0, 0))
    # A dataset without the attribute must not be read as if it were an array: perhaps it has no end
    if isinstance(given, (list, tuple, range)) or hasattr(given, "__array__"):
        values = np.asarray(given) if len(given) else np.empty(0, np.int64)
    if values.ndim != 1 or values.dtype.kind not in kinds:
        of = f" of {values.dtype}, shape {values.shape}" if values.size else ""
        raise OptionError(
            f"lengths must be one {'' if 'f' in kinds else 'whole '}number for each sample, or a "
            f"dataset with an attribute {attribute!r} that holds them (see lengths_from), got "
            f"{type(source).__name__}{of}"
        )
    if given is not source and hasattr(source, "__len__") and len(source) != len(values):
        raise OptionError(
            f"{name} must have one number for each sample, got {len(values)} for {len(source)} "
            "samples. Pass the samples' lengths themselves"
        )
    good = (values >= 0) & np.isfinite(values)
    if not good.all():
        first = int(np.argmin(good))
        raise OptionError(
            f"{name} must not be negative{', infinite or NaN' if 'f' in kinds else ''}, got "
            f"{short_repr(values[first].item())} for sample {first}"
        )
    return values.astype(np.float64 if "f" in kinds else np.int64)


def _processes() -> int:
    """Return how many processes ``torch.distributed`` has; 1 without."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_world_size()
    return 1
