"""The options of a run, checked; cases and loaders by name, and the packages they need.

Made by `bench/runner.py`. Imports nothing heavy, so that what is wrong is said at once.
"""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from lit_loader.core.options.checks import known_options, positive, refuse
from lit_loader.errors import OptionError

__all__ = [
    *("CASES", "LOADERS", "OURS", "REFERENCE", "GridSettings", "Settings", "installed"),
    "require_packages",
]

OURS: Final = "lit_loader"
REFERENCE: Final = "torch"  # whose time the others' are compared with

CASES: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "transport": ("handing over batches whose samples cost next to nothing", ()),
    "decoding": ("real decoding", ("PIL", "pyarrow")),
    "stragglers": ("1 % of the samples take 50 times as long, 4 workers, in order", ()),
    "busy": ("a consumer that holds the GIL for 5 ms at a time", ()),
    "start": ("time from making a loader to its first batch", ()),
    "workers": ('num_workers="auto" beside fixed numbers, from a start at nothing', ()),
}
"""Case to what it shows, and to packages it imports beyond those of every run."""

LOADERS: Final = (OURS, REFERENCE, "torchdata", "spdl", "grain")
"""Each called as the package it is imported from, and as the distribution that has its version."""


@dataclass(frozen=True)
class GridSettings:
    """What the user's own dataset is measured over."""

    num_workers: tuple[int, ...] = (0, 1, 2, 4)
    prefetch_factor: tuple[int, ...] = (2, 4)  # each with each number of workers
    seconds: float = 2.0  # for each setting in each round, after its first batch
    step_ms: float | None = None  # of a training step; None: the loader alone is asked
    auto: bool = True  # whether num_workers="auto" is measured, too
    threads: bool = True  # whether worker_method="thread" is
    loaders: tuple[str, ...] = (OURS, REFERENCE)

    def __post_init__(self) -> None:
        for name, low in (("num_workers", 0), ("prefetch_factor", 1)):
            values = getattr(self, name)
            if not values or any(type(v) is not int or v < low for v in values):
                must = f"a list of whole numbers of at least {low}"
                refuse(f"grid.{name}", must, list(values))
        for name in ("auto", "threads"):
            if type(getattr(self, name)) is not bool:
                refuse(f"grid.{name}", "true or false", getattr(self, name))
        if not self.seconds > 0:
            refuse("grid.seconds", "more than 0", self.seconds)
        if self.step_ms is not None and not self.step_ms > 0:
            refuse("grid.step_ms", "more than 0 or null", self.step_ms)


@dataclass(frozen=True)
class Settings:
    """How to measure; `from_options` makes it of a configuration, which says what each means."""

    cases: tuple[str, ...]
    loaders: tuple[str, ...]  # all of them are installed
    rows: str | None
    rounds: int
    num_workers: int
    prefetch_factor: int
    quick: bool
    grid: GridSettings

    def __post_init__(self) -> None:
        for name in ("rounds", "num_workers", "prefetch_factor"):
            positive(name, getattr(self, name))

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Settings:
        """Make settings of the options of ``conf/lit_loader/bench``, checked."""
        wanted = options["loaders"]
        loaders = _choose("loader", wanted, LOADERS)
        missing = [name for name in loaders if not installed(name)]
        if missing and wanted is not None:
            raise OptionError(
                f"loader {missing[0]!r} is not installed: pip install {missing[0]}, or leave "
                "it out of loaders"
            )
        grid = dict(options["grid"])
        known_options(grid, [field.name for field in fields(GridSettings)], place="grid.")
        for name in ("num_workers", "prefetch_factor"):
            if not isinstance(grid[name], Sequence) or isinstance(grid[name], str):
                grid[name] = [grid[name]]
            grid[name] = tuple(grid[name])
        if wanted is not None:
            # Those that take torch's options; the others could not be given the user's.
            grid["loaders"] = tuple(name for name in loaders if name not in ("spdl", "grain"))
        return cls(
            cases=tuple(_choose("case", options["cases"], CASES)),
            loaders=tuple(name for name in loaders if name not in missing),
            rows=None if options["rows"] is None else str(options["rows"]),
            rounds=1 if options["quick"] else options["rounds"],
            num_workers=options["num_workers"],
            prefetch_factor=options["prefetch_factor"],
            quick=bool(options["quick"]),
            grid=GridSettings(**grid),
        )

    @property
    def workers(self) -> tuple[int, int]:
        """Workers, and batches in flight for each."""
        return self.num_workers, self.prefetch_factor

    def count(self, full: int, quick: int = 4) -> int:
        """Give a number of batches (or of anything that takes time): ``full``, or ``quick``."""
        return min(full, quick) if self.quick else full


def require_packages(cases: Iterable[str]) -> None:
    """Make sure that what reports and cases import is installed; OptionError says how to.

    Without cases (the user's own dataset) neither pictures nor other loaders are needed.
    """
    modules = ["rich", "psutil", *(m for case in cases for m in ("matplotlib", *CASES[case][1]))]
    missing = [name for name in dict.fromkeys(modules) if not installed(name)]
    if missing:
        named = ", ".join(missing).replace("PIL", "pillow")
        raise OptionError(f"the benchmark needs {named}: pip install {named.replace(',', '')}")


def installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _choose(kind: str, wanted: str | Sequence[str] | None, known: Iterable[str]) -> list[str]:
    """Check names against those there are; each once, in the order asked for; None: all."""
    names = list(known)
    if wanted is None:
        return names
    asked = [wanted] if isinstance(wanted, str) else [str(name) for name in wanted]
    for name in asked:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            advice = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}"
            raise OptionError(f"unknown {kind} {name!r}: {advice}")
    if not asked:
        raise OptionError(f"no {kind} was chosen: name one of {', '.join(names)}, or null for all")
    return list(dict.fromkeys(asked))
