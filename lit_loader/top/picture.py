"""Trainings drawn for a terminal, by rich.

::

    training ─┬─ a table of its loaders, one line each, ranks below each other
              ├─ the workers of each, loaders side by side where there is room
              ├─ what stands out; the stacks that were asked for
              ╰─ the last restarts and bad samples
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from rich.columns import Columns
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from lit_loader.top.findings import duration, who
from lit_loader.top.snapshot import Event, Loader, Rank, Training, Worker

__all__ = ["KEYS", "picture"]

KEYS: Final = "q quit   ↑ ↓ choose a worker   s show its Python stack   c clear"

_SIDE_BY_SIDE: Final = 66
"""Columns that a table of workers needs at least."""

_EVENTS: Final = 3
_FINDINGS: Final = 6
_STYLES: Final = {"dead": "bold red", "idle": "dim", "starting": "cyan", "worker_init_fn": "cyan"}


def _plain(text: str) -> str:
    """Leave out what a terminal would take for a command."""
    return "".join(sign if sign.isprintable() else " " for sign in text)


def _bytes(nbytes: int | None) -> str:
    if nbytes is None:
        return "–"
    if nbytes < 10 << 30:
        return f"{nbytes / 2**20:,.0f} MB" if nbytes >= 10 << 20 else f"{nbytes / 2**20:.1f} MB"
    return f"{nbytes / 2**30:,.1f} GB"


def _share(share: float | None) -> str:
    return "–" if share is None else f"{share:.0%}"


def _count(number: float | None) -> str:
    return "–" if number is None else f"{number:,}"


def picture(
    trainings: Sequence[Training],
    width: int,
    height: int | None = None,
    chosen: int | None = None,
    keys: bool = False,
) -> RenderableType:
    """Draw trainings.

    Args:
        trainings: What to draw; the workers are shown where it is only one.
        width: Columns of the terminal.
        height: Lines of it; None: as many as are needed.
        chosen: Process of the worker that is chosen, or None.
        keys: Whether to say which keys there are.
    """
    parts: list[RenderableType] = []
    for training in trainings:
        parts += [_title(training, width), _loaders(training, width)]
        if len(trainings) == 1:
            room = None if height is None else height - _lines_besides(training, keys)
            parts += [Text(""), *_workers(training, width, room, chosen), Text("")]
        parts += [*_findings(training)]
        if len(trainings) == 1:
            parts += [*_stacks(training), *_events(training, width)]
    if len(trainings) > 1:
        parts.append(Text("lit-loader-top PID shows the workers of one", style="dim"))
    last = [Text(KEYS, style="dim")] if keys else []
    return Group(*parts, *last) if height is None else _Cut(Group(*parts), last, height)


class _Cut:
    """What fits on a terminal, and how much does not."""

    def __init__(self, whole: RenderableType, last: Sequence[Text], height: int) -> None:
        self._whole, self._last, self._height = whole, last, height

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(self._whole, options.update(height=None), pad=False)
        room = max(0, self._height - len(self._last))
        cut = len(lines) > room
        for line in lines[: max(0, room - 1)] if cut else lines:
            yield from line
            yield Segment.line()
        if cut:
            more = len(lines) - max(0, room - 1)
            text = f"▼ {more} more lines: a taller window shows them, or --once"
            yield Text(text, style="bold yellow", no_wrap=True, overflow="ellipsis")
        yield from self._last


def _lines_besides(training: Training, keys: bool) -> int:
    """About how many lines all takes but the workers; long ones are cut by the terminal."""
    loaders = training.loaders()
    findings = sum(min(_FINDINGS, len(loader.findings)) for loader in loaders)
    stacks = sum(
        3 + 2 * len(worker.stack or ()) for loader in loaders for worker in loader.workers
        if worker.stack is not None or worker.stack_problem
    )  # fmt: skip
    events = min(_EVENTS, sum(len(loader.events) for loader in loaders))
    return 8 + len(loaders) + 2 * findings + stacks + 2 * events + keys


def _title(training: Training, width: int) -> Text:
    when = time.strftime("%H:%M:%S")
    command = _plain(training.command)
    title = Text(no_wrap=True, overflow="ellipsis")
    title.append(f"pid {training.pid}", style="bold")
    title.append(f"  {command}")
    title.truncate(max(10, width - len(when) - 2), overflow="ellipsis", pad=True)
    title.append(f"  {when}", style="dim")
    return title


def _loaders(training: Training, width: int) -> Table:
    """A line for each loader of each rank."""
    ranks = len(training.ranks) > 1
    wide = width >= 100
    table = Table(box=None, header_style="underline", pad_edge=False, padding=(0, 1), expand=False)
    if ranks:
        table.add_column("rank", justify="right")
        table.add_column("pid", justify="right")
    table.add_column("loader", overflow="ellipsis", no_wrap=True, max_width=40 if wide else 20)
    table.add_column("epoch", justify="right")
    table.add_column("batch", justify="right", no_wrap=True)
    table.add_column("/s", justify="right")
    table.add_column("wait", justify="right")
    table.add_column("ready", justify="right")
    if wide:
        table.add_column("of how many", justify="right")
        table.add_column("workers", justify="right")
        table.add_column("shared", justify="right", no_wrap=True)
    if not ranks or wide:
        table.add_column("restarts", justify="right")
        table.add_column("bad", justify="right")
    for rank in training.ranks:
        first = [_count(rank.rank), str(rank.pid)] if ranks else []
        for loader in rank.loaders:
            table.add_row(*first, *_loader_cells(loader, wide, not ranks or wide))
        if not rank.loaders:
            table.add_row(*first, Text("no loader at this moment", style="dim"))
    return table


def _name(loader: Loader) -> Text:
    text = Text(_plain(loader.role), style="bold")
    return text.append(f"{' ' if loader.role else ''}{_plain(loader.dataset)}", style="default")


def _loader_cells(loader: Loader, wide: bool, faults: bool) -> list[RenderableType]:
    if loader.problem is not None:
        return [Text("?", style="yellow")]
    wait = Text(_share(loader.wait_share))
    if loader.state == "waiting" and (loader.state_seconds or 0) >= 1:
        wait = Text(f"for {duration(loader.state_seconds or 0)}", style="bold red")
    elif loader.state == "idle":
        wait = Text("idle", style="dim")
    elif (loader.wait_share or 0) >= 0.1:
        wait.stylize("yellow")
    of = "" if loader.length is None else f"/{loader.length:,}"
    rate = loader.batches_per_second
    cells: list[RenderableType] = [
        _name(loader),
        str(loader.epoch),
        f"{loader.batches:,}{of}",
        "–" if rate is None else f"{rate:,.1f}" if rate < 100 else f"{rate:,.0f}",
        wait,
        f"{loader.ready}/{loader.ahead}",
    ]
    if wide:
        elsewhere = f"+{len(loader.nodes)} nodes" if loader.remote_workers else ""
        cells += [_count(loader.batch_size), f"{loader.num_workers}{elsewhere}"]
        cells.append(_bytes(loader.shared_memory))
    if faults:
        for number, style in ((loader.restarts, "red"), (loader.bad_samples, "yellow")):
            cells.append(Text(f"{number:,}", style=style if number else "dim"))
    return cells


def _workers(
    training: Training, width: int, room: int | None, chosen: int | None
) -> list[RenderableType]:
    """The workers of each loader; side by side where several fit."""
    known = [
        (rank, loader)
        for rank in training.ranks
        for loader in rank.loaders
        if loader.problem is None
    ]
    beside = min(max(1, width // _SIDE_BY_SIDE), max(1, len(known)))
    each = width // beside - (beside > 1)
    rows = None if room is None else max(2, room // max(1, -(-len(known) // beside)) - 4)
    tables = [
        _worker_table(rank, loader, each, rows, chosen, len(known) > 1) for rank, loader in known
    ]
    return [Columns(tables, padding=(0, 1))] if beside > 1 else [*tables]


def _worker_table(
    rank: Rank, loader: Loader, width: int, rows: int | None, chosen: int | None, named: bool
) -> Table:
    table = Table(
        box=None, header_style="underline", pad_edge=False, padding=(0, 1), title_justify="left"
    )
    if named:
        number = "" if rank.rank is None else f"rank {rank.rank}  "
        table.title = Text(number).append_text(_name(loader))
    wide = width >= 76
    table.add_column("worker", justify="right")
    if wide:
        table.add_column("pid", justify="right")
    table.add_column("stage", no_wrap=True, overflow="ellipsis")
    table.add_column("batch", justify="right")
    table.add_column("sample", justify="right")
    table.add_column("index", justify="right")
    table.add_column("for", justify="right", no_wrap=True)
    table.add_column("cpu", justify="right")
    table.add_column("memory", justify="right", no_wrap=True)
    if width >= 90:
        table.add_column("made", justify="right")
        table.add_column("", no_wrap=True, overflow="ellipsis")
    shown = _notable(loader.workers, rows)
    for worker in shown:
        mark = "›" if chosen is not None and worker.pid == chosen else ""
        style = _STYLES.get(worker.stage, "bold yellow" if worker.stalled else "")
        stage = worker.stage
        if worker.node:
            stage = f"{stage} {_plain(worker.node).partition('.')[0]}"
        number = "–" if worker.worker < 0 else str(worker.worker)
        cells = [f"{mark}{number}", *([_plain_pid(worker)] if wide else []), stage]
        cells += [_count(worker.batch), _count(worker.sample)]
        cells.append("–" if worker.index is None else str(worker.index))
        cells.append("–" if worker.seconds is None else duration(worker.seconds))
        cells += [_share(worker.cpu), _bytes(worker.memory)]
        if width >= 90:
            cells += [f"{worker.made:,}", worker.doing or ""]
        table.add_row(*cells, style=style)
    if len(shown) < len(loader.workers):
        more = len(loader.workers) - len(shown)
        table.caption = Text(f"and {more} more", style="dim")
    return table


def _plain_pid(worker: Worker) -> str:
    return "–" if worker.pid is None else str(worker.pid)


def _notable(workers: Sequence[Worker], rows: int | None) -> Sequence[Worker]:
    """The workers for which there is room: those first that something is the matter with."""
    if rows is None or len(workers) <= rows:
        return workers

    def rank(worker: Worker) -> tuple[bool, bool, bool, float]:
        busy = worker.stage != "idle"
        return worker.stage != "dead", not worker.stalled, not busy, -(worker.seconds or 0)

    return sorted(sorted(workers, key=rank)[:rows], key=lambda worker: worker.worker)


def _findings(training: Training) -> list[RenderableType]:
    found: list[RenderableType] = []
    loaders = training.loaders()
    for rank in training.ranks:
        for loader in rank.loaders:
            where = ""
            if len(loaders) > 1:
                rank_of = "" if rank.rank is None else f"rank {rank.rank}"
                names = [rank_of, loader.role or loader.dataset]
                where = ", ".join(name for name in names if name) + ": "
            texts = [loader.problem] if loader.problem is not None else loader.findings
            for text in texts[:_FINDINGS]:
                found.append(Text(f"▲ {where}{_plain(text)}", style="yellow"))
    return found


def _stacks(training: Training) -> list[RenderableType]:
    found: list[RenderableType] = []
    for loader in training.loaders():
        for worker in loader.workers:
            if worker.stack is None and worker.stack_problem is None:
                continue
            when = time.strftime("%H:%M:%S", time.localtime(worker.stack_time))
            text = Text()
            text.append(f"\nPython stack of {who(worker)}, at {when}\n", style="bold")
            if worker.stack_problem is not None:
                text.append(f"  {_plain(worker.stack_problem)}\n", style="yellow")
            elif not worker.stack:
                text.append("  there is no Python code in it\n", style="dim")
            for frame in worker.stack or ():
                mark, style = ("▶ ", "bold reverse yellow") if frame.user else ("  ", "default")
                where = f"{mark}{frame.file}:{frame.line} in {frame.function}"
                text.append(f"{_plain(where)}\n", style=style)
                if frame.code:
                    text.append(f"      {_plain(frame.code)}\n", style=style)
            found.append(text)
    return found


def _events(training: Training, width: int) -> list[RenderableType]:
    events: list[Event] = [event for loader in training.loaders() for event in loader.events]
    events.sort(key=lambda event: event.time)
    found: list[RenderableType] = []
    for event in events[-_EVENTS:]:
        when = time.strftime("%H:%M:%S", time.localtime(event.time))
        text = Text(f"{when} {event.kind}: ", style="red" if event.kind == "restart" else "yellow")
        text.append(_plain(event.text), style="default")
        text.truncate(2 * width - 10, overflow="ellipsis")
        found.append(text)
    return found
