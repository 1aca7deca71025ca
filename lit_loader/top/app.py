"""``lit-loader-top [PID]``: once, as text or JSON, or live, until ``q``.

rich is imported only where something is drawn; torch is not at all: the viewer starts quickly.

Exit codes: 0; 1: there is nothing to be seen; 2: arguments are refused, or rich is missing; 130:
Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator, Sequence
from typing import Any, Final, TextIO

from lit_loader.core.system import linux
from lit_loader.top.discovery import NotFound
from lit_loader.top.snapshot import Training, Worker
from lit_loader.top.watch import Watch

__all__ = ["command", "main"]

NAME: Final = "lit-loader-top"

_RICH: Final = (
    f"{NAME} draws with rich, which is not installed: pip install rich (--json does without)"
)


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        NAME,
        description="Show what the loaders and workers of a running training are at. The training "
        "is not touched.",
        epilog="While it runs: q quits, s shows the Python stacks of workers that are stalled.",
    )
    parser.add_argument(
        "pid",
        nargs="?",
        type=int,
        help="the training's process, one of its ranks or workers, or a launcher above it; "
        "without, all trainings of this user are listed",
    )
    parser.add_argument("--once", action="store_true", help="show it once, and end")
    parser.add_argument(
        "--json",
        action="store_true",
        help="with --once: as JSON (keys: lit_loader/top/README.md)",
    )
    parser.add_argument(
        "--stacks",
        action="store_true",
        help="with --once: also the Python stacks of workers that are stalled, which are sent a "
        "signal for it",
    )
    parser.add_argument(
        "--interval",
        type=float,
        default=1.0,
        metavar="SECONDS",
        help="between two looks (default: 1)",
    )
    options = parser.parse_args(given)
    if not 0 < options.interval <= 3600:
        parser.error(f"--interval must be above 0 and at most 3600 seconds, got {options.interval}")
    if options.json and not options.once:
        parser.error("--json goes with --once")
    if options.stacks and not options.once:
        parser.error("--stacks goes with --once; while it runs, press s")
    return options


def main(given: Sequence[str] | None = None) -> int:
    """Show what is to be seen; returns the exit code."""
    options = _arguments(given)
    try:
        if not linux.HERE:
            raise NotFound("it finds trainings by what /proc says of processes: use it on Linux")
        if not options.json:
            try:
                import rich  # noqa: F401
            except ImportError:
                print(_RICH, file=sys.stderr)
                return 2
        if options.once or not sys.stdout.isatty():
            return _once(options)
        return _live(options)
    except NotFound as reason:
        if options.json:
            json.dump(_report([], str(reason)), sys.stdout)
            print()
        print(f"{NAME}: {reason}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def command() -> None:
    """``lit-loader-top``: ends with the exit code."""
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads it, head say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code)


def _once(options: argparse.Namespace) -> int:
    watch = Watch(options.pid)
    watch.look()
    time.sleep(options.interval)
    trainings = watch.look()
    if options.stacks:
        watch.asked = {each.pid for each in _workers(trainings) if each.stalled}
        trainings = watch.look()
    if options.json:
        json.dump(_report(trainings), sys.stdout, indent=2)
        print()
        return 0
    from rich.console import Console

    from lit_loader.top.picture import picture

    console = Console()
    console.print(picture(trainings, console.width))
    if not options.stacks and any(worker.stalled for worker in _workers(trainings)):
        print("add --stacks to see at which line the stalled workers are")
    return 0


def _report(trainings: Sequence[Training], error: str | None = None) -> dict[str, Any]:
    """Give what ``--json`` prints: the fields of `top/snapshot.py`."""
    return {
        "format": 2,
        "time": time.time(),
        "error": error,
        "trainings": [dataclasses.asdict(training) for training in trainings],
    }


def _live(options: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.live import Live

    from lit_loader.top.picture import picture

    console = Console()
    watch = Watch(options.pid)
    trainings = watch.look()
    with _keyboard(), Live(console=console, screen=True, auto_refresh=False) as live:
        until, pressed = time.monotonic() + options.interval, ""
        while "q" not in pressed:
            live.update(picture(trainings, console.width, live=True), refresh=True)
            pressed = _pressed(until - time.monotonic())
            if "s" in pressed or "c" in pressed:
                watch.clear()
                watch.asked = _suspects(_workers(trainings)) if "s" in pressed else set()
            elif pressed:
                continue
            until = time.monotonic() + options.interval
            try:
                trainings = watch.look() or trainings
            except NotFound as reason:
                ended = str(reason)
                break
        else:
            return 0
    console.print(picture(trainings, console.width))
    print(f"{NAME}: {ended}", file=sys.stderr)
    return 0


@contextlib.contextmanager
def _keyboard() -> Iterator[None]:
    """Have the terminal give key by key, and leave it as it was."""
    if not _terminal():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _terminal() -> list[TextIO]:
    """Where keys come from, if there is a keyboard."""
    return [sys.stdin] if sys.stdin is not None and sys.stdin.isatty() else []


def _pressed(seconds: float) -> str:
    """Wait for keys; "" if none comes, "q" if none ever will."""
    if not select.select(_terminal(), [], [], max(0.0, seconds))[0]:
        return ""
    return os.read(sys.stdin.fileno(), 64).decode(errors="replace") or "q"


def _workers(trainings: Sequence[Training]) -> list[Worker]:
    loaders = [loader for training in trainings for loader in training.loaders()]
    return [worker for loader in loaders for worker in loader.workers if worker.pid is not None]


def _suspects(workers: Sequence[Worker]) -> set[int | None]:
    """The workers that are stalled; of none, that which has been at something for longest."""
    busy = [worker for worker in workers if worker.stage not in ("idle", "dead", "relay")]
    longest = sorted(busy, key=lambda worker: worker.seconds or 0)[-1:]
    return {worker.pid for worker in [each for each in busy if each.stalled] or longest}
