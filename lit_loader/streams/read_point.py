"""`ReadPoint`: how far a reader of a stream is, for whoever opens the stream there; its share."""

from __future__ import annotations

import copy
import pickle
from typing import Any, Final, NamedTuple

from lit_loader.core.state.position import ReaderPlace, Shards

NOT_TAKEN: Final = ...
"""In the place of a stream's state before a batch, where none was taken (`StateMeter`)."""

_new = tuple.__new__
_COMPARED: Final = 8
"""Batches at most that are compared when they are replayed."""


class _Fields(NamedTuple):
    batches: int = 0  # that were delivered
    state: Any = None  # the stream's own, `pickled`; empty at its start; None: it has none
    ended: bool = False
    behind: int = 0  # batches that were delivered since that state
    before: int = 0  # batches before the reader began again (``uneven_ranks="pad"``)
    digests: tuple[int, ...] = ()  # of the last batches; 0: nothing is known of that one


class ReadPoint(_Fields, ReaderPlace):
    """The stream is opened by its ``state``, and ``behind`` batches are replayed from there.

    Without a state all ``batches`` are replayed, from the start of the epoch.
    """

    __slots__ = ()

    @property
    def delivered(self) -> int:
        """All batches of the epoch."""
        return self.before + self.batches

    @property
    def first(self) -> int:
        """The first batch that is replayed."""
        return 0 if self.state is None else self.batches - self.behind

    def after(self, digest: int) -> ReadPoint:
        """Return the point after one more batch, which has a digest."""
        batches, state, _, behind, before, digests = self
        behind += state is not None
        last = (*digests, digest)[-_COMPARED:]
        return _new(ReadPoint, (batches + 1, state, False, behind, before, last))


def pickled(state: dict[str, Any] | None) -> Any:
    """Write a state down, for it may change; what cannot be pickled is copied."""
    if not state:
        return state
    try:
        return pickle.dumps(state, pickle.HIGHEST_PROTOCOL)
    except Exception:
        return copy.deepcopy(state)


def unpickled(state: Any) -> Any:
    """Read what `pickled` returned; what came from a saved state is returned as it is."""
    return pickle.loads(state) if type(state) is bytes else state


def shares_of(
    shards: Shards | None, rank: int, num_replicas: int, num_workers: int
) -> list[tuple[int, int]]:
    """Return the shards that a rank's readers read, in the order in which they take turns.

    Each is its number and the number of all shards. Without ``num_shards`` each worker of each
    rank reads one.
    """
    if shards is not None:
        return [(number, shards.count) for number in shards.mine]
    first = rank * num_workers
    return [(first + worker, num_replicas * num_workers) for worker in range(num_workers)]
