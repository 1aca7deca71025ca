"""Real jobs, end to end: torch's loader and lit_loader's, one import changed.

    python examples/benchmark/jobs/run.py [jobs=[detection,volumes]] [workers=[1,2,4]] [rounds=3]
    python examples/benchmark/jobs/run.py quick=true  # as little as shows that it works

All options: conf/jobs.yaml. Each trial is a process of its own. Its first batches are not clocked:
they are compared, and memory and descriptors looked at. Then it is clocked for some seconds in the
midst of an epoch (short_epochs: for whole epochs), with a step of `step_ms` behind each batch. The
step sleeps: it holds neither a processor nor the GIL, as a GPU's. Trials take turns. Ratios are
taken within each round, and the median over the rounds is shown. It needs psutil; for the picture
matplotlib.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import statistics
import tempfile
import time
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import psutil
import torch

# No more than that: spawned workers, torch's too, import this file.

torch.set_num_threads(1)  # what torch makes of its own workers; forked ones inherit it

OURS, THEIRS = "lit_loader", "torch"


def loader_class(name):
    """The one import that is changed."""
    if name == OURS:
        from lit_loader import DataLoader
    else:
        from torch.utils.data import DataLoader
    return DataLoader


def dataset(settings, folder):
    from hydra.utils import instantiate

    return instantiate(settings["dataset"], folder=folder)


# --- one trial ---


def digest(value, last=0):
    """A number for every byte, type and shape of a batch."""
    if isinstance(value, torch.Tensor):
        value = value.detach().numpy()
    if isinstance(value, np.ndarray):
        last = zlib.crc32(f"{value.dtype}{value.shape}".encode(), last)
        return zlib.crc32(np.ascontiguousarray(value).reshape(-1).view(np.uint8), last)
    if hasattr(value, "to_dict"):  # of PyG and of tensordict
        value = value.to_dict()
    if isinstance(value, Mapping):
        value = [part for item in value.items() for part in item]
    if isinstance(value, list | tuple):
        for part in value:
            last = digest(part, last)
        return zlib.crc32(f"{type(value).__name__}{len(value)}".encode(), last)
    return zlib.crc32(repr(value).encode(), last)


def tree():
    me = psutil.Process()
    return [me, *me.children(recursive=True)]


def processor_seconds():
    """Of this process and all below it, and of those that have ended and were waited for."""
    found = 0.0
    for process in tree():
        try:
            found += sum(process.cpu_times()[:4])
        except psutil.Error:
            continue
    return found


def memory_and_descriptors():
    """Megabytes of all processes, shared pages divided among them; the most descriptors of one."""
    memory, most = 0.0, 0
    for process in tree():
        try:
            memory += process.memory_full_info().pss / 1e6
            most = max(most, process.num_fds())
        except (psutil.Error, OSError):
            continue
    return memory, most


def again_and_again(loader):
    while True:
        yield from loader


def trial(settings, folder, name, workers, seconds):
    """Figures of one loader with so many workers."""
    job = dataset(settings, folder)
    step, compared = settings["step_ms"] / 1e3, settings["compared"]
    # Behind the compared batches some that are not clocked either: what was made ahead of them, and
    # for "auto" those after which it has found its number.
    ahead = settings["auto_after"] if workers == "auto" else 4 * workers
    ahead = settings.get("ahead", ahead)
    digests, memory, descriptors = [], 0.0, 0
    began = time.perf_counter()
    loader = job.loader(loader_class(name), workers)
    batches = again_and_again(loader)
    for number in range(compared):
        batch = next(batches)
        if not number:
            first = time.perf_counter() - began
        digests.append(digest(batch))
        if number >= compared // 2:
            now = memory_and_descriptors()
            memory, descriptors = max(memory, now[0]), max(descriptors, now[1])
    for _ in range(ahead):
        batch = next(batches)
        time.sleep(step)
    count, waited, used, began = 0, 0.0, processor_seconds(), time.perf_counter()
    while count == 0 or count % settings["clock"] or time.perf_counter() < began + seconds:
        asked = time.perf_counter()
        batch = next(batches)
        waited += time.perf_counter() - asked
        time.sleep(step)
        count += 1
    lasted = time.perf_counter() - began
    used, samples = processor_seconds() - used, job.batch_size * count
    del batch, batches
    if name == OURS:
        loader.close()
    return {
        "samples/s": samples / lasted,
        "waits, %": 100 * waited / lasted,
        "processor, ms": 1e3 * used / samples,
        "memory, MB": memory,
        "first, ms": 1e3 * first,
        "descriptors": descriptors,
        "digests": digests,
        "library": job.library,
    }


def answer(connection, *arguments):
    try:
        connection.send(trial(*arguments))
    except BaseException as error:
        connection.send(f"{type(error).__name__}: {error}")


def in_a_process(*arguments, limit):
    """A trial's figures; a line of text where it failed."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=answer, args=(theirs, *arguments))
    process.start()
    theirs.close()
    try:
        found = ours.recv() if ours.poll(limit) else f"no end within {limit} s"
    except EOFError:
        found = "its process died"
    if isinstance(found, str):
        for each in (*psutil.Process(process.pid).children(recursive=True), process):
            each.kill()
    process.join()
    return found


# --- rounds ---


def measure(name, cfg, folder):
    """All trials of a job, in rounds that take turns: (loader, workers) to a figure a round."""
    job = {**cfg.common, **cfg.job[name]}
    # Writes the files, and imports the libraries that the trials' processes inherit.
    dataset(job, folder)
    workers, rounds, seconds = job.get("workers", cfg.workers), cfg.rounds, cfg.seconds
    if cfg.quick:
        workers, rounds, seconds = workers[:1], 1, 0.0
        job |= {"compared": 2, "auto_after": 4}
    found = {}
    for number in range(rounds):
        turns = []
        for count in workers:
            pair = list(cfg.loaders)
            turns += [(each, count) for each in (pair if number % 2 else pair[::-1])]
        if cfg.auto and OURS in cfg.loaders:
            turns.append((OURS, "auto"))
        for each, count in turns if number % 2 else turns[::-1]:
            figures = in_a_process(job, folder, each, count, seconds, limit=cfg.limit_s)
            if isinstance(figures, str):
                raise SystemExit(f"{name}, {each} with {count} workers: {figures}")
            found.setdefault((each, count), []).append(figures)
            print(f"  {name}, round {number + 1}, {each}, {count} workers: "
                  f"{figures['samples/s']:,.0f} samples/s", flush=True)  # fmt: skip
    return found


def median(trials, column):
    return statistics.median(each[column] for each in trials)


def best(found, loader):
    """The number of workers with which it is fastest; of those within 2 % the fewest."""
    speed = {w: median(t, "samples/s") for (n, w), t in found.items() if n == loader if w != "auto"}
    return min(w for w in speed if speed[w] >= 0.98 * max(speed.values()))


def ratios(upper, lower, column):
    """Within each round: median, least, most."""
    each = [a[column] / b[column] for a, b in zip(upper, lower, strict=True) if b[column]]
    return (statistics.median(each), min(each), max(each)) if each else (float("nan"),) * 3


COLUMNS = ("samples/s", "waits, %", "processor, ms", "memory, MB", "first, ms", "descriptors")


def number(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def table(head, rows, left=1):
    for cells in (head, ["---"] * left + ["---:"] * (len(head) - left), *rows):
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def every_setting(name, found):
    """A table: a line for each loader and number of workers."""
    print(f"\n### {name}\n")
    settings = sorted(found, key=lambda key: (key[0] == OURS, str(key[1])))
    rows = [[*key, *(number(median(found[key], column)) for column in COLUMNS)] for key in settings]
    table(["loader", "workers", *COLUMNS], rows)


def at_its_best(name, found):
    """The row of a job: each loader with the number of workers that is best for it."""
    counts = {loader: best(found, loader) for loader in (THEIRS, OURS)}
    theirs, ours = (found[loader, counts[loader]] for loader in (THEIRS, OURS))
    times, low, high = ratios(ours, theirs, "samples/s")
    every = [t["digests"] for trials in found.values() for t in trials]
    row = {
        "job": name,
        "library": ours[0]["library"],
        "workers": [counts[THEIRS], counts[OURS]],
        "times": [times, low, high],
        "processor": ratios(ours, theirs, "processor, ms")[0],
        "same bytes": all(each == every[0] for each in every),
        THEIRS: {column: median(theirs, column) for column in COLUMNS},
        OURS: {column: median(ours, column) for column in COLUMNS},
    }
    if (OURS, "auto") in found:
        row["auto"] = ratios(found[OURS, "auto"], theirs, "samples/s")[0]
    return row


def summary(rows):
    """The table of all jobs: torch's figure, then lit_loader's."""
    print()
    head = ["job", "by", "workers", "samples/s", "times as fast", "auto", "step waits, %",
            "processor, ms a sample", "of torch's", "memory, MB", "first batch, ms",
            "descriptors", "same bytes"]  # fmt: skip
    lines = []
    for row in rows:
        pair = {c: f"{number(row[THEIRS][c])} → {number(row[OURS][c])}" for c in COLUMNS}
        times, low, high = row["times"]
        lines.append([
            row["job"], row["library"], "{} → {}".format(*row["workers"]), pair["samples/s"],
            f"{times:.2f} ({low:.2f} to {high:.2f})", f"{row['auto']:.2f}" if "auto" in row else "",
            pair["waits, %"], pair["processor, ms"], f"{row['processor']:.2f}",
            pair["memory, MB"], pair["first, ms"], pair["descriptors"],
            "yes" if row["same bytes"] else "NO",
        ])  # fmt: skip
    table(head, lines, left=2)


def picture(rows, path):
    """Bars, torch = 1: samples a second, and processor time a sample."""
    from matplotlib.figure import Figure

    rows = sorted(rows, key=lambda row: row["times"][0])
    figure = Figure(figsize=(9, 1.2 + 0.33 * len(rows)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    names = [row["job"].replace("_", " ") for row in rows]
    for axes, values, title in (
        (left, [row["times"][0] for row in rows], "samples a second (torch = 1)"),
        (right, [row["processor"] for row in rows], "processor time a sample (torch = 1)"),
    ):
        bars = axes.barh(names, values, color="tab:blue")
        axes.bar_label(bars, [f"{value:.2g}" for value in values], padding=3, fontsize=9)
        axes.axvline(1, color="black", lw=1)
        axes.set_title(title, fontsize=10)
        axes.margins(x=0.14)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)


def main(cfg):
    import lit_loader

    loader_class(OURS)  # imported once, before any trial
    rows, out = [], Path(cfg.out) if cfg.out else None
    print(f"torch {torch.__version__}, lit_loader {lit_loader.__version__}")
    print(f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    for name in cfg.jobs or cfg.job:
        with tempfile.TemporaryDirectory(prefix="lit_loader_jobs_") as folder:
            found = measure(name, cfg, folder)
        every_setting(name, found)
        if set(cfg.loaders) == {OURS, THEIRS}:
            rows.append(at_its_best(name, found))
            if out:
                out.mkdir(parents=True, exist_ok=True)
                (out / "jobs.json").write_text(json.dumps(rows, indent=1))
    if rows:
        summary(rows)
        if out:
            picture(rows, out / "jobs.png")


if __name__ == "__main__":
    import hydra

    from lit_loader.hydra.calls import MAIN_OPTIONS

    hydra.main(**MAIN_OPTIONS, config_path="conf", config_name="jobs")(main)()
