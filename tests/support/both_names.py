"""What trains under either of Lightning's names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

# As sorted imports have it: before the Lightning that is used.
from lit_loader import DataLoader, LoaderDataModule
from tests.support.exact import Augmented, digests

LENGTH, BATCH_SIZE, EPOCHS = 22, 4, 2
BATCHES = 6  # of one rank
OPTIONS: dict[str, Any] = {"batch_size": BATCH_SIZE, "seed": 5, "seeding": "sample"}
KINDS = ("datasets", "swapped", "one import")


def model(pl: Any) -> Any:
    """A module of this name that notes the samples of each batch, and how they were augmented."""

    class Model(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(8, 1)
            self.seen: list[list[str]] = []

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            rows = zip(batch[:, 0].tolist(), digests(batch), strict=True)
            self.seen.append([f"{index:.0f}:{digest}" for index, digest in rows])
            return self.layer(batch.float()).mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    return Model()


def data(pl: Any, kind: str, loader: type = DataLoader) -> Any:
    """A data module that loads the same batches in one of the ways that there are."""
    if kind == "datasets":
        return LoaderDataModule({"train": Augmented(LENGTH)}, OPTIONS, train={"shuffle": True})

    options = OPTIONS if kind == "one import" else {"batch_size": BATCH_SIZE}

    class Data(pl.LightningDataModule):
        def train_dataloader(self) -> Any:
            made = torch.utils.data.DataLoader if kind == "swapped" else DataLoader
            return made(Augmented(LENGTH), shuffle=True, **options)

    if kind == "swapped":
        return LoaderDataModule.from_datamodule(Data(), seed=5, seeding="sample")
    return Data()


def trainer(pl: Any, root: Path, *callbacks: Any, **options: Any) -> Any:
    quiet: dict[str, Any] = {
        "accelerator": "cpu",
        "devices": 1,
        "max_epochs": EPOCHS,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "default_root_dir": root,
        "callbacks": list(callbacks),
    }
    return pl.Trainer(**{**quiet, **options})


def save_at(pl: Any, path: Path, steps: int) -> Any:
    """Saves a checkpoint after so many steps."""

    class SaveAt(pl.Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step == steps:
                trainer.save_checkpoint(path)

    return SaveAt()


def fit(
    pl: Any, kind: str, root: Path, *callbacks: Any, resumed: Path | None = None, **options: Any
) -> list[list[str]]:
    """Trains; returns what was seen."""
    seen = model(pl)
    trainer(pl, root, *callbacks, **options).fit(
        seen, datamodule=data(pl, kind), ckpt_path=resumed, weights_only=True
    )
    result: list[list[str]] = seen.seen
    return result
