"""Trainers with nothing of ours but the loader: what is saved and what is restored.

What an installed lit_loader puts into Trainers by an entry point is put into them here in the same
way, by Lightning's own function, whether the package is installed or not.
"""

from __future__ import annotations

import functools
import itertools
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import OnExceptionCheckpoint
from lightning.pytorch.utilities import CombinedLoader
from torch import Tensor

from lit_loader import DataLoader, LoaderStateCallback
from lit_loader.lightning import trainer_plugin
from tests.support import older_lightning  # noqa: F401
from tests.support.exact import Augmented, SharedWithIteratorState, digest

GROUP = "lightning.pytorch.callbacks_factory"
BATCHES = 7  # of 4 of 26 samples

pytestmark = [
    pytest.mark.filterwarnings("ignore:Your `IterableDataset` has `__len__` defined"),
    pytest.mark.filterwarnings("ignore:.*ckpt_path="),
]


class Plugin:
    name = "lit_loader"

    def load(self) -> Callable[[], list[Any]]:
        return trainer_plugin.callbacks


def put_entry_points(monkeypatch: pytest.MonkeyPatch, *points: Any) -> None:
    def entry_points(*, group: str) -> list[Any]:
        return [*points] if group == GROUP else []

    monkeypatch.setattr("lightning.fabric.utilities.registry.entry_points", entry_points)


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainers find the entry point, and just once."""
    put_entry_points(monkeypatch, Plugin())


@pytest.fixture
def not_installed(installed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainers do not find it."""
    put_entry_points(monkeypatch)


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


STOPS = ["max_steps 2", "max_steps 9", "fails 3", "fails 7", "batch 5", "batch 7", "epoch 7"]
SMOKE = {
    ("one", "module", "max_steps 2"), ("one", "datamodule", "fails 3"),
    ("several", "datamodule", "max_steps 9"), ("combined", "module", "fails 7"),
    ("unsized", "module", "epoch 7"), ("unsized", "datamodule", "fails 3"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "hook", "stop"),
    [
        pytest.param(*cell, marks=[] if cell in SMOKE else [pytest.mark.slow])
        for cell in itertools.product(LOADERS, ["module", "datamodule"], STOPS)
    ],
)
def test_exact_resume_by_one_import(name: str, hook: str, stop: str, tmp_path: Path) -> None:
    loaders, (kind, number) = LOADERS[name], stop.split()
    done, path = int(number), tmp_path / "a.ckpt"
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


ADVICE = "add Trainer(callbacks=[lit_loader.LoaderStateCallback()])"


@pytest.mark.usefixtures("not_installed")
def test_without_the_callback_the_loader_says_so_once(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    with pytest.warns(UserWarning, match=re.escape(ADVICE)) as told:
        own, _ = fit(tmp_path, one, max_steps=2, max_epochs=-1)
        own.save_checkpoint(path)
        own.save_checkpoint(path)
    assert sum(ADVICE in str(warning.message) for warning in told) == 1
    with pytest.warns(UserWarning, match=re.escape(ADVICE)) as told:
        fit(tmp_path, one, ckpt=path, max_steps=4, max_epochs=-1)
    assert sum(ADVICE in str(warning.message) for warning in told) == 1


@pytest.mark.usefixtures("not_installed")
def test_with_the_line_that_it_names_it_is_silent_and_exact(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    _, expected = fit(tmp_path, one, LoaderStateCallback())
    # It need not be the first of the callbacks.
    fit(tmp_path, one, EpochEnds(path, "batch", 5), LoaderStateCallback(), fail=6)
    _, got = fit(tmp_path, one, LoaderStateCallback(), ckpt=path)
    assert got == expected[5:]


def kinds(own: Trainer) -> list[type]:
    return [type(each) for each in own.callbacks if isinstance(each, LoaderStateCallback)]


@pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers")
@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before")
def test_a_trainer_of_torchs_loaders_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    torchs = functools.partial(one, torch.utils.data.DataLoader)
    own, _ = fit(tmp_path, torchs, max_steps=2, max_epochs=-1)
    assert kinds(own) == []
    own.save_checkpoint(path)
    saved = torch.load(path, weights_only=True)
    own, seen = fit(tmp_path, torchs, ckpt=path, max_steps=4, max_epochs=-1)
    assert "combined_loader" not in saved["loops"]["fit_loop"]["state_dict"]
    # Lightning's own progress is not mended: this is what it does with a loader without a state.
    assert [(epoch, batch) for epoch, batch, _ in seen] == [(1, 2), (1, 3)]
    assert kinds(own) == []


def test_a_list_of_callbacks_serves_several_trainers(tmp_path: Path) -> None:
    """Lightning adds the callbacks of entry points to the very list that it was given."""
    callbacks: list[Callback] = [EpochEnds(tmp_path / "never.ckpt", "", 0)]
    for _ in range(2):
        own = Trainer(
            accelerator="cpu", logger=False, enable_checkpointing=False, max_epochs=1,
            enable_progress_bar=False, enable_model_summary=False, callbacks=callbacks,
        )  # fmt: skip
        own.fit(Model(one))
        assert kinds(own) == [LoaderStateCallback]


def test_programs_that_do_not_import_it_get_nothing() -> None:
    """The plugin is loaded by every Trainer of the environment; it imports nothing then."""
    script = f"""
    import runpy, sys
    callbacks = runpy.run_path({trainer_plugin.__file__!r})["callbacks"]
    assert callbacks() == []
    assert "lit_loader" not in sys.modules and "torch" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, timeout=60)


def test_the_plugin_imports_no_loader() -> None:
    """Hydra imports lit_loader in programs that have none of its loaders."""
    script = f"""
    import runpy, sys
    import lit_loader
    (callback,) = runpy.run_path({trainer_plugin.__file__!r})["callbacks"]()
    assert type(callback).__name__ == "LoaderStateCallback"
    assert "lit_loader.loader" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, timeout=60)
