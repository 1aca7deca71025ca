"""Programs of real packages, with torch's DataLoader and with lit_loader's.

    python examples/benchmark/real/run.py [--pairs 5] [--only NAME] [--json FILE]
    python examples/benchmark/real/run.py --read FILE [FILE]  # figures that were measured

`programs` has a program for each package, named as the package is installed. Each run of a program
is a new process. torch's loader and lit_loader's take turns; `lit_loader.replace_torch()` is what
differs. A ratio is lit_loader's figure, divided by torch's of the same pair: below 1 lit_loader is
faster. CPU time includes the workers. What is judged is the training; the two `whole` columns are
of the whole process.
"""

from __future__ import annotations

import ast
import importlib.metadata
import json
import multiprocessing
import runpy
import sys
from functools import partial
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # pairs.py

import pairs
from pairs import OURS, TORCH

PROGRAMS = {
    ast.get_docstring(ast.parse(path.read_text())).partition(":")[0]: path
    for path in sorted(Path(__file__).parent.glob("programs/*.py"))
}
"""Title to file."""

ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",  # no GPU
    "HF_HUB_OFFLINE": "1",  # no downloads
    "MPLBACKEND": "Agg",
    "TOKENIZERS_PARALLELISM": "false",
    "YOLO_CONFIG_DIR": ".",
    "YOLO_OFFLINE": "true",
}


def run_body(title, loader):
    """Run one program with one loader. Return its figures."""
    import measured
    import torch.utils.data.dataloader as torch_loader

    # As tutorials do, programs train without `if __name__ == "__main__"`.
    multiprocessing.set_start_method("fork")
    if loader == OURS:
        import lit_loader

        lit_loader.replace_torch()
    passes = 0
    make = torch_loader._BaseDataLoaderIter.__init__

    def counted(iterator, *arguments, **options):
        nonlocal passes
        passes += 1
        make(iterator, *arguments, **options)

    torch_loader._BaseDataLoaderIter.__init__ = counted
    measured.seed()
    runpy.run_path(str(PROGRAMS[title]), run_name="__main__")
    return {**measured.FIGURES, "passes_of_torch": passes}


def measure(title, number):
    """Return one pair."""
    try:
        importlib.metadata.version(PROGRAMS[title].stem)
    except importlib.metadata.PackageNotFoundError:
        raise pairs.NotCompared(pairs.NOT_INSTALLED) from None
    run = partial(pairs.run, __file__, "--body", title, **ENVIRONMENT)
    pair = pairs.pair_of(run, number)
    for loader in (TORCH, OURS):
        del pair[loader]["printed"]
    if pair[OURS]["passes_of_torch"]:
        raise pairs.NotCompared("torch's own iterators made its batches, not lit_loader")
    return pair


# --- what is shown ---


def epoch(histogram):
    return " + ".join(f"{samples:,} × {times}" for times, samples in histogram)


def samples(made):
    """Say how many samples came how often in an epoch. Where epochs differ, say it of each kind."""
    return "; ".join(dict.fromkeys(map(epoch, made["epochs"])))


def orders(made):
    return f"{made['orders']} of {len(made['epochs'])}"


def cell(text_of, made):
    """Return what holds of all runs, or what holds of each loader."""
    said = {
        loader: "; ".join({text_of(pair[loader]): 0 for pair in made}) for loader in (TORCH, OURS)
    }
    same = said[TORCH] == said[OURS]
    return said[OURS] if same else ", ".join(f"{name}: {text}" for name, text in said.items())


def messages(made):
    return " ".join(sorted({each for pair in made for each in pair[OURS]["messages"]}))


def versions(found):
    """Say which packages were installed."""
    installed = found["where"]["versions"].items()
    return ", ".join(f"{name} {version}" for name, version in installed if version is not None)


def main():
    parser = pairs.parser(__doc__)
    parser.add_argument(
        "--read", type=Path, nargs="+", metavar="FILE", help="show figures that --json wrote"
    )
    options = parser.parse_args()
    if options.body:
        title, loader, path = options.body
        Path(path).write_text(json.dumps(run_body(title, loader)))
        return
    if options.read:
        files = [json.loads(file.read_text()) for file in options.read]
    else:
        packages = ("torch", "numpy", *(path.stem for path in PROGRAMS.values()))
        titles = pairs.chosen(options, parser, PROGRAMS)
        files = [pairs.measured(measure, titles, options.pairs, options.json, packages)]
    found = pairs.merged(files)
    for each in files:
        print(f"{pairs.made_on(each['where'])}\n{versions(each)}\n")
    if found["programs"]:
        pairs.print_table(
            found,
            samples=partial(cell, samples),
            orders=partial(cell, orders),
            messages=messages,
        )
    if found["not_compared"]:
        print(f"\nNot compared:\n{pairs.listed(found['not_compared'])}")
    if found["failed"]:
        raise SystemExit(f"failed:\n{pairs.listed(found['failed'])}")


if __name__ == "__main__":
    main()
