"""Run as a script with a folder: two ranks, each of which writes what it saw.

What programs that know no loader but torch's do with ours, their import changed.
"""

import functools
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from lightning.fabric import Fabric
from lightning.pytorch import Callback, LightningDataModule, seed_everything
from lightning.pytorch.utilities import CombinedLoader

from lit_loader import DataLoader, LoaderDataModule, shared_dataset
from tests.support import sharded_fit
from tests.support.bulk import Bulk
from tests.support.exact import Augmented
from tests.support.lightning_runs import SaveAt
from tests.support.samples import OfLength, uncollated
from tests.support.strategy_runs import BATCH_SIZE, LENGTH, PREDICTED, Model, Writer, trainer


class Drawn(OfLength):
    """Item ``i`` is ``i`` with draws from torch's generator; it holds no generator of its own."""

    def __getitem__(self, index: int) -> Any:
        return torch.cat([torch.tensor([float(index)]), torch.rand(7)])


def loader(batch_size: int = BATCH_SIZE, workers: int = 0, **options: Any) -> DataLoader[Any]:
    options = {"shuffle": True, "seeding": "sample", "num_workers": workers, **options}
    return DataLoader(Drawn(LENGTH), batch_size, **options)


class OwnModule(Model):
    def __init__(self, workers: int = 0, batch_size: int = BATCH_SIZE, **options: Any) -> None:
        super().__init__()
        self.workers, self.batch_size, self.options = workers, batch_size, options

    def train_dataloader(self) -> Any:
        return loader(self.batch_size, self.workers, **self.options)


class Evaluated(Model):
    def __init__(self) -> None:
        super().__init__()
        self.evaluated: list[int] = []

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.evaluated += [int(index) for index in batch[:, 0]]


class OwnData(LightningDataModule):
    def train_dataloader(self) -> Any:
        return loader()

    def val_dataloader(self) -> Any:
        return loader(shuffle=False)

    def predict_dataloader(self) -> Any:
        return DataLoader(Augmented(PREDICTED), batch_size=2, num_workers=1)


class Several(Model):
    """Two training loaders at a time."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        super().training_step(batch[0], batch_idx)
        return super().training_step(batch[1], batch_idx)

    def train_dataloader(self) -> Any:
        return CombinedLoader([loader(), loader(shuffle=False)], "min_size")


class OfShared(Model):
    """Notes each sample's number, and the file in memory that its worker has read it from."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        for number, _, process, inode in batch:
            assert process != os.getpid()
            self.seen.append([int(number), inode])
        return self.layer(torch.ones(self.width)).mean()


def shared(folder: Path) -> LoaderDataModule:
    """A dataset that one process builds for all; workers that are not forked have a copy."""
    options: dict[str, Any] = {"batch_size": 1, "num_workers": 1, "collate_fn": uncollated}
    options["multiprocessing_context"] = "fork"
    factory = functools.partial(Bulk, folder / "built")
    built_once = functools.partial(shared_dataset, factory, str(folder))
    return LoaderDataModule({"train": built_once}, options)


def main(root: Path) -> None:
    runs: dict[str, Any] = {}

    def fit(name: str, model: Any, *callbacks: Callback, data: Any = None, **options: Any) -> None:
        path = options.pop("path", None)
        seed_everything(0, verbose=False)
        run = trainer(root, "ddp", *callbacks, num_sanity_val_steps=0, **options)
        run.fit(model, data, ckpt_path=path, weights_only=True)
        runs[name] = model.seen

    fit("whole", OwnModule())
    fit("stopped", OwnModule(1), SaveAt(root / "a.ckpt", 2), max_steps=3)
    fit("resumed", OwnModule(), SaveAt(root / "b.ckpt", 5), path=root / "a.ckpt")
    fit("data module", Model(), data=OwnData())
    fit("given", Model(), data=loader())
    fit("several", Several())
    fit("overfit", OwnModule(), overfit_batches=2)
    fit("reloaded", OwnModule(), reload_dataloaders_every_n_epochs=1)
    fit("shared", OfShared(), data=shared(root), max_epochs=1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit("whole, by all", OwnModule(), use_distributed_sampler=False)
    runs["warned"] = [str(each.message) for each in caught if "LL220" in str(each.message)]

    model = Evaluated()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer(root, "ddp").validate(model, OwnData(), verbose=False)
    runs["evaluated"] = model.evaluated
    runs["advised"] = any("`DistributedSampler`" in str(each.message) for each in caught)
    run = trainer(root, "ddp", Writer(root, "given"))
    run.predict(Model(), OwnData(), return_predictions=False)

    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    setup = fabric.setup_dataloaders(loader())
    runs["fabric"] = [[batch[:, 0].int().tolist() for batch in setup] for _ in range(2)]
    runs["fabric's"] = len(setup)
    runs["auto"] = [int(batch) for batch in DataLoader(range(6), num_replicas="auto")]
    (root / f"seen-{run.global_rank}.json").write_text(json.dumps(runs))
    for name, stop, before in (("whole", 0, ""), ("first", 14, ""), ("second", 0, "first")):
        sharded_fit.fit(root, name, stop, before)
    torch.distributed.barrier()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
