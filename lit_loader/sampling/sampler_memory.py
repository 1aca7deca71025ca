"""What a user's sampler carries from epoch to epoch, where it does not say so by a ``state_dict``.

Its random generators are found as a dataset's are, and its counters are the plain attributes
(numbers, strings) that have changed since the loader was made: both are part of the position, as
they were when the epoch began. Whatever else of it has changed cannot be kept; the loader warns
of it.
"""

from __future__ import annotations

import itertools
import json
import random
import zlib
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
import torch

from lit_loader.errors import StateError
from lit_loader.seeding.find_generators import HeldGenerators, find_generators

__all__ = ["SamplerMemory"]

_PLAIN = (bool, int, float, str, type(None))
_MAX_STATE = 1 << 20  # bytes of a generator's state; a Mersenne Twister's has 7 KB
_GLANCE = 512
_DEPTH = 3


class SamplerMemory:
    """The generators and counters of samplers.

    Args:
        owners: The samplers; those of torch and of this package are passed over, which have none
            but a ``generator``.
        dataset: The dataset, which a sampler may hold too: its generators are not the sampler's.
    """

    def __init__(self, owners: Iterable[Any], dataset: Any = None) -> None:
        self._owners = [owner for owner in owners if _is_users(owner)]
        self._dataset = dataset
        self._held: HeldGenerators | None = None
        self._plain = [dict(_plain(owner)) for owner in self._owners]
        self._other = [self._glance(owner) for owner in self._owners]
        self._announced: set[str] = set()  # names of what set_epoch sets, which need not be kept
        self._began: list[dict[str, Any]] = []  # as `_plain`, when the epoch began
        self._moved: set[tuple[int, str]] = set()  # attributes that have changed since an epoch did
        self.unsaved: str | None = None
        """An attribute that has changed and is not part of the position; None: there is none."""

    def _generators(self, apart_from: Any) -> HeldGenerators:
        if self._held is None or self._held.moved() or self._held.outdated():
            apart = (self._dataset, apart_from)
            self._held = find_generators(*self._owners, apart_from=apart)
        return self._held

    def announce(self, owner: Any, epoch: int) -> None:
        """Call a sampler's ``set_epoch``, and see what it sets."""
        if not any(owner is known for known in self._owners):
            owner.set_epoch(epoch)
            return
        before = dict(_plain(owner)) | self._glance(owner)
        owner.set_epoch(epoch)
        now = dict(_plain(owner)) | self._glance(owner)
        self._announced |= {name for name in now if before.get(name, before) != now[name]}

    def note(self, apart_from: torch.Generator | None) -> dict[str, Any] | None:
        """Give what the samplers carry at this moment, between two epochs; None if nothing.

        Args:
            apart_from: A generator that is kept elsewhere.
        """
        if not self._owners:
            return None
        held = self._generators(apart_from)
        packed: dict[str, list[bytes]] = {}
        for path, generator in zip(held.paths, held.generators, strict=True):
            if not isinstance(generator, random.SystemRandom):
                packed.setdefault(path, []).append(_pack(generator))
        changed: dict[str, Any] = {}
        for number, owner in enumerate(self._owners):
            before, now = self._plain[number], dict(_plain(owner))
            for name, value in now.items():
                if name not in self._announced and before.get(name, before) != value:
                    changed[f"{number}.{name}"] = value
            self._notice(owner, self._other[number])
        if not packed and not changed:
            return None
        return {"generators": packed, "attributes": changed}

    def look(self) -> None:
        """See, where an epoch begins, which attributes have changed since the last one did."""
        now = [dict(_plain(owner)) for owner in self._owners]
        for number, before in enumerate(self._began):
            moved = (name for name in before if before[name] != now[number].get(name, before))
            self._moved.update((number, name) for name in moved)
        self._began = now

    def go_back(self, kept: Collection[str] = ()) -> None:
        """Bring attributes that have changed since an epoch began to where they were at first.

        Args:
            kept: Those that are brought elsewhere, by owner and name: ``"0.calls"``.
        """
        self.look()
        for number, name in self._moved:
            first = self._plain[number]
            if name in first and name not in self._announced and f"{number}.{name}" not in kept:
                vars(self._owners[number])[name] = first[name]
        self._began = [dict(_plain(owner)) for owner in self._owners]

    def _notice(self, owner: Any, before: dict[str, Any]) -> None:
        if self.unsaved is None:
            now = self._glance(owner)
            for name in before:
                if name in now and name not in self._announced and before[name] != now[name]:
                    self.unsaved = f"{type(owner).__name__}.{name}"
                    return

    def _glance(self, owner: Any) -> dict[str, Any]:
        """Give a short account of a sampler's other attributes; equal as long as they are."""
        return {
            name: seen
            for name, value in vars(owner).items()
            if type(value) not in _PLAIN
            and not any(value is other for other in self._owners)
            and (seen := _seen(value, _DEPTH)) is not None
        }

    def restore(self, state: Any, apart_from: torch.Generator | None) -> bool:
        """Bring the samplers to where they were.

        Args:
            state: What :meth:`note` gave.
            apart_from: As there.

        Returns:
            Whether all generators were there; those that a sampler makes on first use may not be.

        Raises:
            StateError: It is not that, or of other samplers.
        """
        kinds = " and ".join(type(owner).__name__ for owner in self._owners) or "this sampler"
        try:
            packed, changed = state["generators"], state["attributes"]
            attributes = [(*name.split(".", 1), value) for name, value in changed.items()]
            for number, name, value in attributes:
                if not isinstance(value, _PLAIN):
                    raise TypeError(f"{name} is no number or text")
                vars(self._owners[int(number)])[name] = value
            self.go_back(changed)
            held = self._generators(apart_from)
            targets: dict[str, list[Any]] = {}
            for path, generator in zip(held.paths, held.generators, strict=True):
                targets.setdefault(path, []).append(generator)
            for path, states in packed.items():
                for generator, data in zip(targets.get(path, ()), states, strict=path in targets):
                    _unpack(generator, data)
            return set(packed) <= set(targets)
        except Exception as error:
            cause = " ".join(f"{type(error).__name__}: {error}".split())
            raise StateError(
                f"the state is of a sampler with other generators or counters than {kinds} "
                f"({cause:.100}): resume with the sampler that the state was taken from"
            ) from error


def _is_users(owner: Any) -> bool:
    root = type(owner).__module__.partition(".")[0]
    return root not in ("torch", "lit_loader", "builtins", "numpy") and hasattr(owner, "__dict__")


def _plain(owner: Any) -> Iterable[tuple[str, Any]]:
    return ((name, value) for name, value in vars(owner).items() if type(value) in _PLAIN)


def _seen(value: Any, depth: int) -> Any:
    """Give a value's account; None: nothing is known of it, or it is empty."""
    kind = type(value)
    if kind in _PLAIN:
        return repr(value)
    if isinstance(value, (torch.Tensor, np.ndarray)):
        flat = value.reshape(-1)
        if not len(flat) or value.dtype is np.dtype(object):
            return None
        return len(flat), flat[:: max(1, len(flat) // _GLANCE)].tolist().__repr__()
    if kind in (list, tuple) and value:
        step = max(1, len(value) // _GLANCE)
        parts = (_seen(part, depth - 1) if depth else 0 for part in value[::step])
        return len(value), list(parts)
    if kind is dict and value:
        items = itertools.islice(value.items(), _GLANCE)
        return len(value), [(repr(k)[:80], _seen(v, depth - 1) if depth else 0) for k, v in items]
    if kind is itertools.count:
        return repr(value)
    if isinstance(value, (random.Random, torch.Generator, np.random.RandomState)):
        return None  # kept
    if depth and _is_users(value) and not callable(value) and not hasattr(value, "__getitem__"):
        return [(name, _seen(part, depth - 1)) for name, part in vars(value).items()]
    return None


def _pack(generator: Any) -> bytes:
    """Give a generator's state as bytes: 3 KB for a Mersenne Twister."""
    state: Any
    if isinstance(generator, torch.Generator):
        data = generator.get_state().numpy().tobytes()
        return zlib.compress(data, level=1)
    if isinstance(generator, random.Random):
        state = generator.getstate()
    elif isinstance(generator, np.random.RandomState):
        state = generator.get_state(legacy=False)
    elif isinstance(generator, np.random.SeedSequence):
        state = generator.n_children_spawned
    else:
        sequence = getattr(generator, "seed_seq", None)
        state = [generator.state, getattr(sequence, "n_children_spawned", None)]
    return zlib.compress(json.dumps(state, default=_listed).encode(), level=1)


def _unpack(generator: Any, data: bytes) -> None:
    unpacker = zlib.decompressobj()
    plain = unpacker.decompress(data, _MAX_STATE)
    if unpacker.unconsumed_tail:
        raise ValueError("a generator's state has more than 1 MiB")
    if isinstance(generator, torch.Generator):
        generator.set_state(torch.frombuffer(bytearray(plain), dtype=torch.uint8))
        return
    state = json.loads(plain, object_hook=_arrays)
    if isinstance(generator, random.Random):
        version, words, reserve = state
        generator.setstate((version, tuple(words), reserve))
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(state)
    elif isinstance(generator, np.random.SeedSequence):
        _count_children(generator, state)
    else:
        generator.state, children = state
        if children is not None:
            _count_children(generator.seed_seq, children)


def _count_children(sequence: Any, count: Any) -> None:
    np.random.SeedSequence.__init__(
        sequence,
        sequence.entropy,
        spawn_key=sequence.spawn_key,
        pool_size=sequence.pool_size,
        n_children_spawned=int(count),
    )


def _listed(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return {"array": value.tolist(), "dtype": str(value.dtype)}
    return value.item()  # a NumPy number


def _arrays(value: Mapping[str, Any]) -> Any:
    if value.keys() == {"array", "dtype"} and value["dtype"] in ("uint32", "uint64"):
        return np.array(value["array"], dtype=value["dtype"])
    return value
