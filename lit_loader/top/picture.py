"""Trainings drawn for a terminal, by rich.

::

    training ─┬─ a table of its loaders, one line each, ranks below each other
              ├─ the workers of each, loaders side by side where there is room
              ├─ what stands out; what limits in the long run; the stacks that were asked for
              ╰─ the last restarts and bad samples
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Final

from rich.columns import Columns
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from lit_loader.statistics.sentences import duration
from lit_loader.top.snapshot import Loader, Rank, Training, Worker

__all__ = ["KEYS", "picture"]

KEYS: Final = "q quit   ↑ ↓ choose a worker   s show its Python stack   c clear"

_SIDE_BY_SIDE: Final = 66
"""Columns that a table of workers needs at least."""

_WIDE: Final = 76, 90
"""From which on there is room for its pids, for what the system says."""

_EVENTS: Final = 3
_FINDINGS: Final = 6
_STYLES: Final = {"dead": "bold red", "idle": "dim", "starting": "cyan", "worker_init_fn": "cyan"}
_LEFT: Final = ("loader", "stage", "")
_OLD: Final = 2.0
"""Seconds from which on the age of a loader's figures is remarked upon."""


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
        told = [*_sentences(training)]
        if len(trainings) == 1:
            told += [*_stacks(training), *_events(training, width)]
            lines = [line for text in told for line in text.plain.split("\n")]
            used = sum(1 + len(line) // width for line in lines) + keys
            room = None if height is None else height - used
            parts += [Text(""), *_workers(training, width, room, chosen), Text("")]
        parts += told
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


def _plain(text: str) -> str:
    """Leave out what a terminal would take for a command."""
    return "".join(sign if sign.isprintable() else " " for sign in text)


def _bytes(nbytes: int | None) -> str:
    if nbytes is None:
        return "–"
    if nbytes < 10 << 30:
        return f"{nbytes / 2**20:,.0f} MB" if nbytes >= 10 << 20 else f"{nbytes / 2**20:.1f} MB"
    return f"{nbytes / 2**30:,.1f} GB"


def _count(number: int | None) -> str:
    return "–" if number is None else f"{number:,}"


def _share(share: float | None) -> str:
    return "–" if share is None else f"{share:.0%}"


def _title(training: Training, width: int) -> Text:
    when = time.strftime("%H:%M:%S")
    title = Text(no_wrap=True, overflow="ellipsis")
    title.append(f"pid {training.pid}", style="bold")
    title.append(f"  {_plain(training.command)}")
    title.truncate(max(10, width - len(when) - 2), overflow="ellipsis", pad=True)
    return title.append(f"  {when}", style="dim")


def _table(columns: Sequence[str], widest: int = 40) -> Table:
    """A table without lines; what is left of its columns' names is left in them."""
    table = Table(box=None, header_style="underline", pad_edge=False, padding=(0, 1))
    for name in columns:
        left = name in _LEFT
        table.add_column(
            name,
            justify="left" if left else "right",
            no_wrap=name not in ("ready", "wait", "/s"),
            overflow="ellipsis",
            max_width=widest if name == "loader" else None,
        )
    return table


def _loaders(training: Training, width: int) -> Table:
    """A line for each loader of each rank."""
    ranks, wide = len(training.ranks) > 1, width >= 100
    columns = ["rank", "pid"] if ranks else []
    columns += ["loader", "epoch", "batch", "/s", "wait", "ready"]
    columns += ["of how many", "workers", "shared"] if wide else []
    columns += ["restarts", "bad"] if not ranks or wide else []
    table = _table(columns, 40 if wide else 20)
    for rank in training.ranks:
        first = [_count(rank.rank), str(rank.pid)] if ranks else []
        for loader in rank.loaders:
            cells = _loader_cells(loader, wide)
            table.add_row(*first, *cells[: len(columns) - len(first)])
        if not rank.loaders:
            table.add_row(*first, Text("no loader at this moment", style="dim"))
    return table


def _name(loader: Loader) -> Text:
    text = Text(_plain(loader.role), style="bold")
    return text.append(f"{' ' if loader.role else ''}{_plain(loader.dataset)}", style="default")


def _loader_cells(loader: Loader, wide: bool) -> list[RenderableType]:
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
    cells: list[RenderableType] = [_name(loader), str(loader.epoch), f"{loader.batches:,}{of}"]
    cells.append("–" if rate is None else f"{rate:,.1f}" if rate < 100 else f"{rate:,.0f}")
    cells += [wait, f"{loader.ready}/{loader.ahead}"]
    if wide:
        elsewhere = f"+{len(loader.nodes)} nodes" if loader.remote_workers else ""
        cells += [_count(loader.batch_size), f"{loader.num_workers}{elsewhere}"]
        cells.append(_bytes(loader.shared_memory))
    for number, style in ((loader.restarts, "red"), (loader.bad_samples, "yellow")):
        cells.append(Text(f"{number:,}", style=style if number else "dim"))
    return cells


def _workers(
    training: Training, width: int, room: int | None, chosen: int | None
) -> list[RenderableType]:
    """The workers of each loader, side by side where several fit, on so many lines about."""
    pairs = [(rank, loader) for rank in training.ranks for loader in rank.loaders]
    known = [pair for pair in pairs if pair[1].problem is None]
    beside = min(max(1, width // _SIDE_BY_SIDE), max(1, len(known)))
    each = width // beside - (beside > 1)
    below = max(1, -(-len(known) // beside))
    rows = None if room is None else max(2, (room - 4 - len(pairs)) // below - 3)
    tables = [
        _worker_table(rank, loader, each, rows, chosen, len(known) > 1) for rank, loader in known
    ]
    return [Columns(tables, padding=(0, 1))] if beside > 1 else [*tables]


def _worker_table(
    rank: Rank, loader: Loader, width: int, rows: int | None, chosen: int | None, named: bool
) -> Table:
    pids, system = (width >= least for least in _WIDE)
    columns = ["worker", "pid"] if pids else ["worker"]
    columns += ["stage", "batch", "sample", "index", "for", "cpu", "memory"]
    table = _table([*columns, "made", ""] if system else columns)
    if named:
        number = "" if rank.rank is None else f"rank {rank.rank}  "
        table.title, table.title_justify = Text(number).append_text(_name(loader)), "left"
    shown = _notable(loader.workers, rows)
    for worker in shown:
        mark = "›" if chosen is not None and worker.pid == chosen else ""
        node = f" {_plain(worker.node).partition('.')[0]}" if worker.node else ""
        cells = [f"{mark}{worker.worker}"]
        cells += ["–" if worker.pid is None else str(worker.pid)] if pids else []
        cells += [f"{worker.stage}{node}", _count(worker.batch), _count(worker.sample)]
        cells.append("–" if worker.index is None else str(worker.index))
        cells.append("–" if worker.seconds is None else duration(worker.seconds))
        cells += [_share(worker.cpu), _bytes(worker.memory)]
        cells += [f"{worker.made:,}", worker.doing or ""] if system else []
        style = _STYLES.get(worker.stage, "bold yellow" if worker.stalled else "")
        table.add_row(*cells, style=style)
    if len(shown) < len(loader.workers):
        table.caption = Text(f"and {len(loader.workers) - len(shown)} more", style="dim")
    return table


def _notable(workers: Sequence[Worker], rows: int | None) -> Sequence[Worker]:
    """The workers for which there is room: those first that something is the matter with."""
    if rows is None or len(workers) <= rows:
        return workers

    def rank(worker: Worker) -> tuple[bool, bool, bool, float]:
        idle = worker.stage == "idle"
        return worker.stage != "dead", not worker.stalled, idle, -(worker.seconds or 0)

    return sorted(sorted(workers, key=rank)[:rows], key=lambda worker: worker.worker)


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
                yield Text(f"  {where}so far: {_plain(loader.verdict)}")
                if loader.age >= _OLD:
                    text = f"  {where}figures of {duration(loader.age)} ago; workers are live"
                    yield Text(text, style="dim")


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
