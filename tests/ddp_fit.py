"""Run as a script with a folder: two ranks train, are stopped, resume; each writes what it saw."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from exact import Augmented, digests
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from lit_loader import LoaderDataModule

LENGTH, BATCH_SIZE, EPOCHS = 26, 4, 2
BATCHES = 4  # of each rank


class Model(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)
        self.seen: list[list[str]] = []

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        rows = zip(batch[:, 0].tolist(), digests(batch), strict=True)
        self.seen.append([f"{index:.0f}:{name}" for index, name in rows])
        return self.layer(batch.float()).mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class SaveAt(Callback):
    def __init__(self, path: Path, batches: int) -> None:
        self.path, self.batches = path, batches

    def on_train_batch_end(self, trainer: Trainer, *args: Any) -> None:
        if trainer.global_step == self.batches:
            trainer.save_checkpoint(self.path)


def data(workers: int, batch_size: int = BATCH_SIZE) -> LoaderDataModule:
    options = {"batch_size": batch_size, "seed": 5, "seeding": "sample", "num_workers": workers}
    return LoaderDataModule({"train": Augmented(LENGTH)}, options, train={"shuffle": True})


def trainer(root: Path, devices: int, *callbacks: Callback, max_steps: int = -1) -> Trainer:
    return Trainer(
        accelerator="cpu",
        devices=devices,
        strategy="ddp" if devices > 1 else "auto",
        max_epochs=EPOCHS,
        max_steps=max_steps,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=root,
        callbacks=list(callbacks),
    )


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
