"""`RankStates`: puts the readers of all ranks into the checkpoint that the first rank writes.

Used by `lightning/state_hooks.py` where loaders have numbered readers: there a rank's state
holds the readers of that rank alone::

    rank 1, 2, … ── own states ──▶ the job's store ──▶ rank 0: merge_states ──▶ checkpoint

Every rank comes here whenever a checkpoint is made, as Lightning asks for it. But one may be made
by a single rank, after an exception or in a handler of a signal. So this is no collective
operation, in which the ranks that are there would wait for the others without end: the other ranks
leave their states and go on, and the first one waits for some time. What it then lacks it says in a
warning.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

import torch.distributed

from lit_loader.core.state.position import COUNT
from lit_loader.errors import StateError

__all__ = ["RankStates"]

PATIENCE: Final = 30.0
"""Seconds that are waited for another rank's states."""

State = dict[str, Any]


class RankStates:
    """The states of a Trainer's loaders, of all ranks."""

    fits = 0  # trainings that have begun in this process, and so on every other rank

    def __init__(self) -> None:
        self._at: tuple[int, int] | None = None
        self._times = 0  # that one was made there

    def begin_fit(self) -> None:
        """Note that a training begins, on all ranks: its steps may be those of another one."""
        RankStates.fits += 1
        self._at = None

    def merged(self, states: Sequence[State], epoch: int, step: int) -> list[State]:
        """Return this rank's states; on the first rank with the readers of all ranks in them."""
        self._times = self._times + 1 if self._at == (epoch, step) else 0
        self._at = epoch, step
        partial = [state for state in states if _is_partial(state)]
        distributed = torch.distributed
        if not partial or not (distributed.is_available() and distributed.is_initialized()):
            return [*states]
        from lit_loader.streams import rank_store  # which few programs need
        from lit_loader.streams.merge_states import merge_states

        store = rank_store.store()
        place = f"lit_loader/{self.fits}/{epoch}/{step}/{self._times}"
        ranks: int = partial[0]["fingerprint"]["num_replicas"]
        own = partial[0]["readers"][0][0] % ranks
        if own:
            store.set(f"{place}/{own}", pickle.dumps(states))
            return [*states]
        try:
            others = [_take(store, f"{place}/{rank}") for rank in range(1, ranks)]
            return [
                merge_states([*same]) if _is_partial(same[0]) else same[0]
                for same in zip(states, *others, strict=True)
            ]
        except (StateError, RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
            warnings.warn(
                "lit_loader: this checkpoint holds the stream position of rank 0 only, because "
                f"another rank did not save at the same step ({reason}). It cannot resume several "
                "ranks exactly. Use an earlier checkpoint [LL303]",
                RuntimeWarning,
                stacklevel=2,
            )
            return [*states]


def _take(store: Any, key: str) -> list[State]:
    store.wait([key], timedelta(seconds=PATIENCE))
    states: list[State] = pickle.loads(store.get(key))
    store.delete_key(key)
    return states


def _is_partial(state: State) -> bool:
    """Whether this is the state of one rank's readers, and not of all."""
    readers: Sequence[object] = state.get("readers") or ()
    return bool(readers) and len(readers) < (state["fingerprint"].get(COUNT) or 0)
