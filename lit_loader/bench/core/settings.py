"""The options of a run, made of its configuration and checked before anything slow is imported.

Made by `bench/runner.py`, read by the cases and the report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from lit_loader.bench.core.names import CASES, LOADERS, choose, installed
from lit_loader.config.checks import known_options
from lit_loader.errors import OptionError

__all__ = ["GridSettings", "Settings"]


@dataclass(frozen=True)
class GridSettings:
    """What the user's own dataset is measured over.

    Attributes:
        num_workers: Numbers of workers to try.
        prefetch_factor: Values to try with each of them; without workers there is none.
        seconds: For each setting in each round, after its first batch.
        step_ms: What a training step takes, in milliseconds; None: the loader alone is asked.
        auto: Whether ``num_workers="auto"`` is measured, too.
        loaders: The loaders that are measured.
    """

    num_workers: tuple[int, ...] = (0, 1, 2, 4)
    prefetch_factor: tuple[int, ...] = (2, 4)
    seconds: float = 2.0
    step_ms: float | None = None
    auto: bool = True
    loaders: tuple[str, ...] = ("lit_loader", "torch")

    def __post_init__(self) -> None:
        for name, low in (("num_workers", 0), ("prefetch_factor", 1)):
            values = getattr(self, name)
            if not values or any(type(v) is not int or v < low for v in values):
                raise OptionError(
                    f"grid.{name} must be a list of whole numbers of at least {low}, "
                    f"got grid.{name}={list(values)}"
                )
        if type(self.auto) is not bool:
            raise OptionError(f"grid.auto must be true or false, got grid.auto={self.auto!r}")
        if not self.seconds > 0:
            raise OptionError(f"grid.seconds must be more than 0, got grid.seconds={self.seconds}")
        if self.step_ms is not None and not self.step_ms > 0:
            raise OptionError(
                f"grid.step_ms must be more than 0 or null, got grid.step_ms={self.step_ms}"
            )


@dataclass(frozen=True)
class Settings:
    """How to measure; `from_options` makes it of a configuration.

    Attributes:
        cases: Cases to run, by name.
        loaders: Loaders to run them with, by name; all of them are installed.
        rows: Only rows whose name holds this text; None: all.
        rounds: Rounds that count, after one that does not.
        num_workers: Persistent workers of every loader where the case does not say otherwise.
        prefetch_factor: Batches in flight for each of them.
        quick: As few batches, and as small things, as show that everything works; the figures
            mean little.
        grid: For the user's own dataset.
    """

    cases: tuple[str, ...]
    loaders: tuple[str, ...]
    rows: str | None = None
    rounds: int = 5
    num_workers: int = 2
    prefetch_factor: int = 2
    quick: bool = False
    grid: GridSettings = GridSettings()

    def __post_init__(self) -> None:
        for name in ("rounds", "num_workers", "prefetch_factor"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise OptionError(
                    f"{name} must be a whole number of at least 1, got {name}={value!r}"
                )

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Settings:
        """Make settings of the options of ``conf/lit_loader/bench``, checked.

        Raises:
            OptionError: A name is unknown, a loader is not installed, or a value is refused.
        """
        wanted = options["loaders"]
        loaders = choose("loader", wanted, LOADERS)
        missing = [name for name in loaders if not installed(LOADERS[name][0])]
        if missing and wanted is not None:
            raise OptionError(
                f"loader {missing[0]!r} is not installed: pip install 'lit_loader[bench]', "
                "or leave it out of loaders"
            )
        grid = dict(options["grid"])
        known_options(grid, [field.name for field in fields(GridSettings)], place="grid.")
        for name in ("num_workers", "prefetch_factor"):
            if not isinstance(grid[name], Sequence) or isinstance(grid[name], str):
                grid[name] = [grid[name]]
            grid[name] = tuple(grid[name])
        if wanted is not None:
            # The loaders that take torch's options; the others could not be given the user's.
            grid["loaders"] = tuple(n for n in loaders if n in ("lit_loader", "torch", "torchdata"))
        return cls(
            cases=tuple(choose("case", options["cases"], CASES)),
            loaders=tuple(name for name in loaders if name not in missing),
            rows=None if options["rows"] is None else str(options["rows"]),
            rounds=1 if options["quick"] else options["rounds"],
            num_workers=options["num_workers"],
            prefetch_factor=options["prefetch_factor"],
            quick=bool(options["quick"]),
            grid=GridSettings(**grid),
        )

    def count(self, full: int, quick: int = 4) -> int:
        """Give a number of batches (or of anything that takes time): ``full``, or ``quick``."""
        return min(full, quick) if self.quick else full
