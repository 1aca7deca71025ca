"""Several ranks train, stop, resume and predict; each writes what it saw (see strategy_fit.py)."""

import json
import os
import signal
import time
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import BasePredictionWriter
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed.fsdp import fully_shard

from lit_loader import LoaderDataModule, RandomStateCallback
from tests.support.exact import Augmented
from tests.support.lightning_runs import Seen as Model
from tests.support.lightning_runs import quiet_trainer

LENGTH, BATCH_SIZE, EPOCHS, RANKS = 26, 4, 2, 2
BATCHES = 4  # of each rank: 26 samples, 13 for each
SAVED = 6  # batches trained on before the checkpoint: within the second epoch
PREDICTED = 9  # samples: five for one rank, four for the other


def write(folder: Path, name: str, rank: int, value: Any) -> None:
    (folder / f"{name}-{rank}.json").write_text(json.dumps(value))


class SplitModel(Model):
    """For a strategy that splits the model over ranks."""

    def configure_model(self) -> None:
        if self.device_mesh["data_parallel"].size() > 1:
            fully_shard(self.layer, mesh=self.device_mesh["data_parallel"])


class Data(LoaderDataModule):
    """Notes in which processes it is prepared."""

    def __init__(self, folder: Path, **options: Any) -> None:
        # Factories: ddp_spawn pickles the data module, and torch cannot send two generators along.
        datasets = {"train": partial(Augmented, LENGTH), "predict": partial(Augmented, PREDICTED)}
        super().__init__(datasets, options, train={"shuffle": True})
        self.folder = folder

    def prepare_data(self) -> None:
        with (self.folder / "prepared").open("a") as file:
            file.write(f"{self.trainer.global_rank}\n")  # type: ignore[union-attr]


class Report(Callback):
    """Saves a checkpoint on the way; writes at the end what this rank has seen."""

    def __init__(self, folder: Path, name: str, save: bool) -> None:
        self.folder, self.name, self.save = folder, name, save

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if self.save and trainer.global_step == SAVED:
            trainer.save_checkpoint(self.folder / f"{self.name}.ckpt")

    def on_train_end(self, trainer: Trainer, model: Any) -> None:
        batches = trainer.num_training_batches
        write(self.folder, self.name, trainer.global_rank, {"seen": model.seen, "length": batches})


class Writer(BasePredictionWriter):
    """Writes predictions beside the indices that Lightning says they are of."""

    def __init__(self, folder: Path, name: str) -> None:
        super().__init__("batch_and_epoch")
        self.folder, self.name = folder, name
        self.batches: list[Any] = []

    def write_on_batch_end(
        self, trainer: Any, model: Any, prediction: Any, indices: Any, *_: Any
    ) -> None:
        self.batches.append([prediction, indices])

    def write_on_epoch_end(self, trainer: Any, model: Any, predictions: Any, indices: Any) -> None:
        value = {"batches": self.batches, "epoch": indices}
        write(self.folder, f"{self.name}-predict", trainer.global_rank, value)


class Kill(Callback):
    """Ends one rank as the out-of-memory killer does."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.folder, self.rank = folder, rank

    def on_train_batch_end(self, trainer: Trainer, model: Any, *args: Any) -> None:
        if trainer.global_rank == self.rank and len(model.seen) == 2:
            write(self.folder, "killed", self.rank, time.monotonic())
            os.kill(os.getpid(), signal.SIGKILL)


def read(folder: Path, name: str) -> list[Any]:
    return [json.loads((folder / f"{name}-{rank}.json").read_text()) for rank in range(RANKS)]


def check_prediction(folder: Path, method: str) -> None:
    """Check that each sample has one prediction, and that writers were given its index."""
    for rank, written in enumerate(read(folder, f"{method}-predict")):
        assert [seen for _, seen in written["batches"]] == written["epoch"][0]
        assert all(prediction == seen for prediction, seen in written["batches"])
        share = list(chain.from_iterable(written["epoch"][0]))
        assert share == list(range(rank, PREDICTED, RANKS))  # neither padded nor dropped


def trainer(folder: Path, strategy: Any, *callbacks: Callback, **options: Any) -> Trainer:
    options = {"devices": RANKS, "max_epochs": EPOCHS, **options}
    return quiet_trainer(folder, strategy=strategy, callbacks=list(callbacks), **options)


def data(folder: Path, method: str | None, seed: int | None = 5) -> Data:
    return Data(
        folder,
        batch_size=BATCH_SIZE,
        seed=seed,
        num_workers=1 if method else 0,
        persistent_workers=bool(method),
        multiprocessing_context=method,
    )


def train(folder: Path, strategy: Any, method: str, **options: Any) -> None:
    """Train, and train on from a checkpoint, with workers started by one method."""

    def fit(name: str, save: bool, checkpoint: Path | None = None) -> None:
        report = Report(folder, f"{method}-{name}", save)
        trainer(folder, strategy, report, **options).fit(
            Model(), data(folder, method), ckpt_path=checkpoint, weights_only=True
        )

    fit("whole", save=True)
    fit("resumed", save=False, checkpoint=folder / f"{method}-whole.ckpt")


def train_unseeded(folder: Path) -> None:
    """Train for three epochs without any seed, and resume in the second one."""
    for name, saved in (("whole", None), ("resumed", folder / "fork-whole.ckpt")):
        callbacks = RandomStateCallback(), Report(folder, f"fork-{name}", save=saved is None)
        trainer(folder, "ddp_fork", *callbacks, max_epochs=EPOCHS + 1).fit(
            Model(), data(folder, "fork", seed=None), ckpt_path=saved, weights_only=False
        )


def predict(folder: Path, strategy: str, method: str) -> None:
    trainer(folder, strategy, Writer(folder, method)).predict(
        Model(), data(folder, method), return_predictions=False
    )


def train_split(folder: Path, data_parallel: int) -> None:
    """Train a model that is split over those ranks which do not share the data out."""
    strategy = ModelParallelStrategy(data_parallel, RANKS // data_parallel)
    report = Report(folder, "fork-whole", save=False)
    trainer(folder, strategy, report).fit(SplitModel(), data(folder, "fork"))


def main(folder: Path, strategy: str, methods: str, killed: str | None = None) -> None:
    """Go through all start methods in one run, or let one rank be killed under the only one."""
    torch.set_num_threads(1)
    if killed is not None:
        trainer(folder, strategy, Kill(folder, int(killed))).fit(Model(), data(folder, methods))
        return
    if strategy == "model_parallel":
        train_split(folder, int(methods))
        return
    if methods == "unseeded":
        train_unseeded(folder)
        return
    for method in methods.split(","):
        train(folder, strategy, method)
    if strategy != "ddp_spawn":  # which would start Python twice more; it predicts as ddp_fork does
        predict(folder, strategy, method)
