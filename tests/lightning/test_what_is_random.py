"""What the data of ordinary Trainers is like: does it vary, is it independent, is it resumed?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, seed_everything
from torch import Tensor
from torch.utils.data import IterableDataset

from lit_loader import DataLoader, LoaderDataModule
from tests.support.lightning_runs import quiet_trainer
from tests.support.samples import OfLength


class Noise(OfLength):
    length = 8

    def __getitem__(self, index: int) -> Tensor:
        return torch.rand(1)


class NoiseStream(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        for _ in range(8):
            yield torch.rand(1)


class Model(LightningModule):
    """Notes what it sees, by split and epoch."""

    def __init__(self, val_seed: int | None = None) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen: dict[str, list[frozenset[float]]] = {}
        self.val_seed = val_seed

    def see(self, split: str, batch: Tensor, number: int) -> None:
        passes = self.seen.setdefault(split, [])
        if not number or not passes:
            passes.append(frozenset())
        passes[-1] |= frozenset(batch.flatten().tolist())

    def training_step(self, batch: Tensor, number: int) -> Tensor:
        self.see("train", batch, number)
        loss: Tensor = self.layer(batch).mean()
        return loss

    def on_validation_start(self) -> None:
        if self.val_seed is not None and not self.trainer.sanity_checking:
            torch.manual_seed(self.val_seed)

    def validation_step(self, batch: Tensor, number: int) -> None:
        if not self.trainer.sanity_checking:
            self.see("val", batch, number)

    def test_step(self, batch: Tensor, number: int) -> None:
        self.see("test", batch, number)

    def predict_step(self, batch: Tensor, number: int) -> Tensor:
        self.see("predict", batch, number)
        return batch

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.fixture(params=[0, 2])
def workers(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def loaders(kind: str, workers: int = 0, val_seed: int | None = None) -> dict[str, Any]:
    options: dict[str, Any] = {"batch_size": 4, "num_workers": workers}
    if kind == "data module":
        splits = {"train": Noise(), "val": Noise()}
        return {"datamodule": LoaderDataModule(splits, options, val={"seed": val_seed})}
    data: Any = NoiseStream if kind == "stream" else Noise
    train, val = (DataLoader(data(), **options, seed=seed) for seed in (None, val_seed))
    return {"train_dataloaders": train, "val_dataloaders": val}


def is_new(passes: list[frozenset[float]]) -> bool:
    return len(frozenset().union(*passes)) == sum(map(len, passes))


@pytest.mark.parametrize("seeded", [False, True])
@pytest.mark.parametrize("kind", ["map", "stream", "data module"])
@pytest.mark.filterwarnings("ignore:.*NoiseStream")
def test_validation_never_sees_what_was_trained_on(
    tmp_path: Path, kind: str, seeded: bool, workers: int
) -> None:
    """Although the sanity check puts the generators back, and begins where training begins."""
    model = Model()
    given = loaders(kind, workers)
    if seeded:
        seed_everything(1)
    quiet_trainer(tmp_path, max_epochs=3).fit(model, **given)
    assert len(model.seen["val"]) == 3
    assert is_new(model.seen["train"] + model.seen["val"])


def test_every_pass_is_new(tmp_path: Path) -> None:
    """Of validations within an epoch, second fits, and of test-time augmentation."""
    model, train, val = Model(), DataLoader(Noise(), 4), DataLoader(Noise(), 4)
    for epochs in (2, 4):
        trainer = quiet_trainer(tmp_path, max_epochs=epochs, val_check_interval=0.5)
        trainer.fit(model, train, val)
    for _ in range(3):
        trainer = quiet_trainer(tmp_path)
        trainer.test(model, val, verbose=False)
        trainer.predict(model, val)
    passes = [each for split in model.seen.values() for each in split]
    assert len(passes) == 2 + 4 + 4 + 8 + 3 + 3
    assert is_new(passes)


def test_runs_are_fixed_by_seed_everything_and_by_nothing_else(tmp_path: Path) -> None:
    def run(seed: int | None) -> Any:
        if seed is not None:
            seed_everything(seed)
        model = Model()
        quiet_trainer(tmp_path, max_epochs=2).fit(model, **loaders("map"))
        return model.seen

    assert run(1) == run(1) != run(2)
    assert run(None) != run(None)


class Numbered(Noise):
    def __getitem__(self, index: int) -> Tensor:
        return torch.cat([torch.tensor([float(index)]), super().__getitem__(index)])


class WithShort(Model):
    """Takes a short loader's batches beside another's, and notes their orders."""

    def __init__(self) -> None:
        super().__init__()
        self.orders: list[tuple[float, ...]] = []

    def training_step(self, batch: Any, number: int) -> Tensor:
        self.orders.append(tuple(batch[1][:, 0].tolist()))
        return super().training_step(batch[1][:, 1:], number)


@pytest.mark.parametrize("batches", [3, 8])
@pytest.mark.parametrize("kind", [Noise, NoiseStream])
@pytest.mark.filterwarnings("ignore:You defined a `validation_step`", "ignore:NoiseStream")
def test_a_short_loader_is_gone_through_anew(tmp_path: Path, kind: Any, batches: int) -> None:
    """In another order within an epoch; with other numbers also in the next one.

    Also if an epoch's last pass of it is of one batch.
    """
    model, long = WithShort(), DataLoader(kind(), 8 // batches + (batches == 3))
    torch.manual_seed(1)
    short = DataLoader(Numbered(), 4, shuffle=True)
    quiet_trainer(tmp_path, max_epochs=4).fit(model, [long, short])
    assert len(model.orders) == 4 * batches
    assert is_new(model.seen["train"])
    for epoch in range(4):
        orders = model.orders[epoch * batches :][:batches]
        assert len({*orders}) == len(orders)
