"""Real Trainers, stopped and resumed in chains: each step sees what it would have seen anyway."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint, OnExceptionCheckpoint
from lightning.pytorch.utilities import CombinedLoader
from torch import Tensor
from torch.utils.data import RandomSampler, WeightedRandomSampler

from lit_loader import DataLoader, LoaderDataModule, StateError
from lit_loader.lightning.state_callback import LoaderStateCallback
from tests.support import (
    older_lightning,  # noqa: F401
)
from tests.support.exact import (
    Augmented,
    EveryOther,
    SamplerWithStatefulIterator,
    SharedWithIteratorState,
    StatefulSampler,
    digest,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no"),
    pytest.mark.filterwarnings("ignore:Your `IterableDataset` has `__len__` defined"),
    pytest.mark.filterwarnings("ignore:.*ckpt_path=(None|.last.)"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
]

EPOCHS = 3
BATCHES = 7  # of 4 of 26 samples


class Seen(NamedTuple):
    epoch: int
    batch_idx: int
    is_last: bool
    data: str


def epoch_length(trainer: Trainer) -> int:
    batches = trainer.num_training_batches
    return 6 if math.isinf(batches) else int(batches)  # of the iterable datasets below


class Model(LightningModule):
    """Notes what each whole training step saw; fails in the step of one batch, if told to."""

    def __init__(self, estimate: bool = False) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)
        self.estimate = estimate
        self.seen: list[Seen] = []
        self.fail: Callable[[int], BaseException | None] = lambda batch: None

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        trainer = self.trainer
        # Not total_batch_idx, which counts a batch twice whose step has failed.
        error = self.fail(trainer.current_epoch * epoch_length(trainer) + batch_idx)
        if error is not None:
            raise error
        rows = batch.values() if isinstance(batch, dict) else [batch]
        name = "+".join("ended" if row is None else digest(row) for row in rows)
        self.seen.append(Seen(trainer.current_epoch, batch_idx, trainer.is_last_batch, name))
        rows = batch["long"] if isinstance(batch, dict) else batch
        return self.layer(rows.float()).mean()

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        assert batch.shape[1] == 8

    def configure_optimizers(self) -> Any:
        if self.estimate:  # sets the training data up before anything is restored
            assert self.trainer.estimated_stepping_batches > 0
        return torch.optim.SGD(self.parameters(), lr=0.01)


class TwoLoaders(LoaderDataModule):
    """A long and a short one, which the Trainer cycles through unless told otherwise."""

    mode: Any = None
    short = 10

    def train_dataloader(self) -> Any:
        loaders = {
            "long": self.make_loader("train"),
            "short": self.make_loader("train", Augmented(self.short)),
        }
        return loaders if self.mode is None else CombinedLoader(loaders, self.mode)


class Saver(Callback):
    """Saves after one batch, where and how the Trainer's own checkpoint callbacks do."""

    def __init__(self, path: Path, hook: str, batches: int) -> None:
        self.path, self.hook, self.batches = path, hook, batches

    def save(self, trainer: Trainer, hook: str) -> None:
        if trainer.sanity_checking:
            return
        epochs, batches = trainer.current_epoch, trainer.fit_loop.batch_idx + 1
        done = epochs * epoch_length(trainer) + batches
        if hook == self.hook and done == self.batches:
            trainer.save_checkpoint(self.path)

    def on_train_batch_end(self, trainer: Trainer, *args: Any) -> None:
        self.save(trainer, "batch")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.save(trainer, "epoch")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.save(trainer, "validation")

    def on_exception(self, trainer: Trainer, *args: Any) -> None:
        if self.hook == "exception":
            trainer.save_checkpoint(self.path)


@dataclass(frozen=True)
class Setting:
    """How a whole chain of runs is trained."""

    workers: int = 0
    by_steps: bool = False
    accumulate: int = 1
    limit: int | None = None
    validate_every: int | float | None = None
    two_loaders: bool = False
    mode: str | None = None
    estimate: bool = False
    seeding: str = "batch"

    @property
    def length(self) -> int:
        return self.limit or (5 if self.mode == "min_size" else BATCHES)

    def steps(self, batches: int) -> int:
        """Optimizer steps in so many batches; an epoch's last batch always steps."""
        epochs, rest = divmod(batches, self.length)
        return epochs * math.ceil(self.length / self.accumulate) + rest // self.accumulate

    def data(self, workers: int) -> LoaderDataModule:
        kind = TwoLoaders if self.two_loaders else LoaderDataModule
        datasets = {"train": Augmented()}
        if self.validate_every is not None:
            datasets["val"] = Augmented(8)
        options = {"batch_size": 4, "seed": 5, "num_workers": workers, "seeding": self.seeding}
        if workers:
            options["persistent_workers"] = True
        data = kind(datasets, loader=options, train={"shuffle": True})
        if isinstance(data, TwoLoaders):
            data.mode = self.mode
            data.short = 18 if self.mode == "min_size" else 10
        return data

    def trainer(self, root: Path, *callbacks: Callback, stop_after: int | None = None) -> Trainer:
        options: dict[str, Any] = {"max_epochs": EPOCHS}
        if self.by_steps or stop_after is not None:
            options["max_epochs"] = -1
            options["max_steps"] = self.steps(stop_after or EPOCHS * self.length)
        if self.limit is not None:
            options["limit_train_batches"] = self.limit
        if self.validate_every is not None:
            options["val_check_interval"] = self.validate_every
        checkpointing = any(isinstance(callback, Checkpoint) for callback in callbacks)
        return Trainer(
            accelerator="cpu",
            devices=1,
            logger=False,
            enable_checkpointing=checkpointing,
            enable_progress_bar=False,
            enable_model_summary=False,
            accumulate_grad_batches=self.accumulate,
            default_root_dir=root,
            callbacks=list(callbacks),
            **options,
        )


@cache
def uninterrupted(setting: Setting) -> tuple[Seen, ...]:
    model = Model(setting.estimate)
    setting.trainer(Path("unused")).fit(model, setting.data(0))
    assert len(model.seen) == EPOCHS * setting.length
    assert [seen.batch_idx for seen in model.seen] == [*range(setting.length)] * EPOCHS
    return tuple(model.seen)


class Stop(NamedTuple):
    """An end of one run.

    Attributes:
        kind: The hook that saves ("batch", "epoch", "validation", "exception", "interrupt"), or
            "max_steps", where the run ends by itself and is saved afterwards.
        saved: Batches trained on before the checkpoint.
        further: Batches trained on after it, before the run breaks off.
    """

    kind: str
    saved: int
    further: int = 1


@dataclass
class Chain:
    """Runs one after the other, each resumed from the one before; counts what was compared."""

    setting: Setting
    root: Path
    checkpoint: Path | None = None
    done: int = 0
    resumes: int = 0
    stops: list[Stop | None] = field(default_factory=list)
    numbers: Any = field(default_factory=itertools.count)

    def run(self, stop: Stop | None) -> None:
        """Train until a stop, or to the end, and compare every step with the uninterrupted run."""
        setting, number = self.setting, next(self.numbers)
        # Another number of workers at each resume.
        workers = setting.workers and (setting.workers, 1, 0)[number % 3]
        model, data = Model(setting.estimate), setting.data(workers)
        path = self.root / f"{number}.ckpt"
        end = EPOCHS * setting.length
        saver = Saver(path, "", 0)
        if stop is not None:
            hook = "exception" if stop.kind == "interrupt" else stop.kind
            saver = Saver(path, hook, stop.saved)
            end = stop.saved
            if stop.kind in ("batch", "epoch", "validation"):
                end += stop.further
        error: type[BaseException] = LookupError
        if stop is not None and stop.kind == "interrupt":
            error = KeyboardInterrupt
        stop_after = stop.saved if stop is not None and stop.kind == "max_steps" else None
        if stop_after is None and stop is not None:
            model.fail = lambda batch: error("in a step") if batch == end else None
        trainer = setting.trainer(self.root, saver, stop_after=stop_after)
        expects_error = stop is not None and stop_after is None
        try:
            trainer.fit(model, data, ckpt_path=self.checkpoint, weights_only=True)
        except (LookupError, SystemExit):
            assert expects_error
        else:
            assert not expects_error
            trainer.save_checkpoint(path)
        expected = uninterrupted(setting)[self.done : end]
        self.stops.append(stop)
        assert model.seen == list(expected), (setting, self.stops)
        if setting.accumulate == 1:  # else a checkpoint may come between two optimizer steps
            assert trainer.global_step == setting.steps(end)
        self.resumes += self.checkpoint is not None
        self.checkpoint = path
        if stop is not None:
            self.done = stop.saved


SETTINGS = {
    "plain": Setting(),
    "by steps": Setting(by_steps=True),
    "workers": Setting(workers=2, by_steps=True),
    "sample seeding": Setting(workers=2, seeding="sample"),
    "accumulate": Setting(accumulate=2),
    "accumulate by steps": Setting(accumulate=2, by_steps=True),
    "limit": Setting(limit=5),
    "limit by steps": Setting(limit=5, by_steps=True, workers=1),
    "validate": Setting(validate_every=1.0),
    "validate by steps": Setting(validate_every=1.0, by_steps=True),
    "validate within": Setting(validate_every=3, by_steps=True),
    "two loaders": Setting(two_loaders=True),
    "two loaders by steps": Setting(two_loaders=True, by_steps=True, workers=1),
    "two loaders, limit": Setting(two_loaders=True, limit=5, validate_every=1.0),
    **{
        f"two loaders, {mode}{', by steps' * by_steps}": Setting(
            two_loaders=True, mode=mode, by_steps=by_steps, workers=workers, validate_every=validate
        )
        for mode, by_steps, workers, validate in [
            ("max_size", False, 0, 1.0),
            ("max_size", True, 1, None),
            ("max_size_cycle", True, 0, 1.0),
            ("min_size", False, 1, 1.0),
            ("min_size", True, 0, None),
        ]
    },
    "two loaders, max_size, limit": Setting(two_loaders=True, mode="max_size", limit=5),
    "estimate": Setting(estimate=True),
    "estimate, all": Setting(
        estimate=True, workers=1, accumulate=2, limit=5, validate_every=1.0, two_loaders=True
    ),
}
RESUMES = {"steps": 3, "last batch": 4, "epoch ends": 3, "failures": 4}


def stops(chain: str, setting: Setting) -> list[Stop]:
    length = setting.length
    epoch = "validation" if setting.validate_every == 1.0 else "epoch"
    return {
        "steps": [Stop("batch", 2, 2), Stop("exception", length + 1), Stop(epoch, 2 * length)],
        "last batch": [
            Stop("batch", length, 2),
            Stop("batch", length + 3),
            Stop("batch", 2 * length),
            Stop("interrupt", 2 * length),
        ],
        "epoch ends": [
            Stop("epoch", length),
            Stop("batch", 2 * length - 1),
            Stop(epoch, 2 * length, 3),
        ],
        "failures": [
            Stop("exception", 0),
            Stop("interrupt", length - 1),
            Stop("max_steps", length + 2),
            Stop("exception", 2 * length),
        ],
    }[chain]


@pytest.mark.parametrize("chain", RESUMES)
@pytest.mark.parametrize("name", SETTINGS)
def test_chain_of_resumes(name: str, chain: str, tmp_path: Path) -> None:
    setting = SETTINGS[name]
    runs = Chain(setting, tmp_path)
    for stop in stops(chain, setting):
        runs.run(stop)
    runs.run(None)
    assert runs.resumes == RESUMES[chain]


def checkpointed(
    root: Path, data: LoaderDataModule, *callbacks: Callback, fail: int = -1, **options: Any
) -> list[Seen]:
    """Train with the Trainer's own checkpoint callbacks, perhaps until a step fails."""
    model = Model()
    trainer = Setting().trainer(root, *callbacks)
    model.fail = lambda batch: LookupError("in a step") if batch == fail else None
    try:
        trainer.fit(model, data, weights_only=True, **options)
    except LookupError:
        assert fail >= 0
    return model.seen


@pytest.mark.parametrize("workers", [0, 2])
def test_last_of_the_trainers_own_checkpoints(workers: int, tmp_path: Path) -> None:
    def own() -> ModelCheckpoint:
        return ModelCheckpoint(tmp_path, every_n_train_steps=4, save_last=True)

    setting = Setting()
    expected = list(uninterrupted(setting))
    assert checkpointed(tmp_path, setting.data(workers), own(), fail=10) == expected[:10]
    got = checkpointed(tmp_path, setting.data(0), own(), fail=13, ckpt_path="last")
    assert got == expected[8:13]
    assert checkpointed(tmp_path, setting.data(workers), own(), ckpt_path="last") == expected[12:]


def test_the_trainers_own_checkpoint_of_each_epoch(tmp_path: Path) -> None:
    setting = Setting(validate_every=1.0)
    expected = list(uninterrupted(setting))
    own = ModelCheckpoint(tmp_path, save_last=True)
    assert checkpointed(tmp_path, setting.data(0), own, fail=9) == expected[:9]
    own = ModelCheckpoint(tmp_path, save_last=True)
    assert checkpointed(tmp_path, setting.data(0), own, ckpt_path="last") == expected[7:]


@pytest.mark.parametrize("fail", [0, 3, BATCHES, BATCHES + 2])
def test_the_trainers_own_checkpoint_of_an_exception(fail: int, tmp_path: Path) -> None:
    setting = Setting()
    expected = list(uninterrupted(setting))
    own = OnExceptionCheckpoint(tmp_path)
    assert checkpointed(tmp_path, setting.data(2), own, fail=fail) == expected[:fail]
    path = tmp_path / "on_exception.ckpt"
    assert checkpointed(tmp_path, setting.data(0), ckpt_path=path) == expected[fail:]


@pytest.mark.parametrize("kind", ["Measured", "Unmeasured"])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stop", [0, 1, 5, 6, 8, 11, 12])
def test_iterable_datasets(kind: str, workers: int, stop: int, tmp_path: Path) -> None:
    def data() -> LoaderDataModule:
        dataset = {"Measured": Measured, "Unmeasured": Unmeasured}[kind]
        return LoaderDataModule(
            {"train": dataset(11, 11) if workers else dataset(22)},
            {"batch_size": 4, "seed": 5, "num_workers": workers},
        )

    expected = checkpointed(tmp_path, data())
    assert len(expected) == EPOCHS * 6
    assert len({seen.data for seen in expected}) == EPOCHS * 6
    got = checkpointed(tmp_path, data(), Saver(tmp_path / "a.ckpt", "exception", 0), fail=stop)
    assert got == expected[:stop]
    saver = Saver(tmp_path / "b.ckpt", "batch", stop + 1)
    got = checkpointed(tmp_path, data(), saver, fail=stop + 3, ckpt_path=tmp_path / "a.ckpt")
    assert got == expected[stop : stop + 3]
    got = checkpointed(tmp_path, data(), ckpt_path=tmp_path / "b.ckpt")
    assert got == expected[stop + 1 :]


class Unmeasured(SharedWithIteratorState):
    """Eight numbers an item."""

    def item(self, number: int) -> Tensor:
        return super().item(number).repeat(2)


class Measured(Unmeasured):
    def __len__(self) -> int:
        return sum(self.lengths)


SAMPLERS: dict[str, Callable[[], Any]] = {
    "random": lambda: RandomSampler(range(26)),
    "random with generator": lambda: RandomSampler(range(26), generator=generator()),
    "weighted with generator": lambda: WeightedRandomSampler(
        torch.arange(1.0, 27).tolist(), 26, generator=generator()
    ),
    "custom": lambda: EveryOther(26),
    "stateful": lambda: StatefulSampler(26),
    "stateful iterator": lambda: SamplerWithStatefulIterator(26),
}


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(8)


@pytest.mark.parametrize("stop", [0, 3, 6, 7, 8, 13, 14])
@pytest.mark.parametrize("name", SAMPLERS)
def test_users_samplers(name: str, stop: int, tmp_path: Path) -> None:
    def data(workers: int) -> LoaderDataModule:
        options = {"batch_size": 4, "seed": 5, "num_workers": workers, "sampler": SAMPLERS[name]()}
        return LoaderDataModule({"train": Augmented()}, train=options)

    expected = checkpointed(tmp_path, data(0))
    saver = Saver(tmp_path / "a.ckpt", "exception", 0)
    assert checkpointed(tmp_path, data(0), saver, fail=stop) == expected[:stop]
    saver = Saver(tmp_path / "b.ckpt", "batch", stop + 1)
    got = checkpointed(tmp_path, data(2), saver, fail=stop + 2, ckpt_path=tmp_path / "a.ckpt")
    assert got == expected[stop : stop + 2]
    got = checkpointed(tmp_path, data(0), ckpt_path=tmp_path / "b.ckpt")
    assert got == expected[stop + 1 :]


def plain_loader() -> DataLoader[Any]:
    return DataLoader(Augmented(), 4, True, seed=5)


@pytest.mark.parametrize("stop", [0, 1, 6, 7, 9, 14])
def test_the_callback_without_the_data_module(stop: int, tmp_path: Path) -> None:
    expected = list(uninterrupted(Setting()))

    def fit(fail: int = -1, checkpoint: Path | None = None) -> list[Seen]:
        model = Model()
        model.fail = lambda batch: LookupError("in a step") if batch == fail else None
        saver = Saver(tmp_path / "a.ckpt", "exception", 0)
        trainer = Setting().trainer(tmp_path, LoaderStateCallback(), saver)
        with pytest.raises(LookupError) if fail >= 0 else contextlib.nullcontext():
            trainer.fit(model, plain_loader(), ckpt_path=checkpoint, weights_only=True)
        return model.seen

    assert fit(stop) == expected[:stop]
    assert fit(stop + 2, tmp_path / "a.ckpt") == expected[stop : stop + 2]
    assert fit(-1, tmp_path / "a.ckpt") == expected[stop + 2 :]


def test_a_checkpoint_before_anything_was_restored(tmp_path: Path) -> None:
    """Of a resumed training that cannot make its loader."""

    class Data(LightningDataModule):
        fails = False

        def train_dataloader(self) -> Any:
            if self.fails:
                self.trainer.save_checkpoint(tmp_path / "b.ckpt")
                raise LookupError("no data")
            return plain_loader()

    def fit(data: Data, checkpoint: Path | None = None, *callbacks: Any) -> list[Seen]:
        model = Model()
        with contextlib.suppress(LookupError):
            trainer = Setting().trainer(tmp_path, LoaderStateCallback(), *callbacks)
            trainer.fit(model, data, ckpt_path=checkpoint, weights_only=True)
        return model.seen

    whole = fit(Data(), None, Saver(tmp_path / "a.ckpt", "batch", 3))
    failing = Data()
    failing.fails = True
    assert fit(failing, tmp_path / "a.ckpt") == []
    assert fit(Data(), tmp_path / "b.ckpt") == whole[3:]


def test_a_checkpoint_that_is_validated_with_does_not_move_a_later_fit(tmp_path: Path) -> None:
    setting = Setting(validate_every=1.0)
    saver = Saver(tmp_path / "a.ckpt", "batch", 3)
    checkpointed(tmp_path, setting.data(0), saver, fail=4)
    model, data = Model(), setting.data(0)
    trainer = setting.trainer(tmp_path)
    trainer.validate(model, data, ckpt_path=tmp_path / "a.ckpt", verbose=False, weights_only=True)
    trainer.fit(model, data)
    assert model.seen == list(uninterrupted(setting))
    assert sum(isinstance(c, LoaderStateCallback) for c in trainer.callbacks) == 1
    assert isinstance(trainer.callbacks[0], LoaderStateCallback)


def test_one_data_module_through_two_fits(tmp_path: Path) -> None:
    setting = Setting()
    data = setting.data(0)
    saver = Saver(tmp_path / "a.ckpt", "batch", 3)
    checkpointed(tmp_path, data, saver, fail=4)
    expected = list(uninterrupted(setting))
    assert checkpointed(tmp_path, data, ckpt_path=tmp_path / "a.ckpt") == expected[3:]
    assert checkpointed(tmp_path, data) == expected


def test_another_number_of_loaders_is_refused(tmp_path: Path) -> None:
    saver = Saver(tmp_path / "a.ckpt", "epoch", BATCHES)
    checkpointed(tmp_path, Setting(two_loaders=True).data(0), saver, fail=BATCHES)
    with pytest.raises(
        StateError,
        match="the checkpoint has the positions of 2 training loaders, but there are 1: "
        "resume with the loaders that it was made with",
    ):
        checkpointed(tmp_path, Setting().data(0), ckpt_path=tmp_path / "a.ckpt")
