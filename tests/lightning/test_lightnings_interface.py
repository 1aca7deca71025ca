"""What a program may call on any LightningDataModule, called on ours beside Lightning's own."""

from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningDataModule

from lit_loader import LoaderDataModule
from tests.support.lightning_runs import Noting, Points, quiet_trainer

pytestmark = [
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no"),
    pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator"),
]

SPLITS = ("train", "val", "test", "predict")


def ours_of(*datasets: Any, **options: Any) -> LoaderDataModule:
    return LoaderDataModule(
        dict(zip(SPLITS, datasets, strict=False)), train={"shuffle": True}, **options
    )


def run(make: Any, tmp_path: Path, *datasets: Any, **options: Any) -> dict[str, Any]:
    """The batches of each split that there is, of the data module that is made."""
    torch.manual_seed(7)
    data = make(*datasets, **options)
    model, trainer = Noting(), quiet_trainer(tmp_path, max_epochs=1, num_sanity_val_steps=0)
    run = {"train": trainer.fit, "test": trainer.test, "predict": trainer.predict}
    for split, given in zip(SPLITS, datasets, strict=False):
        if given is not None and split in run:
            run[split](model, datamodule=data)
    return {split: model.seen(split) for split in SPLITS}


# --- its loaders ---


@pytest.mark.parametrize(
    "train",
    [{"a": Points(4), "b": Points(4)}, [Points(4), Points(4)], {"a": [Points(4), Points(4)]}],
)
def test_several_datasets_of_a_split(train: Any, tmp_path: Path) -> None:
    ours = ours_of(train, [Points(2), Points(3)], batch_size=2)
    theirs = LightningDataModule.from_datasets(train, [Points(2), Points(3)], batch_size=2)
    for name in ("train_dataloader", "val_dataloader"):
        shapes = [
            torch.utils._pytree.tree_map(lambda loader: type(loader.sampler).__name__, made)
            for made in (getattr(ours, name)(), getattr(theirs, name)())
        ]
        assert str(shapes[0]).replace("Shuffled", "Random").replace("Ordered", "Sequential") == str(
            shapes[1]
        )
    quiet_trainer(tmp_path).validate(Noting(), ours, verbose=False)


def test_from_datasets(tmp_path: Path) -> None:
    given = [Points(), Points(5), Points(4), Points(3)]
    ours = run(LoaderDataModule.from_datasets, tmp_path, *given, batch_size=4, num_workers=2)
    theirs = run(LightningDataModule.from_datasets, tmp_path, *given, batch_size=4)
    assert [len(each) for each in ours.values()] == [len(each) for each in theirs.values()]
    first, second = ([*chain(*each.pop("train"))] for each in (ours, theirs))
    assert ours == theirs and sorted(first) == sorted(second) and first != [*range(len(first))]


@pytest.mark.parametrize("train", [{"sampler": [3, 1]}, {"batch_sampler": [[3], [1]]}])
def test_from_datasets_does_not_shuffle_where_a_sampler_decides(train: Any) -> None:
    for options in (train, {"train": train}):
        loader = LoaderDataModule.from_datasets(Points(4), **options).train_dataloader()
        assert [int(batch[0, 0]) for batch in loader] == [3, 1]


# --- hyperparameters and checkpoints ---


def test_hyperparameters_and_load_from_checkpoint(tmp_path: Path) -> None:
    data = ours_of(Points(8), batch_size=2, loader={"seed": 3})
    trainer = quiet_trainer(tmp_path, max_epochs=1)
    trainer.fit(Noting(), datamodule=data)
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    saved = torch.load(tmp_path / "a.ckpt", weights_only=True)
    assert saved[LoaderDataModule.CHECKPOINT_HYPER_PARAMS_KEY] == dict(data.hparams)
    loaded = LoaderDataModule.load_from_checkpoint(
        tmp_path / "a.ckpt", datasets={"train": Points(8), "val": Points(4)}
    )
    again = [batch[:, 0].tolist() for batch in loaded.train_dataloader()]
    assert again == [batch[:, 0].tolist() for batch in data.train_dataloader()]
    assert isinstance(loaded.val_dataloader().sampler, torch.utils.data.SequentialSampler)
    assert loaded.val_dataloader().batch_size == 2
    other = LoaderDataModule.load_from_checkpoint(
        tmp_path / "a.ckpt", datasets={"train": Points(8)}, train={"batch_size": 4}
    )
    assert other.batch_size == 4
