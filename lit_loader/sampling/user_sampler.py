"""`UserSampler`: a sampler between two epochs: the epoch set on it, its state, its fingerprint.

::

    program ── set_epoch ──▶ sampler ──requested_epoch──▶ `Epochs`
    sampler, those inside of it ──state, fingerprint──▶ checkpoint

- A program's own sampler is told what the program tells it and nothing else. The loader counts the
  epochs of its own samplers alone, a plain ``DistributedSampler`` among them.
- What a resume brings back of a sampler: its random generators, found as a dataset's are, and its
  ``state_dict()``. Where its order depends on more, it is told: `sampling/sampler_cursor.py`.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.utils.data import BatchSampler, DistributedSampler

from lit_loader.checkpoint.fingerprint import Fingerprint, fingerprint_of
from lit_loader.checkpoint.sampler_state import pack_generator, unpack_generator
from lit_loader.checkpoint.stateful import Opened
from lit_loader.config.scalars import plain
from lit_loader.errors import StateError
from lit_loader.sampling.orders import EpochOrder
from lit_loader.seeding.find_generators import find_generators
from lit_loader.seeding.generator_state import preserved, tape
from lit_loader.seeding.seeds import seed_globals

__all__ = ["COUNTED", "SAMPLER", "UserSampler"]

Marks = tuple[list[type], list[Any]]

SAMPLER = "sampler"
"""Key of a sampler's own part of a state; see `checkpoint/sampler_state.py`."""

COUNTED = "counted"
"""Key in a sampler's part of a state: that the loader has counted to this epoch, unasked, while the
program may have told the sampler another."""


class _Counted(int):
    """An epoch that a loader has counted to, as against one that a program has set."""


class UserSampler:
    """A sampler or batch sampler from one epoch to the next.

    Args:
        source: The sampler: the user's, or one of the loader's own orders.
        watched: A ``DistributedSampler`` on which programs set the epoch instead of this one, or
            None.
        dataset: The dataset; what samplers hold of it is not theirs.

    Attributes:
        source: As given.
        drawn_from: What is iterated, and asked for its place: of one of torch's batch samplers,
            which only cuts what its sampler gives, that sampler.
        opened: It, in the epoch that was begun last.
        heads: Digests of the first batch, in the first epoch that it gave and in the last.
        counted: Whether the loader has counted to the epoch that was begun last, of a sampler that
            the program may have told another.
        whole: A digest of all that it gave in the last epoch.
        wanders: Whether its order has changed with nothing that is known to change it.

    Raises:
        OptionError: It gives a fingerprint that cannot be part of a state; at once, and not at the
            first checkpoint.
    """

    def __init__(self, source: Any, watched: Any = None, dataset: Any = None) -> None:
        self.source, self._dataset = source, dataset
        self._owners: list[Any] = [source]
        if isinstance(inner := getattr(source, "sampler", None), Iterable):
            self._owners.append(inner)  # Lightning, too, looks for a batch sampler's sampler
        self.drawn_from = self._owners[-1] if type(source) is BatchSampler else source
        if watched is not None:
            self._owners.append(watched)
        self._epochs_seen: list[Any] = [0] * len(self._owners)
        self._left: Marks | None = None
        self.opened: Opened | None = None
        self.heads: list[int] = []
        self.whole: int | None = None
        self.wanders = self.counted = False
        self.fingerprint()
        self._left = self.marks() if self.is_told else None

    def __getstate__(self) -> dict[str, Any]:
        # The iterator of a sampler cannot be copied; a copy goes on from the sampler itself.
        return {**self.__dict__, "opened": None}

    # --- epochs ---

    def requested_epoch(self) -> int | None:
        """Give the epoch that was set on the sampler since the last epoch began; None if none."""
        for owner, seen in zip(self._owners, self._epochs_seen, strict=True):
            if isinstance(owner, EpochOrder):
                if owner.requested_epoch is not None:
                    return owner.requested_epoch
                continue
            epoch = _shown_epoch(owner)
            # One that was set in the place of one counted may be the same.
            is_new = epoch != seen or type(seen) is _Counted
            if epoch is not None and is_new and type(epoch) is not _Counted:
                return epoch
        return None

    def choose(self, epoch: int) -> None:
        """Ask for an epoch of the loader's own samplers."""
        for owner in self._owners:
            if isinstance(owner, EpochOrder):
                owner.set_epoch(epoch)

    def tell(self, epoch: int) -> None:
        """Pass on to the program's own samplers the epoch that it has told the loader."""
        for owner in self._owners:
            set_epoch = getattr(owner, "set_epoch", None)
            if callable(set_epoch) and not isinstance(owner, EpochOrder):
                set_epoch(epoch)

    def begin(self, epoch: int) -> None:
        """Note that an epoch begins; set it on the loader's own samplers."""
        for number, owner in enumerate(self._owners):
            if isinstance(owner, EpochOrder):
                owner.epoch, owner.requested_epoch = epoch, None
            elif _is_counted(owner):
                owner.epoch = self._epochs_seen[number] = _Counted(epoch)
        self.look()

    def look(self) -> None:
        """Take the epoch that a program's own sampler shows for known."""
        for number, owner in enumerate(self._owners):
            epoch = _shown_epoch(owner)
            if epoch is not None and not _is_counted(owner):
                self._epochs_seen[number] = epoch

    @property
    def told(self) -> int | None:
        """The epoch that a program's own sampler shows, if one does."""
        shown = (_shown_epoch(owner) for owner in self._owners if not _is_counted(owner))
        return next((epoch for epoch in shown if epoch is not None), None)

    @property
    def is_told(self) -> bool:
        """Whether a program may set the epoch on it."""
        return any(callable(getattr(owner, "set_epoch", None)) for owner in self._owners)

    @property
    def is_programs(self) -> bool:
        """Whether a program may set the epoch on it, and the loader does not count its epochs."""
        told = (owner for owner in self._owners if not _is_counted(owner))
        return any(callable(getattr(owner, "set_epoch", None)) for owner in told)

    # --- what is part of a state ---

    def state(self, between: bool = True, left: bool = False) -> dict[str, Any] | None:
        """Give what the sampler itself must remember between two epochs; None if nothing.

        Args:
            between: Whether that is where it is.
            left: Whether it is in the middle of an epoch that it does not go on with.

        Returns:
            Primitives, given back to `EpochBatches` with ``start=0``.
        """
        state = self.pack()
        if (between or left) and self.opened is not None and (own := self.opened.state()):
            state |= {**own, "left": True} if left else own
        return state | self.known_heads() or None

    def known_heads(self) -> dict[str, Any]:
        """Give the part of a state that tells whether its epochs begin differently."""
        return {"heads": list(self.heads)} if len(set(self.heads)) > 1 else {}

    @property
    def is_stateful(self) -> bool:
        """Whether it, or what iterated it last, can be asked for a state."""
        return self.opened is not None and self.opened.stateful

    def pack(self) -> dict[str, Any]:
        """Give where the generators are, and the epoch that was told."""
        packed = {path: [*map(pack_generator, held)] for path, held in self._generators().items()}
        state: dict[str, Any] = {}
        if "generator" in packed:
            [state["generator"]] = packed.pop("generator")
        if packed:
            state["generators"] = packed
        if told := self.told:
            state["told"] = told
        return state

    def unpack(self, state: Mapping[str, Any]) -> None:
        """Bring the generators to where they were.

        Raises:
            StateError: The state is of a sampler with others.
        """
        packed = dict(state.get("generators", {}))
        if "generator" in state:
            packed["generator"] = [state["generator"]]
        held = self._generators()
        if packed.keys() - held.keys() - {"generator"}:
            # Generators that the sampler makes on first use: it is used, and brought back.
            with preserved():
                seed_globals(0)
                next(iter(self.source), None)
            held = self._generators()
        for path, states in packed.items():
            if len(states) != len(held.get(path, ())):
                what = "a generator of its own" if path == "generator" else f"a generator {path}"
                raise StateError(
                    f"the state is of a sampler with {what:.100}, which "
                    f"{type(self.source).__name__} has not: resume with the sampler that the "
                    "state was taken from"
                )
            for generator, each in zip(held[path], states, strict=True):
                unpack_generator(each, generator)

    def generators(self) -> list[Any]:
        """Give all the generators, and the seed sequences that they spawn from."""
        found = [generator for held in self._generators().values() for generator in held]
        sequences = (getattr(generator, "seed_seq", None) for generator in found)
        return [*found, *(each for each in sequences if each is not None)]

    def marks(self) -> Marks | None:
        """Give where the generators are at this moment; quicker than a state. None: it has none."""
        generators = self.generators()
        if not generators:
            return None
        tapes = map(tape, generators)
        self._left = [type(each) for each in generators], [pair and pair[0]() for pair in tapes]
        return self._left

    def was_seeded(self) -> bool:
        """Whether the program has set the generators since they were drawn from last."""
        left = self._left
        found, self._left = self.marks(), left  # else, asked again, it would not have
        return self.is_told and _comparable(left) != _comparable(found)

    def bring(self, marks: Marks | None) -> None:
        """Bring the generators to where they were in the same process, if they are still such."""
        generators = self.generators()
        if marks is None or [type(each) for each in generators] != marks[0]:
            return
        for pair, mark in zip(map(tape, generators), marks[1], strict=True):
            if pair is not None:
                pair[1](mark)
        self._left = marks

    def _generators(self) -> dict[str, list[Any]]:
        """Give the generators that samplers hold, by place: the attribute ``generator`` alone."""
        own = [owner for owner in self._owners if not isinstance(owner, EpochOrder)]
        given = (getattr(owner, "generator", None) for owner in own)
        first = next((each for each in given if isinstance(each, torch.Generator)), None)
        named: dict[str, list[Any]] = {} if first is None else {"generator": [first]}
        users = [owner for owner in own if _is_users(owner)]
        if users:
            held = find_generators(*users, apart_from=(self._dataset,))
            for path, generator in zip(held.paths, held.generators, strict=True):
                if generator is not first and not isinstance(generator, random.SystemRandom):
                    named.setdefault(path, []).append(generator)
        return named

    def fingerprint(self) -> Fingerprint:
        """Give the samplers' part of a state's fingerprint: its fields "sampler.…".

        Raises:
            OptionError: One of them gives what cannot be part of a state.
        """
        fields: Fingerprint = {}
        for depth, owner in enumerate(self._owners):
            fields |= fingerprint_of("sampler" + ".sampler" * depth, owner)
        return fields


def _comparable(marks: Marks | None) -> bytes:
    """Give the same for the same marks; pickled, a tensor is different each time."""
    kinds, places = marks or ([], [])
    plain_places = [
        place.tolist() if isinstance(place, torch.Tensor) else place for place in places
    ]
    return pickle.dumps((kinds, plain_places))


def _shown_epoch(owner: Any) -> int | None:
    """The epoch that a sampler with ``set_epoch`` shows as its attribute; None: it shows none."""
    if not callable(getattr(owner, "set_epoch", None)):
        return None
    epoch = plain(getattr(owner, "epoch", None))
    return epoch if isinstance(epoch, int) and epoch >= 0 else None


def _is_counted(owner: Any) -> bool:
    """Whether the loader counts its epochs; of all others the program tells them."""
    is_own = isinstance(owner, EpochOrder) or getattr(owner, "counted_by_loader", False)
    return is_own or type(owner) is DistributedSampler


def _is_users(owner: Any) -> bool:
    root = type(owner).__module__.partition(".")[0]
    return root not in ("torch", "lit_loader", "builtins", "numpy")
