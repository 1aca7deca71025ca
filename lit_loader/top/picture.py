"""Trainings written for a terminal.

::

    training ─┬─ a table of its loaders, one line each, ranks below each other
              ├─ the workers of each
              ├─ what stands out; what limits in the long run; the stacks that were asked for
              ╰─ the last restarts and bad samples
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from lit_loader.statistics.sentences import duration
from lit_loader.top.snapshot import Loader, Training

__all__ = ["KEYS", "picture"]

KEYS: Final = "q quit   s show the Python stacks of stalled workers   c clear"

_ROWS: Final = 8  # workers of a loader that are shown while it runs
_EVENTS: Final = 3
_FINDINGS: Final = 6
_OLD: Final = 2.0  # seconds from which on the age of a loader's figures is remarked upon

_BOLD, _DIM, _UNDERLINED, _RED, _YELLOW, _MARKED = "1", "2", "4", "1;31", "33", "1;7;33"
"""What a terminal is told to show a line in (ECMA-48, SGR)."""

_STYLES: Final = {"dead": _RED, "idle": _DIM, "starting": "36", "worker_init_fn": "36"}


class _Line(NamedTuple):
    text: str
    style: str = ""


def picture(
    trainings: Sequence[Training], width: int, live: bool = False, coloured: bool = False
) -> str:
    """Write trainings for a terminal of so many columns; the workers where it is only one.

    While it is ``live``: which keys there are, and the workers that something is the matter with.
    """
    lines = [_Line(KEYS, _DIM)] if live else []
    for training in trainings:
        lines += [_title(training, width), *_loaders(training, width)]
        if len(trainings) == 1:
            lines += [*_workers(training, width, _ROWS if live else None), _Line("")]
        lines += _sentences(training)
        if len(trainings) == 1:
            lines += [*_stacks(training), *_events(training, width)]
    if len(trainings) > 1:
        lines.append(_Line("lit-loader-top PID shows the workers of one", _DIM))
    return "\n".join(
        f"\x1b[{style}m{part}\x1b[0m" if coloured and style else part
        for text, style in lines
        for part in textwrap.wrap(_plain(text), width) or [""]
    )


def _plain(text: str) -> str:
    """Leave out what a terminal would take for a command."""
    return "".join(sign if sign.isprintable() else " " for sign in text)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: max(0, width - 1)]}…"


def _bytes(nbytes: int | None) -> str:
    if nbytes is None:
        return "–"
    if nbytes < 10 << 30:
        return f"{nbytes / 2**20:,.0f} MB" if nbytes >= 10 << 20 else f"{nbytes / 2**20:.1f} MB"
    return f"{nbytes / 2**30:,.1f} GB"


def _shown(value: Any, form: str = "") -> str:
    return "–" if value is None else format(value, form)


def _title(training: Training, width: int) -> _Line:
    when, room = time.strftime("%H:%M:%S"), max(10, width - 10)
    return _Line(f"{_cut(f'pid {training.pid}  {training.command}', room):<{room}}  {when}", _BOLD)


_Columns = Mapping[str, Callable[[Any], str]]
"""Name to what is in the cells; the first are the most important, for a line is cut off."""


def _table(columns: _Columns, rows: Iterable[tuple[Any, str]], width: int) -> Iterator[_Line]:
    """A table's lines, of what the cells are made of, and the line's style."""
    rows = [*rows]
    cells = [[*columns], *([cell(of) for cell in columns.values()] for of, _ in rows)]
    styles = [_UNDERLINED, *(style for _, style in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for texts, style in zip(cells, styles, strict=True):
        aligned = (
            text.ljust(room) if head in ("loader", "stage", "") else text.rjust(room)
            for head, text, room in zip(columns, texts, widths, strict=True)
        )
        yield _Line(_cut("  ".join(aligned).rstrip(), width), style)


def _name(loader: Loader) -> str:
    return f"{loader.role} {loader.dataset}".strip() if loader.problem is None else "?"


def _rate(loader: Loader) -> str:
    return ",.1f" if (loader.batches_per_second or 0) < 100 else ",.0f"


def _wait(loader: Loader) -> str:
    if _is_stuck(loader):
        return f"for {duration(loader.state_seconds or 0)}"
    return "idle" if loader.state == "idle" else _shown(loader.wait_share, ".0%")


def _is_stuck(loader: Loader) -> bool:
    return loader.state == "waiting" and (loader.state_seconds or 0) >= 1


def _workers_of(loader: Loader) -> str:
    return f"{loader.num_workers}{f'+{len(loader.nodes)} nodes' if loader.remote_workers else ''}"


_LOADER: Final[_Columns] = {
    "loader": lambda each: _cut(_name(each), 20),
    "epoch": lambda each: str(each.epoch),
    "batch": lambda each: f"{each.batches:,}" + (f"/{each.length:,}" if each.length else ""),
    "/s": lambda each: _shown(each.batches_per_second, _rate(each)),
    "wait": _wait,
    "ready": lambda each: f"{each.ready}/{each.ahead}",
    "restarts": lambda each: f"{each.restarts:,}",
    "bad": lambda each: f"{each.bad_samples:,}",
    "workers": _workers_of,
    "shared": lambda each: _bytes(each.shared_memory),
    "batch_size": lambda each: _shown(each.batch_size, ","),
}

_WORKER: Final[_Columns] = {
    "worker": lambda each: str(each.worker),
    "stage": lambda each: f"{each.stage} {(each.node or '').partition('.')[0]}".strip(),
    "batch": lambda each: _shown(each.batch, ","),
    "sample": lambda each: _shown(each.sample, ","),
    "index": lambda each: _shown(each.index),
    "for": lambda each: "–" if each.seconds is None else duration(each.seconds),
    "cpu": lambda each: _shown(each.cpu, ".0%"),
    "memory": lambda each: _bytes(each.memory),
    "pid": lambda each: _shown(each.pid),
    "made": lambda each: f"{each.made:,}",
    "": lambda each: each.doing or "",
}


def _loaders(training: Training, width: int) -> Iterator[_Line]:
    """A line for each loader, below the process that has it where there are several."""
    for rank in training.ranks:
        if len(training.ranks) > 1:
            yield _Line(f"rank {_shown(rank.rank)}  pid {rank.pid}", _BOLD)
        rows = (
            (each, _RED if _is_stuck(each) else _DIM if each.state == "idle" else "")
            for each in rank.loaders or [Loader(dataset="no loader now")]
        )
        yield from _table(_LOADER, rows, width)


def _workers(training: Training, width: int, most: int | None) -> Iterator[_Line]:
    """The workers of each loader."""
    for rank in training.ranks:
        for loader in rank.loaders:
            number = "" if rank.rank is None else f"rank {rank.rank}  "
            yield _Line("")
            if len(training.loaders()) > 1:
                yield _Line(f"{number}{_name(loader)}", _BOLD)
            # Those first that something is the matter with.
            urgent = sorted(loader.workers, key=lambda w: (w.stage != "dead", not w.stalled))
            shown = sorted(urgent[:most], key=lambda each: each.worker)
            styles = [_STYLES.get(w.stage, _YELLOW if w.stalled else "") for w in shown]
            yield from _table(_WORKER, zip(shown, styles, strict=True), width)
            if len(shown) < len(loader.workers):
                yield _Line(f"and {len(loader.workers) - len(shown)} more", _DIM)


def _sentences(training: Training) -> Iterator[_Line]:
    """What stands out in each loader, what it says itself, and how old its figures are."""
    several = len(training.loaders()) > 1
    for rank in training.ranks:
        for loader in rank.loaders:
            names = ["" if rank.rank is None else f"rank {rank.rank}"]
            names.append(loader.role or loader.dataset)
            where = ", ".join(name for name in names if name) + ": " if several else ""
            texts = loader.findings if loader.problem is None else [loader.problem]
            for text in texts[:_FINDINGS]:
                yield _Line(f"▲ {where}{text}", _YELLOW)
            if loader.verdict:
                text = f"  {where}so far: {loader.verdict}"
                if loader.age >= _OLD:
                    text += f" (figures of {duration(loader.age)} ago; workers are live)"
                yield _Line(text)


def _stacks(training: Training) -> Iterator[_Line]:
    for worker in [each for loader in training.loaders() for each in loader.workers]:
        if worker.stack is None and worker.stack_problem is None:
            continue
        when = time.strftime("%H:%M:%S", time.localtime(worker.stack_time))
        yield _Line("")
        yield _Line(f"Python stack of worker {worker.worker}, at {when}", _BOLD)
        if worker.stack_problem is not None:
            yield _Line(f"  {worker.stack_problem}", _YELLOW)
        elif not worker.stack:
            yield _Line("  there is no Python code in it", _DIM)
        for frame in worker.stack or ():
            mark, style = ("▶ ", _MARKED) if frame.user else ("  ", "")
            yield _Line(f"{mark}{frame.file}:{frame.line} in {frame.function}", style)
            if frame.code:
                yield _Line(f"      {frame.code}", style)


def _events(training: Training, width: int) -> Iterator[_Line]:
    events = [event for loader in training.loaders() for event in loader.events]
    for event in sorted(events, key=lambda event: event.time)[-_EVENTS:]:
        when = time.strftime("%H:%M:%S", time.localtime(event.time))
        text = _cut(f"{when} {event.kind}: {event.text}", 2 * width - 10)
        yield _Line(text, _RED if event.kind == "restart" else _YELLOW)
