"""What each rank of the training runs: Lightning's Trainer inside of Ray Train's worker.

::

    TorchTrainer ─▶ ranks ─ Trainer(RayDDPStrategy, RayLightningEnvironment)
                      ╰─ LoaderDataModule ─▶ workers here, and remote workers on free CPU cores
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import ray
import ray.train
import torch
from digits.dataset import Digits
from digits.model import Classifier
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from ray.train.lightning import RayDDPStrategy, RayLightningEnvironment, prepare_trainer
from torch.utils.data import Dataset

import lit_loader

FILE = "checkpoint.ckpt"


class Numbered(Dataset[tuple[torch.Tensor, int, int]]):
    """Digits with their indices, so that it can be seen which ones a training has had."""

    def __init__(self, split: str, augment: bool = False) -> None:
        self.digits = Digits(split, augment)

    def __len__(self) -> int:
        return len(self.digits)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int, int]:
        """Returns the image (1 × 8 × 8, float32), its digit and its index."""
        image, label = self.digits[index]
        return image, label, index


class NumberedClassifier(Classifier):
    """The digits' classifier, which has no use for the indices."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        images, labels, _ = batch
        return self._step((images, labels), "train")


def data_module(batch_size: int, **loader: Any) -> lit_loader.LoaderDataModule:
    """Gives the data of the recipe."""
    options = {"batch_size": batch_size, "seed": 7, "seeding": "sample", **loader}
    datasets = {"train": partial(Numbered, "train", augment=True)}
    return lit_loader.LoaderDataModule(datasets, options, train={"drop_last": True})


class Ids(Callback):
    """Writes which samples each step of this rank has had, and with how many ranks; at once.

    Args:
        folder: Where; a file for each rank of each attempt.
    """

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        name = f"{time.time_ns()}.rank{trainer.global_rank}.jsonl"
        self.file = (self.folder / name).open("a", buffering=1)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, *_: Any
    ) -> None:
        line = {
            "step": trainer.global_step,
            "time": time.time(),
            "ranks": trainer.world_size,
            "loss": float(outputs["loss"]),
            "ids": batch[2].tolist(),
        }
        self.file.write(f"{json.dumps(line)}\n")

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.file.close()
        print(f"rank {trainer.global_rank}: {trainer.train_dataloader.statistics()}")


class Report(Callback):
    """Hands Ray Train a checkpoint once in so many steps, from which it restarts after a loss.

    Args:
        steps: Optimizer steps from one to the next.
    """

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if trainer.global_step % self.steps:
            return
        with tempfile.TemporaryDirectory() as folder:
            trainer.save_checkpoint(os.path.join(folder, FILE))  # the data's position is in it
            checkpoint = None
            if trainer.is_global_zero:
                checkpoint = ray.train.Checkpoint.from_directory(folder)
            ray.train.report({"step": trainer.global_step}, checkpoint=checkpoint)


class KillOnce(Callback):
    """Kills the last rank after a step, the first time that it comes there.

    Args:
        step: The step; 0: never.
        mark: A file that says that it has been done.
        node: Whether its whole node is killed.
    """

    def __init__(self, step: int, mark: str, node: bool) -> None:
        self.step, self.mark, self.node = step, Path(mark), node

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        last = trainer.global_rank == trainer.world_size - 1
        if trainer.global_step == self.step and last and not self.mark.exists():
            self.mark.touch()
            if self.node:
                os.kill(os.getppid(), signal.SIGKILL)  # Ray's process for the node
            os.kill(os.getpid(), signal.SIGKILL)


def train(config: dict[str, Any]) -> None:
    """Trains, from Ray Train's checkpoint if there is one."""
    torch.set_num_threads(1)
    seed_everything(7, workers=False, verbose=False)
    ranks = ray.train.get_context().get_world_size()
    if config["batch_size"] % ranks:
        raise ValueError(f"batches of {config['batch_size']} are not divisible by {ranks} ranks")
    folder = config["folder"]
    loader: dict[str, Any] = {"num_workers": config["workers"]}
    if config["remote_workers"]:
        address = ray.get_runtime_context().gcs_address
        loader["remote"] = {
            "num_workers": config["remote_workers"],
            "address": address,
            "runtime_env": config["runtime_env"],
        }
    if config["workers"] or config["remote_workers"]:
        loader["persistent_workers"] = True
    trainer = prepare_trainer(
        Trainer(
            accelerator="auto" if config["gpu"] else "cpu",
            devices="auto" if config["gpu"] else 1,
            strategy=RayDDPStrategy(),
            plugins=[RayLightningEnvironment()],
            max_epochs=config["epochs"],
            callbacks=[
                Ids(f"{folder}/ids"),
                Report(config["checkpoint_every"]),
                KillOnce(config["kill_at"], f"{folder}/killed", config["kill_node"]),
            ],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
    )
    # The same samples in a step for any number of ranks: a restart with fewer continues exactly.
    data = data_module(config["batch_size"] // ranks, **loader)
    model = NumberedClassifier(dropout=0.0)
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        trainer.fit(model, datamodule=data)
    else:
        with checkpoint.as_directory() as path:
            trainer.fit(model, datamodule=data, ckpt_path=os.path.join(path, FILE))
