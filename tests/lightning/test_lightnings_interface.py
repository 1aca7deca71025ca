"""What a program may call on any LightningDataModule, called on ours beside Lightning's own."""

import pickle
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import IterableDataset

import lit_loader
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


def test_options_of_the_loader_and_of_the_module() -> None:
    data = LoaderDataModule.from_datasets(
        Points, Points, batch_size=3, num_workers=1, shuffle=False, timeout=9, pin_memory=False,
        loader={"batch_size": 8, "drop_last": True}, val={"batch_size": 5}, device_prefetch=True,
    )  # fmt: skip
    train, val = data.train_dataloader(), data.val_dataloader()
    assert (train.batch_size, val.batch_size, train.timeout, val.timeout) == (3, 5, 9, 9)
    assert train.drop_last and not train.pin_memory and data.device_prefetch
    assert isinstance(train.sampler, torch.utils.data.SequentialSampler)
    assert data.hparams["train"]["timeout"] == 9
    with pytest.raises(OptionError, match="unknown option 'num_worker': did you mean"):
        LoaderDataModule.from_datasets(Points, num_worker=2)


@pytest.mark.parametrize("train", [{"sampler": [3, 1]}, {"batch_sampler": [[3], [1]]}])
def test_a_sampler_is_not_shuffled(train: Any) -> None:
    for options in (train, {"train": train}):
        loader = LoaderDataModule.from_datasets(Points(4), **options).train_dataloader()
        assert [int(batch[0, 0]) for batch in loader] == [3, 1]
    whole = LoaderConfig(batch_size=2)
    loader = LoaderDataModule.from_datasets(Points(4), train=whole).train_dataloader()
    assert [batch[:, 0].tolist() for batch in loader] == [[0, 1], [2, 3]]


class Named(LoaderDataModule):
    """A constructor of its own, with a name that is an option's too, and a hook of its own."""

    splits = ("test",)

    def __init__(self, folder: str, batch_size: int = 2) -> None:
        super().__init__(loader={"drop_last": True})
        self.save_hyperparameters("folder")
        self.given = folder, batch_size

    def make_dataset(self, split: str) -> Any:
        return Points(9)

    def val_dataloader(self) -> Any:
        return self.make_loader("val", Points(7))


class PassesOn(LoaderDataModule):
    def __init__(self, folder: str, **options: Any) -> None:
        super().__init__(**options)
        self.given = folder


def test_subclasses() -> None:
    data = Named.from_datasets(Points(5), Points(4), folder="here", batch_size=3, shuffle=False)
    assert data.given == ("here", 3)
    assert [batch[:, 0].tolist() for batch in data.train_dataloader()] == [[0, 1, 2]]
    assert [batch[:, 0].tolist() for batch in data.val_dataloader()] == [[0, 1, 2]]
    assert len(data.test_dataloader().dataset) == 9
    passes = PassesOn.from_datasets(Points(5), folder="here", batch_size=3)
    assert (passes.given, len(passes.train_dataloader())) == ("here", 2)
    for module in (data, passes):
        assert len(pickle.loads(pickle.dumps(module)).train_dataloader()) in (1, 2)


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


def test_a_subclass_saves_its_own_hyperparameters(tmp_path: Path) -> None:
    data = Named(folder="here")
    assert data.hparams["folder"] == "here"
    assert data.hparams_initial["folder"] == "here"
    trainer = quiet_trainer(tmp_path)
    trainer.fit(Noting(), lit_loader.DataLoader(Points(2)))
    trainer.validate(Noting(), data, verbose=False)
    trainer.datamodule = data
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    assert Named.load_from_checkpoint(tmp_path / "a.ckpt").given == ("here", 2)
    moved = Named.load_from_checkpoint(tmp_path / "a.ckpt", folder="there", batch_size=3)
    assert moved.given == ("there", 3)
    with pytest.raises(TypeError, match="instance"):
        data.load_from_checkpoint(tmp_path / "a.ckpt")


class Counts(LoaderDataModule):
    """With a state of its own, and every hook that a data module may have."""

    name = "counts"

    def __init__(self, **options: Any) -> None:
        super().__init__({"train": Points(4)}, **options)
        self.count, self.called = 0, []  # type: ignore[var-annotated]

    def prepare_data(self) -> None:
        self.called.append("prepare_data")

    def setup(self, stage: str | None = None) -> None:
        super().setup(stage)
        self.called.append("setup")

    def transfer_batch_to_device(self, batch: Any, device: Any, dataloader_idx: int) -> Any:
        self.called.append("transfer")
        return super().transfer_batch_to_device(batch, device, dataloader_idx)

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        self.called.append("before")
        return batch

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        self.called.append("after")
        return batch

    def teardown(self, stage: str | None = None) -> None:
        super().teardown(stage)
        self.called.append("teardown")

    def on_exception(self, exception: BaseException) -> None:
        super().on_exception(exception)
        self.called.append("exception")

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count + 1}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.count = state_dict["count"]


def test_hooks_and_a_state_of_its_own(tmp_path: Path) -> None:
    data, trainer = Counts(loader={"batch_size": 4}), quiet_trainer(tmp_path, max_epochs=1)
    trainer.fit(Noting(), datamodule=data)
    steps = ["before", "transfer", "after"]
    assert data.called == ["prepare_data", "setup", *steps, "teardown"]
    assert (data.name, data.trainer, data.prepare_data_per_node) == ("counts", trainer, True)
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    resumed = Counts(loader={"batch_size": 4})
    quiet_trainer(tmp_path, max_epochs=2).fit(
        Noting(), datamodule=resumed, ckpt_path=tmp_path / "a.ckpt"
    )
    assert resumed.count == 1


def test_calls_of_a_program_itself() -> None:
    data: Any = LoaderDataModule.from_datasets(Points(4), batch_size=2)
    assert data.prepare_data() is None
    assert data.setup("fit") is None
    batch = torch.ones(2)
    assert data.on_before_batch_transfer(batch, 0) is data.on_after_batch_transfer(batch, 0)
    moved = data.transfer_batch_to_device({"x": batch}, torch.device("meta"), 0)
    assert moved["x"].is_meta
    assert (data.state_dict(), data.name, data.trainer) == ({}, None, None)
    assert data.load_state_dict({}) is None
    assert len(data.train_dataloader()) == 2
    for hook in ("val_dataloader", "test_dataloader", "predict_dataloader"):
        assert not hasattr(data, hook)
    assert data.teardown("fit") is None
    assert str(data).startswith("LoaderDataModule(train: Points")


@pytest.mark.parametrize("made", [LightningDataModule, LoaderDataModule])
def test_from_datamodule_after_from_datasets(made: Any) -> None:
    data = made.from_datasets(Points(6), batch_size=3)
    if made is LoaderDataModule:
        return
    ours = LoaderDataModule.from_datamodule(data, num_workers=1)
    loader = ours.train_dataloader()
    assert isinstance(loader, lit_loader.DataLoader)
    assert (loader.num_workers, len(loader)) == (1, 2)


def test_nothing_public_of_lightnings_is_missing() -> None:
    """A release that adds to the interface is looked at."""
    known = {
        *("CHECKPOINT_HYPER_PARAMS_KEY", "CHECKPOINT_HYPER_PARAMS_NAME"),
        *("CHECKPOINT_HYPER_PARAMS_TYPE", "from_datasets", "hparams", "hparams_initial"),
        *("load_from_checkpoint", "load_state_dict", "name", "on_after_batch_transfer"),
        *("on_before_batch_transfer", "on_exception", "predict_dataloader", "prepare_data"),
        *(
            "remove_ignored_hparams",
            "save_hyperparameters",
            "setup",
            "state_dict",
            "teardown",
            "test_dataloader",
        ),
        *("train_dataloader", "transfer_batch_to_device", "val_dataloader"),
    }
    assert {name for name in dir(LightningDataModule) if not name.startswith("_")} <= known
