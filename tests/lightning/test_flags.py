"""The Trainer's flags that touch the data, on LoaderDataModule, with and without workers."""

from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import BasePredictionWriter
from torch.utils.data import WeightedRandomSampler

from lit_loader import DataLoader, LoaderDataModule
from tests.support.lightning_runs import Noting, Parallel, Points, quiet_trainer
from tests.support.samples import Counting

SPLITS = ("train", "val", "test", "predict")
IN_ORDER = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]

workers = pytest.mark.parametrize("workers", [0, 2])


def module(workers: int = 0, kind: Any = LoaderDataModule) -> LoaderDataModule:
    """Twelve points in each split, three batches; training is shuffled."""
    common = {"batch_size": 4, "seed": 5, "num_workers": workers}
    if workers:
        common["persistent_workers"] = True
    made: LoaderDataModule = kind(dict.fromkeys(SPLITS, Points), common, train={"shuffle": True})
    return made


class Progress(Callback):
    """What the Trainer thinks of each batch."""

    def __init__(self) -> None:
        self.last: list[bool] = []

    def on_train_batch_end(self, trainer: Trainer, *args: Any) -> None:
        self.last.append(trainer.is_last_batch)


class Flags(NamedTuple):
    """A run: in ``steps`` a letter is a step of training, validation or the sanity check."""

    flags: dict[str, Any]
    steps: str
    per_epoch: int = 3  # batches, of each split
    made: int = 1  # loaders, of each split


FLAGS = {
    "none": Flags({"max_epochs": 2}, "tttvvv" * 2),
    **{
        f"overfit {part}": Flags({"overfit_batches": part, "max_epochs": 3}, "ttvv" * 3, 2)
        for part in (0.67,)
    },
    **{
        f"limits {part}": Flags(
            {f"limit_{split}_batches": part for split in SPLITS} | {"max_epochs": 3}, "ttvv" * 3, 2
        )
        for part in (0.67,)
    },
    "fast_dev_run 2": Flags({"fast_dev_run": 2, "max_epochs": 5}, "ttvv", 2),
    # Validation leaves the order of training, and of itself, alone.
    "by fraction": Flags({"max_epochs": 2, "val_check_interval": 0.67}, "ttvvvtttvvvt"),
    "by count": Flags({"max_epochs": 2, "val_check_interval": 1}, "tvvv" * 6),
    "every other epoch": Flags({"max_epochs": 2, "check_val_every_n_epoch": 2}, "ttttttvvv"),
    "across epochs": Flags(
        {"max_epochs": 2, "val_check_interval": 4, "check_val_every_n_epoch": None}, "ttttvvvtt"
    ),
    "sanity 2": Flags({"num_sanity_val_steps": 2}, "sstttvvv"),
    "reload": Flags({"max_epochs": 4, "reload_dataloaders_every_n_epochs": 2}, "tttvvv" * 4, 3, 2),
}


@workers
@pytest.mark.parametrize("name", FLAGS)
def test_flags(name: str, workers: int, tmp_path: Path) -> None:
    flags, steps, size, made = FLAGS[name]
    counted: list[str] = []

    class Counting(LoaderDataModule):
        def make_loader(self, split: str, *args: Any) -> DataLoader[Any]:
            counted.append(split)
            return super().make_loader(split, *args)

    progress, model, data = Progress(), Noting(), module(workers, Counting)
    options = {"num_sanity_val_steps": 0, "callbacks": [progress], **flags}
    trainer = quiet_trainer(tmp_path, **options)
    trainer.fit(model, data)
    assert "".join(step.split[0] for step in model.steps) == steps
    assert counted.count("train") == counted.count("val") == made
    epochs = steps.count("t") // size
    assert progress.last == ([False] * (size - 1) + [True]) * epochs
    # Each epoch begins at its own beginning, not with what the one before has left over.
    plain = Noting()
    quiet_trainer(tmp_path, max_epochs=epochs).fit(plain, module())
    whole = plain.seen("train")
    ordered = "overfit_batches" in flags
    shuffled = [batch for start in range(0, 3 * epochs, 3) for batch in whole[start : start + size]]
    assert model.seen("train") == (IN_ORDER[:size] * epochs if ordered else shuffled)
    assert model.seen("val") == IN_ORDER[:size] * (steps.count("v") // size)
    assert model.seen("sanity") == IN_ORDER[: steps.count("s")]
    if name.startswith(("limits", "fast")):
        trainer.test(model, data, verbose=False)
        trainer.predict(model, data)
        assert model.seen("test") == model.seen("predict") == IN_ORDER[:size]


@workers
@pytest.mark.parametrize("inference_mode", [True, False])
def test_memory_validated_in_is_trained_in(
    inference_mode: bool, workers: int, tmp_path: Path
) -> None:
    """Slots and buffers go from validation to training: none may be an inference tensor."""
    data = module(workers)
    model = Noting()
    trainer = quiet_trainer(
        tmp_path, inference_mode=inference_mode, max_epochs=2, val_check_interval=1
    )
    trainer.validate(model, data, verbose=False)
    trainer.fit(model, data)
    trainer.test(model, data, verbose=False)
    assert len(model.seen("train")) == 6
    with data.train_dataloader() as loader:  # under no mode at all
        kept = list(loader)
    assert not any(batch.is_inference() for batch in kept)


# --- predictions ---


class Writer(BasePredictionWriter):
    """Keeps what it is given to write."""

    def __init__(self, interval: str = "batch_and_epoch") -> None:
        super().__init__(interval)  # type: ignore[arg-type]
        self.batches: list[tuple[int, int, Any, Any]] = []
        self.epoch: Any = None

    def write_on_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, prediction: Any, batch_indices: Any,
        batch: Any, batch_idx: int, dataloader_idx: int,
    ) -> None:  # fmt: skip
        seen = [int(value) for value in prediction]
        self.batches.append((dataloader_idx, batch_idx, batch_indices, seen))

    def write_on_epoch_end(
        self, trainer: Trainer, pl_module: LightningModule, predictions: Any, batch_indices: Any
    ) -> None:
        self.epoch = batch_indices


def backwards(dataset: Points) -> range:
    return range(len(dataset) - 1, -1, -1)


ORDERS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "shuffled": {"shuffle": True},
    "by a sampler": {"sampler": backwards},
    "drawn": {"sampler": WeightedRandomSampler([1.0] * 10, 7)},
    "by a batch sampler": {"batch_size": 1, "batch_sampler": [[3], [1, 2], [9, 0, 4]]},
    "drop_last": {"drop_last": True},
}


@pytest.mark.filterwarnings("ignore:Your `predict_dataloader`'s sampler has shuffling enabled")
@pytest.mark.filterwarnings("ignore:You are using a custom batch sampler")
@workers
@pytest.mark.parametrize("order", ORDERS)
def test_prediction_writers_get_the_indices(order: str, workers: int, tmp_path: Path) -> None:
    writer, model = Writer(), Noting()
    data = LoaderDataModule(
        {"predict": lambda: Points(10)},
        {"batch_size": 4, "seed": 5, "num_workers": workers},
        predict=ORDERS[order],
    )
    for _ in range(2):  # what the first run has seen is forgotten in the second
        writer.batches.clear()
        quiet_trainer(tmp_path, callbacks=[writer]).predict(model, data)
        assert len(writer.batches) == len(writer.epoch[0])
        for number, (loader, batch_idx, indices, seen) in enumerate(writer.batches):
            assert (loader, batch_idx) == (0, number)
            assert indices == seen == writer.epoch[0][number]
    predicted = list(chain.from_iterable(writer.epoch[0]))
    if order == "by a batch sampler":
        assert predicted == [3, 1, 2, 9, 0, 4]
    elif order == "drawn":
        assert len(predicted) == 7
    else:
        assert sorted(predicted) == list(range(10))
        assert (predicted == list(range(10))) == (order in ("as it is", "drop_last"))


UNKNOWN: dict[str, tuple[Any, dict[str, Any]]] = {
    "out of order": (Points, {"in_order": False}),
    "replaced samples": (Points, {"on_sample_error": "replace"}),
    "not batched": (Points, {"batch_size": None, "collate_fn": lambda sample: sample[None]}),
    "iterable": (Counting(4, lambda number: torch.zeros(3)), {}),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown_indices_are_none_rather_than_wrong(name: str, tmp_path: Path) -> None:
    dataset, options = UNKNOWN[name]
    writer = Writer()
    trainer = quiet_trainer(tmp_path, callbacks=[writer])
    data = LoaderDataModule({"predict": dataset}, {"batch_size": 4}, predict=options)
    with pytest.warns(UserWarning, match="Couldn't infer the batch indices fetched from your data"):
        trainer.predict(Noting(), data)
    assert {tuple(batch[2]) for batch in writer.batches} == {()}


# --- ranks ---


@pytest.mark.parametrize("split", SPLITS)
def test_use_distributed_sampler_is_honoured(split: str) -> None:
    data = module()
    data.trainer = Parallel(2, 1, shard=False)  # type: ignore[assignment]
    assert list(map(len, data.make_loader(split))) == [4, 4, 4]
    data.trainer = Parallel(2, 1)  # type: ignore[assignment]
    assert list(map(len, data.make_loader(split))) == [4, 2]


@pytest.mark.parametrize("drop_last", [False, True])
def test_prediction_neither_pads_nor_drops(drop_last: bool) -> None:
    seen = []
    for rank in range(3):
        data = LoaderDataModule(
            {"predict": lambda: Points(10)},
            {
                "batch_size": 2,
                "drop_last": drop_last,
                "uneven_ranks": "drop" if drop_last else "pad",
            },
        )
        data.trainer = Parallel(3, rank)  # type: ignore[assignment]
        loader = data.predict_dataloader()
        seen += [int(value) for batch in loader for value in batch[:, 0]]
        assert loader.batch_sampler is not None
        assert list(chain.from_iterable(loader.batch_sampler)) == list(range(rank, 10, 3))
    assert sorted(seen) == list(range(10))
