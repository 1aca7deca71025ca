"""`ShownLoader`: what a viewer in another process is shown of a loader, as a page of JSON.

The iterator with workers asks for it once per second (`core/transport/viewer_page.py`). All of it
is in the loader's statistics: nothing is counted for a viewer alone.
"""

from __future__ import annotations

import operator
from typing import Final

from torch.utils.data import Dataset

from lit_loader.core.epoch.loader_core import LoaderCore
from lit_loader.core.sampling.batch_plan import BatchPlan
from lit_loader.core.transport import viewer_page

__all__ = ["ShownLoader"]

_WRAPPERS: Final = 3  # datasets around another one that are named
_LENGTH: Final = 200  # characters of a name


class ShownLoader:
    """Returns what is shown of a loader; remembers what it has shown before, not the loader."""

    def __init__(self) -> None:
        self._before = 0, 0, 0.0, 0.0  # a moment, and the figures of then
        self._rate: float | None = None
        self._share: float | None = None
        self._length: tuple[int | None, int | None] = None, None

    def figures(self, core: LoaderCore, epoch: int, now: int) -> dict[str, object]:
        """Return the figures at a moment, by the names that `top/picture.py` knows."""
        loader, log = core.loader, core.log
        then, *before = self._before
        # The first page, while workers start, does without all that makes statistics.
        statistics = core.seams.statistics(core, False) if then or log.records else None
        if now - then >= viewer_page.EVERY:
            figures = statistics and (statistics.batches, statistics.seconds, statistics.waited)
            self._before = now, *(figures or (0, 0.0, 0.0))
            if then:
                batches, seconds, waited = map(operator.sub, self._before[1:], before)
                self._rate = batches / max((now - then) / 1e9, 1e-9)
                self._share = waited / max(seconds, 1e-9)
        rank, ranks = core.replica
        if self._length[0] != epoch:  # the length is perhaps that of the user's sampler
            self._length = epoch, _length(core.plan)
        size = loader.batch_size
        return {
            "role": str(loader.role)[:_LENGTH],
            "dataset": _name(core.dataset)[:_LENGTH],
            "batch_size": size if isinstance(size, int) else None,
            "length": self._length[1],
            "rank": rank,
            "ranks": ranks,
            "ahead": core.depth,
            "batches_per_second": self._rate,
            "wait_share": self._share,
            "restarts": log.worker_restarts,
            "bad_samples": log.counts["sample_errors"],
            # None on a loader's first page, and a short epoch may end before the second one.
            "verdict": statistics.verdict if statistics and statistics.batches else "",
            "events": list(log.events),
        }


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


def _length(plan: BatchPlan | None) -> int | None:
    try:
        return None if plan is None else len(plan)
    except Exception:  # a sampler of the user's, perhaps without a length
        return None
