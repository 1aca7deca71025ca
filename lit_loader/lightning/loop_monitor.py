"""`LoopMonitor`: watches the loaders of one Lightning loop, training or validation.

Used by `LoaderMonitor`. All figures are differences between two `LoaderStatistics`; nothing is
measured for them. Of Lightning it knows the containers of loaders only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lit_loader.loader import DataLoader
from lit_loader.profiling.statistics import LoaderStatistics

__all__ = ["LoopMonitor"]


class LoopMonitor:
    """The training loop ("train"), or that of validation ("val").

    Attributes:
        seen: The statistics of the loaders that were watched, by name.
        wait_fraction: Of the last interval, for all of the loop's loaders.
    """

    def __init__(self, split: str) -> None:
        self.split = split
        self.wait_fraction = 0.0
        self.seen: dict[str, LoaderStatistics] = {}
        self._loaders: dict[str, DataLoader[object]] = {}
        self._before: dict[str, LoaderStatistics] = {}

    def watch(self, loaders: object) -> None:
        """Watch these loaders from now on, and no others."""
        found = dict(_named(self.split, loaders))
        if found == self._loaders:
            return
        self.release()
        self._loaders = found
        self._before = {name: loader.statistics() for name, loader in found.items()}

    def figures(self) -> dict[str, float]:
        """Return what is logged of the interval that ends here, and begin another one."""
        logged: dict[str, float] = {}
        self.wait_fraction = 0.0
        for name, loader in self._loaders.items():
            before, now = self._before[name], loader.statistics()
            self._before[name] = now
            if now.batches == before.batches:
                continue
            figures = _interval(before, now, loader.num_workers)
            self.wait_fraction = min(1.0, self.wait_fraction + figures["wait_fraction"])
            inner = name if self.split != "train" else name.removeprefix("train").lstrip("/")
            prefix = "/".join(filter(None, ("loader", inner)))
            logged.update({f"{prefix}/{key}": value for key, value in figures.items()})
        return logged

    def release(self) -> None:
        """Watch no loader any more, and keep what was seen."""
        for name, loader in self._loaders.items():
            statistics = loader.statistics()
            if statistics.batches:
                self.seen[name] = statistics
        self._loaders = {}


def _interval(
    before: LoaderStatistics, now: LoaderStatistics, num_workers: int
) -> dict[str, float]:
    seconds = max(now.seconds - before.seconds, 1e-9)
    rate, count = "samples_per_second", now.samples - before.samples
    if now.tokens:
        rate, count = "tokens_per_second", now.tokens - before.tokens
    return {
        "wait_fraction": min(1.0, (now.waited - before.waited) / seconds),
        rate: count / seconds,
        "worker_busy": min(1.0, (now.busy - before.busy) / seconds / max(1, num_workers)),
        "num_workers": float(num_workers),
        "sample_errors": float(now.sample_errors - before.sample_errors),
    }


def _named(split: str, loaders: object) -> Iterator[tuple[str, DataLoader[object]]]:
    """A loop's loaders that are ours, with the name of the split and their place among several."""
    if isinstance(loaders, DataLoader):
        yield split, loaders
    elif hasattr(loaders, "iterables"):  # a CombinedLoader of either name
        yield from _named(split, loaders.iterables)
    elif isinstance(loaders, (Mapping, list, tuple)):
        pairs = loaders.items() if isinstance(loaders, Mapping) else enumerate(loaders)
        for key, member in pairs:
            yield from _named(f"{split}/{key}", member)
