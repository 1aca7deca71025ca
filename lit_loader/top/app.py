"""``lit-loader-top [PID]``: once, as text or JSON, or live, until ``q``.

rich is imported only where something is drawn, and torch not at all: the viewer starts quickly.

Exit codes: 0; 1: there is nothing to show; 2: arguments are refused, or rich is missing; 130:
Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Iterator, Sequence
from typing import Final

from lit_loader.top.look import Loader, NotFound, Viewer

__all__ = ["command", "main"]

NAME: Final = "lit-loader-top"


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        NAME,
        description="Show what the loaders and workers of running trainings do. The trainings are "
        "not touched.",
        epilog="While it runs: q quits, s shows the Python stacks of workers that are stalled.",
    )
    add = parser.add_argument
    add("pid", nargs="?", type=int, help="a training, one of its ranks or workers, or its launcher")
    add("--once", action="store_true", help="show it once, and end")
    add("--json", action="store_true", help="with --once: as JSON")
    add("--stacks", action="store_true", help="with --once: signal stalled workers for stacks")
    add("--interval", type=float, default=1.0, metavar="SECONDS", help="between two looks")
    options = parser.parse_args(given)
    if (options.json or options.stacks) and not options.once:
        parser.error("--json and --stacks need --once")
    return options


def main(given: Sequence[str] | None = None) -> int:
    """Show what there is; returns the exit code."""
    options = _arguments(given)
    try:
        live = sys.stdout.isatty() and sys.stdin.isatty() and not options.once
        loaders = [] if live else _looked_twice(options)
        if options.json:
            print(json.dumps({"format": 4, "error": None, "loaders": loaders}, indent=2))
            return 0
        from rich.console import Console
        from rich.live import Live

        from lit_loader.top.picture import picture

        console = Console()
        if not live:
            console.print(picture(loaders))
            return 0
        viewer = Viewer(options.pid)
        with _keyboard(), Live(console=console, screen=True, auto_refresh=False) as screen:
            while "q" not in (pressed := _pressed(options.interval)):
                if "s" in pressed:
                    viewer.stacks.clear()
                    viewer.asked = _stalled(loaders)
                loaders = viewer.look()  # NotFound: the training has ended
                screen.update(picture(loaders, live=True), refresh=True)
        return 0
    except ModuleNotFoundError as error:
        print(f"{NAME} needs {error.name}: pip install {error.name}", file=sys.stderr)
        return 2
    except NotFound as reason:
        if options.json:
            print(json.dumps({"format": 4, "error": str(reason), "loaders": []}))
        print(f"{NAME}: {reason}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def command() -> None:
    """``lit-loader-top``: ends with the exit code."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # whoever reads it, head say, has seen enough
    sys.exit(main())


def _looked_twice(options: argparse.Namespace) -> list[Loader]:
    """Return the loaders, with rates, which are differences between two looks."""
    viewer = Viewer(options.pid)
    viewer.look()
    time.sleep(options.interval)
    loaders = viewer.look()
    if options.stacks:
        viewer.asked = _stalled(loaders)
        loaders = viewer.look()
    return loaders


@contextlib.contextmanager
def _keyboard() -> Iterator[None]:
    """Make the terminal send key by key, and restore it."""
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _pressed(seconds: float) -> str:
    """Wait for keys; "" if none comes, "q" if none ever will."""
    if not select.select([sys.stdin], [], [], seconds)[0]:
        return ""
    return os.read(sys.stdin.fileno(), 64).decode(errors="replace") or "q"


def _stalled(loaders: Sequence[Loader]) -> set[int]:
    """The workers that are stalled; if there is none, the one that has been busy for longest."""
    busy = [each for loader in loaders for each in loader["workers"] if each["batch"] is not None]
    longest = sorted(busy, key=lambda worker: worker["seconds"] or 0)[-1:]
    found = [each for each in busy if each["stalled"]] or longest
    return {each["pid"] for each in found if each["pid"]}
