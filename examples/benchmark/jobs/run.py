"""Synthetic jobs, end to end: torch's loader and lit_loader's (`objects` also reads with threads).

    python examples/benchmark/jobs/run.py [jobs=[detection,volumes]] [workers=[1,2,4]] [rounds=3]
    python examples/benchmark/jobs/run.py out=found pages=.  # all, into the page next to this file
    python examples/benchmark/jobs/run.py quick=true  # as little as shows that it works

All options: conf/jobs.yaml. Each trial is a process of its own. Its first batches are not clocked:
they are compared, a small model is trained with them, and memory and descriptors are looked at.
Then it is clocked for some seconds in the middle of an epoch (short_epochs: for whole epochs),
with a step of `step_ms` after each batch. The step sleeps: it takes neither CPU time nor GIL, as
a GPU's. Trials take turns. Ratios are taken within each round, and the median over the rounds is
shown. With `out` each round is kept when it is complete: the same command continues where it was
ended. It needs psutil; for the picture matplotlib.
"""

from __future__ import annotations

import csv
import datetime
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
import warnings
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

# No more than that: spawned workers, torch's too, import this file.

torch.set_num_threads(1)  # what torch makes of its own workers; forked ones inherit it
sys.path.append(str(Path(__file__).resolve().parents[1]))  # machine.py, samples.py

OURS, THEIRS, BESIDE = "lit_loader", "torch", "beside"


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


class Learner:
    """A small model, trained with what a batch has of floating point."""

    def __init__(self):
        torch.manual_seed(0)
        layers = torch.nn.Linear(64, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)
        self.model = torch.nn.Sequential(*layers)

    def learn(self, batch):
        """One step; its loss."""
        found = [each.reshape(1, -1) for each in floats(batch) if each.numel()]
        pooled = [torch.nn.functional.adaptive_avg_pool1d(each.float(), 64) for each in found]
        features = torch.tanh(torch.stack(pooled)).sum(0) if found else torch.ones(1, 64)
        loss = (self.model(features) - features.mean()).square().mean()
        self.model.zero_grad()
        loss.backward()
        with torch.no_grad():  # by hand: torch.optim imports the compiler, which is large
            for parameter in self.model.parameters():
                parameter -= 0.01 * parameter.grad
        return loss.item()


def floats(value):
    """The tensors of floating point in a batch."""
    if isinstance(value, torch.Tensor):
        return [value] if value.is_floating_point() else []
    if hasattr(value, "to_dict"):
        value = value.to_dict()
    if isinstance(value, Mapping):
        value = list(value.values())
    return (
        [each for part in value for each in floats(part)] if isinstance(value, list | tuple) else []
    )


def again_and_again(loader):
    while True:
        yield from loader


def trial(settings, folder, name, workers, seconds):
    """Figures of one loader with so many workers."""
    from machine import cpu_seconds, memory_and_descriptors

    job, learner = dataset(settings, folder), Learner()
    step, compared = settings["step_ms"] / 1e3, settings["compared"]
    digests, losses, memory, descriptors = [], [], 0.0, 0
    began = time.perf_counter()
    if name == BESIDE:
        loader = job.loader_beside(workers)
    else:
        loader = job.loader(loader_class(name), workers)
    batches = again_and_again(loader)
    for number in range(compared):
        batch = next(batches)
        if not number:
            first = time.perf_counter() - began
        digests.append(digest(batch))
        losses.append(learner.learn(batch))
        if number >= compared - 2:
            now = memory_and_descriptors()
            memory, descriptors = max(memory, now[0]), max(descriptors, now[1])
    # Behind the compared batches some that are not clocked either: what was made ahead of them, and
    # for "auto" those after which it has found its number.
    ahead = settings["auto_after"] if workers == "auto" else 4 * workers
    until = time.perf_counter() + settings["auto_s"]
    for _ in range(settings.get("ahead", ahead)):
        batch = next(batches)
        time.sleep(step)
        if workers == "auto" and "ahead" not in settings and time.perf_counter() > until:
            break
    count, waited, used, began = 0, 0.0, cpu_seconds(), time.perf_counter()
    while count == 0 or count % settings["clock"] or time.perf_counter() < began + seconds:
        asked = time.perf_counter()
        batch = next(batches)
        waited += time.perf_counter() - asked
        time.sleep(step)
        count += 1
    lasted = time.perf_counter() - began
    used, samples = cpu_seconds() - used, job.batch_size * count
    del batch, batches
    if name == OURS:
        loader.close()
    return {
        "samples/s": samples / lasted,
        "waits, %": 100 * waited / lasted,
        "CPU, ms": 1e3 * used / samples,
        "memory, MB": memory,
        "first, ms": 1e3 * first,
        "descriptors": descriptors,
        "digests": digests,
        "losses": losses,
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
        import psutil

        for each in (*psutil.Process(process.pid).children(recursive=True), process):
            each.kill()
    process.join()
    return found


# --- rounds ---


def turns_of(job, made, cfg):
    """What a round measures: loader and number of workers."""
    turns = [(each, count) for count in job["workers"] for each in cfg.loaders]
    if cfg.auto and OURS in cfg.loaders:
        turns.append((OURS, "auto"))
    if cfg.beside and made.beside:
        turns += [(BESIDE, count) for count in job.get("beside", job["workers"])]
    return turns


class Kept:
    """Rounds that are complete, in a file, so that a run can go on where it was ended."""

    def __init__(self, path):
        self.path, self.rounds = path, []
        if path and path.exists():
            self.rounds = [json.loads(line) for line in path.read_text().splitlines()]

    def get(self, **which):
        """A round that was measured just so."""
        which = json.loads(json.dumps(which))
        return next((r for r in self.rounds if all(r.get(k) == which[k] for k in which)), None)

    def add(self, **measured):
        self.rounds.append(measured)
        if self.path:
            with self.path.open("a") as file:
                file.write(json.dumps(measured) + "\n")


def measure(name, cfg, folder, kept):
    """All trials of a job, in rounds that take turns: (loader, workers) to a figure a round."""
    from omegaconf import OmegaConf

    import lit_loader

    options = OmegaConf.to_container(cfg, resolve=True)
    job = {"workers": options["workers"], **options["common"], **options["job"][name]}
    rounds, seconds = cfg.rounds, cfg.seconds
    if cfg.quick:
        rounds, seconds = 1, 0.0
        job |= {"workers": job["workers"][:1], "compared": 2, "auto_after": 4}
        job |= {"beside": job["beside"][:1]} if "beside" in job else {}
    # Writes the files, and imports the libraries that the trials' processes inherit.
    made = dataset(job, folder)
    turns, found, loads = turns_of(job, made, cfg), {}, []
    for number in range(rounds):
        versions = [torch.__version__, lit_loader.__version__, made.library]
        which = {"job": name, "round": number, "turns": turns, "seconds": seconds}
        which |= {"options": job, "versions": versions}
        done = kept.get(**which)
        if done is None:
            load, trials = os.getloadavg()[0], []
            for each, count in turns if number % 2 else turns[::-1]:
                trial = in_a_process(job, folder, each, count, seconds, limit=cfg.limit_s)
                trials.append([each, count, trial])
                said = trial if isinstance(trial, str) else f"{trial['samples/s']:,.0f} samples/s"
                print(f"  {name}, round {number + 1}, {each}, {count} workers: {said}", flush=True)
            done = {**which, "load": load, "trials": trials}
            kept.add(**done)
        loads.append(done["load"])
        for each, count, trial in done["trials"]:
            found.setdefault((each, count), []).append(trial)
    return made, found, loads


def median(trials, column):
    return statistics.median(each[column] for each in trials)


def best(found, loader):
    """The number of workers with which it is fastest; of those within 2 % the fewest."""
    fixed = {w: each for (n, w), each in found.items() if n == loader and w != "auto"}
    speed = {workers: median(trials, "samples/s") for workers, trials in fixed.items()}
    return min(w for w in speed if speed[w] >= 0.98 * max(speed.values()))


def ratios(upper, lower, column):
    """Within each round: median, least, most."""
    each = [a[column] / b[column] for a, b in zip(upper, lower, strict=True) if b[column]]
    return (statistics.median(each), min(each), max(each)) if each else (float("nan"),) * 3


COLUMNS = ("samples/s", "waits, %", "CPU, ms", "memory, MB", "first, ms", "descriptors")


def number_(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def table(head, rows, left=1):
    lines = (head, ["---"] * left + ["---:"] * (len(head) - left), *rows)
    return "\n".join("| " + " | ".join(map(str, cells)) + " |" for cells in lines)


def every_setting(name, made, found):
    """A line for each loader and number of workers."""
    order = (THEIRS, BESIDE, OURS)
    settings = sorted(found, key=lambda key: (order.index(key[0]), str(key[1])))
    return [
        [
            name, made.beside if key[0] == BESIDE else key[0], key[1],
            *(number_(median(found[key], column)) for column in COLUMNS),
        ]
        for key in settings
    ]  # fmt: skip


def at_its_best(name, made, found):
    """The row of a job: each loader with the number of workers that is best for it."""
    loaders = [each for each in (THEIRS, OURS, BESIDE) if any(n == each for n, _ in found)]
    counts = {loader: best(found, loader) for loader in loaders}
    theirs, ours = (found[loader, counts[loader]] for loader in (THEIRS, OURS))
    every = [trial for trials in found.values() for trial in trials]
    row = {
        "job": name,
        "library": made.library,
        "workers": [counts[THEIRS], counts[OURS]],
        "times": ratios(ours, theirs, "samples/s"),
        "processor": ratios(ours, theirs, "CPU, ms")[0],
        "same bytes": all(each["digests"] == every[0]["digests"] for each in every),
        "same losses": all(each["losses"] == every[0]["losses"] for each in every),
        THEIRS: {column: median(theirs, column) for column in COLUMNS},
        OURS: {column: median(ours, column) for column in COLUMNS},
    }
    if (OURS, "auto") in found:
        row["auto"] = ratios(found[OURS, "auto"], theirs, "samples/s")[0]
    if BESIDE in counts:
        times = ratios(found[BESIDE, counts[BESIDE]], theirs, "samples/s")[0]
        row["beside"] = f"{made.beside}, {counts[BESIDE]}: {times:.2f}"
    return row


def summary(rows):
    """The table of all jobs: torch's figure, then lit_loader's."""
    head = ["job", "workers", "samples/s", "ratio", "CPU time per sample", '"auto"']
    lines = []
    for row in rows:
        same = row["same bytes"] and row["same losses"]
        times, low, high = row["times"]
        lines.append([
            row["job"] + ("" if same else ": BATCHES DIFFER"), "{} → {}".format(*row["workers"]),
            " → ".join(number_(row[loader]["samples/s"]) for loader in (THEIRS, OURS)),
            f"{times:.2f} ({low:.2f} to {high:.2f})", f"{row['processor']:.2f}",
            f"{row['auto']:.2f}" if "auto" in row else "—",
        ])  # fmt: skip
    return table(head, lines)


def replaced(page, **parts):
    """Write parts of a page anew: each stands between its mark and the next `<!-- end -->`."""
    text = page.read_text()
    for name, part in parts.items():
        before, mark, rest = text.partition(f"<!-- measured: {name} -->\n")
        if not mark:
            raise SystemExit(f"{page} has no place for {name}")
        text = f"{before}{mark}\n{part}\n\n{rest[rest.index('<!-- end -->') :]}"
    page.write_text(text)


LABELS = {
    "detection": "detection: images with boxes, masks",
    "volumes": "volumes: 27 MB each",
    "molecules": "molecules: many small tensors",
    "graphs": "graphs: the molecules, by PyG",
    "robot_uint8": "robot: four cameras, uint8",
    "robot_float32": "robot: four cameras, float32",
    "columns": "table rows: 38 columns",
    "short_epochs": "short epochs, by spawn",
    "latents": "latents: float16, memory-mapped",
    "transitions": "transitions: from a TensorDict",
    "time_series": "time series: padded windows",
    "tokens": "tokens: a step of 20 ms",
    "jpeg": "JPEG: decoding takes the time",
    "faces": "faces: PyTorch's tutorial",
    "objects": "object storage, with read_threads=16",
}
"""What the picture says of the jobs."""


def picture(rows, path, caption):
    """Bars of samples per second, compared with torch's."""
    import bars

    named = [(LABELS.get(row["job"], row["job"]), row["times"], row["processor"]) for row in rows]
    title = f"Speed of {len(rows)} synthetic jobs, compared with torch's DataLoader"
    axis = "samples per second, divided by torch's"
    bars.draw(named, path, title, axis, f"{caption}\nBars: medians; lines: the range.")


def main(cfg):
    from machine import describe

    loader_class(OURS)  # imported once, before any trial
    # Wanted: more workers than processors, for both loaders. The trials inherit this.
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    out, pages = (Path(each) if each else None for each in (cfg.out, cfg.pages))
    if out:
        out.mkdir(parents=True, exist_ok=True)
    kept = Kept(out and out / "rounds.jsonl")
    rows, lines, loads, failed, machine = [], [], [], [], describe([OURS])
    where = (f"`{machine['processor']}`, {machine['cores']:g} cores, "
             f"{', '.join(map(' '.join, machine['versions'].items()))}, "
             f"Python {machine['python']}")  # fmt: skip
    caption = (f"lit_loader {machine['versions'][OURS]}, torch {machine['versions']['torch']}; "
               f"{machine['processor']}, {machine['cores']:g} CPU cores; "
               f"{datetime.date.today():%d %B %Y}.")  # fmt: skip
    print(where, flush=True)
    for name in cfg.jobs or cfg.job:
        with tempfile.TemporaryDirectory(prefix="lit_loader_jobs_") as folder:
            made, found, load = measure(name, cfg, folder, kept)
        loads += load
        failures = {key: each for key in found for each in found[key] if isinstance(each, str)}
        failed += [f"{name}, {who} with {count}: {why}" for (who, count), why in failures.items()]
        found = {key: trials for key, trials in found.items() if key not in failures}
        lines += (setting := every_setting(name, made, found))
        print(f"\n### {name}\n\n{table(['job', 'loader', 'workers', *COLUMNS], setting, left=2)}\n")
        if {who for who, _ in found} >= {OURS, THEIRS}:
            rows.append(at_its_best(name, made, found))
    if rows:
        print(f"\n{summary(rows)}")
    if rows and out:
        (out / "jobs.json").write_text(json.dumps(rows, indent=1))
        picture(rows, out / "jobs.png", caption)
    if rows and pages:
        told = f"On {where}; load {min(loads):.1f} to {max(loads):.1f}; rounds: {cfg.rounds}, "
        told += (
            "quick, so that it means little." if cfg.quick else f"{cfg.seconds:g} s and more each."
        )
        folder = pages / "examples" / "benchmark" / "jobs"
        replaced(folder / "README.md", jobs=summary(rows), where=told)
        with (folder / "settings.csv").open("w", newline="") as file:
            csv.writer(file).writerows([["job", "loader", "workers", *COLUMNS], *lines])
        picture(rows, folder / "jobs.png", caption)
    if failed:
        raise SystemExit("failed:\n" + "\n".join(failed))


if __name__ == "__main__":
    import hydra

    from lit_loader.hydra.calls import MAIN_OPTIONS

    hydra.main(**MAIN_OPTIONS, config_path="conf", config_name="jobs")(main)()
