"""Measures remote workers beside Ray Data and bare ``ray.get``, on a cluster of this machine.

    python -m lit_loader.bench.cluster [--workers 2] [--rounds 1] [--parts speed,resume,killed]
                                       [--cases small,large,jpeg,text]

The same dataset, batches and number of processors for each; the loaders take turns, each round in a
process of its own:

- ``lit_loader``: ``remote_workers``, none on this side.
- ``bare``: actors that make the same batches, two in flight each; ``ray.get`` and one copy.
- ``ray_data``: ``iter_torch_batches`` of ``map_batches`` over the indices, by a pool of actors.
- ``ray_data, ordered``: the same with ``preserve_order``.

Parts, medians over the rounds:

- ``speed``: milliseconds a batch in epochs after the second, behind an epoch's first; seconds from
  making the loader to its first batch; the wait between the first two epochs; processor
  milliseconds a batch of all processes of the machine, Ray's own among them, so that nothing else
  may run there; what went through object stores for each batch, and was spilled.
- ``resume``: the program ends at the half of an epoch of 200 batches, and another goes on.
- ``killed``, ``silent``: of two nodes with processors one is killed at the half of such an epoch,
  all its processes at once; or it stops to answer, as without power. Bare actors are restarted by
  Ray here, as those of Ray Data are. ``silent`` takes minutes: Ray waits that long.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from lit_loader.bench.cluster import halfway, speed
from lit_loader.bench.cluster.loaders import CASES, LOADERS
from lit_loader.bench.cluster.nodes import cluster, store_of

__all__ = ["main"]

_LONGEST: Final = 150.0
"""Seconds that a measurement may take."""


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=2, help="remote workers of each loader (2)")
    parser.add_argument("--rounds", type=int, default=1, help="rounds (1)")
    parser.add_argument("--parts", default="speed,resume,killed")
    parser.add_argument("--cases", default=",".join(case for case in CASES if case != halfway.CASE))
    parser.add_argument("--loaders", default=";".join(LOADERS))
    parser.add_argument("--one", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(_one(args.workers, *args.one)), flush=True)
        os._exit(0)  # Ray Data's threads need not be waited for
    os.environ["RAY_AUTH_MODE"] = "disabled"  # or a token of the user's is asked for
    for part in args.parts.split(","):
        with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
            _PARTS[part](args, folder)


def _one(workers: int, what: str, loader: str, address: str, *rest: str) -> dict[str, Any]:
    """Measure once, in this process."""
    if what == "speed":
        return speed.measured(loader, rest[0], workers, address)
    if what == "begin":
        return halfway.begin(loader, workers, address, *rest)
    if what == "go on":
        return halfway.go_on(loader, workers, address, *rest)
    return halfway.node_lost(
        loader, workers, address, [int(pid) for pid in rest], silent=what == "silent"
    )


def _measure(args: argparse.Namespace, what: str, loader: str, *rest: str) -> dict[str, Any] | None:
    """Measure once, in a process of its own; None: it failed, which is said."""
    command = [sys.executable, "-m", "lit_loader.bench.cluster", "--workers", str(args.workers)]
    command += ["--one", what, loader, *rest]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_LONGEST
        )
    except subprocess.TimeoutExpired:
        print(f"{what}, {loader}: not over after {_LONGEST:.0f} s", file=sys.stderr)
        return None
    lines = done.stderr.strip().splitlines()
    if done.returncode:
        print(f"{what}, {loader}: {lines[-1] if lines else 'failed'}", file=sys.stderr)
        return None
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def _speed(args: argparse.Namespace, folder: str) -> None:
    with cluster(folder, args.workers + 1) as (address, _):
        for case in args.cases.split(","):
            found: dict[str, list[dict[str, Any]]] = defaultdict(list)
            for _ in range(args.rounds):
                for loader in args.loaders.split(";"):
                    before = store_of(address)
                    one = _measure(args, "speed", loader, address, case)
                    if one is None:
                        continue
                    after = store_of(address)
                    batches = speed.batches_in_all(case)
                    one["objects, MB a batch"] = (after.created - before.created) / 1e6 / batches
                    one["spilled, MB"] = (after.spilled - before.spilled) / 1e6
                    found[loader].append(one)
            _show(CASES[case][0], found)


def _resume(args: argparse.Namespace, folder: str) -> None:
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    with cluster(folder, args.workers + 1) as (address, _):
        for _ in range(args.rounds):
            for loader in args.loaders.split(";"):
                file = str(Path(folder) / "state")
                if _measure(args, "begin", loader, address, file) is not None:
                    one = _measure(args, "go on", loader, address, file)
                    if one is not None:
                        found[loader].append(one)
    _show("resumed at the half", found)


def _lost(args: argparse.Namespace, folder: str, what: str) -> None:
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for turn in range(args.rounds):
        for place, loader in enumerate(args.loaders.split(";")):
            own = Path(folder) / f"{turn}{place}"
            own.mkdir()
            with cluster(str(own), 0, args.workers, args.workers) as (address, nodes):
                pids = [str(node.pid) for node in nodes[1:]]
                one = _measure(args, what, loader, address, *pids)
                if one is not None:
                    found[loader].append(one)
    _show(f"a node is {what} at the half", found)


_PARTS: Final[dict[str, Callable[[argparse.Namespace, str], None]]] = {
    "speed": _speed,
    "resume": _resume,
    "killed": lambda args, folder: _lost(args, folder, "killed"),
    "silent": lambda args, folder: _lost(args, folder, "silent"),
}


def _show(title: str, found: dict[str, list[dict[str, Any]]]) -> None:
    """Print a table: a row a loader, medians of numbers, and all that differs of words."""
    names = list(dict.fromkeys(name for rounds in found.values() for one in rounds for name in one))
    print(f"\n| {title} | " + " | ".join(names) + " |")
    print("| --- | " + " | ".join(["---:"] * len(names)) + " |")
    for loader, rounds in found.items():
        cells = " | ".join(_cell([one[name] for one in rounds]) for name in names)
        print(f"| {loader} | {cells} |", flush=True)


def _cell(values: list[Any]) -> str:
    if isinstance(values[0], str):
        return "; ".join(dict.fromkeys(values))
    return f"{statistics.median(values):,.3g}"


if __name__ == "__main__":
    main()
