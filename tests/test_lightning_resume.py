"""Real Trainers, stopped and resumed in chains: each step sees what it would have seen anyway."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from exact import Augmented, digest
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint, OnExceptionCheckpoint
from torch import Tensor

from lit_loader import DataLoader, LoaderDataModule

pytestmark = [
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no"),
]

EPOCHS = 3
BATCHES = 7  # of 4 of 26 samples


class Seen(NamedTuple):
    epoch: int
    batch_idx: int
    is_last: bool
    data: str


class Model(LightningModule):
    """Notes what each whole training step saw; fails in the step of one batch, if told to."""

    def __init__(self, estimate: bool = False) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)
        self.estimate = estimate
        self.seen: list[Seen] = []
        self.fail: Callable[[int], BaseException | None] = lambda batch: None

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        trainer = self.trainer
        # Not total_batch_idx, which counts a batch twice whose step has failed.
        error = self.fail(trainer.current_epoch * int(trainer.num_training_batches) + batch_idx)
        if error is not None:
            raise error
        name = "+".join(map(digest, batch.values() if isinstance(batch, dict) else [batch]))
        self.seen.append(Seen(trainer.current_epoch, batch_idx, trainer.is_last_batch, name))
        rows = batch["long"] if isinstance(batch, dict) else batch
        return self.layer(rows.float()).mean()

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        assert batch.shape[1] == 8

    def configure_optimizers(self) -> Any:
        if self.estimate:  # sets the training data up before anything is restored
            assert self.trainer.estimated_stepping_batches > 0
        return torch.optim.SGD(self.parameters(), lr=0.01)


class TwoLoaders(LoaderDataModule):
    """A long and a short one, which the Trainer cycles through."""

    def train_dataloader(self) -> dict[str, DataLoader[Any]]:
        return {
            "long": self.make_loader("train"),
            "short": self.make_loader("train", Augmented(10)),
        }


class Saver(Callback):
    """Saves after one batch, where and how the Trainer's own checkpoint callbacks do."""

    def __init__(self, path: Path, hook: str, batches: int) -> None:
        self.path, self.hook, self.batches = path, hook, batches

    def save(self, trainer: Trainer, hook: str) -> None:
        epochs, batches = trainer.current_epoch, trainer.fit_loop.batch_idx + 1
        done = epochs * int(trainer.num_training_batches) + batches
        if hook == self.hook and done == self.batches and not trainer.sanity_checking:
            trainer.save_checkpoint(self.path)

    def on_train_batch_end(self, trainer: Trainer, *args: Any) -> None:
        self.save(trainer, "batch")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.save(trainer, "epoch")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.save(trainer, "validation")

    def on_exception(self, trainer: Trainer, *args: Any) -> None:
        if self.hook == "exception":
            trainer.save_checkpoint(self.path)


@dataclass(frozen=True)
class Setting:
    """How a whole chain of runs is trained."""

    workers: int = 0
    by_steps: bool = False
    accumulate: int = 1
    limit: int | None = None
    validate_every: int | float | None = None
    two_loaders: bool = False
    estimate: bool = False
    seeding: str = "batch"

    @property
    def length(self) -> int:
        return self.limit or BATCHES

    def steps(self, batches: int) -> int:
        """Optimizer steps in so many batches; an epoch's last batch always steps."""
        epochs, rest = divmod(batches, self.length)
        return epochs * math.ceil(self.length / self.accumulate) + rest // self.accumulate

    def data(self, workers: int) -> LoaderDataModule:
        kind = TwoLoaders if self.two_loaders else LoaderDataModule
        datasets = {"train": Augmented()}
        if self.validate_every is not None:
            datasets["val"] = Augmented(8)
        options = {"batch_size": 4, "seed": 5, "num_workers": workers, "seeding": self.seeding}
        if workers:
            options["persistent_workers"] = True
        return kind(datasets, loader=options, train={"shuffle": True})

    def trainer(self, root: Path, *callbacks: Callback, stop_after: int | None = None) -> Trainer:
        options: dict[str, Any] = {"max_epochs": EPOCHS}
        if self.by_steps or stop_after is not None:
            options["max_epochs"] = -1
            options["max_steps"] = self.steps(stop_after or EPOCHS * self.length)
        if self.limit is not None:
            options["limit_train_batches"] = self.limit
        if self.validate_every is not None:
            options["val_check_interval"] = self.validate_every
        checkpointing = any(isinstance(callback, ModelCheckpoint) for callback in callbacks)
        return Trainer(
            accelerator="cpu",
            devices=1,
            logger=False,
            enable_checkpointing=checkpointing,
            enable_progress_bar=False,
            enable_model_summary=False,
            accumulate_grad_batches=self.accumulate,
            default_root_dir=root,
            callbacks=list(callbacks),
            **options,
        )


@cache
def uninterrupted(setting: Setting) -> tuple[Seen, ...]:
    model = Model(setting.estimate)
    setting.trainer(Path("unused")).fit(model, setting.data(0))
    assert len(model.seen) == EPOCHS * setting.length
    assert [seen.batch_idx for seen in model.seen] == [*range(setting.length)] * EPOCHS
    return tuple(model.seen)


class Stop(NamedTuple):
    """An end of one run.

    Attributes:
        kind: The hook that saves ("batch", "epoch", "validation", "exception", "interrupt"), or
            "max_steps", where the run ends by itself and is saved afterwards.
        saved: Batches trained on before the checkpoint.
        further: Batches trained on after it, before the run breaks off.
    """

    kind: str
    saved: int
    further: int = 1


@dataclass
class Chain:
    """Runs one after the other, each resumed from the one before; counts what was compared."""

    setting: Setting
    root: Path
    checkpoint: Path | None = None
    done: int = 0
    resumes: int = 0
    numbers: Any = field(default_factory=itertools.count)

    def run(self, stop: Stop | None) -> None:
        """Train until a stop, or to the end, and compare every step with the uninterrupted run."""
        setting, number = self.setting, next(self.numbers)
        # Another number of workers at each resume.
        workers = setting.workers and (setting.workers, 1, 0)[number % 3]
        model, data = Model(setting.estimate), setting.data(workers)
        path = self.root / f"{number}.ckpt"
        end = EPOCHS * setting.length
        saver = Saver(path, "", 0)
        if stop is not None:
            hook = "exception" if stop.kind == "interrupt" else stop.kind
            saver = Saver(path, hook, stop.saved)
            end = stop.saved
            if stop.kind in ("batch", "epoch", "validation"):
                end += stop.further
        error: type[BaseException] = LookupError
        if stop is not None and stop.kind == "interrupt":
            error = KeyboardInterrupt
        stop_after = stop.saved if stop is not None and stop.kind == "max_steps" else None
        if stop_after is None and stop is not None:
            model.fail = lambda batch: error("in a step") if batch == end else None
        trainer = setting.trainer(self.root, saver, stop_after=stop_after)
        expects_error = stop is not None and stop_after is None
        try:
            trainer.fit(model, data, ckpt_path=self.checkpoint, weights_only=True)
        except (LookupError, SystemExit):
            assert expects_error
        else:
            assert not expects_error
            trainer.save_checkpoint(path)
        expected = uninterrupted(setting)[self.done : end]
        assert model.seen == list(expected), (stop, number)
        self.resumes += self.checkpoint is not None
        self.checkpoint = path
        if stop is not None:
            self.done = stop.saved


SETTINGS = {
    "plain": Setting(),
    "by steps": Setting(by_steps=True),
    "workers": Setting(workers=2, by_steps=True),
    "sample seeding": Setting(workers=2, seeding="sample"),
    "accumulate": Setting(accumulate=2),
    "accumulate by steps": Setting(accumulate=2, by_steps=True),
    "limit": Setting(limit=5),
    "limit by steps": Setting(limit=5, by_steps=True, workers=1),
    "validate": Setting(validate_every=1.0),
    "validate by steps": Setting(validate_every=1.0, by_steps=True),
    "validate within": Setting(validate_every=3, by_steps=True),
    "two loaders": Setting(two_loaders=True),
    "two loaders by steps": Setting(two_loaders=True, by_steps=True, workers=1),
    "two loaders, limit": Setting(two_loaders=True, limit=5, validate_every=1.0),
    "estimate": Setting(estimate=True),
    "estimate, all": Setting(
        estimate=True, workers=1, accumulate=2, limit=5, validate_every=1.0, two_loaders=True
    ),
}
RESUMES = {"steps": 3, "last batch": 4, "epoch ends": 3, "failures": 4}


def stops(chain: str, setting: Setting) -> list[Stop]:
    length = setting.length
    epoch = "validation" if setting.validate_every == 1.0 else "epoch"
    return {
        "steps": [Stop("batch", 2, 2), Stop("exception", length + 1), Stop(epoch, 2 * length)],
        "last batch": [
            Stop("batch", length, 2),
            Stop("batch", length + 3),
            Stop("batch", 2 * length),
            Stop("interrupt", 2 * length),
        ],
        "epoch ends": [
            Stop("epoch", length),
            Stop("batch", 2 * length - 1),
            Stop(epoch, 2 * length, 3),
        ],
        "failures": [
            Stop("exception", 0),
            Stop("interrupt", length - 1),
            Stop("max_steps", length + 2),
            Stop("exception", 2 * length),
        ],
    }[chain]


@pytest.mark.parametrize("chain", RESUMES)
@pytest.mark.parametrize("name", SETTINGS)
def test_chain_of_resumes(name: str, chain: str, tmp_path: Path) -> None:
    setting = SETTINGS[name]
    runs = Chain(setting, tmp_path)
    for stop in stops(chain, setting):
        runs.run(stop)
    runs.run(None)
    assert runs.resumes == RESUMES[chain]


def test_the_matrix_has_over_100_resumes() -> None:
    assert len(SETTINGS) * sum(RESUMES.values()) >= 200
