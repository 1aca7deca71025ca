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

import argparse
import compileall
import cProfile
import datetime
import gc
import importlib.metadata
import importlib.util
import json
import os
import platform
import pstats
import re
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # bars.py

TORCH, OURS = "torch", "lit_loader"
FIGURES = ("clock", "cpu", "whole_clock", "whole_cpu")
QUIET = 0.5  # CPU cores that others may use while figures are called quiet
LIMIT = 300  # seconds for one run


# --- one run, in a process of its own ---


def used(who):
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


def run_body(name, loader, profiled):
    """Run one program with one loader. Return its figures, or print a profile."""
    import programs

    if loader == OURS:
        from lit_loader import DataLoader

        programs.DataLoader = DataLoader  # the one import
    program = programs.PROGRAMS[name]()
    next(program)
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
    """Return the figures of one run. Raise RuntimeError if the program fails."""
    began, before = time.perf_counter(), used(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder, "found.json")
        command = [sys.executable, __file__, "--body", name, loader, str(found)]
        command += ["--profile", str(profiled)] if profiled else []
        # On few cores the threads of a model compete with the workers, which is another question.
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package is compiled
        with subprocess.Popen(
            command, env=environment, start_new_session=True, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ) as process:  # fmt: skip
            try:
                out, errors = process.communicate(timeout=LIMIT)
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)  # the workers too
                raise
        if process.returncode:
            raise RuntimeError(f"{loader}: {errors.strip()[-2000:]}")
        figures = json.loads(found.read_text())
    print(out, end="")
    whole = {"whole_clock": time.perf_counter() - began}
    return {**figures, **whole, "whole_cpu": used(resource.RUSAGE_CHILDREN) - before}


# --- pairs ---


def busy_seconds():
    """Return the seconds for which the CPU cores have been busy since the machine started."""
    with open("/proc/stat") as file:
        user, nice, system, _idle, _io, irq, softirq, steal = map(int, file.readline().split()[1:9])
    return sum((user, nice, system, irq, softirq, steal)) / os.sysconf("SC_CLK_TCK")


def measure(name, number):
    """Return one pair: the figures of both loaders, and how busy others kept the machine."""
    pair = {"load_average": os.getloadavg()[0]}
    began, busy = time.perf_counter(), busy_seconds()
    for loader in (TORCH, OURS) if number % 2 == 0 else (OURS, TORCH):
        pair[loader] = run(name, loader)
    ours = sum(pair[loader]["whole_cpu"] for loader in (TORCH, OURS))
    others = (busy_seconds() - busy - ours) / (time.perf_counter() - began)
    if pair[TORCH]["seen"] != pair[OURS]["seen"]:
        raise RuntimeError(f"not the same number of samples: {pair}")
    return {**pair, "load_of_others": max(0.0, others)}


def measured(names, count, path):
    """Return all figures. Write them after each program, so that an interruption loses little."""
    compileall.compile_dir(package_folder(), quiet=1)
    found = {"where": where(), "programs": {}, "failed": []}
    for name in names:
        try:
            pairs = [measure(name, number) for number in range(count)]
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            found["failed"].append(f"{name}: {error}")
        else:
            found["programs"][name] = {"pairs": pairs}
            row = summary(pairs)
            print(f"{name}: {row['clock']['ratio']:.2f}, CPU {row['cpu']['ratio']:.2f}", flush=True)
        if path:
            path.write_text(json.dumps(found, indent=1))
    return found


def summary(pairs):
    """Return torch's medians, and by figure the median, least and largest ratio of the pairs."""
    found = {}
    for figure in FIGURES:
        ratios = [pair[OURS][figure] / pair[TORCH][figure] for pair in pairs]
        found[figure] = {
            "torch": statistics.median(pair[TORCH][figure] for pair in pairs),
            "ratio": statistics.median(ratios), "least": min(ratios), "largest": max(ratios),
        }  # fmt: skip
    return found


def package_folder():
    return str(Path(importlib.util.find_spec(OURS).origin).parent)


def where():
    """Return the machine, the versions and the date."""
    names = ("torch", "lightning", "numpy", "scikit-learn", "pillow", "datasets", OURS)
    cpu = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    git = ["git", "-C", package_folder(), "describe", "--always", "--dirty"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout
    return {
        "date": datetime.datetime.now().isoformat(timespec="minutes"),
        "cpu": cpu[1] if cpu else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in names},
        "commit": commit.strip(),
    }


def note(found):
    """Say whether the figures are quiet: others used little of the machine."""
    pairs = [pair for each in found["programs"].values() for pair in each["pairs"]]
    loads = [pair["load_of_others"] for pair in pairs]
    loud = sum(load > QUIET for load in loads)
    said = f"others kept {min(loads):.1f} to {max(loads):.1f} CPU cores busy"
    if loud:
        return f"NOT QUIET: {said}, more than {QUIET} in {loud} of {len(loads)} pairs."
    return f"Quiet: {said}."


# --- what is shown ---


def by_ratio(found):
    """Return title and summary of each program, the worst ratio first."""
    rows = [(name, summary(each["pairs"])) for name, each in found["programs"].items()]
    return sorted(rows, key=lambda row: -row[1]["clock"]["ratio"])


def print_table(found):
    """Print a table in Markdown, the worst program first."""
    print("| program | torch, s | clock, ratio | range | CPU, ratio | range | whole | whole CPU |")
    print("| --- |" + " ---: |" * 7)
    rows = by_ratio(found)
    for name, row in rows:
        cells = [name, f"{row['clock']['torch']:.2f}"]
        for figure in ("clock", "cpu"):
            ratio = row[figure]
            cells += [f"{ratio['ratio']:.2f}", f"{ratio['least']:.2f} to {ratio['largest']:.2f}"]
        cells += [f"{row[figure]['ratio']:.2f}" for figure in ("whole_clock", "whole_cpu")]
        print(f"| {' | '.join(cells)} |")
    print()
    for figure, said in (("clock", "clock"), ("cpu", "CPU time")):
        ratios = [row[figure]["ratio"] for _, row in rows]
        above = sum(ratio > 1.05 for ratio in ratios)
        middle = statistics.median(ratios)
        print(f"{said}: median {middle:.2f}, above 1.05 in {above} of {len(rows)} programs")
    print(note(found))


def caption(found):
    """Return what the picture says of its figures: versions, machine, date, range, load."""
    made, pairs = found["where"], [len(each["pairs"]) for each in found["programs"].values()]
    versions = made["versions"]
    day = datetime.datetime.fromisoformat(made["date"])
    return (
        f"lit_loader {versions[OURS]}, torch {versions['torch']}, Python {made['python']}; "
        f"{made['cpu']}, {made['cores']} CPU cores, no GPU; {day.day} {day:%B %Y}.\n"
        f"In brackets: torch's time. Bars: medians of {min(pairs)} pairs of runs; "
        f"lines: the range. {note(found)}"
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
        for name, row in by_ratio(found)
    ]
    title = f"Speed of {len(rows)} small programs, compared with torch's DataLoader"
    bars.draw(rows, path, title, "speed: torch's time divided by lit_loader's", caption(found))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=5, help="pairs of each program (5)")
    parser.add_argument("--quick", action="store_true", help="two pairs of each program")
    parser.add_argument(
        "--only", action="append", metavar="NAME", help="programs with NAME in their title"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw a picture")
    parser.add_argument("--read", type=Path, metavar="FILE", help="show figures that --json wrote")
    parser.add_argument("--profile", type=int, metavar="LINES", help="profile the bodies instead")
    parser.add_argument("--body", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.body:
        name, loader, path = options.body
        Path(path).write_text(json.dumps(run_body(name, loader, options.profile)))
        return
    if options.read:
        found = json.loads(options.read.read_text())
    else:
        from programs import PROGRAMS

        wanted = options.only or [""]
        names = [name for name in PROGRAMS if any(each in name for each in wanted)]
        if not names:
            parser.error(f"no program has {' or '.join(wanted)} in its title")
        if options.profile:
            for name in names:
                for loader in (TORCH, OURS):
                    print(f"\n## {name}, {loader}")
                    run(name, loader, options.profile)
            return
        found = measured(names, 2 if options.quick else options.pairs, options.json)
    if found["programs"]:
        print_table(found)
        if options.plot:
            draw(found, options.plot)
    if found["failed"]:
        raise SystemExit("failed:\n" + "\n".join(found["failed"]))


if __name__ == "__main__":
    main()
