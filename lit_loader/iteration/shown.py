"""`ShownLoader`: what a viewer in another process is told of a loader, as a page of JSON.

Asked for once a second by the iterator with workers (`transport/loader_page.py`); all of it is in
the loader's statistics, and nothing is counted for a viewer alone.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Final

from torch.utils.data import Dataset

from lit_loader.iteration.internals import LoaderInternals
from lit_loader.statistics.records import LoaderStatistics
from lit_loader.statistics.verdict import verdict
from lit_loader.system.interrupts import let_handlers_through
from lit_loader.system.processors import usable_processors
from lit_loader.transport import loader_page

__all__ = ["ShownLoader"]

_WRAPPERS: Final = 3
"""Datasets around another one that are named."""

_LENGTH: Final = 200
"""Characters of a name."""


class ShownLoader:
    """Gives what is shown of a loader while one iterator has its workers.

    Args:
        loader: The loader.
        internals: The same loader's.
    """

    def __init__(self, loader: Any, internals: LoaderInternals) -> None:
        self._loader = loader
        self._internals = internals
        self._fixed: dict[str, Any] = {}

    def figures(self, statistics: LoaderStatistics, depth: int, now: int) -> dict[str, Any]:
        """Give the figures, by the names that `top/snapshot.py` has for them.

        Args:
            statistics: The loader's.
            depth: Batches that may be asked for ahead.
            now: The moment, by ``time.monotonic_ns()``.
        """
        loader, internals = self._loader, self._internals
        batches, waited, seconds = statistics.batches, statistics.waited, statistics.seconds
        then, before, waited_before, seconds_before, *rates = internals.shown
        if now - then >= loader_page.EVERY:
            if then:
                rates = [
                    (batches - before) / max((now - then) / 1e9, 1e-9),
                    (waited - waited_before) / max(seconds - seconds_before, 1e-9),
                ]
            internals.shown = now, batches, waited, seconds, *rates
        self._fixed = fixed = self._fixed or self._options()
        return {
            **fixed,
            "ahead": depth,
            "batches_per_second": rates[0],
            "wait_share": rates[1],
            "restarts": statistics.worker_restarts,
            "bad_samples": statistics.sample_errors,
            "statistics": str(statistics),
            "verdict": verdict(
                statistics,
                num_workers=statistics.num_workers,
                cores=_cores(),
                persistent_workers=loader.persistent_workers,
            ),
            "events": list(internals.recorder.events),
        }

    def _options(self) -> dict[str, Any]:
        """What does not change while an iterator has the workers."""
        loader, internals = self._loader, self._internals
        plan = internals.plan
        rank, ranks = internals.replica or (0, 1)
        if plan is not None:
            rank, ranks = plan.rank, plan.num_replicas
        size = loader.batch_size
        return {
            "role": internals.role,
            "dataset": _name(loader.dataset)[:_LENGTH],
            "options": internals.describe(loader)[:_LENGTH],
            "batch_size": size if isinstance(size, int) else None,
            "length": _length(plan),
            "rank": rank,
            "ranks": ranks,
        }


@lru_cache
def _cores() -> int:
    return math.ceil(usable_processors())


def _name(dataset: object) -> str:
    """Name a dataset, and the one in it: ``Subset of Images``."""
    names: list[str] = []
    while len(names) < _WRAPPERS:
        names.append(type(dataset).__name__)
        inner = getattr(dataset, "__dict__", {}).get("dataset")
        if not isinstance(inner, Dataset):
            break
        dataset = inner
    return " of ".join(names)


def _length(plan: Any) -> int | None:
    """Batches of an epoch; None: not known."""
    try:
        return None if plan is None else len(plan)
    except Exception as error:  # a sampler of the user's, perhaps without a length
        let_handlers_through(error)
        return None
