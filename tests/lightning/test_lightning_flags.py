"""The Trainer's flags that touch the data, on LoaderDataModule, with and without workers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import BasePredictionWriter, LearningRateFinder
from lightning.pytorch.utilities import CombinedLoader
from torch.utils.data import IterableDataset, WeightedRandomSampler

from lit_loader import DataLoader, LoaderDataModule, OptionError
from tests.support.lightning_runs import Noting, Points, quiet_trainer
from tests.support.older_lightning import needs_2_6

SPLITS = ("train", "val", "test", "predict")
IN_ORDER = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]

workers = pytest.mark.parametrize("workers", [0, 2])


def module(workers: int = 0, **options: Any) -> LoaderDataModule:
    """Twelve points in each split, three batches; training is shuffled."""
    common = {"batch_size": 4, "seed": 5, "num_workers": workers, **options}
    if workers:
        common["persistent_workers"] = True
    return LoaderDataModule(dict.fromkeys(SPLITS, Points), common, train={"shuffle": True})


def fitted(root: Path, data: LoaderDataModule, **options: Any) -> Noting:
    model = Noting()
    quiet_trainer(root, **{"num_sanity_val_steps": 0, **options}).fit(model, data)
    return model


def split_up(steps: list[Any], size: int) -> list[list[Any]]:
    return [steps[i : i + size] for i in range(0, len(steps), size)]


def plain_epochs(root: Path, epochs: int) -> list[list[Any]]:
    """What each epoch trains on where no flag is set."""
    return split_up(fitted(root, module(), max_epochs=epochs).seen("train"), 3)


# --- how much of the data ---


@workers
@pytest.mark.parametrize("overfit", [2, 0.67])
def test_overfit_batches(workers: int, overfit: float, tmp_path: Path) -> None:
    model = fitted(tmp_path, module(workers), overfit_batches=overfit, max_epochs=3)
    assert model.seen("train") == IN_ORDER[:2] * 3
    assert model.seen("val") == IN_ORDER[:2] * 3


@workers
@pytest.mark.parametrize("limit", [2, 0.67])
def test_limits(workers: int, limit: float, tmp_path: Path) -> None:
    names = ("train", "val", "test", "predict")
    limits = {f"limit_{name}_batches": limit for name in names}
    trainer = quiet_trainer(tmp_path, max_epochs=3, num_sanity_val_steps=0, **limits)
    model, data = Noting(), module(workers)
    trainer.fit(model, data)
    # Each epoch begins at its own beginning, not with what the one before has left over.
    whole = plain_epochs(tmp_path, 3)
    assert split_up(model.seen("train"), 2) == [epoch[:2] for epoch in whole]
    assert model.seen("val") == IN_ORDER[:2] * 3
    trainer.test(model, data, verbose=False)
    trainer.predict(model, data)
    assert model.seen("test") == model.seen("predict") == IN_ORDER[:2]


@workers
@pytest.mark.parametrize(("flag", "batches"), [(True, 1), (2, 2)])
def test_fast_dev_run(workers: int, flag: bool | int, batches: int, tmp_path: Path) -> None:
    trainer = quiet_trainer(tmp_path, fast_dev_run=flag, max_epochs=5)
    model, data = Noting(), module(workers)
    trainer.fit(model, data)
    trainer.test(model, data, verbose=False)
    trainer.predict(model, data)
    assert [len(model.seen(split)) for split in SPLITS] == [batches] * 4


# --- when it is validated ---


def run_lengths(model: Noting) -> list[tuple[str, int]]:
    """How many steps of one split came in a row."""
    lengths: list[tuple[str, int]] = []
    for step in model.steps:
        if lengths and lengths[-1][0] == step.split:
            lengths[-1] = (step.split, lengths[-1][1] + 1)
        else:
            lengths.append((step.split, 1))
    return lengths


VALIDATION = {
    "by fraction": ({"val_check_interval": 0.67}, [2, 3, 1]),
    "by count": ({"val_check_interval": 1}, [1, 1, 1, 1, 1, 1]),
    "every other epoch": ({"check_val_every_n_epoch": 2}, [6]),
    "across epochs": ({"val_check_interval": 4, "check_val_every_n_epoch": None}, [4, 2]),
    "each epoch": ({}, [3, 3]),
}


@workers
@pytest.mark.parametrize("name", VALIDATION)
def test_validation_in_between(name: str, workers: int, tmp_path: Path) -> None:
    flags, expected = VALIDATION[name]
    model = fitted(tmp_path, module(workers), max_epochs=2, **flags)
    lengths = run_lengths(model)
    assert [length for split, length in lengths if split == "train"] == expected
    assert {length for split, length in lengths if split == "val"} == {3}
    # Validation leaves the order of training, and of itself, alone.
    assert split_up(model.seen("train"), 3) == plain_epochs(tmp_path, 2)
    assert all(epoch == IN_ORDER for epoch in split_up(model.seen("val"), 3))


@workers
@pytest.mark.parametrize(("steps", "seen"), [(0, 0), (2, 2), (-1, 3)])
def test_sanity_check(workers: int, steps: int, seen: int, tmp_path: Path) -> None:
    model = fitted(tmp_path, module(workers), num_sanity_val_steps=steps)
    assert model.seen("sanity") == IN_ORDER[:seen]
    assert model.seen("val") == IN_ORDER
    assert [model.seen("train")] == plain_epochs(tmp_path, 1)


# --- how long, and with which loaders ---


@workers
@pytest.mark.parametrize("every", [1, 2])
def test_reloaded_loaders_go_on_with_the_epochs(workers: int, every: int, tmp_path: Path) -> None:
    class Counting(LoaderDataModule):
        made = 0

        def make_loader(self, *args: Any, **kwargs: Any) -> DataLoader[Any]:
            type(self).made += 1
            return super().make_loader(*args, **kwargs)

    options = {"batch_size": 4, "seed": 5, "num_workers": workers}
    data = Counting({"train": Points}, options, train={"shuffle": True})
    model = Noting()
    model.validation_step = None  # type: ignore[assignment, method-assign]
    quiet_trainer(tmp_path, max_epochs=4, reload_dataloaders_every_n_epochs=every).fit(model, data)
    assert split_up(model.seen("train"), 3) == plain_epochs(tmp_path, 4)
    assert Counting.made == 4 // every


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
    kept = list(data.train_dataloader())  # under no mode at all
    assert not any(batch.is_inference() for batch in kept)
    data.close()


# --- the Tuner ---


@needs_2_6
def test_learning_rate_finder_as_a_callback(tmp_path: Path) -> None:
    """The search runs within the fit, on its loaders; the fit then begins at the beginning."""
    finder = LearningRateFinder(num_training_steps=4, early_stop_threshold=None, update_attr=False)
    model = fitted(tmp_path, module(), max_epochs=2, callbacks=[finder])
    trained = model.seen("train")
    assert split_up(trained[-6:], 3) == plain_epochs(tmp_path, 2)


# --- several loaders for one split ---


def combined(mode: str, workers: int = 0, as_list: bool = False) -> LoaderDataModule:
    datasets: Any = {"a": Points(4), "b": lambda: Points(8)}
    if as_list:
        datasets = list(datasets.values())

    class Combined(LoaderDataModule):
        def train_dataloader(self) -> CombinedLoader:  # type: ignore[override]
            return CombinedLoader(super().train_dataloader(), mode)  # type: ignore[arg-type]

    return Combined({"train": datasets}, {"batch_size": 4, "num_workers": workers})


FIRST, SECOND = [0, 1, 2, 3], [4, 5, 6, 7]
MODES = {
    "min_size": [(FIRST, FIRST)],
    "max_size": [(FIRST, FIRST), (None, SECOND)],
    "max_size_cycle": [(FIRST, FIRST), (FIRST, SECOND)],
}


@workers
@pytest.mark.parametrize("as_list", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_modes_of_several_training_sets(
    mode: str, as_list: bool, workers: int, tmp_path: Path
) -> None:
    model = Noting()
    model.validation_step = None  # type: ignore[assignment, method-assign]
    quiet_trainer(tmp_path, max_epochs=2).fit(model, combined(mode, workers, as_list))
    expected: list[Any] = [list(batch) if as_list else dict(zip("ab", batch, strict=True))
                           for batch in MODES[mode]]  # fmt: skip
    assert model.seen("train") == expected * 2


def test_several_training_sets_are_cycled_through_by_default(tmp_path: Path) -> None:
    data = LoaderDataModule({"train": [Points(4), Points(8)]}, {"batch_size": 4})
    model = Noting()
    model.validation_step = None  # type: ignore[assignment, method-assign]
    quiet_trainer(tmp_path).fit(model, data)
    assert model.seen("train") == [[FIRST, FIRST], [FIRST, SECOND]]


@workers
def test_several_sets_are_evaluated_in_sequence(workers: int, tmp_path: Path) -> None:
    several = {"a": Points(4), "b": Points(8)}
    options = {"batch_size": 4, "num_workers": workers}
    data = LoaderDataModule({"val": several, "test": several, "predict": several}, options)
    model, trainer = Noting(), quiet_trainer(tmp_path)
    trainer.validate(model, data, verbose=False)
    trainer.test(model, data, verbose=False)
    trainer.predict(model, data)
    for split in ("val", "test", "predict"):
        steps = [step for step in model.steps if step.split == split]
        where = [(step.loader, step.batch_idx, step.indices) for step in steps]
        assert where == [(0, 0, FIRST), (1, 0, FIRST), (1, 1, SECOND)]


def test_which_lists_are_several_datasets() -> None:
    data = LoaderDataModule({"train": [Points, lambda: Points(3)], "val": [1, 2], "test": {0: "a"}})
    assert str(data) == (
        "LoaderDataModule(train: [factory Points, factory <lambda>], batch_size=1; "
        "val: list, batch_size=1; test: dict, batch_size=1)"
    )
    data.setup(None)
    assert [len(loader) for loader in data.train_dataloader()] == [12, 3]
    assert isinstance(data.val_dataloader(), DataLoader)
    assert isinstance(data.test_dataloader(), DataLoader)
    assert isinstance(LoaderDataModule({"val": []}).val_dataloader(), DataLoader)
    with pytest.raises(OptionError, match="'train' has several datasets: pass one of them"):
        data.make_loader("train")
    broken = LoaderDataModule({"train": {"a": Points(), "b": lambda: 3}})  # type: ignore[dict-item, return-value]
    with pytest.raises(OptionError, match=r"datasets\['train'\] factory must make a dataset"):
        broken.setup("fit")


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


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(torch.zeros(4, 3))


UNKNOWN: dict[str, tuple[Any, dict[str, Any]]] = {
    "out of order": (Points, {"in_order": False}),
    "replaced samples": (Points, {"on_sample_error": "replace"}),
    "not batched": (Points, {"batch_size": None, "collate_fn": lambda sample: sample[None]}),
    "iterable": (Stream, {}),
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


class Parallel:
    """What a data module asks of a Trainer, as one of a strategy with several ranks says it."""

    overfit_batches = 0.0

    def __init__(self, kwargs: Any, shard: bool = True) -> None:
        self.distributed_sampler_kwargs = kwargs
        self._accelerator_connector = type("", (), {"use_distributed_sampler": shard})


@pytest.mark.parametrize("split", SPLITS)
def test_use_distributed_sampler_is_honoured(split: str) -> None:
    data = module()
    data.trainer = Parallel({"num_replicas": 2, "rank": 1}, shard=False)  # type: ignore[assignment]
    assert list(map(len, data.make_loader(split))) == [4, 4, 4]
    data.trainer = Parallel({"num_replicas": 2, "rank": 1})  # type: ignore[assignment]
    assert list(map(len, data.make_loader(split))) == [4, 2]


def test_the_trainers_own_place_of_that_option(tmp_path: Path) -> None:
    """lightning/kept_loaders.py reads it there; if this fails, Lightning has moved it."""
    for given in (True, False):
        trainer = quiet_trainer(tmp_path, use_distributed_sampler=given)
        assert trainer._accelerator_connector.use_distributed_sampler is given


@pytest.mark.parametrize("drop_last", [False, True])
def test_prediction_neither_pads_nor_drops(drop_last: bool) -> None:
    seen = []
    for rank in range(3):
        data = LoaderDataModule(
            {"predict": lambda: Points(10)},
            {"batch_size": 2, "drop_last": drop_last, "shard_tail": "drop" if drop_last else "pad"},
        )
        data.trainer = Parallel({"num_replicas": 3, "rank": rank})  # type: ignore[assignment]
        loader = data.predict_dataloader()
        seen += [int(value) for batch in loader for value in batch[:, 0]]
        assert loader.batch_sampler is not None
        assert list(chain.from_iterable(loader.batch_sampler)) == list(range(rank, 10, 3))
    assert sorted(seen) == list(range(10))


class Progress(Callback):
    """What the Trainer thinks of each batch."""

    def __init__(self) -> None:
        self.last: list[bool] = []

    def on_train_batch_end(self, trainer: Trainer, *args: Any) -> None:
        self.last.append(trainer.is_last_batch)


@workers
def test_the_last_batch_is_known_as_such(workers: int, tmp_path: Path) -> None:
    progress = Progress()
    fitted(tmp_path, module(workers), max_epochs=2, callbacks=[progress])
    assert progress.last == [False, False, True] * 2
