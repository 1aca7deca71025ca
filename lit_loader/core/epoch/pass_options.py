"""`PassOptions`: what ``iter(loader)`` has found as the loader's options; a value."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.context import BaseContext
from operator import attrgetter
from typing import Any, NamedTuple

__all__ = ["PassOptions"]


class PassOptions(NamedTuple):
    """The options that batches and workers of a pass are made with.

    Read once in ``iter(loader)``, because subclasses return other values there. The first ones are
    also part of the `BatchSpec`.
    """

    dataset: Any
    batch_size: int | None
    drop_last: bool
    collate_fn: Callable[[Any], Any]
    worker_init_fn: Callable[[int], object] | None
    seeding: str
    reseed_fn: Callable[[Any, int], object] | None
    read_threads: int
    multiprocessing_context: BaseContext | None
    timeout: float
    on_sample_error: str
    max_sample_errors: int | None
    sample_retries: Any

    @classmethod
    def of(cls, loader: Any) -> PassOptions:
        """Read the options of a loader."""
        return cls(*_read(loader))

    @property
    def of_batches(self) -> dict[str, Any]:
        """Those that are part of the `BatchSpec`, by name."""
        return dict(zip(self._fields[:_OF_BATCHES], self, strict=False))

    def suits_workers_of(self, other: PassOptions) -> bool:
        """Whether workers that were started with other options may serve with these.

        Persistent workers keep their dataset, and what a batch sampler decides.
        """
        pairs = zip(self[_OF_WORKERS:], other[_OF_WORKERS:], strict=True)
        return all(mine is theirs or mine == theirs for mine, theirs in pairs)


_read = attrgetter(*PassOptions._fields)
_OF_BATCHES = PassOptions._fields.index("read_threads") + 1
_OF_WORKERS = PassOptions._fields.index("collate_fn")
