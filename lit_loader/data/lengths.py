"""`LengthsSampler`: what batch samplers by length have in common: lengths, too long ones, ranks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from lit_loader.core.options.checks import flag, one_of, or_none, positive, whole_number
from lit_loader.core.sampling.orders import Indices
from lit_loader.core.state.fingerprint import Fingerprint
from lit_loader.core.state.state_validation import damaged, is_count
from lit_loader.data.batch_order import BatchOrder, summarise
from lit_loader.describe import short_repr
from lit_loader.errors import OptionError, StateError

__all__ = ["LengthsSampler", "halved", "in_order", "of_each_sample", "processes"]

_TOO_LONG: Final = ("raise", "skip", "truncate")
"""What becomes of a sample that is too long."""


class LengthsSampler(BatchOrder):
    """Mixin of batch samplers that bound the tokens of a batch, for a number of ranks.

    ``name``: that of the argument with the lengths; ``below``: a bound of ``max_tokens``.
    """

    _ranks_of_older_states: int | None = None
    """Those of states from before the number was part of one; None: there are no such states."""

    def __init__(
        self,
        name: str,
        lengths: Any,
        max_tokens: int,
        below: int,
        *,
        shuffle: bool,
        drop_last: bool,
        too_long: str,
        num_replicas: int | None,
        seed: int,
    ) -> None:
        self.max_tokens = whole_number("max_tokens", max_tokens, low=1, below=below)
        self.seed = whole_number("seed", seed, low=0)
        self.shuffle, self.drop_last = flag("shuffle", shuffle), flag("drop_last", drop_last)
        self.too_long = one_of("too_long", too_long, _TOO_LONG)
        given: int | None = or_none(positive)("num_replicas", num_replicas)
        self.num_replicas = processes() if given is None else given
        self._lengths: Indices = of_each_sample(name, lengths, "lengths", "ui").astype(np.int64)
        self.dataset_length = len(self._lengths)

    def plan(self, epoch: int) -> tuple[Indices, Indices]:
        """Give what an epoch's batches hold.

        Args:
            epoch: Epoch number.

        Returns:
            The samples' indices, batch behind batch, and the places among them where batches begin
            and end: batch ``i`` is ``samples[starts[i] : starts[i + 1]]``. Both int64.
        """
        raise NotImplementedError

    def batches(self, epoch: int) -> Callable[[int], Indices]:  # noqa: D102
        samples, starts = self.plan(epoch)
        return lambda number: samples[starts[number] : starts[number + 1]]

    def _fitting(self, tokens: Indices, most: int) -> Indices:
        """Give the samples, int64, that are not left out for having more than ``most`` tokens."""
        fits = tokens <= most
        if self.too_long == "raise" and not fits.all():
            first = int(np.argmin(fits))
            raise OptionError(
                f"samples are longer than max_tokens={most} allows ({np.count_nonzero(~fits)} of "
                f"{len(fits)}; sample {first} has {self._lengths[first]} tokens): raise "
                "max_tokens, or set too_long to 'skip' or 'truncate'"
                " [LL637]"
            )
        return np.flatnonzero(fits) if self.too_long == "skip" else np.arange(len(tokens))

    def state_fingerprint(self) -> Fingerprint:
        """Name what the batches depend on, besides the epoch; see `core/state/fingerprint.py`.

        Not the number of ranks, with which they differ too: another one may go on at the end of an
        epoch. In the middle of one the batches' own state refuses that.
        """
        return {
            "seed": self.seed,
            "lengths": self._summary,
            "max_tokens": self.max_tokens,
            "shuffle": self.shuffle,
            "drop_last": self.drop_last,
            "too_long": self.too_long,
        }

    @functools.cached_property
    def _summary(self) -> str:
        return summarise(self._lengths)  # once: there may be millions of them

    def order_state(self) -> dict[str, Any]:  # noqa: D102
        return {"num_replicas": self.num_replicas}

    def place_in(self, state: Any, epoch: int, items: int) -> int:
        """Find the place of a state; in the middle of an epoch the number of ranks is the same."""
        theirs: Any = self._ranks_of_older_states
        if state is not None or theirs is None:
            theirs = state.get("num_replicas") if isinstance(state, dict) else None
            if not is_count(theirs):
                raise damaged("sampler['order'] must have the num_replicas", state)
        if items and theirs != self.num_replicas:
            since = ", for it is of a release that dealt otherwise" if state is None else ""
            raise StateError(
                f"the state is in the middle of an epoch of batches dealt among {theirs} ranks, "
                f"and this {type(self).__name__} deals them among {self.num_replicas}: resume with "
                f"num_replicas={theirs} of the sampler, or at the start of an epoch{since} [LL316]"
            )
        return items


def in_order(samples: Indices, starts: Indices, order: Indices) -> tuple[Indices, Indices]:
    """Bring batches, as `LengthsSampler.plan` gives them, into another order."""
    sizes = np.diff(starts)[order]
    begins = np.concatenate([[0], np.cumsum(sizes)])
    places = np.arange(begins[-1]) + np.repeat(starts[:-1][order] - begins[:-1], sizes)
    return samples[places], begins


def halved(starts: Indices, missing: int, weights: Indices) -> Indices:
    """Cut so many of the batches in two, those of most weight; fewer, if they are single samples.

    ``starts``: where batches begin and end, as of `LengthsSampler.plan`.
    """
    sizes = np.diff(starts)
    largest = np.argsort(-np.where(sizes > 1, weights, -1), kind="stable")[:missing]
    largest = largest[sizes[largest] > 1]
    return np.sort(np.concatenate([starts, starts[largest] + sizes[largest] // 2]))


def of_each_sample(name: str, source: Any, attribute: str, kinds: str) -> npt.NDArray[Any]:
    """Give a number for each sample: those given, or those that a dataset has in an attribute.

    ``kinds``: NumPy's letters for the dtypes that are taken.
    """
    given = getattr(source, attribute, source)
    values: npt.NDArray[Any] = np.empty((0, 0))
    # A dataset without the attribute must not be read as if it were an array: perhaps it has no end
    if isinstance(given, (list, tuple, range)) or hasattr(given, "__array__"):
        values = np.asarray(given) if len(given) else np.empty(0, np.int64)
    if values.ndim != 1 or values.dtype.kind not in kinds:
        of = f" of {values.dtype}, shape {values.shape}" if values.size else ""
        whole = "" if "f" in kinds else "whole "
        raise OptionError(
            f"{name} must be the samples' {attribute}, one {whole}number each, or a dataset with "
            f"an attribute {attribute!r} that holds them, got {type(source).__name__}{of}"
            " [LL636]"
        )
    if given is not source and hasattr(source, "__len__") and len(source) != len(values):
        raise OptionError(
            f"{type(source).__name__}.{attribute} must have one for each sample, got "
            f"{len(values)} for {len(source)} samples: give the samples' {attribute} themselves"
            " [LL635]"
        )
    good = (values >= 0) & np.isfinite(values)
    if not good.all():
        first = int(np.argmin(good))
        held = name if given is source else f"{type(source).__name__}.{attribute}"
        raise OptionError(
            f"{held} must not be negative{', infinite or NaN' if 'f' in kinds else ''}, got "
            f"{short_repr(values[first].item())} for sample {first}"
            " [LL634]"
        )
    return values


def processes() -> int:
    """Give how many processes ``torch.distributed`` has; 1 without."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_world_size()
    return 1
