"""Runs in pairs: a program with torch's DataLoader and with lit_loader's, in turns.

`small/run.py` and `real/run.py` measure with this. Each run is a new process. A ratio is
lit_loader's figure, divided by torch's of the same pair: below 1 lit_loader is faster.
"""

from __future__ import annotations

import argparse
import compileall
import datetime
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TORCH, OURS = "torch", "lit_loader"
FIGURES = ("clock", "cpu", "whole_clock", "whole_cpu")
QUIET = 0.5  # CPU cores that others may use while figures are called quiet
LIMIT = 300  # seconds for one run
NOT_INSTALLED = "not installed"


class NotCompared(Exception):
    """There is nothing to compare. This is no failure."""


# --- one run ---


def used(who):
    """Return the CPU seconds of this process, or of its children that have ended."""
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


def run(script, *arguments, **environment):
    """Run a script in a new process and a new folder. Return its figures.

    The last argument of the script is the file to which it writes its figures. Raise RuntimeError
    if the script fails.
    """
    began, before = time.perf_counter(), used(resource.RUSAGE_CHILDREN)
    # On few cores the threads of a model compete with the workers, which is another question.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package is compiled
    paths = [str(package_folder().parent), os.environ.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder, "found.json")
        with subprocess.Popen(
            [sys.executable, Path(script).resolve(), *arguments, found],
            cwd=folder, env=environment, start_new_session=True, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ) as process:  # fmt: skip
            try:
                out, errors = process.communicate(timeout=LIMIT)
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)  # the workers too
                raise
        if process.returncode:
            raise RuntimeError(f"{' '.join(arguments)}: {errors.strip()[-2000:]}")
        figures = json.loads(found.read_text())
    figures["printed"] = out
    figures["messages"] = sorted(set(re.findall(r"\[(LL\d{3})\]", errors)))
    whole = {"whole_clock": time.perf_counter() - began}
    return {**figures, **whole, "whole_cpu": used(resource.RUSAGE_CHILDREN) - before}


# --- pairs ---


def busy_seconds():
    """Return the seconds for which the CPU cores have been busy since the machine started."""
    with open("/proc/stat") as file:
        user, nice, system, _idle, _io, irq, softirq, steal = map(int, file.readline().split()[1:9])
    return sum((user, nice, system, irq, softirq, steal)) / os.sysconf("SC_CLK_TCK")


def pair_of(run_with, number):
    """Return one pair: the figures of both loaders, and how busy others kept the machine."""
    pair = {"load_average": os.getloadavg()[0]}
    began, busy = time.perf_counter(), busy_seconds()
    for loader in (TORCH, OURS) if number % 2 == 0 else (OURS, TORCH):
        pair[loader] = run_with(loader)
    ours = sum(pair[loader]["whole_cpu"] for loader in (TORCH, OURS))
    others = (busy_seconds() - busy - ours) / (time.perf_counter() - began)
    return {**pair, "load_of_others": max(0.0, others)}


def measured(measure, names, count, path, packages):
    """Return all figures. Write them after each program, so that an interruption loses little.

    `measure` makes a pair from the name of a program and the number of the pair.
    """
    compileall.compile_dir(str(package_folder()), quiet=1)
    found = {"where": where(packages), "programs": {}, "not_compared": {}, "failed": {}}
    for name in names:
        try:
            pairs = [measure(name, number) for number in range(count)]
        except NotCompared as reason:
            found["not_compared"][name] = str(reason)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            found["failed"][name] = str(error)
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
    return Path(importlib.util.find_spec(OURS).origin).parent


def where(packages):
    """Return the machine, the versions and the date."""
    import lit_loader

    versions = {OURS: lit_loader.__version__}
    for name in packages:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    cpu = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    git = ["git", "-C", str(package_folder()), "describe", "--always", "--dirty"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout
    return {
        "date": datetime.datetime.now().isoformat(timespec="minutes"),
        "cpu": cpu[1] if cpu else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": versions,
        "commit": commit.strip(),
    }


# --- what is shown ---


def merged(files):
    """Return the figures of several files as one. A program counts where it comes first.

    That it is not installed counts where nothing else is known of it.
    """
    found = {"programs": {}}
    for each in files:
        found["programs"] = {**each["programs"], **found["programs"]}
    for kind in ("not_compared", "failed"):
        said = [item for each in files for item in each[kind].items()]
        said.sort(key=lambda item: item[1] != NOT_INSTALLED)
        found[kind] = {name: reason for name, reason in said if name not in found["programs"]}
    return found


def listed(reasons):
    return "\n".join(f"{name}: {reason}" for name, reason in reasons.items())


def made_on(where):
    """Say by what figures were made: versions, machine, date."""
    versions = where["versions"]
    day = datetime.datetime.fromisoformat(where["date"])
    return (
        f"lit_loader {versions[OURS]}, torch {versions['torch']}, Python {where['python']}; "
        f"{where['cpu']}, {where['cores']} CPU cores, no GPU; {day.day} {day:%B %Y}."
    )


def by_ratio(found):
    """Return title and summary of each program, the worst ratio first."""
    rows = [(name, summary(each["pairs"])) for name, each in found["programs"].items()]
    return sorted(rows, key=lambda row: -row[1]["clock"]["ratio"])


def print_table(found, **more):
    """Print a table in Markdown, the worst program first.

    `more` are further columns: what makes a cell from the pairs of a program.
    """
    heads = ("clock, ratio", "range", "CPU, ratio", "range", "whole", "whole CPU", *more)
    print(f"| program | torch, s | {' | '.join(heads)} |")
    print("| --- |" + " ---: |" * (1 + len(heads)))
    rows = by_ratio(found)
    for name, row in rows:
        cells = [name, f"{row['clock']['torch']:.2f}"]
        for figure in ("clock", "cpu"):
            ratio = row[figure]
            cells += [f"{ratio['ratio']:.2f}", f"{ratio['least']:.2f} to {ratio['largest']:.2f}"]
        cells += [f"{row[figure]['ratio']:.2f}" for figure in ("whole_clock", "whole_cpu")]
        cells += [cell_of(found["programs"][name]["pairs"]) for cell_of in more.values()]
        print(f"| {' | '.join(cells)} |")
    print()
    for figure, said in (("clock", "clock"), ("cpu", "CPU time")):
        ratios = [row[figure]["ratio"] for _, row in rows]
        above = sum(ratio > 1.05 for ratio in ratios)
        middle = statistics.median(ratios)
        print(f"{said}: median {middle:.2f}, above 1.05 in {above} of {len(rows)} programs")
    print(note(found))


def note(found):
    """Say whether the figures are quiet: others used little of the machine."""
    pairs = [pair for each in found["programs"].values() for pair in each["pairs"]]
    loads = [pair["load_of_others"] for pair in pairs]
    loud = sum(load > QUIET for load in loads)
    said = f"others kept {min(loads):.1f} to {max(loads):.1f} CPU cores busy"
    if loud:
        return f"NOT QUIET: {said}, more than {QUIET} in {loud} of {len(loads)} pairs."
    return f"Quiet: {said}."


def parser(doc):
    """Return a parser of the options that both commands have."""
    found = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    found.add_argument("--pairs", type=int, default=5, help="pairs of each program (5)")
    found.add_argument(
        "--only", action="append", metavar="NAME", help="programs with NAME in their title"
    )
    found.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    found.add_argument("--body", nargs=3, help=argparse.SUPPRESS)
    return found


def chosen(options, parser, names):
    """Return the names of the programs that `--only` chooses."""
    wanted = options.only or [""]
    found = [name for name in names if any(each.lower() in name.lower() for each in wanted)]
    if not found:
        parser.error(f"no program has {' or '.join(wanted)} in its title")
    return found
