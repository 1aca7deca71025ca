"""What Lightning asks of a loader and a data module, and what ours uses of its private parts.

A canary fails where an upgrade has moved such a part.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
from lightning.fabric.utilities.seed import pl_worker_init_function
from lightning.pytorch import Callback, Trainer, seed_everything
from lightning.pytorch.loops.fit_loop import _FitLoop
from lightning.pytorch.overrides.distributed import _IndexBatchSamplerWrapper
from torch import Tensor

from lit_loader import DataLoader, LoaderDataModule, OptionError
from tests.parity.tools import wait_gone
from tests.support.lightning_runs import Noting, Points, quiet_trainer
from tests.support.samples import worker_pids

pytestmark = [
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*sampler has shuffling enabled"),
]


# --- A. Attributes and calls ---


@pytest.fixture
def global_seeds() -> Iterator[None]:
    """Puts back what seed_everything changes."""
    kept = random.getstate(), np.random.get_state(), torch.get_rng_state()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PL_GLOBAL_SEED", "0")
        patch.setenv("PL_SEED_WORKERS", "0")
        yield
    random.setstate(kept[0])
    np.random.set_state(kept[1])
    torch.set_rng_state(kept[2])


class Draws(Points):
    """A draw of each global generator, and what torch calls the initial seed."""

    def __getitem__(self, index: int) -> Any:
        draws = [random.random(), float(np.random.random()), float(torch.rand(()))]
        return torch.tensor(draws), str(torch.initial_seed())


@pytest.mark.usefixtures("global_seeds")
@pytest.mark.parametrize("workers", [True, False])
def test_seed_everything_seeds_workers(workers: bool, tmp_path: Path) -> None:
    """Lightning's worker_init_fn finds base seed + worker id; what is drawn stays ours to say."""

    class Drawing(Noting):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            rows.append(batch[0])
            seeds.update(batch[1])
            return self.layer(batch[0]).mean()

    rows: list[Tensor] = []
    seeds: set[str] = set()
    seed_everything(9, workers=workers, verbose=False)
    data = LoaderDataModule({"train": Draws}, {"batch_size": 1, "num_workers": 2})
    trainer = quiet_trainer(tmp_path)
    trainer.fit(Drawing(), data)
    loader = trainer.train_dataloader
    assert (loader.worker_init_fn is not None) == workers
    expected = set()
    for worker in range(2):
        torch.manual_seed(9 + worker)
        if workers:
            pl_worker_init_function(worker, rank=0)
        expected.add(str(torch.initial_seed()))
    assert seeds <= expected
    torch.manual_seed(9)
    alone = DataLoader(Draws(), 1)
    assert torch.equal(torch.cat(rows), torch.cat([batch[0] for batch in alone]))


# --- B. Resume ---


class SaveAfter(Callback):
    """Saves in one hook, when so many batches have been seen."""

    def __init__(self, path: Path, hook: str, batches: int) -> None:
        self.path, self.hook, self.batches = path, hook, batches

    def save(self, trainer: Trainer, hook: str) -> None:
        seen = trainer.lightning_module.seen("train")  # type: ignore[operator]
        if hook == self.hook and len(seen) == self.batches:
            trainer.save_checkpoint(self.path)

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        self.save(trainer, "batch")

    def on_train_epoch_end(self, trainer: Trainer, *_: Any) -> None:
        self.save(trainer, "epoch")

    def on_exception(self, trainer: Trainer, *_: Any) -> None:
        self.save(trainer, "exception")


def test_canary_the_private_fields_that_mend_it(tmp_path: Path) -> None:
    """lightning/trainer_progress.py: `begin_next_epoch` and `correct_progress` use these."""
    loop = quiet_trainer(tmp_path).fit_loop
    assert isinstance(loop, _FitLoop)
    loop._restarting = True
    assert loop.restarting is True
    assert getattr(loop, "is_resuming", False) is False  # lightning/state_callback.py; not in 2.5.0
    assert loop.epoch_loop._batches_that_stepped == loop.epoch_loop.global_step == 0
    assert loop._data_fetcher is None  # lightning/state_callback.py
    loop._restart_stage = "restarted_mid_epoch"
    assert loop.restarted_mid_epoch
    loop.reset_restart_stage()
    assert not loop.restarted_mid_epoch
    loop.epoch_progress.increment_completed()
    state = loop.state_dict()
    batches, epochs = state["epoch_loop.batch_progress"], state["epoch_progress"]
    assert set(batches) == {"total", "current", "is_last_batch"}
    assert set(batches["total"]) == {"ready", "completed", "started", "processed"}
    assert epochs["current"] == {"ready": 0, "completed": 1, "started": 0, "processed": 0}
    loop.epoch_loop.restarting = False


def test_the_resumed_epoch_does_not_start_again(tmp_path: Path) -> None:
    started: list[int] = []

    class Starting(SaveAfter):
        def on_train_epoch_start(self, trainer: Trainer, *_: Any) -> None:
            started.append(trainer.current_epoch)

    def fit(checkpoint: Path | None) -> list[Any]:
        model = Noting()
        data = LoaderDataModule({"train": Points}, {"batch_size": 4})
        saving = Starting(tmp_path / "a.ckpt", "batch", 4 if checkpoint is None else -1)
        trainer = quiet_trainer(tmp_path, max_epochs=3, callbacks=[saving])
        trainer.fit(model, data, ckpt_path=checkpoint, weights_only=True)
        assert trainer.global_step == 9
        return [step[:3] for step in model.steps]

    whole = fit(None)
    assert fit(tmp_path / "a.ckpt") == whole[4:]
    assert started == [0, 1, 2, 2]


def test_training_draws_nothing_in_the_main_process(tmp_path: Path) -> None:
    def states() -> list[Any]:
        return [random.getstate(), torch.get_rng_state().tolist(), np.random.get_state()[2]]

    options = {"batch_size": 4, "num_workers": 2, "persistent_workers": True}
    model = Noting()
    data = LoaderDataModule({"train": Points, "val": Points}, options, train={"shuffle": True})
    before = states()
    quiet_trainer(tmp_path, max_epochs=2).fit(model, data)
    assert states() == before


# --- C. Data module ---


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


def test_a_given_dataset_goes_before_the_subclass(tmp_path: Path) -> None:
    data = Made(datasets={"val": Points(7), "test": Points(2)}, loader={"batch_size": 4})
    data.setup(None)
    assert [len(data.dataset(split)) for split in ("train", "val", "test")] == [12, 7, 2]
    assert data.calls == ["train"]


def test_a_subclass_that_makes_nothing() -> None:
    class Nothing(LoaderDataModule):
        def make_dataset(self, split: str) -> Any:
            return None

    with pytest.raises(OptionError) as caught:
        Nothing().setup("fit")
    assert str(caught.value) == (
        "make_dataset('train') must return a dataset, got NoneType: where there is none, leave "
        "'train' out of the class attribute splits"
    )


SEEN = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


def test_canary_indices_come_from_lightnings_own_wrapper_alone(tmp_path: Path) -> None:
    """sampling/shown_samplers.py: the private class that the prediction loop looks for."""
    loop = quiet_trainer(tmp_path).predict_loop
    wrapper = _IndexBatchSamplerWrapper(DataLoader(Points(), 4).batch_sampler)
    for workers in (0, 2):
        loader = DataLoader(Points(), batch_sampler=wrapper, num_workers=workers)
        assert len(list(loader)) == 3
        assert loop._get_batch_indices(loader) == loader.batch_sampler.seen_batch_indices == SEEN
    alike = type("Alike", (), {"batch_sampler": type("", (), {"seen_batch_indices": SEEN})})
    with pytest.warns(UserWarning, match="Couldn't infer the batch indices"):
        assert loop._get_batch_indices(alike) == []
