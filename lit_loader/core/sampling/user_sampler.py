"""`UserSampler`: a sampler between two epochs: its epoch, its generators, its fingerprint.

What the program sets on its sampler is the program's. The loader counts the epochs of its own
samplers alone, a plain ``DistributedSampler`` among them; and a generator that is seeded after
``load_state_dict``, in ``set_epoch`` say, stays so.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.utils.data import DistributedSampler

from lit_loader.core.sampling.orders import EpochOrder, shown_epoch
from lit_loader.core.seeding.find_generators import find_generators, states_of
from lit_loader.core.seeding.generator_state import preserved, tape
from lit_loader.core.seeding.seeds import seed_globals
from lit_loader.core.state.fingerprint import Fingerprint, fingerprint_of
from lit_loader.core.state.sampler_state import pack_generator, unpack_generator
from lit_loader.core.state.state_validation import alike, resuming
from lit_loader.core.state.stateful import OpenStream
from lit_loader.errors import StateError

Marks = list[tuple[type, Any]]

SAMPLER = "sampler"
"""Key of a sampler's own part of a state; see `core/state/sampler_state.py`."""


class _Counted(int):
    """An epoch that a loader has counted to, as against one that a program has set."""


class UserSampler:
    """A user's sampler or batch sampler, from one epoch to the next; `OwnSampler` is the loader's.

    ``watched`` is a ``DistributedSampler`` on which programs set the epoch instead. What samplers
    hold of the dataset is not theirs. A fingerprint that cannot be part of a state is an
    OptionError at once, and not at the first checkpoint.
    """

    def __init__(self, source: Any, watched: Any = None, dataset: Any = None) -> None:
        self.source, self._dataset = source, dataset
        self._owners: list[Any] = [source]
        if isinstance(inner := getattr(source, "sampler", None), Iterable):
            self._owners.append(inner)  # as programs, too, look for it
        if watched is not None:
            self._owners.append(watched)
        self._epochs_seen: list[Any] = [0] * len(self._owners)
        self._named: dict[str, list[Any]] | None = {}  # generators; None: not looked for, in a copy
        # What reads and writes each of them, and what it spawns others from.
        self._controls: list[tuple[type, Any]] = []
        # What is iterated, in the epoch that was begun last: of one of torch's batch samplers,
        # which only cuts what its sampler gives, that sampler.
        self.opened: OpenStream | None = None
        self._first: int | None = None  # a digest of the last epoch's first batch
        self.wanders = False  # whether its order has changed, and nothing known changes it
        self.fingerprint()
        self._left: Marks | None = None
        if self.is_told:
            self._generators()
            self.marks()

    def __getstate__(self) -> dict[str, Any]:
        # The iterator of a sampler cannot be copied; a copy goes on from the sampler itself.
        return {**self.__dict__, "opened": None, "_named": None, "_controls": []}

    # --- epochs ---

    def requested_epoch(self) -> int | None:
        """Give the epoch that was set on the sampler since the last epoch began; None if none."""
        for owner, seen in zip(self._owners, self._epochs_seen, strict=True):
            if isinstance(owner, EpochOrder):
                if owner.requested_epoch is not None:
                    return owner.requested_epoch
                continue
            epoch = shown_epoch(owner)
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
        for owner in filter(_has_set_epoch, self._owners):
            if not isinstance(owner, EpochOrder):
                owner.set_epoch(epoch)

    def begin(self, epoch: int) -> None:
        """Note that an epoch begins; set it on the loader's own samplers."""
        for number, owner in enumerate(self._owners):
            if isinstance(owner, EpochOrder):
                owner.epoch, owner.requested_epoch = epoch, None
            elif _is_counted(owner):
                owner.epoch = self._epochs_seen[number] = _Counted(epoch)
        self.look()

    def look(self) -> None:
        """Take the epoch that a program's own sampler shows for known; no other is asked for."""
        for number, owner in enumerate(self._owners):
            if isinstance(owner, EpochOrder):
                owner.requested_epoch = None
            epoch = shown_epoch(owner)
            if epoch is not None and not _is_counted(owner):
                self._epochs_seen[number] = epoch

    @property
    def is_told(self) -> bool:
        """Whether a program may set the epoch on it."""
        return any(map(_has_set_epoch, self._owners))

    @property
    def is_programs(self) -> bool:
        """Whether a program may set the epoch on it, and the loader does not count its epochs."""
        return any(_has_set_epoch(owner) for owner in self._owners if not _is_counted(owner))

    @property
    def has_generators(self) -> bool:
        """Whether it was seen to hold generators when its epoch began."""
        return bool(self._named)

    # --- what is part of a state ---

    def state(self, left: bool) -> dict[str, Any] | None:
        """Give what the sampler itself must remember where no epoch is begun; None if nothing.

        ``left``: its own state is in the middle of an epoch that it does not go on with, perhaps.
        """
        own = None if self.opened is None else self.opened.state()
        if own and left:
            own["left"] = True
        return self.pack() | (own or {}) or None

    def note_first(self, digest: int, has_state: bool) -> None:
        """Notice that epochs begin differently although nothing that is known lets them."""
        if not (has_state or self._named or self.is_told):
            self.wanders |= self._first not in (None, digest)
            self._first = digest

    def pack(self) -> dict[str, Any]:
        """Give where the generators are."""
        packed = {path: [*map(pack_generator, held)] for path, held in self._generators().items()}
        state: dict[str, Any] = {}
        if "generator" in packed:
            [state["generator"]] = packed.pop("generator")
        return state | ({"generators": packed} if packed else {})

    def unpack(self, state: Mapping[str, Any]) -> None:
        """Bring the generators to where they were.

        A StateError if the state is of a sampler with others; these are where they were before.
        """
        packed = dict(state.get("generators", {}))
        if "generator" in state:
            packed["generator"] = [state["generator"]]
        if not packed or isinstance(self.source, EpochOrder):
            return
        held = self._generators()
        if packed.keys() - held.keys():
            # Generators that the sampler makes on first use: it is used, and brought back.
            with preserved(), resuming(self.source, SAMPLER):
                seed_globals(0)
                next(iter(self.source), None)
            held = self._generators()
        before = self.marks()
        try:
            for path, states in packed.items():
                if len(states) != len(held.get(path, ())):
                    which = "of its own" if path == "generator" else path
                    raise StateError(
                        f"the state is of a sampler with a generator {which:.90}, which "
                        f"{type(self.source).__name__} has not: resume with the sampler that the "
                        "state was taken from"
                        " [LL341]"
                    )
                for generator, each in zip(held[path], states, strict=True):
                    unpack_generator(each, generator)
        except StateError:
            self.bring(before)
            raise
        self.marks()

    def take_up(self, state: Mapping[str, Any], at_start: bool) -> None:
        """Bring the generators to where they were as a state is loaded: what is set later, stays.

        At an epoch's start the program may have seeded them for that epoch before it loads the
        state.
        """
        self.look()
        if not (at_start and self.was_seeded()):
            self.unpack(state)

    def marks(self) -> Marks | None:
        """Note and give where the generators are; quicker than a state. None: it has none."""
        if self._named is None:
            self._generators()
        self._left = [(kind, read()) for kind, (read, _) in self._controls] or None
        return self._left

    def was_seeded(self) -> bool:
        """Whether the program has set the generators since it was last noted where they are."""
        if not self.is_told:
            return False
        self._generators()  # it may have been given others
        return self.have_moved()[0]

    def have_moved(self) -> tuple[bool, Marks | None]:
        """Say whether the generators are elsewhere than was noted last, and where."""
        left, found = self._left, self.marks()
        self._left = left  # else, asked again, they would not have
        return not alike(left, found), found

    def bring(self, marks: Marks | None) -> None:
        """Bring the generators to where they were in the same process, if they are still such."""
        if self._named is None:
            self._generators()
        here = self._controls
        if marks is not None and [kind for kind, _ in marks] == [kind for kind, _ in here]:
            for (_, (_, write)), (_, mark) in zip(here, marks, strict=True):
                write(mark)
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
            for path, generator in held.pairs:
                if generator is not first and not isinstance(generator, random.SystemRandom):
                    named.setdefault(path, []).append(generator)
        found = states_of([generator for held in named.values() for generator in held])
        self._controls = [(type(each), pair) for each in found if (pair := tape(each)) is not None]
        self._named = named
        return named

    def fingerprint(self) -> Fingerprint:
        """Give the samplers' part of a state's fingerprint: its fields "sampler.…"."""
        fields: Fingerprint = {}
        for depth, owner in enumerate(self._owners):
            fields |= fingerprint_of("sampler" + ".sampler" * depth, owner)
        return fields


def _has_set_epoch(owner: Any) -> bool:
    return callable(getattr(owner, "set_epoch", None))


def _is_counted(owner: Any) -> bool:
    """Whether the loader counts its epochs; of all others the program tells them."""
    return isinstance(owner, EpochOrder) or type(owner) is DistributedSampler


def _is_users(owner: Any) -> bool:
    root = type(owner).__module__.partition(".")[0]
    return root not in ("torch", "lit_loader", "builtins", "numpy")
