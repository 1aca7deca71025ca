"""The Hydra application ``lit-loader-bench``: measures your own dataset, and names a setting.

Its configuration is ``conf/lit_loader/bench/default.yaml``. torch and rich are imported late, so
that ``--help`` is quick.

Exit codes: 0; 2: options are refused, or something is not installed; 130: Ctrl-C, which keeps what
was measured.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import hydra
from omegaconf import DictConfig

from lit_loader.core.options.checks import flag, positive, refuse
from lit_loader.errors import OptionError
from lit_loader.hydra.calls import MAIN_OPTIONS
from lit_loader.hydra.conf_folder import conf_folder

__all__ = ["main", "run"]


@hydra.main(**MAIN_OPTIONS, config_path=str(conf_folder()), config_name="lit_loader/bench/default")
def main(cfg: DictConfig) -> None:
    """Measure what the configuration asks for; ends with the exit code."""
    from hydra.core.hydra_config import HydraConfig

    sys.path.insert(0, os.getcwd())  # the user's own modules, as python -m has it
    try:
        code = run(cfg, Path(HydraConfig.get().runtime.output_dir))
    except OptionError as error:
        print(f"lit-loader-bench: {error.text}", file=sys.stderr)
        code = 2
    if code:
        raise SystemExit(code)


def run(cfg: DictConfig, directory: Path) -> int:
    """Measure, print and write; returns the exit code. OptionError: something is refused."""
    options = _options(cfg)
    node = {"_target_": cfg.dataset} if isinstance(cfg.dataset, str) else cfg.dataset
    if node is None or node.get("_target_") is None:
        raise OptionError("name your dataset: dataset=my_module.MyDataset, or, with arguments, "
                          "dataset._target_=my_module.MyDataset +dataset.root=…")  # fmt: skip
    for name in ("rich", "psutil"):
        if importlib.util.find_spec(name) is None:
            raise OptionError(f"lit-loader-bench needs {name}: pip install rich psutil")

    import torch
    from rich.console import Console

    from lit_loader.bench import report
    from lit_loader.bench.grid import Grid
    from lit_loader.bench.machine import load_now
    from lit_loader.bench.own_dataset import made
    from lit_loader.core.system.linux import usable_cores

    title = f"dataset={node['_target_']}"
    dataset, config = made(title, node), made("loader", cfg.loader)
    grid, load, cores = Grid(dataset, config, options), load_now(), usable_cores()
    console = Console(width=None if sys.stdout.isatty() else 140)
    threads, code = torch.get_num_threads(), 0
    torch.set_num_threads(1)  # as torch has it in its own workers; forked ones inherit it
    turns = iter(range(1, (options.rounds + 1) * len(grid.settings) + 1))
    try:
        with Console(stderr=True).status(title) as status:
            grid.measure(lambda name: status.update(f"{title}: turn {next(turns)}, {name}"))
    except KeyboardInterrupt:
        code = 130
    finally:
        torch.set_num_threads(threads)
    step = 1e3 * (config.batch_size or 1) / options.step_ms if options.step_ms else None
    lines, best = report.advice(grid, step, cores, load), report.chosen(grid.settings, step)
    report.show(console, f"{title}, {cores:g} CPU cores", grid, lines, best)
    report.write(directory / "results.json", grid, lines, best)
    return code


def _options(cfg: DictConfig) -> SimpleNamespace:
    """Check the options of the measurement."""
    found = SimpleNamespace(rounds=positive("rounds", cfg.rounds), step_ms=cfg.step_ms)
    for name, low in (("num_workers", 0), ("prefetch_factor", 1)):
        given = cfg[name]
        values = [given] if isinstance(given, int) else list(given)
        if not values or any(type(value) is not int or value < low for value in values):
            refuse(name, f"a list of whole numbers of at least {low}", values)
        setattr(found, name, values)
    for name in ("seconds", "step_ms"):
        if cfg[name] is not None and not cfg[name] > 0:
            refuse(name, "more than 0", cfg[name])
    found.seconds = cfg.seconds
    found.auto, found.threads = flag("auto", cfg.auto), flag("threads", cfg.threads)
    return found
