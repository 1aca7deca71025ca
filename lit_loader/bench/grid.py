"""Measures a dataset over settings of the loader: workers, prefetching, threads, "auto", torch's.

The settings take turns in rounds, so that all meet the machine in the same moods. The first round
does not count: it warms the page cache. In its turn a setting is opened, gives its first batch, and
loads for a while, epoch after epoch.
"""

from __future__ import annotations

import contextlib
import inspect
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils.data import IterableDataset

from lit_loader.bench.machine import cpu_seconds, megabytes
from lit_loader.bench.own_dataset import in_users_words
from lit_loader.core.options.loader_config import FOR_PROCESSES, LoaderConfig
from lit_loader.errors import PREFIX, OptionError
from lit_loader.loader import DataLoader
from lit_loader.profiling.verdict import verdict

__all__ = ["Grid", "Setting"]

OURS, TORCHS = "lit_loader", "torch"


@dataclass
class Setting:
    """A loader's setting, and what was measured with it, round by round."""

    loader: str
    num_workers: Any  # a number, or "auto"
    prefetch_factor: int  # 0 if the loader chooses it
    threads: bool = False
    rates: list[float] = field(default_factory=list)  # samples per second
    cpu: list[float] = field(default_factory=list)  # seconds of CPU time per sample
    memory: list[float] = field(default_factory=list)  # megabytes
    first: list[float] = field(default_factory=list)  # seconds to the first batch
    waits: list[float] = field(default_factory=list)  # part of the time that a step waited
    failure: str = ""
    verdict: str = ""  # of our loader
    found: int = 0  # workers that "auto" came to

    def __str__(self) -> str:
        shown = [f"num_workers={self.num_workers!r}"]
        if self.prefetch_factor:
            shown.append(f"prefetch_factor={self.prefetch_factor}")
        if self.threads:
            shown.append("worker_method='thread'")
        return " ".join([*shown, *(["(torch)"] if self.loader == TORCHS else [])])

    @property
    def rate(self) -> float:
        """Samples per second, the median over the rounds."""
        return statistics.median(self.rates) if self.rates else 0.0


class Grid:
    """A dataset, the settings that it is measured in, and what lit_loader warned of meanwhile."""

    def __init__(self, dataset: Any, config: LoaderConfig, options: Any) -> None:
        self._dataset, self._config, self._options = dataset, config, options
        self.warned: dict[str, str] = {}  # by its id
        workers = [*dict.fromkeys(options.num_workers)]
        ahead = [*dict.fromkeys(options.prefetch_factor)]
        self.settings = [
            Setting(loader, number, prefetch)
            for number in workers
            for prefetch in (ahead if number else [0])
            for loader in (OURS, TORCHS)
        ]
        if options.threads and not isinstance(dataset, IterableDataset):
            self.settings += [Setting(OURS, n, ahead[0], True) for n in workers if n]
        if options.auto:
            self.settings.append(Setting(OURS, "auto", 0))

    def measure(self, tick: Callable[[str], None]) -> None:
        """Measure all settings; ``tick`` is called before each turn with its name."""
        for number in range(self._options.rounds + 1):
            for setting in self.settings:
                if not setting.failure:
                    tick(str(setting))
                    self._turn(setting, counts=number > 0)
            if all(each.failure for each in self.settings):
                raise OptionError(f"the dataset cannot be loaded: {self.settings[0].failure}")

    def _turn(self, setting: Setting, counts: bool) -> None:
        seconds = self._options.seconds / (1 if counts else 4)
        loader: Any = None
        try:
            with self._warnings():
                began = time.perf_counter()
                loader = self._open(setting)
                batches = _endless(loader)
                next(batches)
                first = time.perf_counter() - began
                if setting.num_workers == "auto":  # it may find its number first
                    _clocked(batches, seconds)
                used = cpu_seconds()
                count, passed = _clocked(batches, seconds)
                used, memory = cpu_seconds() - used, megabytes()
                waits = 0.0
                if step := (self._options.step_ms or 0) / 1e3:
                    stepped, lasted = _clocked(batches, seconds / 2, step)
                    waits = max(0.0, 1 - step * stepped / lasted)
        except Exception as error:  # the user's own code, or torch's loader
            setting.failure = (
                error.text if isinstance(error, OptionError) else in_users_words(error)
            )
            return
        finally:
            if setting.loader == OURS and loader is not None:
                loader.close()
        samples = count * (self._config.batch_size or 1)
        if setting.loader == OURS:
            setting.verdict, setting.found = _verdict(loader), loader.num_workers
        if counts:
            setting.rates.append(samples / passed)
            setting.cpu.append(used / samples)
            setting.memory.append(memory)
            setting.first.append(first)
            setting.waits.append(waits)

    def _open(self, setting: Setting) -> Any:
        """Open a loader in a setting; torch's with those of the options that it has."""
        workers = setting.num_workers
        changed: dict[str, object] = {
            "num_workers": workers,
            "prefetch_factor": setting.prefetch_factor or None,
            "persistent_workers": bool(workers),
            "worker_method": "thread" if setting.threads else "multiprocessing",
        }
        if setting.threads:
            changed |= {name: getattr(LoaderConfig, name) for name in FOR_PROCESSES}
        if not workers:
            changed |= {"multiprocessing_context": None, "timeout": 0}
        config = self._config.merged(**changed)
        if setting.loader == OURS:
            loader: Any = DataLoader(self._dataset, **config.as_kwargs())
            if workers == "auto" and setting.found:
                loader._core.auto.begin_with(setting.found)
            return loader
        known = inspect.signature(torch.utils.data.DataLoader).parameters
        options = {
            name: value
            for name, value in config.with_samplers_for(self._dataset).as_kwargs().items()
            if name in known and (name in changed or value != getattr(LoaderConfig, name))
        }
        return torch.utils.data.DataLoader(self._dataset, **options)

    @contextlib.contextmanager
    def _warnings(self) -> Iterator[None]:
        """Keep what lit_loader warns of, for the report; of each id one."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
        for text in (str(each.message) for each in caught):
            if text.startswith(PREFIX):
                self.warned.setdefault(text.rpartition(" [")[2], text[len(PREFIX) :])


def _verdict(loader: DataLoader[object]) -> str:
    """The verdict on what followed the start of the workers."""
    seen = loader.statistics().evidence
    seconds, waited = seen.seconds - seen.startup, seen.waited - seen.startup
    return verdict(replace(seen, seconds=seconds, waited=waited, starts=0, startup=0.0))


def _endless(loader: Iterable[object]) -> Iterator[object]:
    while True:
        empty = True
        for batch in loader:
            empty = False
            yield batch
        if empty:
            raise OptionError("it yields no batch")


def _clocked(batches: Iterator[object], seconds: float, step: float = 0) -> tuple[int, float]:
    """Load for this long, with a step that sleeps after each batch; returns batches and seconds."""
    count, began = 0, time.perf_counter()
    while (passed := time.perf_counter() - began) < seconds or not count:
        next(batches)
        count += 1
        if step:
            time.sleep(step)
    return count, passed
