"""What a program may call on any LightningDataModule, called on ours beside Lightning's own."""

from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import IterableDataset

from lit_loader import LoaderConfig, LoaderDataModule, OptionError
from tests.support.lightning_runs import Noting, Points, quiet_trainer

pytestmark = [
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no"),
    pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator"),
]

SPLITS = ("train", "val", "test", "predict")


class Stream(IterableDataset[Tensor]):
    def __iter__(self) -> Any:
        return (torch.full((3,), float(n)) for n in range(6))


def run(kind: Any, tmp_path: Path, *datasets: Any, **options: Any) -> dict[str, Any]:
    """The batches of each split that there is, of a data module of this class."""
    torch.manual_seed(7)
    data = kind.from_datasets(*datasets, **options)
    assert isinstance(data, kind)
    model, trainer = Noting(), quiet_trainer(tmp_path, max_epochs=1, num_sanity_val_steps=0)
    run = {"train": trainer.fit, "test": trainer.test, "predict": trainer.predict}
    for split, given in zip(SPLITS, datasets, strict=False):
        if given is not None and split in run:
            run[split](model, datamodule=data)
    return {split: model.seen(split) for split in SPLITS}


# --- from_datasets ---


def test_the_four_splits(tmp_path: Path) -> None:
    given = [Points(), Points(5), Points(4), Points(3)]
    ours = run(LoaderDataModule, tmp_path, *given, batch_size=4, num_workers=2)
    theirs = run(LightningDataModule, tmp_path, *given, batch_size=4)
    train, reference = ([*chain(*each.pop("train"))] for each in (ours, theirs))
    assert (
        ours
        == theirs
        == {"val": [[0, 1, 2, 3], [4]], "test": [[0, 1, 2, 3]], "predict": [[0, 1, 2]]}
    )
    assert train != sorted(train)
    assert sorted(train) == sorted(reference) == [*range(12)]


@pytest.mark.parametrize(
    "train",
    [{"a": Points(4), "b": Points(4)}, [Points(4), Points(4)], {"a": [Points(4), Points(4)]}],
)
def test_several_datasets_of_a_split(train: Any, tmp_path: Path) -> None:
    ours = LoaderDataModule.from_datasets(train, [Points(2), Points(3)], batch_size=2)
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


def test_streams_are_not_shuffled() -> None:
    for train in (Stream(), Stream, [Stream(), Points(6)]):
        data = LoaderDataModule.from_datasets(train, batch_size=2)
        loaders = data.train_dataloader()
        loaders = loaders if isinstance(loaders, list) else [loaders]
        assert [batch[:, 0].tolist() for batch in loaders[0]] == [[0, 1], [2, 3], [4, 5]]
        for loader in loaders[1:]:
            assert torch.cat([*loader])[:, 0].tolist() != [*range(6)]
    with pytest.raises(OptionError, match="shuffle does not apply to an IterableDataset"):
        LoaderDataModule.from_datasets(Stream(), shuffle=True).train_dataloader()


@pytest.mark.parametrize("train", [{"sampler": [3, 1]}, {"batch_sampler": [[3], [1]]}])
def test_a_sampler_is_not_shuffled(train: Any) -> None:
    for options in (train, {"train": train}):
        loader = LoaderDataModule.from_datasets(Points(4), **options).train_dataloader()
        assert [int(batch[0, 0]) for batch in loader] == [3, 1]
    whole = LoaderConfig(batch_size=2)
    loader = LoaderDataModule.from_datasets(Points(4), train=whole).train_dataloader()
    assert [batch[:, 0].tolist() for batch in loader] == [[0, 1], [2, 3]]


# --- hyperparameters and checkpoints ---


def test_hyperparameters_and_load_from_checkpoint(tmp_path: Path) -> None:
    data = LoaderDataModule.from_datasets(Points(8), batch_size=2, seed=3, pin_memory=False)
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
