"""Run as a script with a folder: two ranks train, are stopped, resume; each writes what it saw."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, Trainer

from lit_loader import LoaderDataModule
from tests.support.exact import Augmented
from tests.support.lightning_runs import SaveAt, quiet_trainer
from tests.support.strategy_runs import BATCH_SIZE, BATCHES, EPOCHS, LENGTH, Model

__all__ = ["BATCHES", "BATCH_SIZE", "EPOCHS", "LENGTH", "Model", "data", "trainer"]


def data(workers: int, batch_size: int = BATCH_SIZE) -> LoaderDataModule:
    options = {"batch_size": batch_size, "seed": 5, "seeding": "sample", "num_workers": workers}
    return LoaderDataModule({"train": Augmented(LENGTH)}, options, train={"shuffle": True})


def trainer(root: Path, devices: int, *callbacks: Callback, max_steps: int = -1) -> Trainer:
    strategy = "ddp" if devices > 1 else "auto"
    options = {"devices": devices, "max_epochs": EPOCHS, "max_steps": max_steps}
    return quiet_trainer(root, strategy=strategy, callbacks=list(callbacks), **options)


def main(root: Path) -> None:
    runs: dict[str, list[list[str]]] = {}

    def fit(name: str, workers: int, path: Path | None = None, **options: Any) -> None:
        model = Model()
        callbacks = [options.pop("save")] if "save" in options else []
        trainer(root, 2, *callbacks, **options).fit(
            model, data(workers), ckpt_path=path, weights_only=True
        )
        runs[name] = model.seen

    fit("whole", 1)
    fit("stopped", 2, save=SaveAt(root / "a.ckpt", 3), max_steps=5)
    fit("resumed", 0, root / "a.ckpt", save=SaveAt(root / "b.ckpt", 6))
    fit("again", 1, root / "b.ckpt")
    (root / f"seen-{os.environ.get('LOCAL_RANK', '0')}.json").write_text(json.dumps(runs))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
