"""Trainers with nothing of ours but the loader: what is saved, what is restored, who looks after it.

What an installed lit_loader puts into Trainers by an entry point is put into them here in the same
way, by Lightning's own function, whether the package is installed or not.
"""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import textwrap
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from exact import Augmented, SharedWithIteratorState, digest
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import OnExceptionCheckpoint
from lightning.pytorch.utilities import CombinedLoader
from torch import Tensor

import lit_loader
from lit_loader import DataLoader, LoaderDataModule, LoaderStateCallback
from lit_loader.apps import trainer_plugin
from lit_loader.on_demand import LoaderStateOnDemand

GROUP = "lightning.pytorch.callbacks_factory"
BATCHES = 7  # of 4 of 26 samples

pytestmark = [
    pytest.mark.filterwarnings("ignore:Your `IterableDataset` has `__len__` defined"),
    pytest.mark.filterwarnings("ignore:.*ckpt_path="),
]


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> bool:
    """Whether Trainers find the entry point, and then just once."""
    there = "not_installed" not in request.keywords

    class Plugin:
        name = "lit_loader"

        def load(self) -> Callable[[], list[Any]]:
            return trainer_plugin.callbacks

    def entry_points(*, group: str) -> list[Any]:
        return [Plugin()] if there and group == GROUP else []

    monkeypatch.setattr("lightning.fabric.utilities.registry.entry_points", entry_points)
    return there


class Model(LightningModule):
    """Notes what each whole step saw; makes its own loaders, of the class that it is given."""

    def __init__(self, loaders: Callable[[], Any] | None = None, fail: int = -1) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)
        self.loaders, self.fail = loaders, fail
        self.seen: list[tuple[int, int, str]] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        epoch = self.trainer.current_epoch
        if epoch * BATCHES + batch_idx == self.fail:
            raise LookupError("in a step")
        several = batch if isinstance(batch, (list, tuple)) else [batch]
        self.seen.append((epoch, batch_idx, "+".join(map(digest, several))))
        return self.layer(several[0].float()).mean()

    def train_dataloader(self) -> Any:
        assert self.loaders is not None
        return self.loaders()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Data(LightningDataModule):
    """As programs have it."""

    def __init__(self, loaders: Callable[[], Any]) -> None:
        super().__init__()
        self.loaders = loaders

    def train_dataloader(self) -> Any:
        return self.loaders()


def one(kind: Any = DataLoader) -> Any:
    options = {"seed": 5} if kind is DataLoader else {}
    return kind(Augmented(), 4, True, **options)


def several() -> Any:
    return [one(), DataLoader(Augmented(10), 4, seed=6)]


def combined() -> Any:
    return CombinedLoader(several(), "max_size_cycle")


def unsized() -> Any:
    return DataLoader(Stream(26), 4, seed=5)


class Stream(SharedWithIteratorState):
    def item(self, number: int) -> Tensor:
        return super().item(number).repeat(2)


LOADERS = {"one": one, "several": several, "combined": combined, "unsized": unsized}


def trainer(root: Path, *callbacks: Callback, **options: Any) -> Trainer:
    return Trainer(
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=any(isinstance(c, OnExceptionCheckpoint) for c in callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=root,
        callbacks=list(callbacks),
        **{"max_epochs": 3, **options},
    )


def fit(
    root: Path,
    loaders: Callable[[], Any],
    *callbacks: Callback,
    hook: str = "module",
    fail: int = -1,
    ckpt: Path | None = None,
    **options: Any,
) -> tuple[Trainer, list[Any]]:
    model = Model(loaders, fail)
    own = trainer(root, *callbacks, **options)
    data = {"datamodule": Data(loaders)} if hook == "datamodule" else {}
    try:
        own.fit(model, **data, ckpt_path=ckpt, weights_only=True)
    except LookupError:
        assert fail >= 0
    return own, model.seen


class EpochEnds(Callback):
    """Saves at an epoch's end; comes before ours in the list that the user gives."""

    def __init__(self, path: Path, hook: str, batches: int) -> None:
        self.path, self.hook, self.batches = path, hook, batches

    def save(self, trainer: Trainer, hook: str) -> None:
        if hook == self.hook and len(trainer.lightning_module.seen) == self.batches:
            trainer.save_checkpoint(self.path)

    def on_train_batch_end(self, trainer: Trainer, *args: Any) -> None:
        self.save(trainer, "batch")

    def on_train_epoch_end(self, trainer: Trainer, *args: Any) -> None:
        self.save(trainer, "epoch")


@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.parametrize("hook", ["module", "datamodule"])
@pytest.mark.parametrize(
    "stop", ["max_steps 2", "max_steps 9", "fails 3", "fails 7", "batch 5", "batch 7", "epoch 7"]
)
def test_exact_resume_by_one_import(name: str, hook: str, stop: str, tmp_path: Path) -> None:
    loaders, (kind, number) = LOADERS[name], stop.split()
    done, path = int(number), tmp_path / "a.ckpt"
    if name == "unsized" and stop == "max_steps 2" and hook == "datamodule":
        return
    _, expected = fit(tmp_path, loaders, hook=hook)
    assert len(expected) == 3 * BATCHES
    if kind == "max_steps":
        own, got = fit(tmp_path, loaders, hook=hook, max_steps=done, max_epochs=-1)
        own.save_checkpoint(path)
    elif kind == "fails":
        saver = OnExceptionCheckpoint(tmp_path, "a")
        _, got = fit(tmp_path, loaders, saver, hook=hook, fail=done)
    else:
        saver = EpochEnds(path, kind, done)
        _, got = fit(tmp_path, loaders, saver, hook=hook, fail=done)
    assert got == expected[:done]
    options = {"max_steps": 3 * BATCHES, "max_epochs": -1} if kind == "max_steps" else {}
    own, got = fit(tmp_path, loaders, hook=hook, ckpt=path, **options)
    assert got == expected[done:]
    assert own.global_step == 3 * BATCHES
