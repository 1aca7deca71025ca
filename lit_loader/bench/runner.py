"""One run of the benchmark: plans the rows, measures them under a progress bar, reports.

Called by `bench/app.py` with its configuration; returns the exit code. Ctrl-C keeps what there is::

    options ─▶ Settings ─▶ rows of the chosen cases ─▶ Session.measurements ─▶ table as each case
               (checked)   or the grid of a dataset         │                  ends; at the end
                                                            ╰─ Ctrl-C ─────▶   JSON, CSV, PNG, check
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lit_loader.bench.core.names import CASES, require_packages
from lit_loader.bench.core.settings import Settings
from lit_loader.errors import OptionError

if TYPE_CHECKING:
    from rich.console import Console

    from lit_loader.bench.measure.session import Row, Session
    from lit_loader.bench.own_dataset.grid import Grid

__all__ = ["run"]

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""


def run(cfg: Any, directory: Path) -> int:
    """Measure what a configuration asks for.

    Args:
        cfg: As ``conf/lit_loader/bench`` has it (a DictConfig).
        directory: Where files are written.

    Returns:
        The exit code.

    Raises:
        OptionError: Options are refused, or something is not installed.
    """
    from omegaconf import OmegaConf

    own = {key: cfg[key] for key in cfg if key not in ("dataset", "loader")}
    options: Any = OmegaConf.to_container(OmegaConf.create(own), resolve=True)
    settings = Settings.from_options(options)
    wanted = cfg.dataset.get("_target_") is not None
    require_packages([] if wanted else settings.cases)
    earlier = None if options["check"] is None else _earlier(Path(options["check"]))
    with warnings.catch_warnings():
        # Wanted: more workers than processors, in every case but few. And torchdata's own affair.
        for message in ("This DataLoader will create", "'set_vital' is deprecated"):
            warnings.filterwarnings("ignore", message=message)
        return _Run(settings, directory, cfg if wanted else None).go(earlier, options["tolerance"])


def _earlier(path: Path) -> Mapping[str, Any]:
    """The report of a run to compare with."""
    from lit_loader.bench.report.check import FORMAT

    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise OptionError(f"check cannot be read: {error}, got check={path}") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise OptionError(
            f"check must be a results.json of this benchmark (format {FORMAT}), got check={path}"
        )
    return found


class _Run:
    """One run and what it prints.

    Args:
        settings: The options.
        directory: Where files are written.
        user: The configuration, if the user's own dataset is to be measured; else None.
    """

    def __init__(self, settings: Settings, directory: Path, user: Any) -> None:
        import torch
        from rich.console import Console

        from lit_loader.bench.loaders.adapters import adapters
        from lit_loader.bench.measure.machine import describe
        from lit_loader.bench.measure.session import Session

        # What torch makes of its own workers. Forked workers of other loaders inherit it.
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        self._restore = functools.partial(torch.set_num_threads, threads)
        self._directory, self._settings, self._user = directory, settings, user
        self._console: Console = Console(width=_width())
        every = adapters()
        names = settings.grid.loaders if user is not None else settings.loaders
        chosen = {name: every[name] for name in names}
        self._machine = describe(chosen)
        self._session: Session = Session(settings, chosen)
        self._grid: Grid | None = None

    def go(self, earlier: Mapping[str, Any] | None, tolerance: float) -> int:
        """Measure, print, write, compare; returns the exit code."""
        from lit_loader.bench.report import console, files, plots

        console.header(self._console, self._machine, self._settings)
        interrupted = False
        try:
            self._measure()
        except KeyboardInterrupt:
            interrupted = True
        finally:
            self._restore()
        if interrupted:
            self._console.print("\ninterrupted: what was measured so far follows", style="yellow")
        session = self._session
        if self._grid is not None:
            console.grid(self._console, self._grid)
        elif interrupted:
            self._tables([session.measurements[-1].case] if session.measurements else [])
        self._directory.mkdir(parents=True, exist_ok=True)
        written = files.write(
            self._directory, self._machine, session.measurements, self._grid, interrupted
        )
        written += plots.write(self._directory, session.measurements, self._grid)
        console.written(self._console, self._directory, written)
        if interrupted:
            return INTERRUPTED
        return 0 if earlier is None else self._check(earlier, tolerance)

    def _measure(self) -> None:
        if self._user is None:
            self._measure_cases()
            return
        from lit_loader.bench.own_dataset.grid import Grid

        grid = Grid.from_config(self._user, self._session)
        self._grid = grid
        with self._progress("your dataset") as (task, step):
            self._session.tick = lambda what: task(what, 1)
            self._session.expect = step
            grid.measure()

    def _measure_cases(self) -> None:
        for case, rows in self._plan().items():
            with self._progress(case) as (task, step):
                for number, row in enumerate(rows, 1):
                    place = f"{number}/{len(rows)} {row.name}"
                    self._session.tick = lambda who, place=place: task(f"{place} · {who}", 1)  # type: ignore[misc]
                    self._session.expect = step
                    row.run(self._session)
            self._tables([case])

    def _plan(self) -> dict[str, list[Row]]:
        """The rows that are measured, by case."""
        wanted, plan = self._settings.rows, {}
        for case in self._settings.cases:
            module = importlib.import_module(f"lit_loader.bench.cases.{case}")
            rows: list[Row] = module.rows(self._settings)
            plan[case] = [row for row in rows if wanted is None or wanted in row.name]
        if not any(plan.values()):
            raise OptionError(
                f"no row of {', '.join(plan)} has {wanted!r} in its name: give a part of one, or "
                "rows=null for all"
            )
        return {case: rows for case, rows in plan.items() if rows}

    def _tables(self, cases: Sequence[str]) -> None:
        from lit_loader.bench.report import console

        for case in cases:
            found = [m for m in self._session.measurements if m.case == case]
            if found:
                console.table(self._console, CASES[case].title, found)

    def _check(self, earlier: Mapping[str, Any], tolerance: float) -> int:
        from lit_loader.bench.report import check

        lines, worse = check.compare(earlier, self._session.measurements, tolerance)
        for line in lines:
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)
        return 1 if worse else 0

    @contextmanager
    def _progress(self, title: str) -> Iterator[Any]:
        """A progress bar on stderr, gone when done; gives functions to advance and lengthen it."""
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        with Progress(
            TextColumn("{task.fields[title]}"),
            BarColumn(bar_width=24),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False),
            console=Console(stderr=True),
            transient=True,
            # No thread that draws beside what is measured: it is drawn between turns.
            auto_refresh=False,
        ) as progress:
            task = progress.add_task("", title=title, total=0)
            total = 0

            def advance(what: str, steps: int) -> None:
                progress.update(task, description=what, advance=steps, refresh=True)

            def lengthen(steps: int) -> None:
                nonlocal total
                total += steps
                progress.update(task, total=total)

            yield advance, lengthen


def _width() -> int | None:
    """Columns to print; None: those of the terminal. A file or pipe gets enough for the tables."""
    if os.environ.get("COLUMNS", "").isdigit():
        return int(os.environ["COLUMNS"])
    return None if os.isatty(1) else 140
