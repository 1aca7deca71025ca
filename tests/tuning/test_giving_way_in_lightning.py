"""Training and validation of a Trainer hand their workers over: counted from outside."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("psutil")
pytest.importorskip("lightning")

import psutil
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.demos.boring_classes import BoringModel, RandomDataset

from lit_loader import LoaderDataModule
from lit_loader.tuning import auto_workers, giving_way, turns

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.usefixtures("by_fork"),  # a fork server's workers are no children of this process
]

WORKERS = 4

DATA = {"train": RandomDataset(32, 160), "val": RandomDataset(32, 96)}


def children() -> set[int]:
    """The processes below this one."""
    return {process.pid for process in psutil.Process().children(recursive=True)}


class Model(BoringModel):
    """Keeps what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, bytes]] = []

    def training_step(self, batch: Any, index: int) -> Any:
        self.found.append(("train", batch.numpy().tobytes()))
        return super().training_step(batch, index)

    def validation_step(self, batch: Any, index: int) -> Any:
        self.found.append(("val", batch.numpy().tobytes()))
        return super().validation_step(batch, index)


class Counted(Callback):
    """Once the other loader has given way, counts the workers of both, as psutil sees them."""

    def __init__(self, parks: bool) -> None:
        self.parks = parks
        self.seen: dict[str, list[int]] = {"train": [], "val": []}
        self.others = children()  # of earlier tests: multiprocessing's own servers

    def _look(self, trainer: Any, mine: str, index: int) -> None:
        loaders = {"train": trainer.train_dataloader, "val": trainer.val_dataloaders}
        loaders = {name: loader for name, loader in loaders.items() if loader is not None}
        other = loaders.get("val" if mine == "train" else "train")
        if not self.parks or other is None or not other._core.turn.parked:
            return
        while not other._core.turn.settle():
            os.sched_yield()
        assert len([pid for pool in other._core.pools() for pid in pool.pids]) == 1
        pools = [pool for each in loaders.values() for pool in each._core.pools()]
        workers = {pid for pool in pools for pid in pool.pids}
        alive = children() - self.others
        assert workers <= alive and len(alive - workers) <= 2  # each loader's launcher
        self.seen[mine].append(len(workers))

    def on_train_batch_end(self, trainer: Any, module: Any, out: Any, batch: Any, i: int) -> None:
        self._look(trainer, "train", i)

    def on_validation_batch_end(
        self, trainer: Any, module: Any, out: Any, batch: Any, i: int, loader: int = 0
    ) -> None:
        if not trainer.sanity_checking:
            self._look(trainer, "val", i)


def fit(folder: Path, every: float, counted: Counted, **options: Any) -> list[tuple[str, bytes]]:
    data = LoaderDataModule(
        DATA,
        {"batch_size": 4, "seed": 1, **options},
    )
    trainer = Trainer(
        max_epochs=2, accelerator="cpu", default_root_dir=folder, logger=False,
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
        callbacks=[counted], val_check_interval=every,
    )  # fmt: skip
    model = Model()
    trainer.fit(model, datamodule=data)
    return model.found


@pytest.mark.parametrize("persistent", [False, True], ids=["", "persistent"])
@pytest.mark.parametrize("every", [1.0, 0.5], ids=["at the end", "in mid-epoch"])
def test_the_workers_of_both_are_about_those_of_one(
    every: float, persistent: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = fit(tmp_path / "alone", every, Counted(parks=False), num_workers=0)
    for module in (turns, giving_way):
        monkeypatch.setattr(module, "FORKED", 0)
    monkeypatch.setattr(auto_workers, "FIRST", WORKERS)
    monkeypatch.setattr(auto_workers, "LEAST", 1 << 62)  # no other number is decided on
    counted = Counted(parks=True)
    found = fit(
        tmp_path / "auto", every, counted, num_workers="auto", persistent_workers=persistent
    )
    assert found == expected
    assert 1 < max(counted.seen["val"]) <= WORKERS + 1
    if persistent:  # else validation has none while it is not iterated
        assert 1 < max(counted.seen["train"]) <= WORKERS + 1
