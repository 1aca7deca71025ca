"""Small ordinary programs with torch's DataLoader and with lit_loader's.

    python examples/benchmark/small/run.py [--pairs 5] [--only NAME] [--json FILE] [--plot FILE]
    python examples/benchmark/small/run.py --read FILE --plot FILE  # figures that were measured
    python examples/benchmark/small/run.py --only 'text lines' --profile 25

`programs.py` has the programs. Each run of a program is a new process. torch's loader and
lit_loader's take turns. A ratio is lit_loader's figure, divided by torch's of the same pair: below
1 lit_loader is faster. CPU time includes the workers. What is judged is the body of a program: all
but imports and the making of data. The last two columns are of the whole process.
"""

from __future__ import annotations

import cProfile
import gc
import json
import pstats
import resource
import sys
import time
from functools import partial
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # bars.py, pairs.py

import pairs
from pairs import OURS, TORCH, used

PACKAGES = ("torch", "lightning", "numpy", "scikit-learn", "pillow", "datasets")


def run_body(name, loader, profiled):
    """Run one program with one loader. Return its figures, or print a profile."""
    import programs

    if loader == OURS:
        from lit_loader import DataLoader

        programs.DataLoader = DataLoader  # the one import
    program = programs.PROGRAMS[name]()
    next(program)
    # A full collection of what the imports have made takes 0.1 s. It must not fall into the body of
    # one loader by chance.
    gc.collect()
    profile = cProfile.Profile()
    children = used(resource.RUSAGE_CHILDREN)
    own, began = used(resource.RUSAGE_SELF), time.perf_counter()
    if profiled:
        profile.enable()
    try:
        next(program)
    except StopIteration as end:
        seen = end.value
    profile.disable()
    clock, own = time.perf_counter() - began, used(resource.RUSAGE_SELF) - own
    if profiled:
        pstats.Stats(profile).sort_stats("tottime").print_stats(profiled)
    # A Trainer and its loaders refer to each other. Workers that wait for the collector end here.
    gc.collect()
    return {"clock": clock, "cpu": own + used(resource.RUSAGE_CHILDREN) - children, "seen": seen}


def run(name, loader, profiled=0):
    """Return the figures of one run."""
    profile = ["--profile", str(profiled)] if profiled else []
    figures = pairs.run(__file__, *profile, "--body", name, loader)
    print(figures.pop("printed"), end="")
    return figures


def measure(name, number):
    """Return one pair. Raise RuntimeError if both loaders do not yield the same samples."""
    pair = pairs.pair_of(partial(run, name), number)
    if pair[TORCH]["seen"] != pair[OURS]["seen"]:
        raise RuntimeError(f"not the same number of samples: {pair}")
    return pair


def caption(found):
    """Return what the picture says of its figures: versions, machine, date, range, load."""
    counts = [len(each["pairs"]) for each in found["programs"].values()]
    return (
        f"{pairs.made_on(found['where'])}\n"
        f"In brackets: torch's time. Bars: medians of {min(counts)} pairs of runs; "
        f"lines: the range. {pairs.note(found)}"
    )


def draw(found, path):
    """Draw the speed of all programs as bars from 1, which is torch's."""
    import bars

    rows = [
        (
            f"{name} ({row['clock']['torch']:.1f} s)",
            tuple(1 / row["clock"][key] for key in ("ratio", "largest", "least")),
            row["cpu"]["ratio"],
        )
        for name, row in pairs.by_ratio(found)
    ]
    title = f"Speed of {len(rows)} small programs, compared with torch's DataLoader"
    bars.draw(rows, path, title, "speed: torch's time divided by lit_loader's", caption(found))


def main():
    parser = pairs.parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="two pairs of each program")
    parser.add_argument("--read", type=Path, metavar="FILE", help="show figures that --json wrote")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw a picture")
    parser.add_argument("--profile", type=int, metavar="LINES", help="profile the bodies instead")
    options = parser.parse_args()
    if options.body:
        name, loader, path = options.body
        Path(path).write_text(json.dumps(run_body(name, loader, options.profile)))
        return
    if options.read:
        found = json.loads(options.read.read_text())
    else:
        from programs import PROGRAMS

        names = pairs.chosen(options, parser, PROGRAMS)
        if options.profile:
            for name in names:
                for loader in (TORCH, OURS):
                    print(f"\n## {name}, {loader}")
                    run(name, loader, options.profile)
            return
        count = 2 if options.quick else options.pairs
        found = pairs.measured(measure, names, count, options.json, PACKAGES)
    if found["programs"]:
        pairs.print_table(found)
        if options.plot:
            draw(found, options.plot)
    if found["failed"]:
        raise SystemExit(f"failed:\n{pairs.listed(found['failed'])}")


if __name__ == "__main__":
    main()
