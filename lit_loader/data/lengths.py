"""What batch samplers by length or cost have in common: samples' numbers, too long ones, ranks."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from lit_loader.checkpoint.untrusted_state import damaged, is_count
from lit_loader.describe import short_repr
from lit_loader.errors import OptionError, StateError
from lit_loader.sampling.orders import Indices

__all__ = ["TOO_LONG", "fitting", "of_each_sample", "place_among_ranks", "processes"]

TOO_LONG: Final = ("raise", "skip", "truncate")
"""What becomes of a sample that is too long."""


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
        )
    if given is not source and hasattr(source, "__len__") and len(source) != len(values):
        raise OptionError(
            f"{type(source).__name__}.{attribute} must have one for each sample, got "
            f"{len(values)} for {len(source)} samples: give the samples' {attribute} themselves"
        )
    good = (values >= 0) & np.isfinite(values)
    if not good.all():
        first = int(np.argmin(good))
        held = name if given is source else f"{type(source).__name__}.{attribute}"
        raise OptionError(
            f"{held} must not be negative{', infinite or NaN' if 'f' in kinds else ''}, got "
            f"{short_repr(values[first].item())} for sample {first}"
        )
    return values


def processes() -> int:
    """Give how many processes ``torch.distributed`` has; 1 without."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_world_size()
    return 1


def fitting(tokens: Indices, most: int, too_long: str, lengths: Indices) -> Indices:
    """Give the samples, int64, that are not left out for having more than ``most`` tokens.

    An OptionError, with their ``lengths``, if there are some and ``too_long`` is "raise".
    """
    fits = tokens <= most
    if too_long == "raise" and not fits.all():
        first = int(np.argmin(fits))
        raise OptionError(
            f"samples are longer than max_tokens={most} allows ({np.count_nonzero(~fits)} of "
            f"{len(fits)}; sample {first} has {lengths[first]} tokens): raise max_tokens, or set "
            "too_long to 'skip' or 'truncate'"
        )
    return np.flatnonzero(fits) if too_long == "skip" else np.arange(len(tokens))


def place_among_ranks(sampler: Any, state: Any, items: int, older: int | None = None) -> int:
    """Find a state's place among batches that depend on the sampler's ``num_replicas``.

    It is the same in the middle of an epoch, or a StateError. ``older``: that of a state from
    before it was part of one; None: there is no such state.
    """
    theirs: Any = older
    if state is not None or older is None:
        theirs = state.get("num_replicas") if isinstance(state, dict) else None
        if not is_count(theirs):
            raise damaged("sampler['order'] must have the num_replicas", state)
    if items and theirs != sampler.num_replicas:
        since = ", for it is of a release that dealt otherwise" if state is None else ""
        raise StateError(
            f"the state is in the middle of an epoch of batches dealt among {theirs} ranks, and "
            f"this {type(sampler).__name__} deals them among {sampler.num_replicas}: resume with "
            f"num_replicas={theirs} of the sampler, or at the start of an epoch{since}"
        )
    return items
