"""LoaderDataModule.from_datamodule: a data module with torch's loaders, and ours in their place."""

from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch.utils.data import (
    BatchSampler,
    SequentialSampler,
    WeightedRandomSampler,
    default_collate,
    default_convert,
)
from torch.utils.data import DataLoader as TorchLoader

from lit_loader import DataLoader, LoaderDataModule, OptionError
from lit_loader.lightning.datamodule import SwappedDataModule, options_of
from tests.support.lightning_runs import Noting, Points, SaveAt, quiet_trainer


class Own(LightningDataModule):
    """As users write them; notes which of its hooks are called."""

    def __init__(self, batch_size: int = 4, workers: int = 0, classes: int = 10) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.batch_size, self.workers = batch_size, workers
        self.calls: list[str] = []

    def prepare_data(self) -> None:
        self.calls.append("prepare_data")

    def setup(self, stage: str) -> None:
        self.calls.append(f"setup {str.__str__(stage)}")
        self.train = Points(12)

    def train_dataloader(self) -> Any:
        return TorchLoader(
            self.train, self.batch_size, shuffle=True, num_workers=self.workers, drop_last=True
        )

    def val_dataloader(self) -> Any:
        return [TorchLoader(Points(4), 2), TorchLoader(Points(2), 2)]

    def predict_dataloader(self) -> Any:
        return TorchLoader(Points(5), 2)

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        self.calls.append("on_before_batch_transfer")
        return batch

    def state_dict(self) -> dict[str, Any]:
        return {"calls": len(self.calls)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.calls.append(f"load_state_dict {sorted(state_dict)}")

    def teardown(self, stage: str) -> None:
        self.calls.append(f"teardown {str.__str__(stage)}")

    def on_exception(self, exception: BaseException) -> None:
        self.calls.append(f"on_exception {exception}")


def swapped(own: Any = None, **overrides: Any) -> SwappedDataModule:
    return LoaderDataModule.from_datamodule(Own() if own is None else own, **overrides)


# --- one loader's options ---


def user_collate(samples: Any) -> Any:
    return samples


def user_init(worker: int) -> None: ...


POINTS = Points()
GENERATOR = torch.Generator()
SAMPLER = WeightedRandomSampler([1.0] * 12, 5)
BATCH_SAMPLER = BatchSampler(SequentialSampler(POINTS), 3, False)
GIVEN: dict[str, dict[str, Any]] = {
    "nothing": {},
    "batches": {"batch_size": 5, "drop_last": True},
    "shuffle": {"shuffle": True},
    "shuffle by a generator": {"shuffle": True, "generator": GENERATOR},
    "sampler": {"sampler": SAMPLER},
    "batch sampler": {"batch_sampler": BATCH_SAMPLER},
    "single samples": {"batch_size": None},
    "functions": {"collate_fn": user_collate, "worker_init_fn": user_init},
    "collated by default": {"collate_fn": default_collate},
    "converted by default": {"batch_size": None, "collate_fn": default_convert},
    "workers": {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 3, "timeout": 5},
    "out of order": {"num_workers": 1, "in_order": False},
    "pinned": {"pin_memory": True},
}


@pytest.mark.parametrize("name", GIVEN)
def test_options_of_a_loader(name: str) -> None:
    theirs = TorchLoader(POINTS, **GIVEN[name])
    plain = {
        key: x for key, x in GIVEN[name].items() if x not in (default_collate, default_convert)
    }
    made, ours = DataLoader(POINTS, **options_of(theirs)), DataLoader(POINTS, **plain)
    for option in ("batch_size", "drop_last", "num_workers", "timeout", "collate_fn", "generator",
                   "worker_init_fn", "prefetch_factor", "persistent_workers", "in_order",
                   "pin_memory", "multiprocessing_context"):  # fmt: skip
        assert getattr(made, option) == getattr(ours, option), option
    assert type(made.sampler) is type(ours.sampler)
    assert type(made.batch_sampler) is type(ours.batch_sampler)
    assert (made.sampler is SAMPLER) == (name == "sampler")
    assert (made.batch_sampler is BATCH_SAMPLER) == (name == "batch sampler")
    assert len(made) == len(theirs)


# --- the data module ---


@pytest.mark.parametrize("workers", [0, 2])
def test_every_hook_and_loader(workers: int, tmp_path: Path) -> None:
    own, model = Own(workers=workers), Noting()
    data = swapped(own, seed=3)
    trainer = quiet_trainer(tmp_path, num_sanity_val_steps=0, max_epochs=2)
    trainer.fit(model, data)
    assert own.trainer is data.trainer is trainer
    first, second = model.seen("train")[:3], model.seen("train")[3:]
    assert sorted(chain(*first)) == sorted(chain(*second)) == list(range(12))
    assert first != second
    assert model.seen("val") == [[0, 1], [2, 3], [0, 1]] * 2
    assert type(trainer.train_dataloader) is DataLoader
    assert (trainer.train_dataloader.num_workers, trainer.train_dataloader.seed) == (workers, 3)
    steps = ["on_before_batch_transfer"] * 6
    assert own.calls == ["prepare_data", "setup fit", *steps, *steps, "teardown fit"]
    assert [batch.tolist() for batch in trainer.predict(model, data)] == [[0, 1], [2, 3], [4]]


def test_a_missing_split_stays_missing(tmp_path: Path) -> None:
    data = swapped()
    assert is_overridden("train_dataloader", data)
    assert not is_overridden("test_dataloader", data)
    assert not is_overridden("transfer_batch_to_device", data)
    assert is_overridden("on_before_batch_transfer", data)


class OtherIteration(TorchLoader[Any]):
    def __iter__(self) -> Any:
        return iter([torch.zeros(1, 3)])


class OtherCollation(TorchLoader[Any]):
    """As graph libraries do it."""

    def __init__(self, dataset: Any) -> None:
        super().__init__(dataset, 2, collate_fn=user_collate)


def test_what_cannot_be_swapped_stays_with_a_warning() -> None:
    class Odd(LightningDataModule):
        def train_dataloader(self) -> Any:
            return [OtherIteration(Points()), OtherCollation(Points()), DataLoader(Points())]

        def val_dataloader(self) -> Any:
            return DataLoader(Points())

    with pytest.warns(UserWarning, match="OtherIteration, which stays"):
        loaders = swapped(Odd()).train_dataloader()
    assert list(map(type, loaders)) == [OtherIteration, DataLoader, DataLoader]
    assert loaders[1].collate_fn is user_collate
    with pytest.raises(OptionError, match="DataLoader already, so .* lay num_workers"):
        swapped(Odd(), num_workers=2).val_dataloader()


# --- overrides ---


def test_overrides_replace_options() -> None:
    data = swapped(Own(workers=2), num_workers=1, batch_size=6, seed=3, seeding="sample")
    data.setup("fit")
    loader = data.train_dataloader()
    assert (loader.num_workers, loader.batch_size, loader.seeding) == (1, 6, "sample")
    assert loader.drop_last
    assert str(data) == (
        "SwappedDataModule(Own, num_workers=1, batch_size=6, seed=3, seeding='sample')"
    )


def test_overrides_that_do_not_fit() -> None:
    data = swapped(prefetch_factor=4)
    data.setup("fit")
    with pytest.raises(OptionError, match="Own.train_dataloader: prefetch_factor"):
        data.train_dataloader()
    with pytest.raises(OptionError, match="num_workers"):
        swapped(num_worker=2)
    for wrong in (LoaderDataModule({"train": Points}), swapped(), Points()):
        with pytest.raises(OptionError, match="from_datamodule needs"):
            swapped(wrong)


# --- what the Trainer and users do with it ---


@pytest.mark.parametrize("workers", [0, 2])
def test_resumes_exactly(workers: int, tmp_path: Path) -> None:
    def fit(checkpoint: Path | None = None) -> tuple[list[Any], Own]:
        own, model = Own(workers=workers), Noting()
        trainer = quiet_trainer(tmp_path, max_epochs=3, callbacks=[SaveAt(tmp_path / "a.ckpt", 4)])
        data = swapped(own, seed=3)
        trainer.fit(model, data, ckpt_path=checkpoint, weights_only=True)
        return model.seen("train"), own

    whole, _ = fit()
    rest, own = fit(tmp_path / "a.ckpt")
    assert rest == whole[4:]
    assert "load_state_dict ['calls']" in own.calls
    saved = torch.load(tmp_path / "a.ckpt", weights_only=True)
    assert set(saved["Own"]) == {"calls"}  # as without us: the class's own name, its own state
    assert saved["datamodule_hyper_parameters"] == {
        "batch_size": 4, "workers": workers, "classes": 10
    }  # fmt: skip
