"""Measures the user's own dataset over a grid of num_workers and prefetch_factor.

Used by `bench/runner.py` where ``dataset._target_`` is given; the figures go to the report, and to
`bench/advice.py`, which chooses a setting. Each setting is opened, gives its first batch, and loads
for a while, epoch after epoch. The settings take turns in rounds, the first of which is not counted
(it also warms the page cache). ``num_workers="auto"`` takes part: for as long again, before it is
clocked, it may find its number, from the one of the round before. Worker threads are measured with
the first prefetch_factor.
"""

from __future__ import annotations

import contextlib
import inspect
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import IterableDataset

from lit_loader.bench.advice import FIGURES, Point, advise, choose
from lit_loader.bench.limits import nbytes
from lit_loader.bench.loaders import CannotRun, Open, OpenLoader, Setup
from lit_loader.bench.machine import cpu_seconds, load_now, memory_and_descriptors
from lit_loader.bench.own_dataset import in_users_words, made
from lit_loader.bench.rounds import Session, Spread
from lit_loader.bench.settings import OURS, REFERENCE
from lit_loader.core.epoch.loader_core import DEFAULT_PREFETCH
from lit_loader.core.options.loader_config import FOR_PROCESSES, LoaderConfig
from lit_loader.core.system.processors import usable_processors
from lit_loader.errors import PREFIX, OptionError
from lit_loader.loader import DataLoader

__all__ = ["Grid"]


class Grid:
    """A dataset, the settings to measure it in, and what was measured.

    Of the configuration ``dataset``, map-style or iterable, and ``loader``, its options, of which
    num_workers and prefetch_factor are the grid's. OptionError: one of them cannot be made.
    """

    def __init__(self, dataset: Any, loader: Any, session: Session) -> None:
        self._title = f"dataset={dataset['_target_']}"
        self._dataset = made(self._title, dataset)
        self._config: LoaderConfig = made("loader", loader)
        self._session, wanted = session, session.settings.grid
        self.rounds = min(3, session.settings.rounds)  # a grid has many settings
        self.name = type(self._dataset).__qualname__
        self.samples = float(self._config.batch_size or 1)  # a batch, on the mean
        self._nbytes = 0
        iterable = isinstance(self._dataset, IterableDataset)
        self.points = [
            Point(workers, prefetch)
            for workers in dict.fromkeys(wanted.num_workers)
            for prefetch in (dict.fromkeys(wanted.prefetch_factor) if workers else (0,))
        ]
        self._now = _setting_of(self._config)
        if wanted.threads and OURS in session.loaders and not iterable:
            ahead = wanted.prefetch_factor[0]
            several = [workers for workers in dict.fromkeys(wanted.num_workers) if workers]
            self.points += [Point(workers, ahead, threads=True) for workers in several]
        known = {(point.num_workers, point.prefetch_factor) for point in self.points}
        if self._now is not None and self._now not in known and REFERENCE in session.loaders:
            self.points.append(Point(*self._now))  # what the program has so far
        self._load_before = 0.0  # of the machine
        self.auto = Point(0, 0, auto=True) if wanted.auto and OURS in session.loaders else None
        self._auto_loader: Any = None
        self._told: dict[str, str] = {}  # what lit_loader warned of, by its id
        self._no_auto = ""  # why "auto" is not measured, though it was to be

    def measure(self) -> None:
        """Measure all settings; an interrupt leaves what was measured."""
        session, settings = self._session, self._session.settings
        self._load_before = load_now()
        several = [(p, name) for p in self.points for name in session.loaders]
        turns = sum(not point.threads or name == OURS for point, name in several)
        session.expect((self.rounds + 1) * (turns + (self.auto is not None)))
        for number in range(self.rounds + 1):
            seconds = settings.grid.seconds / (1 if number else 4)
            for point in self.points:
                figures: dict[str, dict[str, float]] = {}
                for name, open_ in session.loaders.items():
                    if point.threads and name != OURS:
                        continue
                    session.tick(f"{point} · {name}")
                    if name in point.cannot:
                        continue
                    try:
                        figures[name] = self._load(point, name, open_, seconds)
                    except Exception as error:  # the user's own code, or another library
                        point.cannot[name], cause = in_users_words(error), error
                if not point.num_workers and len(point.cannot) == len(session.loaders):
                    # Nor by workers, of which it would be known many turns later.
                    raise OptionError(
                        f"{self._title} cannot be loaded: {point.cannot.popitem()[1]}"
                    ) from cause
                if number and figures:
                    point.rounds.append(figures)
            if self.auto is not None:
                session.tick('num_workers="auto"')
                self._load_auto(self.auto, seconds, counts=number > 0)
            reasons = [why for point in self.points for why in point.cannot.values()]
            if len(reasons) == turns:
                raise OptionError(f"{self._title} cannot be loaded: {reasons[0]}")

    def _load(self, point: Point, name: str, open_: Open, seconds: float) -> dict[str, float]:
        options = _options(self._config, point, self._dataset, ours=name == OURS)
        setup = Setup(
            self._config.batch_size, point.num_workers, point.prefetch_factor, options=options
        )
        begin = time.perf_counter()
        with self._hearing() as told:
            opened = open_(self._dataset, setup)
            try:
                found = self._figures(point, opened, begin, seconds, ours=name == OURS)
            finally:
                opened.close()
        if point.threads and (inexact := [text for text in told if "global generator" in text]):
            raise CannotRun(inexact[0])
        return found

    @contextlib.contextmanager
    def _hearing(self) -> Iterator[list[str]]:
        """Keep what lit_loader warns of, for below the table; other warnings are passed on."""
        told: list[str] = []
        with warnings.catch_warnings(record=True) as caught:
            yield told
            told += [text[len(PREFIX) :] for each in caught if (text := _text(each))]
        for each in caught:
            if not _text(each):
                warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
        for text in told:  # of each id one, whatever numbers are in it
            self._told.setdefault(text.rpartition(" [")[2], text)

    def _figures(
        self, point: Point, opened: OpenLoader, begin: float, seconds: float, *, ours: bool
    ) -> dict[str, float]:
        epoch = opened.epoch()
        batch = next(epoch, None)
        if batch is None:
            raise OptionError("it gives no batch")
        first, step_ms = time.perf_counter() - begin, self._session.settings.grid.step_ms
        self._nbytes = nbytes(batch)
        if point is self.auto:
            epoch, _ = _clocked(opened.epoch, epoch, seconds)
        epoch, found = _clocked(opened.epoch, epoch, seconds)
        if ours:
            point.cpu = found["processor_seconds_per_batch"] / found["seconds_per_batch"]
            point.statistics = opened.loader.statistics()
            self.samples = point.statistics.samples / max(1, point.statistics.batches)
        if step_ms is not None:  # the part of the time in which a step waits
            step = step_ms / 1e3
            _, more = _clocked(opened.epoch, epoch, seconds / 2, step)
            found["step_waits"] = max(0.0, 1 - step / more["seconds_per_batch"])
        return {"first_batch_seconds": first, **found}

    def _load_auto(self, point: Point, seconds: float, counts: bool) -> None:
        """Load with ``num_workers="auto"``; it is left out where that is refused."""
        try:
            if self._auto_loader is None:
                config = self._config.merged(num_workers="auto", persistent_workers=True)
                self._auto_loader = DataLoader(self._dataset, **config.as_kwargs())
            with self._hearing(), self._auto_loader as loader:
                begin = time.perf_counter()
                found = self._figures(point, OpenLoader(loader), begin, seconds, ours=True)
                point.num_workers = loader.num_workers
        except OptionError as error:
            self.auto, self._no_auto = None, error.text
        except Exception as error:  # the user's own code
            point.cannot[OURS] = in_users_words(error)
        else:
            if counts:
                point.rounds.append({OURS: found})

    @property
    def told(self) -> list[str]:
        """Which settings have no figures, and why; what lit_loader warned of; a line for each."""
        why: dict[str, list[str]] = {}
        for point in self._all:
            for name, reason in point.cannot.items():
                why.setdefault(reason, []).append(f"{name} with {point}")
        if self._no_auto:
            why.setdefault(self._no_auto, []).append('num_workers="auto"')
        lines = [f"no figures: {' and '.join(which)}: {reason}" for reason, which in why.items()]
        return lines + [f"warning: {text}" for text in self._told.values() if text not in why]

    @property
    def chosen(self) -> Point | None:
        """The setting to use; None: nothing was measured."""
        return choose(self._all, self._session.settings.grid.step_ms)

    @property
    def _all(self) -> list[Point]:
        return [*self.points, *([self.auto] if self.auto else [])]

    @property
    def advice(self) -> list[str]:
        """Which setting to use, what bounds it, what would help; a line each."""
        lines = advise(
            self._all,
            step_ms=self._session.settings.grid.step_ms,
            samples=self.samples,
            nbytes=self._nbytes,
            cores=usable_processors(),
            now=self._now,
            load=self._load_before,
        )
        processes = (point for point in self.points if not point.threads)
        auto, fixed = self.auto, [point for point in processes if point.measured]
        if auto is not None and auto.measured and auto.statistics and fixed:
            best = min(fixed, key=lambda point: point.seconds)
            pairs = zip(best.rounds, auto.rounds, strict=False)
            of_both = [(a[OURS], b[OURS]) for a, b in pairs if OURS in a]
            times = Spread.of([a["seconds_per_batch"] / b["seconds_per_batch"] for a, b in of_both])
            crowded = (
                auto.num_workers > usable_processors() and auto.statistics.queued_fraction > 0.2
            )
            others = ", for other programs want the processors, too: fewer on a quiet machine"
            lines.append(
                f'num_workers="auto" came to {auto.num_workers} '
                f"({auto.statistics.num_workers_reason}"
                f"{others if crowded else ''}): "
                f"{times.median if times else 0:.2f} times as fast as the fastest, {best}"
            )
        return lines

    def as_dict(self) -> dict[str, Any]:
        """All of it as primitives."""
        chosen, auto = self.chosen, self.auto
        return {
            "dataset": self.name,
            "samples_per_batch": self.samples,
            "bytes_per_batch": self._nbytes,
            "chosen": chosen and _named(chosen),
            "advice": self.advice,
            "points": [
                {**_named(point), "loader": name, **_figures(point, name)}
                for point in self.points
                for name in point.loaders
            ],
            "auto": auto and {"num_workers": auto.num_workers, **_figures(auto, OURS)},
        }


def _text(warning: warnings.WarningMessage) -> str:
    """The text of a warning of lit_loader's; "": it is another's."""
    text = str(warning.message)
    return text if text.startswith(PREFIX) else ""


def _setting_of(config: LoaderConfig) -> tuple[int, int] | None:
    """Workers and batches ahead of the given options; None: their number is to be found."""
    workers = config.num_workers
    if not isinstance(workers, int):
        return None
    return workers, (config.prefetch_factor or DEFAULT_PREFETCH) if workers else 0


def _named(point: Point) -> dict[str, Any]:
    prefetch = point.prefetch_factor or None
    workers = "auto" if point.auto else point.num_workers
    method = "thread" if point.threads else "multiprocessing"
    return {"num_workers": workers, "prefetch_factor": prefetch, "worker_method": method}


def _figures(point: Point, loader: str) -> dict[str, Any]:
    values = {name: point.values(loader, name) for name in FIGURES}
    return {**values, "cannot": point.cannot.get(loader)}


def _clocked(
    begin_epoch: Callable[[], Iterator[Any]], epoch: Iterator[Any], seconds: float, step: float = 0
) -> tuple[Iterator[Any], dict[str, float]]:
    """Go on for so many seconds, epoch after epoch, with a step that sleeps behind each batch.

    Gives the iterator of the last epoch; of `FIGURES` those behind the first batch.
    """
    count, used, begin = 0, cpu_seconds(), time.perf_counter()
    while time.perf_counter() - begin < seconds or not count:
        if next(epoch, None) is None:
            epoch = begin_epoch()
            if next(epoch, None) is None:
                raise OptionError("its second epoch gives no batch")
        count += 1
        if step:
            time.sleep(step)
    passed, used = time.perf_counter() - begin, cpu_seconds() - used
    memory, descriptors = memory_and_descriptors()
    return epoch, {
        "seconds_per_batch": passed / count,
        "processor_seconds_per_batch": used / count,
        "memory_megabytes": memory,
        "descriptors": descriptors,
    }


def _options(config: LoaderConfig, point: Point, dataset: Any, *, ours: bool) -> Mapping[str, Any]:
    """The loader's options in a setting; for other loaders those that torch has."""
    workers = point.num_workers
    set_here: dict[str, Any] = {
        "num_workers": workers,
        "prefetch_factor": point.prefetch_factor or None,
        "persistent_workers": bool(workers),
        "worker_method": "thread" if point.threads else "multiprocessing",
    }
    if point.threads:
        set_here |= {name: getattr(LoaderConfig, name) for name in FOR_PROCESSES}
    if not workers:
        set_here |= {"multiprocessing_context": None, "timeout": 0}
    merged = config.merged(**set_here)
    if ours:
        return merged.as_kwargs()
    known = inspect.signature(torch.utils.data.DataLoader).parameters
    return {
        name: value
        for name, value in merged.with_samplers_for(dataset).as_kwargs().items()
        if name in known and (name in set_here or value != getattr(LoaderConfig, name))
    }
