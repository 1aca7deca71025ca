"""`UserSampler`: a sampler between two epochs: the epoch set on it, its state, its fingerprint.

::

    program ── set_epoch ──▶ sampler ──requested_epoch──▶ `Epochs`
    plan ── announce(epoch) ──▶ sampler, those inside of it ──state, fingerprint──▶ checkpoint

A batch plan has one, around its sampler or batch sampler. The drawing itself is in
`sampling/sampler_cursor.py`, which leaves here what lasts longer than an epoch.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils.data import BatchSampler

from lit_loader.checkpoint.fingerprint import Fingerprint, fingerprint_of
from lit_loader.checkpoint.sampler_state import pack_generator
from lit_loader.checkpoint.stateful import Opened, is_stateful
from lit_loader.config.scalars import plain
from lit_loader.sampling.orders import EpochOrder
from lit_loader.sampling.sampler_memory import SamplerMemory

__all__ = ["BETWEEN", "SAMPLER", "UserSampler"]

SAMPLER, BETWEEN = "sampler", "between"
"""Keys of a sampler's part of a state; see `checkpoint/sampler_state.py`."""


class _Announced(int):
    """An epoch that a loader has set on a sampler, as against one that a program sets.

    Samplers with a state of their own get a plain number: they may put it into that.
    """


class UserSampler:
    """A sampler or batch sampler from one epoch to the next.

    Args:
        source: The sampler: the user's, or one of the loader's own orders.
        watched: A sampler on which programs may set the epoch instead of this one, or None.
        dataset: The dataset; what samplers hold of it is not theirs.

    Attributes:
        source: As given.
        memory: What samplers without ``state_dict`` carry from epoch to epoch.
        between: Whether it has come to an epoch's end, and not been drawn from since.
        opened: It, in the epoch that was begun last.
        brought_to: Its state, where it was restored behind an epoch: many give it only once they
            are iterated.

    Raises:
        OptionError: It gives a fingerprint that cannot be part of a state; at once, and not at the
            first checkpoint.
    """

    def __init__(self, source: Any, watched: Any = None, dataset: Any = None) -> None:
        self.source = source
        self._owners: list[Any] = [source]
        if isinstance(inner := getattr(source, "sampler", None), Iterable):
            self._owners.append(inner)  # Lightning, too, looks for a batch sampler's sampler
        # What is iterated, and asked for its place. A user's batch sampler, too; of one of torch's,
        # which only cuts what its sampler gives, it is that one.
        self.drawn_from = self._owners[-1] if type(source) is BatchSampler else source
        if watched is not None:
            self._owners.append(watched)
        self.memory = SamplerMemory(() if is_stateful(self.drawn_from) else self._owners, dataset)
        self._epochs_seen = [0] * len(self._owners)
        self.between = False
        self.opened: Opened | None = None
        self.brought_to: dict[str, Any] | None = None
        self.fingerprint()

    def __getstate__(self) -> dict[str, Any]:
        # The iterator of a sampler cannot be copied; a copy goes on from the sampler itself.
        return {**self.__dict__, "opened": None}

    def requested_epoch(self) -> int | None:
        """Give the epoch that was set on the sampler since the last epoch began; None if none.

        Programs call ``set_epoch`` on a sampler of theirs without telling the loader; for such
        samplers an ``epoch`` attribute counts as a request that no loader has announced, so that
        the same number set again is one too.
        """
        for owner, seen in zip(self._owners, self._epochs_seen, strict=True):
            if isinstance(owner, EpochOrder):
                if owner.requested_epoch is not None:
                    return owner.requested_epoch
            elif callable(getattr(owner, "set_epoch", None)):
                given = getattr(owner, "epoch", None)
                epoch = plain(given)
                if not isinstance(epoch, int) or epoch < 0:
                    continue
                if type(given) is _Announced:
                    continue  # by a loader, this one or one that it is a copy of
                if epoch != seen or type(seen) is _Announced:
                    return epoch
        return None

    def announce(self, epoch: int) -> None:
        """Set the epoch that begins on the samplers."""
        for number, owner in enumerate(self._owners):
            if isinstance(owner, EpochOrder):
                owner.epoch, owner.requested_epoch = epoch, None
            elif callable(getattr(owner, "set_epoch", None)):
                announced = epoch if is_stateful(owner) else _Announced(epoch)
                self.memory.announce(owner, announced)
                kept = getattr(owner, "epoch", None) is announced
                self._epochs_seen[number] = announced if kept else epoch

    def state(self, between: bool = True) -> dict[str, Any] | None:
        """Give what the sampler itself must remember between two epochs; None if nothing.

        Args:
            between: Whether that is where it is.

        Returns:
            Primitives, given back to `BatchPlan.batches` with ``start=0``.
        """
        state: dict[str, Any] = {}
        if generator := self.generator():
            state["generator"] = pack_generator(generator)
        if (carried := self.memory.note(generator)) is not None:
            state["carried"] = carried
        return state | (self.place_between() if between else {}) or None

    def place_between(self) -> dict[str, Any]:
        """Give the samplers' own states behind an epoch; empty if they have none."""
        parts = self.brought_to
        if parts is not None:
            parts = copy.deepcopy(parts)
        elif self.opened is not None:
            parts = self.opened.state()
        elif is_stateful(self.drawn_from):
            parts = {SAMPLER: copy.deepcopy(self.drawn_from.state_dict())}
        return parts | {BETWEEN: True} if parts else {}

    def fingerprint(self) -> Fingerprint:
        """Give the samplers' part of a state's fingerprint: its fields "sampler.…".

        Raises:
            OptionError: One of them gives what cannot be part of a state.
        """
        fields: Fingerprint = {}
        for depth, owner in enumerate(self._owners):
            fields |= fingerprint_of("sampler" + ".sampler" * depth, owner)
        return fields

    def generator(self) -> torch.Generator | None:
        """Give the generator that a sampler has of its own, which goes on from epoch to epoch."""
        for owner in self._owners:
            generator = getattr(owner, "generator", None)
            if isinstance(generator, torch.Generator) and not isinstance(owner, EpochOrder):
                return generator
        return None
