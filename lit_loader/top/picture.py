"""Trainings drawn for a terminal, by rich.

::

    training ─┬─ a table of its loaders, one line each, ranks below each other
              ├─ the workers of each, loaders side by side where there is room
              ├─ what stands out; what limits in the long run; the stacks that were asked for
              ╰─ the last restarts and bad samples
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from lit_loader.diagnostics.sentences import duration
from lit_loader.top.snapshot import Loader, Training, Worker

__all__ = ["KEYS", "picture"]

KEYS: Final = "q quit   s show the Python stacks of stalled workers   c clear"

_SIDE_BY_SIDE: Final = 66  # columns that a table of workers needs at least
_ROWS: Final = 8  # workers of a loader that are shown while it runs

_EVENTS: Final = 3
_FINDINGS: Final = 6
_STYLES: Final = {"dead": "bold red", "idle": "dim", "starting": "cyan", "worker_init_fn": "cyan"}
_OLD: Final = 2.0  # seconds from which on the age of a loader's figures is remarked upon


def picture(trainings: Sequence[Training], width: int, live: bool = False) -> RenderableType:
    """Draw trainings for a terminal of so many columns; the workers where it is only one.

    While it is ``live``: which keys there are, and the workers that something is the matter with.
    """
    parts: list[RenderableType] = [Text(KEYS, style="dim", no_wrap=True)] if live else []
    for training in trainings:
        parts += [_title(training, width), _loaders(training, width)]
        if len(trainings) == 1:
            parts += [Text(""), *_workers(training, width, _ROWS if live else None), Text("")]
        parts += _sentences(training)
        if len(trainings) == 1:
            parts += [*_stacks(training), *_events(training, width)]
    if len(trainings) > 1:
        parts.append(Text("lit-loader-top PID shows the workers of one", style="dim"))
    return Group(*parts)


def _plain(text: str) -> str:
    """Leave out what a terminal would take for a command."""
    return "".join(sign if sign.isprintable() else " " for sign in text)


def _bytes(nbytes: int | None) -> str:
    if nbytes is None:
        return "–"
    if nbytes < 10 << 30:
        return f"{nbytes / 2**20:,.0f} MB" if nbytes >= 10 << 20 else f"{nbytes / 2**20:.1f} MB"
    return f"{nbytes / 2**30:,.1f} GB"


def _shown(value: Any, form: str = "") -> str:
    return "–" if value is None else format(value, form)


def _title(training: Training, width: int) -> Text:
    when = time.strftime("%H:%M:%S")
    title = Text(no_wrap=True, overflow="ellipsis")
    title.append(f"pid {training.pid}", style="bold")
    title.append(f"  {_plain(training.command)}")
    title.truncate(max(10, width - len(when) - 2), overflow="ellipsis", pad=True)
    return title.append(f"  {when}", style="dim")


_Column = tuple[str, int, Callable[[Any], str | Text]]
"""Its name, how wide the table must be for it, what is in its cells."""


def _table(first: Sequence[str], columns: Sequence[_Column], width: int) -> Table:
    table = Table(box=None, header_style="underline", pad_edge=False, padding=(0, 1))
    for name in [*first, *(name for name, least, _ in columns if width >= least)]:
        table.add_column(
            name,
            justify="left" if name in ("loader", "stage", "") else "right",
            no_wrap=True,
            overflow="ellipsis",
            max_width=None if name != "loader" else 40 if width >= 100 else 20,
        )
    return table


def _cells(of: Loader | Worker, columns: Sequence[_Column], width: int) -> list[str | Text]:
    return [cell(of) for _, least, cell in columns if width >= least]


def _name(loader: Loader) -> Text:
    text = Text(_plain(loader.role), style="bold")
    return text.append(f"{' ' if loader.role else ''}{_plain(loader.dataset)}", style="default")


def _rate(loader: Loader) -> str:
    return ",.1f" if (loader.batches_per_second or 0) < 100 else ",.0f"


def _wait(loader: Loader) -> Text:
    if loader.state == "waiting" and (loader.state_seconds or 0) >= 1:
        return Text(f"for {duration(loader.state_seconds or 0)}", style="bold red")
    if loader.state == "idle":
        return Text("idle", style="dim")
    return Text(
        _shown(loader.wait_share, ".0%"), "yellow" if (loader.wait_share or 0) >= 0.1 else ""
    )


def _workers_of(loader: Loader) -> str:
    return f"{loader.num_workers}{f'+{len(loader.nodes)} nodes' if loader.remote_workers else ''}"


def _fault(number: int, style: str) -> Text:
    return Text(f"{number:,}", style if number else "dim")


_LOADER: Final[Sequence[_Column]] = (
    ("loader", 0, _name),
    ("epoch", 0, lambda each: str(each.epoch)),
    ("batch", 0, lambda each: f"{each.batches:,}" + (f"/{each.length:,}" if each.length else "")),
    ("/s", 0, lambda each: _shown(each.batches_per_second, _rate(each))),
    ("wait", 0, _wait),
    ("ready", 0, lambda each: f"{each.ready}/{each.ahead}"),
    ("of how many", 100, lambda each: _shown(each.batch_size, ",")),
    ("workers", 100, _workers_of),
    ("shared", 100, lambda each: _bytes(each.shared_memory)),
    ("restarts", 70, lambda each: _fault(each.restarts, "red")),
    ("bad", 70, lambda each: _fault(each.bad_samples, "yellow")),
)


def _loaders(training: Training, width: int) -> Table:
    ranks = len(training.ranks) > 1
    room = width - 20 if ranks and width < 100 else width
    table = _table(("rank", "pid") if ranks else (), _LOADER, room)
    for rank in training.ranks:
        first = [_shown(rank.rank), str(rank.pid)] if ranks else []
        for loader in rank.loaders:
            known = loader.problem is None
            cells = _cells(loader, _LOADER, room) if known else [Text("?", "yellow")]
            table.add_row(*first, *cells)
        if not rank.loaders:
            table.add_row(*first, Text("no loader at this moment", style="dim"))
    return table


_WORKER: Final[Sequence[_Column]] = (
    ("pid", 76, lambda each: _shown(each.pid)),
    ("stage", 0, lambda each: f"{each.stage} {_plain(each.node or '').partition('.')[0]}".strip()),
    ("batch", 0, lambda each: _shown(each.batch, ",")),
    ("sample", 0, lambda each: _shown(each.sample, ",")),
    ("index", 0, lambda each: _shown(each.index)),
    ("for", 0, lambda each: "–" if each.seconds is None else duration(each.seconds)),
    ("cpu", 0, lambda each: _shown(each.cpu, ".0%")),
    ("memory", 0, lambda each: _bytes(each.memory)),
    ("made", 90, lambda each: f"{each.made:,}"),
    ("", 90, lambda each: each.doing or ""),
)


def _workers(training: Training, width: int, rows: int | None) -> list[RenderableType]:
    """The workers of each loader; side by side where several fit."""
    pairs = [(rank, loader) for rank in training.ranks for loader in rank.loaders]
    known = [(rank, loader) for rank, loader in pairs if loader.problem is None]
    beside = min(max(1, width // _SIDE_BY_SIDE), max(1, len(known)))
    tables: list[RenderableType] = []
    for rank, loader in known:
        table = _worker_table(loader, width // beside - (beside > 1), rows)
        if len(known) > 1:
            number = "" if rank.rank is None else f"rank {rank.rank}  "
            table.title, table.title_justify = Text(number).append_text(_name(loader)), "left"
        tables.append(table)
    return [Columns(tables, padding=(0, 1))] if beside > 1 else tables


def _worker_table(loader: Loader, width: int, rows: int | None) -> Table:
    table = _table(("worker",), _WORKER, width)
    # Those first that something is the matter with.
    shown = sorted(loader.workers, key=lambda each: (each.stage != "dead", not each.stalled))[:rows]
    for worker in sorted(shown, key=lambda each: each.worker):
        style = _STYLES.get(worker.stage, "bold yellow" if worker.stalled else "")
        table.add_row(str(worker.worker), *_cells(worker, _WORKER, width), style=style)
    if len(shown) < len(loader.workers):
        table.caption = Text(f"and {len(loader.workers) - len(shown)} more", style="dim")
    return table


def _sentences(training: Training) -> Iterator[Text]:
    """What stands out in each loader, what it says itself, and how old its figures are."""
    several = len(training.loaders()) > 1
    for rank in training.ranks:
        for loader in rank.loaders:
            names = ["" if rank.rank is None else f"rank {rank.rank}"]
            names.append(loader.role or loader.dataset)
            where = ", ".join(name for name in names if name) + ": " if several else ""
            texts = loader.findings if loader.problem is None else [loader.problem]
            for text in texts[:_FINDINGS]:
                yield Text(f"▲ {where}{_plain(text)}", style="yellow")
            if loader.verdict:
                text = f"  {where}so far: {_plain(loader.verdict)}"
                if loader.age >= _OLD:
                    text += f" (figures of {duration(loader.age)} ago; workers are live)"
                yield Text(text)


def _stacks(training: Training) -> Iterator[Text]:
    for worker in [each for loader in training.loaders() for each in loader.workers]:
        if worker.stack is None and worker.stack_problem is None:
            continue
        when = time.strftime("%H:%M:%S", time.localtime(worker.stack_time))
        text = Text(f"\nPython stack of worker {worker.worker}, at {when}\n", style="bold")
        if worker.stack_problem is not None:
            text.append(f"  {_plain(worker.stack_problem)}\n", style="not bold yellow")
        elif not worker.stack:
            text.append("  there is no Python code in it\n", style="not bold dim")
        for frame in worker.stack or ():
            mark, style = ("▶ ", "bold reverse yellow") if frame.user else ("  ", "not bold")
            where = f"{mark}{frame.file}:{frame.line} in {frame.function}"
            text.append(f"{_plain(where)}\n", style=style)
            if frame.code:
                text.append(f"      {_plain(frame.code)}\n", style=style)
        yield text


def _events(training: Training, width: int) -> Iterator[Text]:
    events = [event for loader in training.loaders() for event in loader.events]
    for event in sorted(events, key=lambda event: event.time)[-_EVENTS:]:
        when = time.strftime("%H:%M:%S", time.localtime(event.time))
        text = Text(f"{when} {event.kind}: ", style="red" if event.kind == "restart" else "yellow")
        text.append(_plain(event.text), style="default")
        text.truncate(2 * width - 10, overflow="ellipsis")
        yield text
