"""Programs written for torch's loader, with the import as their only change: Lightning and Fabric.

Two ranks run ``one_import_fit.py`` once; each test looks at one thing that they saw.
"""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support import one_import_fit as program
from tests.support.one_import_fit import BATCH_SIZE, EPOCHS, LENGTH, PREDICTED, OwnModule
from tests.support.programs import run_with_lightning

BATCHES = 4  # of each rank: 26 samples, 13 for each
EVERY = set(range(LENGTH))


class Runs(NamedTuple):
    folder: Path
    ranks: list[dict[str, Any]]

    def epochs(self, name: str, batches: int = BATCHES) -> list[list[list[int]]]:
        """Of each epoch, the ids that each rank saw."""
        return [
            [
                [
                    int(row.split(":")[0])
                    for batch in runs[name][first : first + batches]
                    for row in batch
                ]
                for runs in self.ranks
            ]
            for first in range(0, len(self.ranks[0][name]), batches)
        ]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("ranks")
    script = Path(program.__file__)
    run_with_lightning(folder, script, folder, 2)
    seen = [json.loads((folder / f"seen-{rank}.json").read_text()) for rank in range(2)]
    return Runs(folder, seen)


@pytest.mark.parametrize("name", ["whole", "data module", "given", "reloaded"])
def test_ranks_have_disjoint_and_complete_shares_anew_each_epoch(name: str, runs: Runs) -> None:
    epochs = runs.epochs(name)
    assert len(epochs) == EPOCHS
    for one, other in epochs:
        assert len(one) == len(other) == LENGTH // 2
        assert {*one, *other} == EVERY
    assert epochs[0] != epochs[1]
    # ... and no matter where the loader comes from
    assert [run[name] for run in runs.ranks] == [run["whole"] for run in runs.ranks]


def test_of_several_loaders_each_is_shared(runs: Runs) -> None:
    for one, other in runs.epochs("several", 2 * BATCHES):
        assert sorted(one + other) == sorted(2 * list(EVERY))


def test_a_resumed_run_goes_on_exactly(runs: Runs) -> None:
    for seen in runs.ranks:
        assert seen["stopped"] == seen["whole"][:3]
        assert seen["resumed"] == seen["whole"][2:]


@pytest.mark.parametrize(("checkpoint", "done"), [("a", 2), ("b", 5)])
def test_on_one_rank_it_goes_on_with_the_same_samples(
    checkpoint: str, done: int, runs: Runs, tmp_path: Path
) -> None:
    model = OwnModule(batch_size=2 * BATCH_SIZE)
    path = runs.folder / f"{checkpoint}.ckpt"
    program.trainer(tmp_path, 1).fit(model, ckpt_path=path, weights_only=True)
    left = zip(*(seen["whole"][done:] for seen in runs.ranks), strict=True)
    assert list(map(set, model.seen)) == [{*one, *other} for one, other in left]


def test_overfitting_has_the_same_batches_each_epoch(runs: Runs) -> None:
    one, other = runs.epochs("overfit", 2)
    assert one == other == [[0, 2, 4, 6, 8, 10, 12, 14], [1, 3, 5, 7, 9, 11, 13, 15]]


def test_without_lightnings_sampler_everybody_reads_everything_and_it_is_said(runs: Runs) -> None:
    for shares in runs.epochs("whole, by all", 7):
        assert [set(share) for share in shares] == [EVERY, EVERY]
    for seen in runs.ranks:
        (warning,) = seen["warned"]
        assert warning == (
            "each of the 2 processes of this job reads all of the data, unless ShuffledSampler "
            "takes a share of it by itself: then pass num_replicas=1, rank=0; else pass "
            "num_replicas=torch.distributed.get_world_size() and rank=torch.distributed.get_rank()"
        )


def test_evaluation_is_shared_and_advised_of(runs: Runs) -> None:
    assert sorted(chain(*(seen["evaluated"] for seen in runs.ranks))) == sorted(EVERY)
    assert runs.ranks[0]["advised"]


def test_prediction_writers_are_told_the_indices(runs: Runs) -> None:
    written = [pair for seen in runs.ranks for pair in seen["written"]]
    assert all(predictions == indices for predictions, indices in written)
    assert sorted(chain(*(indices for _, indices in written))) == list(range(PREDICTED))


def test_fabric_shares_and_shuffles(runs: Runs) -> None:
    first, second = (
        [list(chain(*seen["fabric"][epoch])) for seen in runs.ranks] for epoch in range(2)
    )
    for shares in (first, second):
        assert sorted(chain(*shares)) == sorted(EVERY)
    assert first != second
    assert [seen["fabric's"] for seen in runs.ranks] == [BATCHES, BATCHES]


@pytest.mark.slow
def test_four_ranks_then_two_then_one(tmp_path: Path) -> None:
    script = Path(program.__file__)
    path, seen, done = (), {}, 0
    for ranks, size, steps in ((4, 2, 2), (2, 4, 5), (1, 8, 8)):
        run_with_lightning(tmp_path, script, tmp_path, ranks, size, steps, *path)
        files = [tmp_path / f"seen-{ranks}-{rank}.json" for rank in range(ranks)]
        steps_of_all = zip(*(json.loads(file.read_text()) for file in files), strict=True)
        seen[ranks] = [set(chain(*step)) for step in steps_of_all]
        # Each global batch is the same, but that four ranks share 26 samples with two repeated.
        left = seen[4][done:]
        assert len(seen[ranks]) == len(left)
        assert all(mine <= whole for mine, whole in zip(seen[ranks], left, strict=True))
        assert sum(map(len, seen[ranks])) >= sum(map(len, left)) - 4
        path, done = (tmp_path / f"{ranks}.ckpt",), steps


TEMPLATE = {
    "configs/train.yaml": """
defaults: [_self_, {data: digits}, {model: net}, {trainer: default}]
task_name: train
seed: 3
hydra: {run: {dir: out}}
""",
    "configs/data/digits.yaml": """
_target_: src.data.digits_datamodule.DigitsDataModule
batch_size: 8
num_workers: 0
pin_memory: false
""",
    "configs/model/net.yaml": "_target_: src.models.net.Net\n",
    "configs/trainer/default.yaml": """
_target_: lightning.Trainer
default_root_dir: .
accelerator: cpu
devices: 1
max_epochs: 2
logger: false
enable_progress_bar: false
enable_checkpointing: false
""",
    "src/__init__.py": "",
    "src/data/__init__.py": "",
    "src/models/__init__.py": "",
    "src/data/digits_datamodule.py": """
import torch
from lightning import LightningDataModule
from torch.utils.data import Dataset, random_split

from lit_loader import DataLoader


class Numbers(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return torch.tensor([float(index)]), index


class DigitsDataModule(LightningDataModule):
    def __init__(self, batch_size, num_workers, pin_memory):
        super().__init__()
        self.save_hyperparameters(logger=False)
        self.batch_size_per_device = batch_size

    def setup(self, stage=None):
        if self.trainer is not None:
            self.batch_size_per_device = self.hparams.batch_size // self.trainer.world_size
        generator = torch.Generator().manual_seed(42)
        self.train, self.val = random_split(Numbers(), [32, 8], generator=generator)

    def loader(self, dataset, shuffle):
        return DataLoader(
            dataset=dataset,
            batch_size=self.batch_size_per_device,
            num_workers=self.hparams.num_workers,
            pin_memory=self.hparams.pin_memory,
            shuffle=shuffle,
        )

    def train_dataloader(self):
        return self.loader(self.train, True)

    def val_dataloader(self):
        return self.loader(self.val, False)
""",
    "src/models/net.py": """
import torch
from lightning import LightningModule


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer, self.seen = torch.nn.Linear(1, 1), []

    def training_step(self, batch, batch_idx):
        self.seen += batch[1].tolist()
        return self.layer(batch[0]).mean()

    def validation_step(self, batch, batch_idx):
        pass

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 1e-3)
""",
    "src/train.py": """
import json, os, sys
sys.path.insert(0, os.getcwd())
import hydra, lightning


@hydra.main(version_base="1.3", config_path="../configs", config_name="train.yaml")
def main(cfg):
    lightning.seed_everything(cfg.seed, workers=True, verbose=False)
    data, model = hydra.utils.instantiate(cfg.data), hydra.utils.instantiate(cfg.model)
    trainer = hydra.utils.instantiate(cfg.trainer)
    trainer.fit(model=model, datamodule=data)
    with open(f"seen-{trainer.global_rank}.json", "w") as file:
        json.dump(model.seen, file)


if __name__ == "__main__":
    main()
""",
}


def test_the_layout_of_the_lightning_hydra_template(tmp_path: Path) -> None:
    for name, text in TEMPLATE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    seen = {}
    for workers, devices, strategy in ((2, 1, "auto"), (1, 2, "ddp")):
        run_with_lightning(
            tmp_path, tmp_path / "src" / "train.py", f"data.num_workers={workers}",
            f"trainer.devices={devices}", f"+trainer.strategy={strategy}",
        )  # fmt: skip
        files = [tmp_path / f"seen-{rank}.json" for rank in range(devices)]
        seen[workers] = [json.loads(file.read_text()) for file in files]
    for runs in seen.values():
        half = len(runs[0]) // 2
        first, second = ([run[part] for run in runs] for part in (slice(half), slice(half, None)))
        for epoch in (first, second):  # 32 of the 40 numbers, each once
            assert len(list(chain(*epoch))) == len(set(chain(*epoch))) == 32
        assert first != second
