"""Measures the user's own dataset over a grid of num_workers and prefetch_factor.

Used by `bench/runner.py` where ``dataset._target_`` is given; the figures go to the report, and to
`bench/own_dataset/advice.py`, which chooses a setting. Each setting is opened, gives its first
batch, and loads for a while, epoch after epoch. The settings take turns in rounds, the first of
which is not counted (it also warms the page cache). ``num_workers="auto"`` takes part: for as long
again, before it is clocked, it may find its number, from the one of the round before.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from lit_loader.bench.core.names import OURS
from lit_loader.bench.core.processes import cpu_seconds, machine_seconds
from lit_loader.bench.core.results import Spread
from lit_loader.bench.loaders.interface import LoaderAdapter, Setup
from lit_loader.bench.measure.limits import MemoryCopy, nbytes
from lit_loader.bench.measure.rounds import in_one_line
from lit_loader.bench.measure.session import Session
from lit_loader.bench.own_dataset.advice import Facts, advise, choose
from lit_loader.config.loader_config import LoaderConfig
from lit_loader.errors import OptionError
from lit_loader.loader import DataLoader
from lit_loader.statistics.records import LoaderStatistics
from lit_loader.system.processors import usable_processors

__all__ = ["Grid", "Point"]

_ROUNDS = 3
"""At most: a grid has many settings."""


@dataclass
class Point:
    """A setting, and what was measured with it.

    Attributes:
        num_workers: Workers.
        prefetch_factor: Batches in flight for each; without workers 0.
        rounds: For each counted round loader to (seconds a batch, seconds to the first batch).
        cannot: Loader to why it has no figures.
        statistics: Of our loader, from its last round.
        cpu: Processors that were busy with it in that round, all its processes together.
        others: Processors that were busy with other programs meanwhile.
    """

    num_workers: int
    prefetch_factor: int
    rounds: list[dict[str, tuple[float, float]]] = field(default_factory=list)
    cannot: dict[str, str] = field(default_factory=dict)
    statistics: LoaderStatistics | None = None
    cpu: float = 0.0
    others: float = 0.0

    @property
    def loaders(self) -> list[str]:
        """Loaders with figures, or a reason for having none."""
        found = dict.fromkeys(name for figures in self.rounds for name in figures)
        return list(found | dict.fromkeys(self.cannot))

    def figure(self, loader: str) -> Spread | None:
        """Seconds a batch; None: not measured."""
        return Spread.of([figures[loader][0] for figures in self.rounds if loader in figures])

    def first(self, loader: str) -> Spread | None:
        """Seconds to the first batch; None: not measured."""
        return Spread.of([figures[loader][1] for figures in self.rounds if loader in figures])


class Grid:
    """A dataset, the settings to measure it in, and what was measured.

    Args:
        dataset: Map-style or iterable.
        config: The loader's options; num_workers and prefetch_factor are the grid's.
        session: Loaders and settings.

    Attributes:
        name: The dataset's class.
        points: The settings.
        auto: ``num_workers="auto"``, with the number that it came to; None: it is not measured.
        samples: Samples a batch, the mean of what was loaded.
        nbytes: Bytes of a batch.
        copy: Seconds that copying them takes.
    """

    def __init__(self, dataset: Any, config: LoaderConfig, session: Session) -> None:
        self.name = type(dataset).__qualname__
        self.samples = float(config.batch_size or 1)
        self.nbytes = 0
        self.copy = 0.0
        self._dataset, self._config, self._session = dataset, config, session
        wanted = session.settings.grid
        self.points = [
            Point(workers, prefetch)
            for workers in dict.fromkeys(wanted.num_workers)
            for prefetch in (dict.fromkeys(wanted.prefetch_factor) if workers else (0,))
        ]
        self.auto = Point(0, 0) if wanted.auto and OURS in session.adapters else None
        self._auto_loader: Any = None

    @classmethod
    def from_config(cls, cfg: Any, session: Session) -> Grid:
        """Make the dataset and the options of the application's configuration.

        Raises:
            OptionError: One of them cannot be made; says why.
        """
        return cls(_made("dataset", cfg.dataset), _made("loader", cfg.loader), session)

    def measure(self) -> None:
        """Measure all settings; an interrupt leaves what was measured.

        Raises:
            OptionError: The dataset gives no batch, or every setting fails.
        """
        session, settings = self._session, self._session.settings
        rounds = min(_ROUNDS, settings.rounds)
        each = len(self.points) * len(session.adapters) + (self.auto is not None)
        session.expect((rounds + 1) * each)
        for number in range(rounds + 1):
            seconds = settings.grid.seconds / (1 if number else 4)
            for point in self.points:
                figures: dict[str, tuple[float, float]] = {}
                for name, adapter in session.adapters.items():
                    session.tick(_label(point, name))
                    if name in point.cannot:
                        continue
                    try:
                        figures[name] = self._load(point, adapter, seconds)
                    except Exception as error:  # the user's own code, or another library
                        point.cannot[name] = in_one_line(error)
                if number and figures:
                    point.rounds.append(figures)
            if self.auto is not None:
                session.tick('num_workers="auto"')
                self._load_auto(self.auto, seconds, counts=number > 0)
            reasons = [why for point in self.points for why in point.cannot.values()]
            if len(reasons) == len(self.points) * len(session.adapters):
                raise OptionError(f"dataset cannot be loaded: {reasons[0]}")
        if self.nbytes:
            self.copy = MemoryCopy(self.nbytes, max(1, int(usable_processors())))()

    def _load(self, point: Point, adapter: LoaderAdapter, seconds: float) -> tuple[float, float]:
        """Seconds a batch and to the first batch, in one setting."""
        options = _options(self._config, point, self._dataset, ours=adapter.name == OURS)
        begin = time.perf_counter()
        setup = Setup(
            self._config.batch_size, point.num_workers, point.prefetch_factor, options=options
        )
        opened: Any = adapter.open(self._dataset, setup)
        try:
            epoch = opened.epoch()
            batch = next(epoch, None)
            if batch is None:
                raise OptionError("it gives no batch")
            first = time.perf_counter() - begin
            self.nbytes = nbytes(batch)
            used, all_used = cpu_seconds(), machine_seconds()
            epoch, a_batch, passed = _clocked(opened.epoch, epoch, seconds)
            if adapter.name == OURS:
                point.cpu = (cpu_seconds() - used) / passed
                point.others = max(0.0, (machine_seconds() - all_used) / passed - point.cpu)
                point.statistics = self._statistics(opened.loader)
            del epoch, batch
        finally:
            opened.close()
        return a_batch, first

    def _load_auto(self, point: Point, seconds: float, counts: bool) -> None:
        """Load with ``num_workers="auto"``; it is left out where that is refused."""
        try:
            if self._auto_loader is None:
                config = self._config.merged(num_workers="auto", persistent_workers=True)
                self._auto_loader = DataLoader(self._dataset, **config.as_kwargs())
            with self._auto_loader as loader:
                begin = time.perf_counter()
                epoch = iter(loader)
                if next(epoch, None) is None:
                    raise OptionError("it gives no batch")
                first = time.perf_counter() - begin
                epoch, *_ = _clocked(lambda: iter(loader), epoch, seconds)
                epoch, a_batch, _ = _clocked(lambda: iter(loader), epoch, seconds)
                point.statistics = self._statistics(loader)
                point.num_workers = loader.num_workers
                del epoch
        except OptionError:
            self.auto = None
        except Exception as error:  # the user's own code
            point.cannot[OURS] = in_one_line(error)
        else:
            if counts:
                point.rounds.append({OURS: (a_batch, first)})

    def _statistics(self, loader: Any) -> LoaderStatistics:
        found: LoaderStatistics = loader.statistics()
        self.samples = found.samples / max(1, found.batches)
        return found

    @property
    def facts(self) -> list[Facts]:
        """What advice is given on: the settings that our loader was measured in."""
        found = []
        for point in self.points:
            figure, theirs = point.figure(OURS), point.figure("torch")
            if figure is not None and point.statistics is not None:
                found.append(
                    Facts(
                        num_workers=point.num_workers,
                        prefetch_factor=point.prefetch_factor,
                        seconds=figure.median,
                        torch_seconds=None if theirs is None else theirs.median,
                        statistics=point.statistics,
                        cpu=point.cpu,
                        others=point.others,
                    )
                )
        return found

    @property
    def chosen(self) -> Point | None:
        """The setting to use; None: nothing was measured."""
        fact = choose(self.facts, self._session.settings.grid.step_ms)
        if fact is None:
            return None
        key = (fact.num_workers, fact.prefetch_factor)
        return next(p for p in self.points if (p.num_workers, p.prefetch_factor) == key)

    @property
    def advice(self) -> list[str]:
        """Which setting to use, what bounds it, what would help; a line each."""
        lines = advise(
            self.facts,
            step_ms=self._session.settings.grid.step_ms,
            samples=self.samples,
            nbytes=self.nbytes,
            copy=self.copy,
            cores=usable_processors(),
        )
        return [*lines, *self._of_auto()]

    def _of_auto(self) -> list[str]:
        """Say how ``num_workers="auto"`` came off, if it was measured."""
        if self.auto is None or self.auto.statistics is None or not self.auto.rounds:
            return []
        fixed = [(figure.median, p) for p in self.points if (figure := p.figure(OURS)) is not None]
        if not fixed:
            return []
        _, best = min(fixed, key=lambda pair: pair[0])
        pairs = zip(best.rounds, self.auto.rounds, strict=False)
        times = Spread.of([a[OURS][0] / b[OURS][0] for a, b in pairs if OURS in a])
        number, why = self.auto.num_workers, self.auto.statistics.why_so_many
        than = _label(best, "").removesuffix(" · ")
        return [
            f'num_workers="auto" came to {number} ({why}): '
            f"{0 if times is None else times.median:.2f} times as fast as the fastest, {than}"
        ]

    def as_dict(self) -> dict[str, Any]:
        """All of it as primitives."""
        chosen = self.chosen
        return {
            "dataset": self.name,
            "samples_per_batch": self.samples,
            "bytes_per_batch": self.nbytes,
            "copy_seconds": self.copy,
            "chosen": None
            if chosen is None
            else {
                "num_workers": chosen.num_workers,
                "prefetch_factor": chosen.prefetch_factor or None,
            },
            "advice": self.advice,
            "points": [
                {
                    "num_workers": point.num_workers,
                    "prefetch_factor": point.prefetch_factor or None,
                    "loader": name,
                    "seconds_per_batch": [r[name][0] for r in point.rounds if name in r],
                    "first_batch_seconds": [r[name][1] for r in point.rounds if name in r],
                    "cannot": point.cannot.get(name),
                }
                for point in self.points
                for name in point.loaders
            ],
            "auto": None
            if self.auto is None
            else {
                "num_workers": self.auto.num_workers,
                "seconds_per_batch": [r[OURS][0] for r in self.auto.rounds],
                "first_batch_seconds": [r[OURS][1] for r in self.auto.rounds],
                "cannot": self.auto.cannot.get(OURS),
            },
        }


def _clocked(
    begin_epoch: Callable[[], Iterator[Any]], epoch: Iterator[Any], seconds: float
) -> tuple[Iterator[Any], float, float]:
    """Go on for so many seconds, epoch after epoch.

    Returns:
        The iterator of the last epoch; seconds a batch; seconds that it has taken.

    Raises:
        OptionError: An epoch gives no batch.
    """
    count, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < seconds or not count:
        if next(epoch, None) is None:
            epoch = begin_epoch()
            if next(epoch, None) is None:
                raise OptionError("its second epoch gives no batch")
        count += 1
    passed = time.perf_counter() - begin
    return epoch, passed / count, passed


def _label(point: Point, loader: str) -> str:
    prefetch = f" prefetch_factor={point.prefetch_factor}" if point.num_workers else ""
    return f"num_workers={point.num_workers}{prefetch} · {loader}"


def _made(name: str, node: Any) -> Any:
    from hydra.utils import instantiate

    try:
        return instantiate(node, _convert_="all")
    except Exception as error:  # the target's own, from Hydra 1.4 on
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        if isinstance(cause, OptionError):
            raise OptionError(f"{name}: {cause}") from error
        raise OptionError(f"{name} cannot be made: {in_one_line(cause)}") from error


def _options(config: LoaderConfig, point: Point, dataset: Any, *, ours: bool) -> Mapping[str, Any]:
    """The loader's options in a setting; for other loaders those that torch has."""
    workers = point.num_workers
    set_here: dict[str, Any] = {
        "num_workers": workers,
        "prefetch_factor": point.prefetch_factor or None,
        "persistent_workers": bool(workers),
    }
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
