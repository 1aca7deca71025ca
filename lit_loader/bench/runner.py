"""One run of the benchmark: plans the rows, measures them under a progress bar, reports.

Called by `bench/app.py` with its configuration; returns the exit code. Ctrl-C keeps what there is::

    options ─▶ Settings ─▶ rows of the chosen cases ─▶ Session.measurements ─▶ table as each case
               (checked)   or the grid of a dataset         │                  ends; at the end
                                                            ╰─ Ctrl-C ─────▶   JSON, CSV, PNG, check
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lit_loader.bench.settings import Settings, installed, require_packages
from lit_loader.diagnostics.sentences import duration
from lit_loader.errors import OptionError

if TYPE_CHECKING:
    from rich.console import Console

    from lit_loader.bench.grid import Grid
    from lit_loader.bench.rounds import Rows, Session

__all__ = ["run"]

SAY_EVERY: Final = 10.0
"""Seconds between two lines about the progress, where there is no bar."""


def run(cfg: Any, directory: Path) -> int:
    """Measure what a configuration asks for, as ``conf/lit_loader/bench`` has it.

    Gives the exit code. OptionError: options are refused, or something is not installed.
    """
    from omegaconf import OmegaConf

    own = {key: cfg[key] for key in cfg if key not in ("dataset", "loader")}
    options: Any = OmegaConf.to_container(OmegaConf.create(own), resolve=True)
    settings = Settings.from_options(options)
    own_dataset = _own_dataset(cfg.dataset)
    require_packages(settings.cases if own_dataset is None else ())

    import torch
    from rich.console import Console

    from lit_loader.bench import report
    from lit_loader.bench.grid import Grid
    from lit_loader.bench.loaders import LOADERS
    from lit_loader.bench.machine import describe
    from lit_loader.bench.rounds import Session

    earlier = None if options["check"] is None else report.read(Path(options["check"]))
    names = settings.loaders if own_dataset is None else settings.grid.loaders
    session = Session(settings, {name: LOADERS[name] for name in names})
    grid = None if own_dataset is None else Grid(own_dataset, cfg.loader, session)
    machine = describe(names)
    console = Console(width=_width())
    threads = torch.get_num_threads()
    with warnings.catch_warnings():
        # Wanted: more workers than processors, in every case but few. And torchdata's own affair.
        for message in ("This DataLoader will create", "'set_vital' is deprecated"):
            warnings.filterwarnings("ignore", message=message)
        # What torch makes of its own workers. Forked workers of other loaders inherit it.
        torch.set_num_threads(1)
        try:
            report.header(console, machine, settings, grid)
            interrupted = _measure(session, console, grid)
        finally:
            torch.set_num_threads(threads)
    directory.mkdir(parents=True, exist_ok=True)
    written = report.write(directory, machine, session.measurements, grid, interrupted)
    if installed("matplotlib"):
        from lit_loader.bench import plots

        written += plots.write(directory, session.measurements, grid)
    lines, code = [f"\nwritten to {directory}: {', '.join(written)}"], 0
    if interrupted:
        code = 130  # as shells have it
    elif earlier is not None:
        checks, worse = report.compare(earlier, session.measurements, options["tolerance"])
        lines, code = lines + checks, int(worse)
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return code


def _own_dataset(node: Any) -> Any:
    """What makes the user's dataset, as ``dataset`` says; None: the cases are measured.

    ``dataset=my.Data`` is short for ``dataset._target_=my.Data``.
    """
    if isinstance(node, str):
        return {"_target_": node}
    if node is None or node.get("_target_") is not None:
        return node
    if given := [key for key in node if key != "_target_"]:
        raise OptionError(
            f"dataset has {', '.join(given)}, and no class: write dataset._target_=my.Dataset "
            f"+dataset.{given[0]}=…"
        )
    return None


def _measure(session: Session, console: Console, grid: Grid | None) -> bool:
    """Measure the cases, or the user's dataset if there is one, and print the tables.

    Gives whether it was interrupted.
    """
    from lit_loader.bench import report

    interrupted, case = False, ""
    try:
        if grid is not None:
            with _progress("your dataset", session):
                grid.measure()
        else:
            for case, rows in _plan(session.settings).items():
                with _progress(case, session) as say:
                    for number, (name, measure) in enumerate(rows.items(), 1):
                        say(f"{number}/{len(rows)} {name} · ")
                        measure(name, session)
                report.show_case(console, case, session.measurements)
    except KeyboardInterrupt:
        interrupted = True
        console.print("\ninterrupted: what was measured so far follows", style="yellow")
        report.show_case(console, case, session.measurements)
    if grid is not None:
        report.show_grid(console, grid)
    return interrupted


def _plan(settings: Settings) -> dict[str, Rows]:
    from lit_loader.bench.cases import ROWS

    wanted = settings.rows
    plan = {
        case: {name: run for name, run in ROWS[case](settings).items() if (wanted or "") in name}
        for case in settings.cases
    }
    if not any(plan.values()):
        raise OptionError(
            f"no row of {', '.join(plan)} has {wanted!r} in its name: give a part of one, or "
            "rows=null for all"
        )
    return {case: rows for case, rows in plan.items() if rows}


@contextlib.contextmanager
def _progress(title: str, session: Session) -> Iterator[Callable[[str], None]]:
    """A progress bar on stderr, gone when done; gives what says which row is measured.

    Where stderr is no terminal there is a line every ten seconds instead.
    """
    if not sys.stderr.isatty():
        lines = _Lines(title)
        session.tick, session.expect = lines.tick, lines.expect
        yield lines.say
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    with Progress(
        TextColumn(title),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[row]}{task.description}", markup=False),
        console=Console(stderr=True),
        transient=True,
        auto_refresh=False,  # no thread that draws beside what is measured: drawn between turns
    ) as progress:
        task = progress.add_task("", row="", total=0)
        session.tick = lambda who: progress.update(task, description=who, advance=1, refresh=True)
        session.expect = lambda turns: progress.update(
            task, total=(progress.tasks[task].total or 0) + turns
        )
        yield lambda row: progress.update(task, row=row)


class _Lines:
    """Progress as plain lines: what is measured, how much is done, how long the rest takes."""

    def __init__(self, title: str) -> None:
        self._title, self._row, self._done, self._total = title, "", -1, 0
        self._began = self._said = time.monotonic()

    def say(self, row: str) -> None:
        """Another row begins."""
        self._row = row

    def expect(self, turns: int) -> None:
        """So many turns more are to come."""
        self._total += turns

    def tick(self, who: str) -> None:
        """A turn begins, and the one before has ended."""
        self._done += 1
        now = time.monotonic()
        if self._done and now - self._said < SAY_EVERY:
            return
        self._said, left = now, ""
        if self._done:
            each = (now - self._began) / self._done
            left = f", about {duration(each * (self._total - self._done))} left"
        turns = f"{self._done} of {self._total} turns{left}"
        print(f"{self._title}: {turns} · {self._row}{who}", file=sys.stderr, flush=True)


def _width() -> int | None:
    """Columns to print; None: those of the terminal. A file or pipe gets enough for the tables."""
    if os.environ.get("COLUMNS", "").isdigit():
        return int(os.environ["COLUMNS"])
    return None if os.isatty(1) else 140
