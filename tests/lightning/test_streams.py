"""Trainings on streams that have a large state, or that can be read but once."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.utils.data import IterableDataset

import lit_loader
from lit_loader import DataLoader
from tests.support.lightning_runs import quiet_trainer


class Model(LightningModule):
    """Notes what it is trained on, and where that begins to be validated."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen: list[Any] = []

    def training_step(self, batch: Tensor) -> Tensor:
        self.seen += batch.flatten().tolist()
        loss: Tensor = self.layer(batch.float().view(-1, 1)).mean()
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.0)


class Live(IterableDataset[Tensor]):
    """A queue, of which ten make an epoch: what was taken is gone."""

    def __init__(self) -> None:
        self.taken, self.epochs = 0, list[int]()

    def __iter__(self) -> Iterator[Tensor]:
        self.epochs.append(lit_loader.get_epoch())
        for _ in range(10):
            self.taken += 1
            yield torch.tensor([self.taken])


@pytest.mark.filterwarnings("ignore:.* has no state_dict")
def test_a_resume_between_epochs_takes_nothing_in_vain(tmp_path: Path) -> None:
    """Of torch's loader Lightning takes a batch, before it knows where it is, and drops it."""
    file, first = tmp_path / "end.ckpt", quiet_trainer(tmp_path, max_epochs=1)
    first.fit(Model(), DataLoader(Live(), 2))
    first.save_checkpoint(file)
    live, model = Live(), Model()
    quiet_trainer(tmp_path, max_epochs=3).fit(model, DataLoader(live, 2), ckpt_path=file)
    assert model.seen == [*range(1, 21)]
    assert live.taken == 20 and live.epochs == [1, 2]
