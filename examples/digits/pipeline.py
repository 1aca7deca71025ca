"""Instantiates what the configuration names, then trains, tests and reports.

Every recipe runs through here. What differs between them is named in the configuration:

- ``data``, ``model``, ``trainer``, ``callbacks``, ``logger``: instantiated.
- ``report``: a module with the functions ``summary``, ``write`` and ``lines`` of `digits.report`
  (the default).
- A callback with a method ``figures()`` adds what that returns to ``metrics.json``.
- ``optimized_metric``: what a sweep is to optimise (default: ``val/acc``).
"""

from __future__ import annotations

import importlib
import logging
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from hydra.utils import instantiate
from lightning.pytorch import LightningDataModule, LightningModule, Trainer, seed_everything
from omegaconf import DictConfig

from digits.history import History

log = logging.getLogger(__name__)


def run(cfg: DictConfig) -> float | None:
    """Runs one job; returns the figure that a sweep optimises (None if there is none)."""
    report: Any = importlib.import_module(cfg.get("report", "digits.report"))
    directory = Path(cfg.paths.output_dir)
    _quieten_lightning()
    if cfg.threads:
        torch.set_num_threads(cfg.threads)
    # workers=False: lit_loader seeds its workers itself, from the seed set here.
    seed_everything(cfg.seed, workers=False, verbose=False)
    data: LightningDataModule = instantiate(cfg.data)
    model: LightningModule = instantiate(cfg.model)
    history = History()
    trainer: Trainer = instantiate(
        cfg.trainer,
        callbacks=[history, *_each(cfg.get("callbacks"))],
        logger=_each(cfg.get("logger")) or False,
    )
    # With several processes each of them runs all of this.
    report_line = log.info if trainer.is_global_zero else log.debug
    report_line("data: %s", data)

    started = time.perf_counter()
    trainer.fit(model, datamodule=data, ckpt_path=cfg.ckpt_path)
    seconds = time.perf_counter() - started

    test: dict[str, Any] = {}
    if cfg.test and "test" in getattr(data, "given_splits", ("test",)):
        best = getattr(trainer.checkpoint_callback, "best_model_path", "") or None
        for loader in trainer.test(model, datamodule=data, ckpt_path=best, verbose=False):
            test.update(loader)  # one mapping for each test loader

    figures: dict[str, Any] = report.summary(history, test, seconds)
    for callback in trainer.callbacks:
        if hasattr(callback, "figures"):
            figures.update(callback.figures())
    if trainer.is_global_zero:
        report.write(directory, history, figures)
    for line in report.lines(directory, figures):
        report_line(line)
    return figures.get(cfg.get("optimized_metric", "val/acc"))


def _quieten_lightning() -> None:
    """Leaves the console to the progress bar and the report; warnings are still shown."""
    # Lightning has handlers of its own beside Hydra's, so that each line came twice.
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # Lightning 2.6 with torch 2.13; nothing that an application could do about it.
    warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)`", FutureWarning)


def _each(group: DictConfig | None) -> list[Any]:
    """Instantiates the members of a group; one set to null is left out."""
    return [instantiate(member) for member in (group or {}).values() if member is not None]
