"""Loaders drawn for a terminal, by rich: a table of loaders, their workers, what stands out."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from rich.console import Group, JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from lit_loader.diagnostics.sentences import duration, mebibytes

__all__ = ["findings", "picture"]

_SHOWN: Final = 8  # workers of a loader that are shown while it runs
_EVENTS: Final = 3
_LONG_STEP: Final = 30.0  # seconds of a training step from which on it is remarked upon
_LOADER: Final = "pid rank loader epoch batch /s wait ready workers restarts bad"
_WORKER: Final = "worker pid stage batch sample index seconds cpu memory made at"
_LEFT: Final = ("loader", "stage", "at")


def picture(loaders: Sequence[dict[str, Any]], live: bool = False) -> RenderableType:
    """Draw loaders; while it is ``live``, with the keys, and only some workers of many."""
    parts: list[RenderableType] = []
    if live:
        now = time.strftime("%H:%M:%S")
        parts.append(Text(f"q quit   s show the stacks of stalled workers   {now}", style="dim"))
    parts.append(_table(_LOADER, [_row(each) for each in loaders]))
    for loader in loaders:
        # Those first that something is the matter with.
        order = sorted(loader["workers"], key=lambda w: (w["stage"] != "dead", not w["stalled"]))
        shown = sorted(order[: _SHOWN if live else None], key=lambda each: each["worker"])
        parts += [Text(f"\n{loader['command']}", style="dim", no_wrap=True), _table(_WORKER, shown)]
        parts += [Text(f"▲ {_plain(text)}", style="yellow") for text in findings(loader)]
        parts.append(Text(_plain(loader.get("verdict", ""))))
        for when, kind, text in loader.get("events", ())[-_EVENTS:]:
            at = time.strftime("%H:%M:%S", time.localtime(when))
            parts.append(Text(f"{at} {kind}: {_plain(text)[:200]}", style="red"))
        for worker in filter(lambda each: each["stack"], shown):
            parts.append(Text(f"Python stacks of worker {worker['worker']}", style="bold"))
            parts.append(Text(_plain(worker["stack"])))
    return Group(*parts)


def findings(loader: dict[str, Any]) -> Iterator[str]:
    """Yield what stands out: who waits for whom."""
    seconds = loader["state_seconds"] or 0
    waits = loader["state"] == "waiting" and seconds >= 1
    waited = f"the training has waited for batch {loader['batches']} for {duration(seconds)}"
    stalled = [worker for worker in loader["workers"] if worker["stalled"]]
    for worker in loader["workers"]:
        if worker["stage"] == "dead":
            yield f"worker {worker['worker']} (pid {worker['pid']}) has died, and will be replaced"
    for worker in sorted(stalled, key=lambda each: -each["seconds"]):
        text = f"worker {worker['worker']} has been at {worker['stage']}"
        for name in ("batch", "index"):
            text += "" if worker[name] is None else f", {name} {worker[name]}"
        text += f", for {duration(worker['seconds'])}"
        text += f" ({worker['at']})" if worker["at"] else ""
        yield f"{text}; {waited}" if waits else f"{text}; {loader['ready']} batches are ready"
    if waits and not stalled:
        yield f"{waited}, and the workers make progress: samples are slow"
    if loader["state"] == "computing" and seconds >= _LONG_STEP:
        yield f"the training step has taken {duration(seconds)} so far"


def _row(loader: dict[str, Any]) -> dict[str, Any]:
    """What the table of loaders shows of one, by its columns."""
    length = f"/{loader['length']:,}" if loader["length"] else ""
    return {
        **loader,
        "loader": f"{loader['role']} {loader['dataset']}".strip(),
        "batch": f"{loader['batches']:,}{length}",
        "/s": loader.get("batches_per_second"),
        "wait": "idle" if loader["state"] == "idle" else loader.get("wait_share"),
        "ready": f"{loader['ready']}/{loader['ahead']}",
        "workers": loader["num_workers"],
        "bad": loader.get("bad_samples"),
    }


def _table(names: str, rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(box=None, header_style="underline", pad_edge=False, padding=(0, 1))
    for name in names.split():
        side: JustifyMethod = "left" if name in _LEFT else "right"
        table.add_column(name, justify=side, no_wrap=name != "loader", overflow="ellipsis")
    for row in rows:
        style = "bold yellow" if row.get("stalled") else "red" if row.get("stage") == "dead" else ""
        table.add_row(*[_cell(name, row.get(name)) for name in names.split()], style=style)
    return table


def _cell(name: str, value: Any) -> str:
    if value is None or isinstance(value, str):
        return "–" if value is None else _plain(value)
    forms = {"seconds": duration, "memory": mebibytes, "/s": "{:,.1f}".format}
    forms |= dict.fromkeys(("cpu", "wait"), "{:.0%}".format)
    return forms.get(name, str)(value)


def _plain(text: str) -> str:
    """Leave out what a terminal would take for a command."""
    return "".join(sign if sign.isprintable() or sign == "\n" else " " for sign in text)
