"""LoaderDataModule: splits and options, and its life under a real Trainer."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.tuner import Tuner
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor

import lit_loader
from lit_loader import LoaderDataModule, OptionError
from tests.support import lightning_runs
from tests.support.lightning_runs import Noting, Parallel, needs_2_6, quiet_trainer
from tests.support.samples import Counting, worker_pids
from tests.support.tools import wait_gone

pytestmark = pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no")


class Points(lightning_runs.Points):
    """Counts how often it was made."""

    made = 0

    def __init__(self, length: int = 12) -> None:
        type(self).made += 1
        super().__init__(length)


def test_factories_are_called_in_setup_and_once() -> None:
    before = Points.made
    data = LoaderDataModule({"train": lambda: Points(4), "val": Points, "test": Points})
    assert Points.made == before
    data.setup("fit")
    data.setup("fit")
    data.setup("validate")
    assert Points.made == before + 2
    assert isinstance(data.datasets["val"], Points)
    assert data.datasets["test"] is Points
    data.setup(None)
    assert Points.made == before + 3


@pytest.mark.parametrize(
    "dataset", [Points(), Counting(4), [1, 2, 3], range(4), torch.zeros(3, 2), {0: "a"}]
)
def test_what_is_a_dataset(dataset: Any) -> None:
    data = LoaderDataModule({"train": dataset})
    data.setup("fit")
    assert data.train_dataloader().dataset is dataset


class Nothing(LoaderDataModule):
    def make_dataset(self, split: str) -> Any:
        return None


def trained(datasets: Any = None, **options: Any) -> LoaderDataModule:
    return LoaderDataModule(datasets or {"train": Points}, **options)


REFUSED: dict[str, Any] = {
    "datasets must be a mapping": lambda: trained([Points()]),
    "unknown split 'dev'": lambda: trained({"dev": Points}),
    "proj.Noisy": lambda: trained({"train": "proj.Noisy"}),
    "loader must be a mapping": lambda: trained(loader=[1]),
    "num_workers": lambda: trained(loader={"num_worker": 1}),
    "train: timeout": lambda: trained(train={"timeout": 3}),
    "val: num_workers": lambda: trained(val={"num_workers": -1}),
    "prefetch_factor": lambda: trained(prefetch_factor=4),
    "datasets['train'] must make": lambda: trained(
        {"train": {"a": Points(), "b": lambda: 3.0}}
    ).setup("fit"),
    "make_dataset": lambda: Nothing().setup("fit"),
    "'test' split": lambda: trained().setup("test"),
    "stage must be": lambda: trained().setup("training"),
    "split must be": lambda: trained().make_loader("vall"),
    "several datasets": lambda: trained({"train": [Points, Points]}).make_loader("train"),
    "_recursive_=False": lambda: trained(loader={"_target_": "lit_loader.LoaderConfig"}),
    "not instantiated": lambda: trained({"train": {"_target_": "proj.Noisy"}}),
}


@pytest.mark.parametrize("part", REFUSED)
def test_refused_in_one_line(part: str) -> None:
    with pytest.raises(OptionError) as caught:
        REFUSED[part]()
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_several_factories_make_several_loaders_of_whatever_they_make() -> None:
    data = LoaderDataModule({"val": [lambda: [1, 2], Points], "test": {"a": lambda: range(4)}})
    for _ in range(2):
        data.setup(None)
        assert [len(loader) for loader in data.val_dataloader()] == [2, 12]
        assert [len(loader) for loader in data.test_dataloader().values()] == [4]


def test_short_forms() -> None:
    """Above `loader`, below a split's own; None is as `loader` has it."""
    common = {"num_workers": 2, "persistent_workers": True, "batch_size": 4}
    data = trained(loader=common, batch_size=8, seed=3, val={"batch_size": 16, "seed": 4})
    of_both = [data.configs[split] for split in ("train", "val")]
    assert [(config.batch_size, config.seed) for config in of_both] == [(8, 3), (16, 4)]
    assert data.configs["val"].num_workers == 2
    alone = trained(loader=common, num_workers=0).configs["train"]
    assert (alone.num_workers, alone.persistent_workers, alone.batch_size) == (0, False, 4)


def of_workers(data: LoaderDataModule, split: str) -> tuple[object, ...]:
    config = data.configs[split]
    return config.num_workers, config.prefetch_factor, config.persistent_workers


@pytest.mark.parametrize("common", [{"prefetch_factor": 4}, {"prefetch_factor": 4, "timeout": 0}])
def test_short_forms_count_before_options_are_checked(common: dict[str, Any]) -> None:
    """As with one loader: options for workers fit, since there are workers."""
    several = {"val": {"clean": Points, "noisy": Points}, "train": Points}
    data = LoaderDataModule(
        several, loader=common, num_workers=2, train={"persistent_workers": True}
    )
    assert of_workers(data, "train") == (2, 4, True)
    assert of_workers(data, "val") == of_workers(data, "predict") == (2, 4, False)
    assert [each.prefetch_factor for each in data.val_dataloader().values()] == [4, 4]


def test_a_split_without_workers_below_common_options_for_workers() -> None:
    common = {"num_workers": 2, "prefetch_factor": 4, "persistent_workers": True}
    data = trained(loader=common, val={"num_workers": 0})
    assert of_workers(data, "val") == (0, None, False)
    assert of_workers(data, "train") == (2, 4, True)
    with pytest.raises(OptionError, match="val: .* needs worker processes"):
        trained(loader=common, val={"num_workers": 0, "prefetch_factor": 3})


def test_fit_without_a_validation_split(tmp_path: Path) -> None:
    data = LoaderDataModule({"train": Points})
    assert is_overridden("train_dataloader", data)
    assert not is_overridden("val_dataloader", data)
    model = Noting()
    quiet_trainer(tmp_path).fit(model, datamodule=data)
    assert model.seen("val") == []
    with pytest.raises(OptionError, match="datasets has no 'val' split"):
        quiet_trainer(tmp_path).validate(model, datamodule=data)


def test_ranks_come_from_the_trainer_unless_given() -> None:
    data = LoaderDataModule(
        {"train": Points, "val": Points},
        {"uneven_ranks": "keep"},
        val={"num_replicas": 2, "rank": 0},
    )
    data.trainer = Parallel(4, 3)  # type: ignore[assignment]
    loaders = data.train_dataloader(), data.val_dataloader()
    assert [(each.num_replicas, each.rank) for each in loaders] == [(4, 3), (2, 0)]


@needs_2_6
def test_batch_size_finder(tmp_path: Path) -> None:
    data = LoaderDataModule({"train": lambda: Points(64)}, {"batch_size": 2})
    assert data.batch_size == 2
    model = Noting()
    model.validation_step = None  # type: ignore[assignment, method-assign]
    found = Tuner(quiet_trainer(tmp_path)).scale_batch_size(
        model, datamodule=data, max_trials=2, steps_per_trial=1
    )
    assert found == data.batch_size == 4
    assert {config.batch_size for config in data.configs.values()} == {4}


class Made(LoaderDataModule):
    """Makes its own datasets."""

    splits = ("train", "val")

    def __init__(self, length: int = 12, **options: Any) -> None:
        super().__init__(**options)
        self.length = length
        self.calls: list[str] = []

    def make_dataset(self, split: str) -> Any:
        self.calls.append(split)
        return Points(self.length if split == "train" else 4)


def test_datasets_by_subclass(tmp_path: Path) -> None:
    data = Made(8, loader={"batch_size": 4}, train={"shuffle": True})
    assert str(data) == (
        "Made(train: factory make_dataset, batch_size=4; val: factory make_dataset, batch_size=4)"
    )
    model, trainer = Noting(), quiet_trainer(tmp_path, num_sanity_val_steps=0)
    trainer.fit(model, data)
    trainer.validate(model, data, verbose=False)
    assert data.calls == ["train", "val"]
    assert list(map(len, (model.seen("train"), model.seen("val")))) == [2, 2]
    with pytest.raises(OptionError, match="datasets has no 'test' split, which 'test' needs: giv"):
        trainer.test(model, data, verbose=False)
    assert set(data.hparams) == {"loader", "train", "val"}
    assert len(pickle.loads(pickle.dumps(data)).train_dataloader()) == 2


@pytest.mark.parametrize("error", [LookupError, KeyboardInterrupt])
def test_workers_end_with_an_exception(error: type[BaseException], tmp_path: Path) -> None:
    pids: list[int] = []

    class Failing(Noting):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            fetcher = self.trainer.fit_loop._data_fetcher
            pids.extend(worker_pids(fetcher.iterator._iterator.iterators[0]))  # type: ignore[union-attr]
            raise error("in a step")

    options = {"batch_size": 4, "num_workers": 2, "persistent_workers": True}
    data = LoaderDataModule({"train": Points}, options)
    with pytest.raises((LookupError, SystemExit)):
        quiet_trainer(tmp_path).fit(Failing(), data)
    assert len(pids) == 2
    wait_gone(pids)


def test_device_prefetch_is_handed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    put = lambda loader, *given: asked.append(given)  # noqa: E731
    monkeypatch.setattr(lit_loader.DataLoader, "_copy_ahead", put)
    for wanted in (True, False):
        data = LoaderDataModule({"train": range(4)}, device_prefetch=wanted)
        data.trainer = quiet_trainer(tmp_path)
        data.setup("fit")
        data.train_dataloader()
    [(device, move)] = asked
    assert device == torch.device("cpu")
    batch = {"x": torch.ones(2)}
    assert move(batch, torch.device("meta"))["x"].is_meta


class InLightningsStyle(LoaderDataModule):
    """Hooks of its own, none of which calls those that it overrides."""

    def __init__(self, length: int) -> None:
        super().__init__(loader={"batch_size": 4, "seed": 5})
        self.length = length

    def setup(self, stage: str) -> None:  # type: ignore[override]
        self.points = Points(self.length)

    def train_dataloader(self) -> Any:
        return self.make_loader("train", self.points)

    def val_dataloader(self) -> Any:
        return lit_loader.DataLoader(self.points, 6)

    def teardown(self, stage: str) -> None:  # type: ignore[override]
        self.points = None


def test_a_subclass_with_hooks_of_its_own(tmp_path: Path) -> None:
    data, model = InLightningsStyle(8), Noting()
    assert data.given_splits == []
    assert repr(data) == "InLightningsStyle()"
    trainer = quiet_trainer(tmp_path, max_steps=1)
    trainer.fit(model, data)
    assert model.seen("train") == [[0, 1, 2, 3]]
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    model = Noting()
    trainer = quiet_trainer(tmp_path, max_epochs=1)
    trainer.fit(model, InLightningsStyle(8), ckpt_path=tmp_path / "a.ckpt")
    assert model.seen("train") == [[4, 5, 6, 7]]
    with pytest.raises(OptionError, match="datasets has no 'test' split, which 'test' needs"):
        LoaderDataModule.setup(data, "test")
