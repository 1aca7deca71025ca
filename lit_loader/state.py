"""The loader's checkpoint state: a position and what it is a position in.

A state is independent of the rank and of how the data is loaded (number of workers, start method,
prefetching): all ranks give the same one. It is a plain dict of primitives, so that
``torch.load(weights_only=True)`` reads it, and for map-style datasets a few hundred bytes long.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from lit_loader.errors import StateError
from lit_loader.fingerprint import Fingerprint

__all__ = ["ELASTIC", "VERSION", "LoaderState"]

VERSION = 2
"""Raised whenever an older reader would misunderstand a state."""

ELASTIC = frozenset({"batch_size", "num_replicas"})
"""Fingerprint fields that may differ, if the position in samples falls on a batch boundary."""

_ADVICE = {
    "dataset_length": "resume with the dataset that the state was taken from",
    "num_workers": "an iterable dataset's position belongs to its workers: resume with as many",
    "rank": "an iterable dataset's state is one rank's: save one on each rank, and load it there",
    "order": "resume with the same sampler or shuffle option",
    "sampler": "resume with a sampler made with the same options",
    "dataset": "resume with a dataset made with the same options",
    "seed": "pass the state's seed as the loader's seed option",
}
_COUNTS = ("epoch", "batches", "samples")


@dataclass(frozen=True)
class LoaderState:
    """A position in an epoch, with a fingerprint of everything that the position depends on.

    Attributes:
        epoch: Epoch number, counted from 0.
        batches: Batches of this epoch delivered on each rank.
        samples: Samples of this epoch delivered on all ranks together.
        fingerprint: Names and values (int, float, str, bool, None) that make the order of the
            samples and their random numbers, such as dataset_length, seed, seeding, order,
            batch_size and num_replicas; and what samplers and datasets tell of themselves, as
            sampler.seed (see `lit_loader.fingerprint`).
        ahead: Numbers of batches delivered after those; only with ``in_order=False``.
        sampler: What a stateful sampler must remember; None for most.
        workers: What each worker of an iterable dataset must remember; None for map-style ones.
        requested: The epoch that ``set_epoch`` has asked for last, if the loader has counted on
            from it by itself; else None.
    """

    epoch: int
    batches: int
    samples: int
    fingerprint: Fingerprint
    ahead: tuple[int, ...] = ()
    sampler: Any = None
    workers: Any = None
    requested: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Give the state as a new dict of primitives that shares nothing with this loader."""
        state: dict[str, Any] = {"version": VERSION}
        state |= {name: int(getattr(self, name)) for name in _COUNTS}
        state["fingerprint"] = dict(self.fingerprint)
        state["ahead"] = list(self.ahead)
        for name in ("sampler", "workers", "requested"):
            if (value := getattr(self, name)) is not None:
                state[name] = copy.deepcopy(value)
        return state

    @classmethod
    def from_dict(cls, state: Any) -> LoaderState:
        """Read what `to_dict` gave.

        Args:
            state: The dict, as it is or from a checkpoint file; it is copied.

        Raises:
            StateError: If this is not a loader's state, or of a version that is not known here.
        """
        if not isinstance(state, Mapping) or "version" not in state:
            raise StateError(
                f"state must be the dict that state_dict() of a lit_loader.DataLoader gave, "
                f"got {_short(state)}"
            )
        if state["version"] != VERSION:
            raise StateError(
                f"state has version {_short(state['version'])}, but only version {VERSION} is "
                f"known here: resume with the release of lit_loader that the state was taken with"
            )
        for name in _COUNTS:
            if not _is_count(value := state.get(name)):
                raise _damaged(f"{name} must be a whole number of at least 0", value)
        if not isinstance(fingerprint := state.get("fingerprint"), Mapping):
            raise _damaged("fingerprint must be a dict", fingerprint)
        ahead, requested = state.get("ahead", ()), state.get("requested")
        if not (isinstance(ahead, (list, tuple)) and all(map(_is_count, ahead))):
            raise _damaged("ahead must be a list of batch numbers", ahead)
        if not (requested is None or isinstance(requested, int)):
            raise _damaged("requested must be an epoch's number or None", requested)
        _check_workers(state.get("workers"), fingerprint.get("num_workers"))
        return cls(
            **{name: state[name] for name in _COUNTS},
            fingerprint=dict(fingerprint),
            ahead=tuple(ahead),
            sampler=copy.deepcopy(state.get("sampler")),
            workers=copy.deepcopy(state.get("workers")),
            requested=requested,
        )

    def check(
        self,
        fingerprint: Fingerprint,
        elastic: Collection[str] = ELASTIC,
    ) -> None:
        """Make sure that the state is one of a loader like this one.

        Args:
            fingerprint: This loader's.
            elastic: Fields that are not compared: whether the position fits them is the batch
                plan's to say.

        Raises:
            StateError: Names the first field, by name, that differs, and both values.
        """
        for name in sorted((self.fingerprint.keys() | fingerprint.keys()) - set(elastic)):
            theirs, ours = self.fingerprint.get(name), fingerprint.get(name)
            if theirs != ours:
                advice = _ADVICE.get(name.partition(".")[0], f"resume with the same {name}")
                raise StateError(
                    f"state was taken with {name}={_short(theirs)}, but this loader has "
                    f"{name}={_short(ours)}: {advice}"
                )


def _check_workers(workers: Any, expected: Any) -> None:
    """Make sure that each worker's part of a state is what ``state_dict()`` makes of it.

    Args:
        workers: The parts; None: there are none.
        expected: How many there must be; None: any number, perhaps none.

    Raises:
        StateError: They are something else.
    """
    if workers is None:
        return
    if not isinstance(workers, (list, tuple)):
        raise _damaged("workers must be a list", workers)
    if expected is not None and len(workers) != expected:
        raise StateError(
            f"state's workers must have a part for each of its num_workers={_short(expected)}, got "
            f"{len(workers)}: resume with a state as state_dict() gave it"
        )
    for number, part in enumerate(workers):
        whole = isinstance(part, (list, tuple)) and len(part) in (3, 4)
        if not (
            whole
            and _is_count(part[0])
            and (part[1] is None or isinstance(part[1], Mapping))
            and isinstance(part[2], bool)
            and all(map(_is_count, part[3:]))
        ):
            raise _damaged(
                f"workers[{number}] must be [batches, the dataset's state, whether it has ended]",
                part,
            )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _damaged(constraint: str, value: object) -> StateError:
    return StateError(
        f"state's {constraint}, got {_short(value)}: resume with a state as state_dict() gave it"
    )


def _short(value: object) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."
