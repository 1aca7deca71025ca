"""One run of the benchmark: plans the rows, measures them, reports.

Called by `bench/app.py` with its configuration; returns the exit code. Ctrl-C keeps what there is::

    options ─▶ Settings ─▶ rows of the chosen cases ─▶ Session.measurements ─▶ table as each case
               (checked)   or the grid of a dataset         │                  ends; at the end
                                                            ╰─ Ctrl-C ─────▶   JSON, CSV
"""

from __future__ import annotations

import shutil
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lit_loader.bench.settings import Settings, require_packages
from lit_loader.errors import OptionError

if TYPE_CHECKING:
    from lit_loader.bench.rounds import Rows, Session

__all__ = ["run"]


def run(cfg: Any, directory: Path) -> int:
    """Measure what a configuration asks for, as ``conf/lit_loader/bench`` has it.

    Gives the exit code. OptionError: options are refused, or something is not installed.
    """
    from omegaconf import OmegaConf

    own = {key: cfg[key] for key in cfg if key not in ("dataset", "loader")}
    options: Any = OmegaConf.to_container(OmegaConf.create(own), resolve=True)
    settings = Settings.from_options(options)
    user = cfg if cfg.dataset.get("_target_") is not None else None
    require_packages(() if user is not None else settings.cases)

    import torch

    from lit_loader.bench import report
    from lit_loader.bench.loaders import LOADERS
    from lit_loader.bench.machine import describe
    from lit_loader.bench.rounds import Session

    names = settings.loaders if user is None else settings.grid.loaders
    session = Session(settings, {name: LOADERS[name] for name in names})
    machine = describe(names)
    threads = torch.get_num_threads()
    with warnings.catch_warnings():
        # Wanted: more workers than processors, in every case but few. And torchdata's own affair.
        for message in ("This DataLoader will create", "'set_vital' is deprecated"):
            warnings.filterwarnings("ignore", message=message)
        # What torch makes of its own workers. Forked workers of other loaders inherit it.
        torch.set_num_threads(1)
        try:
            report.header(machine, settings)
            interrupted, grid = _measure(session, user)
        finally:
            torch.set_num_threads(threads)
    directory.mkdir(parents=True, exist_ok=True)
    written = report.write(directory, machine, session.measurements, grid, interrupted)
    print(f"\nwritten to {directory}: {', '.join(written)}")
    return 130 if interrupted else 0  # as shells have it


def _measure(session: Session, user: Any) -> tuple[bool, Any]:
    """Measure the cases, or the user's dataset if there is one, and print the tables.

    Gives whether it was interrupted, and the `Grid` of the user's dataset.
    """
    from lit_loader.bench import report
    from lit_loader.bench.grid import Grid

    grid = None if user is None else Grid(user, session)
    interrupted, case = False, ""
    try:
        if grid is not None:
            session.tick = partial(_say, "your dataset")
            grid.measure()
        else:
            for case, rows in _plan(session.settings).items():
                for number, (name, measure) in enumerate(rows.items(), 1):
                    session.tick = partial(_say, f"{case}, {number}/{len(rows)} {name}")
                    measure(name, session)
                _say()
                report.show_case(case, session.measurements)
    except KeyboardInterrupt:
        interrupted = True
        _say()
        print("\ninterrupted: what was measured so far follows")
        report.show_case(case, session.measurements)
    if grid is not None:
        _say()
        report.show_grid(grid)
    return interrupted, grid


def _plan(settings: Settings) -> dict[str, Rows]:
    """The rows that are measured, by case."""
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


def _say(*parts: str) -> None:
    """Say on a terminal what is measured now, in a line that is written over and over."""
    if sys.stderr.isatty():
        text = " · ".join(parts)[: shutil.get_terminal_size().columns - 1]
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
