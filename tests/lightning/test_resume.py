"""Real Trainers, stopped and resumed: each step sees what it would have seen anyway.

Each resumed run is compared with the last part of one that was not interrupted: data, epoch, batch
index, which batch is the last, validations. The tables: settings of the Trainer and chains of
stops; sources of data; collections of loaders; another batch size; programs with nothing of ours
but the loader. Another number of ranks is in test_one_import.py and test_num_shards_fit.py.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math
import re
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint, OnExceptionCheckpoint
from lightning.pytorch.utilities import CombinedLoader
from torch import Tensor
from torch.utils.data import IterableDataset, RandomSampler

from lit_loader import DataLoader, LoaderDataModule, LoaderStateCallback, StateError, get_epoch
from lit_loader.lightning import trainer_plugin
from tests.exactness.test_exactness import ORDERS
from tests.support.exact import (
    Augmented,
    SharedWithIteratorState,
    digest,
)
from tests.support.lightning_runs import quiet_trainer
from tests.support.samples import Call, Counting

pytestmark = [
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no"),
    pytest.mark.filterwarnings("ignore:Your `IterableDataset` has `__len__` defined"),
    pytest.mark.filterwarnings("ignore:.*ckpt_path="),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
    pytest.mark.filterwarnings("ignore:.*Counting has no state_dict"),
    pytest.mark.filterwarnings("ignore:Found `dataloader_iter`"),
    pytest.mark.filterwarnings("ignore:You are using the `dataloader_iter`"),
    pytest.mark.filterwarnings("ignore:You requested to overfit"),
    pytest.mark.filterwarnings("ignore:`train_dataloader` yielded None"),
]

EPOCHS = 3
BATCHES = 7  # of 4 of 26 samples


class Seen(NamedTuple):
    epoch: int
    batch_idx: int
    is_last: bool
    data: str


class Model(LightningModule):
    """Notes each whole step and validation; fails in the step, or validation, that it is told."""

    def __init__(self, fail: int = -1, error: type[BaseException] = LookupError) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.fail, self.error = fail, error  # after so many steps of this run
        self.fail_validation: tuple[int, int] | None = None
        self.estimate = False
        self.seen: list[Seen] = []
        self.validations: list[tuple[int, int]] = []  # epoch, and batches of it that were behind
        self.validated: list[int] = []  # samples

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if len(self.seen) == self.fail:
            raise self.error("in a step")
        leaves = CombinedLoader(batch).flattened
        name = "+".join("ended" if leaf is None else digest(leaf) for leaf in leaves)
        trainer = self.trainer
        self.seen.append(Seen(trainer.current_epoch, batch_idx, trainer.is_last_batch, name))
        return self.layer(torch.ones(1)).sum()

    def on_validation_start(self) -> None:
        if not self.trainer.sanity_checking:
            done = self.trainer.fit_loop.epoch_loop.batch_progress.current.processed
            self.validations.append((self.trainer.current_epoch, done))
            self.validated.append(0)

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        if self.trainer.sanity_checking:
            return
        if self.fail_validation == (len(self.validations), batch_idx):
            raise LookupError("in a validation")
        self.validated[-1] += len(batch)

    def configure_optimizers(self) -> Any:
        if self.estimate:  # sets the training data up before anything is restored
            assert self.trainer.estimated_stepping_batches > 0
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Saver(Callback):
    """Saves in one hook, where the Trainer's own checkpoint callbacks do, with steps in the name.

    After so many steps of this run; None: each time.
    """

    def __init__(self, path: Path, hook: str, steps: int | None = None) -> None:
        self.path, self.hook, self.steps = path, hook, steps

    @property
    def state_key(self) -> str:
        return f"{self.hook} {self.path}"

    def save(self, trainer: Trainer, hook: str) -> None:
        done = len(trainer.lightning_module.seen)
        if hook == self.hook and self.steps in (None, done) and not trainer.sanity_checking:
            trainer.save_checkpoint(str(self.path).format(done))

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.save(trainer, "start")

    def on_train_batch_end(self, trainer: Trainer, *args: Any) -> None:
        self.save(trainer, "batch")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.save(trainer, "epoch")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.save(trainer, "validation")

    def on_exception(self, trainer: Trainer, *args: Any) -> None:
        self.save(trainer, "exception")


def fit(
    root: Path,
    data: Any,
    *callbacks: Callback,
    model: Model | None = None,
    fail: int = -1,
    ckpt: Any = None,
    **options: Any,
) -> tuple[Trainer, Model]:
    model = model or Model(fail)
    if inspect.isfunction(data):  # a hook of the program's
        model.train_dataloader, data = data, None  # type: ignore[method-assign]
    own = {
        "enable_checkpointing": any(isinstance(each, Checkpoint) for each in callbacks),
        "max_epochs": EPOCHS,
        "callbacks": [*callbacks],
    }
    trainer = quiet_trainer(root, **{**own, **options})
    fails = model.fail >= 0 or model.fail_validation is not None
    try:
        trainer.fit(model, data, ckpt_path=ckpt, weights_only=True)
    except (LookupError, SystemExit):
        assert fails
    else:
        assert not fails
    return trainer, model


def seen(root: Path, data: Any, *callbacks: Callback, **options: Any) -> list[Seen]:
    return fit(root, data, *callbacks, **options)[1].seen


# --- where the callback comes from: an entry point, where nothing else brings one ---

GROUP = "lightning.pytorch.callbacks_factory"


class Plugin:
    """What an installed lit_loader puts into Trainers, whether it is installed or not."""

    name = "lit_loader"

    def load(self) -> Callable[[], list[Any]]:
        return trainer_plugin.callbacks


@pytest.fixture(autouse=True)
def installed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainers find the entry point just once; with the parameter False: not at all."""
    found = [Plugin()] if getattr(request, "param", True) else []

    def entry_points(*, group: str) -> list[Any]:
        return [*found] if group == GROUP else []

    monkeypatch.setattr("lightning.fabric.utilities.registry.entry_points", entry_points)


not_installed = pytest.mark.parametrize("installed", [False], indirect=True)


# --- sources of data ---


class Unmeasured(SharedWithIteratorState):
    """Eight numbers an item."""

    def item(self, number: int) -> Tensor:
        return super().item(number).repeat(2)


class Measured(Unmeasured):
    def __len__(self) -> int:
        return sum(self.lengths)


def streamed(kind: Any, workers: int) -> LoaderDataModule:
    options = {"batch_size": 4, "seed": 5, "num_workers": workers}
    return LoaderDataModule({"train": kind(11, 11) if workers else kind(22)}, options)


def sharded(workers: int) -> LoaderDataModule:
    options = {"batch_size": 4, "seed": 5, "num_workers": workers, "num_shards": 2}
    return LoaderDataModule({"train": Unmeasured(11, 11)}, options)


def sampled(sampler: Callable[[], Any], workers: int) -> LoaderDataModule:
    options = {"batch_size": 4, "seed": 5, "num_workers": workers, **sampler()}
    return LoaderDataModule({"train": Augmented()}, options)


def plain_loader() -> DataLoader[Any]:
    return DataLoader(Augmented(), 4, True, seed=5)


def two_loaders() -> Any:
    return [plain_loader(), DataLoader(Augmented(10), 4, seed=6)]


def two_combined() -> Any:
    return CombinedLoader(two_loaders(), "max_size_cycle")


def unsized_loader() -> DataLoader[Any]:
    return DataLoader(Unmeasured(26), 4, seed=5)


def in_data_module(loaders: Callable[[], Any]) -> LightningDataModule:
    """As programs have it."""
    data = LightningDataModule()
    data.train_dataloader = loaders  # type: ignore[method-assign]
    return data


SAMPLERS = ("random", "random, generator", "weighted, generator", "custom", "stateful",
            "stateful iterator")  # fmt: skip
SOURCES: dict[str, Callable[[int], Any]] = {
    **{name: functools.partial(sampled, ORDERS[name]) for name in SAMPLERS},
    **{
        f"{kind.__name__}, {workers} workers": lambda _, kind=kind, workers=workers: streamed(
            kind, workers
        )
        for kind in (Measured, Unmeasured)
        for workers in (0, 2)
    },
    "shards": sharded,
    # With nothing of ours but the loader:
    **{
        f"{hook.__name__}{', data module' * in_data}": lambda _, hook=hook, in_data=in_data: (
            in_data_module(hook) if in_data else hook
        )
        for hook in (plain_loader, two_loaders, two_combined, unsized_loader)
        for in_data in (False, True)
    },
}


# --- chains of stops, by the settings of the Trainer and by the source ---


class Several(LoaderDataModule):
    """A second, short loader beside the first; the Trainer cycles through it unless told else."""

    mode: Any = None
    short = 10

    def train_dataloader(self) -> Any:
        loaders = {
            "long": self.make_loader("train"),
            "short": self.make_loader("train", Augmented(self.short)),
        }
        return loaders if self.mode is None else CombinedLoader(loaders, self.mode)


@dataclass(frozen=True)
class Setting:
    """How a run is trained; ``short``: samples of a second loader."""

    workers: int = 0
    by_steps: bool = False
    accumulate: int = 1
    limit: int | None = None
    validate_every: int | float | None = None
    short: int | None = None
    mode: str | None = None
    estimate: bool = False
    seeding: str = "batch"
    source: str = ""
    size: int = 4
    samples: int = 26
    epochs: int = EPOCHS

    @property
    def length(self) -> int:
        if "easured" in self.source or self.source == "shards":
            return 6
        samples = (self.mode == "min_size" and self.short) or self.samples
        return self.limit or -(-samples // self.size)

    def steps(self, batches: int) -> int:
        """Optimizer steps in so many batches; an epoch's last batch always steps."""
        epochs, rest = divmod(batches, self.length)
        return epochs * math.ceil(self.length / self.accumulate) + rest // self.accumulate

    def data(self, workers: int) -> Any:
        if self.source:
            return SOURCES[self.source](workers)
        datasets = {"train": Augmented(self.samples)}
        if self.validate_every is not None:
            datasets["val"] = Augmented(8)
        options = {"batch_size": self.size, "seed": 5, "seeding": self.seeding}
        options |= {"num_workers": workers, "persistent_workers": workers > 0}
        kind = Several if self.short else LoaderDataModule
        data = kind(datasets, loader=options, train={"shuffle": True})
        if isinstance(data, Several):
            data.mode, data.short = self.mode, self.short
        return data

    def flags(self, stop_after: int | None = None) -> dict[str, Any]:
        options: dict[str, Any] = {"accumulate_grad_batches": self.accumulate}
        options["max_epochs"] = self.epochs
        if self.by_steps or stop_after is not None:
            options["max_epochs"] = -1
            options["max_steps"] = self.steps(stop_after or self.epochs * self.length)
        if self.limit is not None:
            options["limit_train_batches"] = self.limit
        if self.validate_every is not None:
            options["val_check_interval"] = self.validate_every
        return options

    def model(self, fail: int = -1, error: type[BaseException] = LookupError) -> Model:
        model = Model(fail, error)
        model.estimate = self.estimate
        return model

    def after(self, batches: int, other: Setting) -> int:
        """The batches that are behind in this setting, if so many were in the other."""
        epochs, rest = divmod(batches, other.length)
        return epochs * self.length + min(self.length, rest * other.size // self.size)


@cache
def uninterrupted(setting: Setting) -> Model:
    _, model = fit(Path("unused"), setting.data(0), model=setting.model(), **setting.flags())
    assert [each.batch_idx for each in model.seen] == [*range(setting.length)] * setting.epochs
    return model


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


def run_chain(root: Path, stops: list[Stop | None], setting: Setting, *others: Setting) -> None:
    """Run after run, each resumed from the one before; every step is compared.

    The first has the first setting, and so on; those that are left have the last one.
    """
    checkpoint, done = None, 0
    for number, stop in enumerate(stops):
        if 0 < number <= len(others):
            done, setting = others[number - 1].after(done, setting), others[number - 1]
        # Another number of workers at each resume.
        data = setting.data(setting.workers and (setting.workers, 1, 0)[number % 3])
        path = root / f"{number}.ckpt"
        kind, saved, further = stop or Stop("max_steps", setting.epochs * setting.length)
        if kind == "max_steps":
            flags = setting.flags(None if stop is None else saved)
            model, end, savers = setting.model(), saved, []
        else:
            end = saved + (further if kind in ("batch", "epoch", "validation") else 0)
            error = KeyboardInterrupt if kind == "interrupt" else LookupError
            fails = end < setting.epochs * setting.length
            flags, model = setting.flags(), setting.model(end - done if fails else -1, error)
            hook = "exception" if kind == "interrupt" else kind
            savers = [Saver(path, hook, saved - done)]
        trainer, _ = fit(root, data, *savers, model=model, ckpt=checkpoint, **flags)
        if not savers:
            trainer.save_checkpoint(path)
        assert model.seen == uninterrupted(setting).seen[done:end], stops[: number + 1]
        if setting.accumulate == 1 and not others:  # else it may come between two optimizer steps
            assert trainer.global_step == setting.steps(end)
        if stop is None:
            # Whether one at the place of the checkpoint comes before or after it is the hook's.
            expected, got = (
                [place for place in each.validations if place > divmod(done, setting.length)]
                for each in (uninterrupted(setting), model)
            )
            assert got == expected
            assert {*model.validated} <= {8}
            assert trainer.fit_loop.epoch_loop._batches_that_stepped == trainer.global_step
        checkpoint, done = path, saved


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
    "two loaders": Setting(short=10),
    "two loaders by steps": Setting(short=10, by_steps=True, workers=1),
    "two loaders, limit": Setting(short=10, limit=5, validate_every=1.0),
    "max_size": Setting(short=10, mode="max_size", validate_every=1.0),
    "max_size, by steps": Setting(short=10, mode="max_size", by_steps=True, workers=1),
    "max_size, limit": Setting(short=10, mode="max_size", limit=5),
    "max_size_cycle": Setting(short=10, mode="max_size_cycle", by_steps=True, validate_every=1.0),
    "min_size": Setting(short=18, mode="min_size", workers=1, validate_every=1.0),
    "min_size, by steps": Setting(short=18, mode="min_size", by_steps=True),
    "estimate": Setting(estimate=True),
    "estimate, all": Setting(
        estimate=True, workers=1, accumulate=2, limit=5, validate_every=1.0, short=10
    ),
    **{name: Setting(source=name, workers=2) for name in SOURCES},
}
CHAINS: dict[str, Callable[[int, str], list[Stop | None]]] = {
    "steps": lambda length, epoch: [
        Stop("batch", 2, 2), Stop("exception", length + 1), Stop(epoch, 2 * length),
    ],
    "last batch": lambda length, epoch: [
        Stop("batch", length, 2), Stop("batch", length + 3, 0), Stop("batch", 2 * length),
        Stop("interrupt", 2 * length),
    ],
    "epoch ends": lambda length, epoch: [
        Stop("epoch", length), Stop("batch", 2 * length - 1), Stop(epoch, 2 * length, 3),
    ],
    "failures": lambda length, epoch: [
        Stop("exception", 0), Stop("interrupt", length - 1), Stop("exception", length),
        Stop("max_steps", length + 2), Stop("exception", 2 * length),
    ],
}  # fmt: skip


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("name", SETTINGS)
def test_chain_of_resumes(name: str, chain: str, tmp_path: Path) -> None:
    setting = SETTINGS[name]
    epoch = "validation" if setting.validate_every == 1.0 else "epoch"
    run_chain(tmp_path, [*CHAINS[chain](setting.length, epoch), None], setting)


OWN: dict[str, tuple[Callable[[Path], Callback], str, list[tuple[int, int]]]] = {
    "steps": (
        lambda root: ModelCheckpoint(root, every_n_train_steps=4, save_last=True),
        "last", [(0, 10), (8, 13), (12, 21)],
    ),
    "epochs": (lambda root: ModelCheckpoint(root, save_last=True), "last", [(0, 9), (7, 21)]),
    **{
        f"exception {number}": (OnExceptionCheckpoint, "", [(0, number), (number, 21)])
        for number in (0, 3, 7, 9)
    },
}  # fmt: skip


@pytest.mark.parametrize("name", OWN)
def test_the_trainers_own_checkpoints(name: str, tmp_path: Path) -> None:
    make, ckpt, runs = OWN[name]
    setting = Setting(validate_every=1.0 if name == "epochs" else None)
    given: Any = None
    for number, (start, end) in enumerate(runs):
        fail = end - start if end < EPOCHS * BATCHES else -1
        callbacks = [make(tmp_path)] if ckpt or fail >= 0 else []
        options = setting.flags() | {"fail": fail, "ckpt": given}
        got = seen(tmp_path, setting.data(2 * (number % 2)), *callbacks, **options)
        assert got == uninterrupted(setting).seen[start:end]
        given = ckpt or tmp_path / "on_exception.ckpt"


# --- a checkpoint and the Trainers' other functions ---


def test_a_checkpoint_before_anything_was_restored(tmp_path: Path) -> None:
    """Of a resumed training that cannot make its loader."""

    class Data(LightningDataModule):
        fails = False

        def train_dataloader(self) -> Any:
            if self.fails:
                self.trainer.save_checkpoint(tmp_path / "b.ckpt")
                raise LookupError("no data")
            return plain_loader()

    whole = seen(tmp_path, Data(), LoaderStateCallback(), Saver(tmp_path / "a.ckpt", "batch", 3))
    failing = Data()
    failing.fails = True
    options: dict[str, Any] = {"fail": 9, "ckpt": tmp_path / "a.ckpt"}
    assert seen(tmp_path, failing, LoaderStateCallback(), **options) == []
    assert seen(tmp_path, Data(), LoaderStateCallback(), ckpt=tmp_path / "b.ckpt") == whole[3:]


class Look(Callback):
    """Looks at a batch of the training loader in a hook, once, as programs do to log examples."""

    def __init__(self, hook: str) -> None:
        self.hook: str | None = hook
        setattr(self, hook, self.look)

    def look(self, trainer: Trainer, *args: Any) -> None:
        if self.hook is not None:
            next(iter(trainer.train_dataloader))
            self.hook = None


@pytest.mark.parametrize("source", ["plain_loader", "shards"])
@pytest.mark.parametrize("when", ["first", "resumed", "both"])
@pytest.mark.parametrize(
    "hook", ["on_train_start", "on_train_epoch_start", "on_train_batch_start", "on_train_batch_end"]
)
@pytest.mark.parametrize("steps", [3, 7])
def test_a_batch_that_is_looked_at_moves_nothing(
    hook: str, when: str, source: str, steps: int, tmp_path: Path
) -> None:
    whole = seen(tmp_path, SOURCES[source](0))
    steps = min(steps, len(whole) // EPOCHS)  # in an epoch, and at its end

    def looks(run: str) -> list[Callback]:
        return [Look(hook)] if when in (run, "both") else []

    saver = Saver(tmp_path / "last.ckpt", "batch")
    options = {"max_epochs": -1, "max_steps": steps}
    first = seen(tmp_path, SOURCES[source](0), saver, *looks("first"), **options)
    resumed = seen(tmp_path, SOURCES[source](0), *looks("resumed"), ckpt=tmp_path / "last.ckpt")
    assert [each.data for each in first + resumed] == [each.data for each in whole]


class ByEpoch(IterableDataset[Tensor]):
    """In an order that follows from the epoch, as programs make it."""

    def __iter__(self) -> Iterator[Tensor]:
        generator = torch.Generator().manual_seed(get_epoch())
        yield from torch.randperm(10, generator=generator).float()[:, None]


@pytest.mark.parametrize("batch_size", [4, 10])
@pytest.mark.parametrize(
    "hook",
    [
        "on_train_epoch_start",
        "on_train_batch_start",
        "on_train_batch_end",
        "on_validation_epoch_end",
        "on_train_epoch_end",
    ],
)
def test_looks_in_every_epoch_of_a_stream_without_a_length(
    hook: str, batch_size: int, tmp_path: Path
) -> None:
    """Lightning knows of such an epoch's end before the last step's hooks."""

    class Always(Look):
        def look(self, trainer: Trainer, *args: Any) -> None:
            if trainer.train_dataloader is not None:
                next(iter(trainer.train_dataloader))

    def run(*callbacks: Callback, ckpt: Any = None) -> list[Seen]:
        data = LightningDataModule()
        data.train_dataloader = lambda: DataLoader(ByEpoch(), batch_size)  # type: ignore[method-assign]
        data.val_dataloader = lambda: DataLoader(Augmented(4), 4)  # type: ignore[method-assign]
        return seen(tmp_path, data, *callbacks, ckpt=ckpt)

    whole, length = run(), -(-10 // batch_size)
    savers = [Saver(tmp_path / f"{at}{{}}.ckpt", at) for at in ("batch", "validation", "epoch")]
    assert run(Always(hook), *savers) == whole
    for at, step in [("batch", length), ("validation", length), ("epoch", 2 * length)]:
        assert run(Always(hook), ckpt=tmp_path / f"{at}{step}.ckpt") == whole[step:], at


MID_EPOCH = "the checkpoint was saved in mid-epoch, and has no position of a training loader"


@pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers")
@pytest.mark.parametrize("steps", [3, BATCHES])
def test_a_checkpoint_of_a_run_with_torchs_loader(steps: int, tmp_path: Path) -> None:
    """In mid-epoch a warning says what is lost; at the end of one there is nothing to say."""
    path = tmp_path / "a.ckpt"
    torchs = torch.utils.data.DataLoader(Augmented(), 4)
    seen(tmp_path, torchs, Saver(path, "batch", steps), fail=steps)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        seen(tmp_path, plain_loader(), Saver(tmp_path / "b.ckpt", "batch", 2), ckpt=path)
        seen(tmp_path, plain_loader(), ckpt=tmp_path / "b.ckpt")  # one of ours
        seen(tmp_path, plain_loader())
    assert sum(MID_EPOCH in str(each.message) for each in told) == (steps < BATCHES)


def test_a_checkpoint_that_is_validated_with_does_not_move_a_later_fit(tmp_path: Path) -> None:
    setting, path = Setting(validate_every=1.0), tmp_path / "a.ckpt"
    seen(tmp_path, setting.data(0), Saver(path, "batch", 3), fail=4, **setting.flags())
    model, data = Model(), setting.data(0)
    trainer = quiet_trainer(tmp_path, max_epochs=EPOCHS)
    trainer.validate(model, data, ckpt_path=path, verbose=False, weights_only=True)
    trainer.fit(model, data)
    assert model.seen == uninterrupted(setting).seen
    assert sum(isinstance(c, LoaderStateCallback) for c in trainer.callbacks) == 1
    assert isinstance(trainer.callbacks[0], LoaderStateCallback)


def test_one_data_module_through_two_fits(tmp_path: Path) -> None:
    data, path, expected = Setting().data(0), tmp_path / "a.ckpt", uninterrupted(Setting()).seen
    seen(tmp_path, data, Saver(path, "batch", 3), fail=4)
    assert seen(tmp_path, data, ckpt=path) == expected[3:]
    assert seen(tmp_path, data) == expected


@pytest.mark.parametrize("ends", [[2, 4], [1, 2, 3, 4]])
@pytest.mark.parametrize("several", [False, True])
def test_a_fit_that_goes_on(several: bool, ends: list[int], tmp_path: Path) -> None:
    """Before a later fit's first epoch Lightning throws away the batch that it has taken ahead."""

    def data() -> Any:
        stream = DataLoader(ByEpoch(), 4)
        mapped = DataLoader(Augmented(16), 4, shuffle=True, seed=1)
        return CombinedLoader([stream, mapped], "max_size") if several else stream

    expected = seen(tmp_path, data(), max_epochs=ends[-1])
    loaders, model = data(), Model()
    trainer = quiet_trainer(tmp_path, max_epochs=0)
    for end in ends:
        trainer.fit_loop.max_epochs = end
        trainer.fit(model, loaders)
    assert model.seen == expected


def test_another_number_of_loaders_is_refused(tmp_path: Path) -> None:
    saver = Saver(tmp_path / "a.ckpt", "epoch", BATCHES)
    seen(tmp_path, Setting(short=10).data(0), saver, fail=BATCHES)
    with pytest.raises(
        StateError,
        match="the checkpoint has the positions of 2 training loaders, but there are 1: "
        "Resume with the loaders of the checkpoint",
    ):
        seen(tmp_path, Setting().data(0), ckpt=tmp_path / "a.ckpt")


def test_the_resumed_epoch_does_not_start_again(tmp_path: Path) -> None:
    started: list[int] = []

    class Starting(Saver):
        def on_train_epoch_start(self, trainer: Trainer, *_: Any) -> None:
            started.append(trainer.current_epoch)

    saver = Starting(tmp_path / "a.ckpt", "batch", BATCHES + 1)
    whole = seen(tmp_path, plain_loader(), saver, LoaderStateCallback())
    again = Starting(tmp_path / "b.ckpt", "never")
    got = seen(tmp_path, plain_loader(), again, LoaderStateCallback(), ckpt=tmp_path / "a.ckpt")
    assert got == whole[BATCHES + 1 :]
    assert started == [0, 1, 2, 2]


# --- loaders with and without a length, combined ---

# Lightning takes a batch ahead, of all loaders at once, where their combination has no length; that
# depends on the mode and on limits.


class WithIterator(Model):
    """Takes its batches itself, so that Lightning takes none ahead."""

    def training_step(self, dataloader_iter: Any) -> Tensor:  # type: ignore[override]
        batch, batch_idx, _ = next(dataloader_iter)
        return super().training_step(batch, batch_idx)


class Unsized:
    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.samples))


def combined(kinds: Any, mode: str | None) -> Any:
    """Loaders by a letter and how many samples they have, in batches of 2; each has its seed."""
    seeds = itertools.count()

    def tree(kind: Any) -> Any:
        if isinstance(kind, dict):
            return {name: tree(part) for name, part in kind.items()}
        if isinstance(kind, list):
            return [tree(part) for part in kind]
        samples, seed = int(kind[1:]), next(seeds)
        own = torch.Generator().manual_seed(seed)
        stream = Counting(samples, lambda number: torch.tensor([1000.0 + number]))
        mapped = Call(lambda index: index + torch.rand(1) / 2, samples)
        options: dict[str, Any] = {
            "s": {"dataset": stream},
            "n": {"dataset": stream, "num_shards": 2},
            "r": {"dataset": mapped, "sampler": RandomSampler(range(samples))},
            "g": {"dataset": mapped, "sampler": RandomSampler(range(samples), generator=own)},
            "m": {"dataset": mapped, "shuffle": True},
            "u": {"dataset": mapped, "sampler": Unsized(samples)},
        }[kind[0]]
        return DataLoader(batch_size=2, seed=seed, **options)

    return tree(kinds) if mode is None else CombinedLoader(tree(kinds), mode)


COMBINED: dict[str, tuple[Any, str | None, dict[str, Any]]] = {
    "stream, limit": ("s8", None, {"limit_train_batches": 3}),
    "shards, limit": ("n8", None, {"limit_train_batches": 3}),
    "stream, overfit": ("s8", None, {"overfit_batches": 2}),
    "min_size": ({"a": "s8", "b": "m6"}, "min_size", {}),
    "min_size, the stream ends": ({"a": "s6", "b": "m8"}, "min_size", {}),
    "min_size, the stream ends before a generator": ({"a": "s6", "b": "g8"}, "min_size", {}),
    "min_size, float limit": (["m8", "m6"], "min_size", {"limit_train_batches": 0.7}),
    "min_size, streams": ({"a": "s8", "b": "n6"}, "min_size", {}),
    "max_size, the map-style ends": ({"a": "s10", "b": "m4"}, "max_size", {}),
    "max_size, the stream ends": ({"a": "n4", "b": "m8"}, "max_size", {}),
    "max_size, limit": ({"a": "n4", "b": "m8"}, "max_size", {"limit_train_batches": 3}),
    "cycled map-style": ({"a": "s10", "b": "m4"}, "max_size_cycle", {}),
    "cycled stream": ({"a": "n4", "b": "m9"}, "max_size_cycle", {}),
    "cycled, single batches": (["s8", "m2", "s2"], "max_size_cycle", {}),
    "cycled, limit": (["s4", "m6"], "max_size_cycle", {"limit_train_batches": 5}),
    "cycled, sampler": (["s10", "r5"], "max_size_cycle", {}),
    "sampler without a length": ("u8", None, {}),
    "nested": ([{"x": "m6", "y": ["s10", "m4"]}, "n6"], None, {}),
}


@pytest.mark.parametrize("name", COMBINED)
def test_combined_and_resumed_after_each_step(name: str, tmp_path: Path) -> None:
    kinds, mode, options = COMBINED[name]
    torch.manual_seed(3)  # for torch's sampler
    run = functools.partial(seen, tmp_path, max_epochs=2, **options)
    savers = Saver(tmp_path / "{}.ckpt", "batch"), Saver(tmp_path / "epoch{}.ckpt", "epoch")
    expected = run(combined(kinds, mode), *savers)
    assert {each.epoch for each in expected} == {0, 1}
    length = sum(each.epoch == 0 for each in expected)
    for file, step in [*((str(n), n) for n in range(1, len(expected))), (f"epoch{length}", length)]:
        got = run(combined(kinds, mode), ckpt=tmp_path / f"{file}.ckpt")
        assert got == expected[step:], file
    if name in ("max_size, the map-style ends", "cycled map-style", "nested"):
        for step in range(len(expected)):
            run(combined(kinds, mode), Saver(tmp_path / "failed.ckpt", "exception"), fail=step)
            got = run(combined(kinds, mode), ckpt=tmp_path / "failed.ckpt")
            assert got == expected[step:], step


@pytest.mark.parametrize("by_hook", [False, True])
@pytest.mark.parametrize("kind", ["stream", "shards", "map-style", "both"])
def test_loaders_that_are_reloaded_go_on(kind: str, by_hook: bool, tmp_path: Path) -> None:
    """As if they were not: in a run, resumed, and where the first step with them has failed."""

    def loaders() -> Any:
        shards = 2 if kind in ("shards", "both") else None
        stream = DataLoader(Counting(9, lambda n: n + torch.rand(1) / 2), 2, num_shards=shards)
        mapped = DataLoader(Call(lambda index: index + torch.rand(1) / 2, 13), 2, True)
        return {"map-style": mapped, "both": [stream, mapped]}.get(kind, stream)

    def run(every: int, seed: int, *callbacks: Callback, **options: Any) -> list[Seen]:
        torch.manual_seed(seed)  # a resumed run has that of its checkpoint
        data = loaders if by_hook else loaders()
        every_n = {"reload_dataloaders_every_n_epochs": every}
        return seen(tmp_path, data, *callbacks, **every_n, **options)

    expected = run(0, 1)
    assert len({each.data for each in expected}) == len(expected)
    for every in (1, 2):
        hooks = ("start", "batch", "epoch")
        savers = [Saver(tmp_path / (hook + "{}.ckpt"), hook) for hook in hooks]
        assert run(every, 1, *savers) == expected
        begins = [step for step, each in enumerate(expected) if each.batch_idx == 0]
        files = [("batch", step) for step in range(1, len(expected))]
        files += [(hook, step) for hook in ("start", "epoch") for step in begins[1:]]
        for hook, step in files:
            got = run(every, 2, ckpt=tmp_path / f"{hook}{step}.ckpt")
            assert got == expected[step:], (every, hook, step)
        for step in begins:
            run(every, 1, Saver(tmp_path / "failed.ckpt", "exception"), fail=step)
            got = run(every, 2, ckpt=tmp_path / "failed.ckpt")
            assert got == expected[step:], (every, step)


@pytest.mark.parametrize("hook", ["on_train_batch_start", "on_train_batch_end"])
@pytest.mark.parametrize("kinds", [["m6", "m10"], ["s6", "g10"], ["n4", "m8"]])
def test_looks_at_a_loader_that_has_ended(kinds: list[str], hook: str, tmp_path: Path) -> None:
    """The epoch goes on without it: what is looked at there is no epoch of its own."""

    class LookAtFirst(Look):
        def look(self, trainer: Trainer, *args: Any) -> None:
            next(iter(CombinedLoader(trainer.train_dataloader).flattened[0]))

    def run(*callbacks: Callback, ckpt: Any = None) -> list[Seen]:
        return seen(tmp_path, combined(kinds, "max_size"), *callbacks, ckpt=ckpt)

    whole = run()
    assert run(LookAtFirst(hook), Saver(tmp_path / "{}.ckpt", "batch")) == whole
    for step in range(1, len(whole)):
        assert run(LookAtFirst(hook), ckpt=tmp_path / f"{step}.ckpt") == whole[step:], step


def test_a_step_that_takes_its_batches_itself(tmp_path: Path) -> None:
    kinds, saver = {"a": "s8", "b": "m8"}, Saver(tmp_path / "{}.ckpt", "batch")

    def run(*callbacks: Callback, **options: Any) -> list[str]:
        loaders = combined(kinds, "max_size")
        options = {"model": WithIterator(), "max_epochs": 2, **options}
        return [each.data for each in seen(tmp_path, loaders, *callbacks, **options)]

    expected = run(saver)
    for step in (1, 3):
        assert run(ckpt=tmp_path / f"{step}.ckpt") == expected[step:], step


# --- another batch size ---


def elastic(size: int, **options: Any) -> Setting:
    return Setting(size=size, samples=24, epochs=2, seeding="sample", **options)


Case = tuple[int, int, str, int, int | float | None, int]
CASES: list[Case] = [
    # batch sizes before and after; what saves, after how many samples; validation; accumulation
    (2, 4, "batch", 8, None, 1),
    (2, 4, "exception", 12, 0.5, 1),
    (2, 4, "max_steps", 32, 1.0, 1),
    (2, 4, "validation", 12, 0.5, 1),
    (2, 4, "exception", 32, 3, 2),
    (8, 2, "batch", 16, None, 2),
    (8, 2, "validation", 24, 1.0, 1),
    (8, 2, "exception", 40, 0.5, 2),
    (8, 2, "epoch", 24, None, 1),
    (6, 4, "validation", 12, 0.5, 2),
    (6, 4, "epoch", 24, 3, 1),
    (6, 4, "max_steps", 12, None, 1),
    (4, 4, "batch", 24, 1.0, 1),
    (4, 4, "exception", 32, 3, 2),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case)[1:-1])
def test_another_batch_size(case: Case, tmp_path: Path) -> None:
    before, after, kind, samples, validate, accumulate = case
    options: Any = {"validate_every": validate, "accumulate": accumulate}
    stops = [Stop(kind, samples // before), None]
    run_chain(tmp_path, stops, elastic(before, **options), elastic(after, **options))


@pytest.mark.parametrize(("before", "after"), [(2, 4), (4, 2), (4, 4)])
def test_an_interrupted_validation_is_run_as_a_whole(
    before: int, after: int, tmp_path: Path
) -> None:
    """Lightning would validate on as many batches as were left, and begin with the first."""
    first, second = (elastic(size, validate_every=0.5) for size in (before, after))
    stopped, path = Model(), tmp_path / "a.ckpt"
    stopped.fail_validation = (1, 1)
    fit(tmp_path, first.data(0), Saver(path, "exception"), model=stopped, **first.flags())
    assert stopped.validated == [before]
    _, model = fit(tmp_path, second.data(0), ckpt=path, **second.flags())
    assert model.seen == uninterrupted(second).seen[12 // after :]
    assert model.validated == [8, 8, 8, 8]


@pytest.mark.parametrize("validate", [0.5, 1.0])
def test_a_validation_that_is_interrupted_twice(validate: float, tmp_path: Path) -> None:
    """It is run, and counted, once; besides, Lightning counts the batch that has failed."""
    setting, ckpt = Setting(size=2, samples=24, validate_every=validate, epochs=1), None
    whole, _ = fit(tmp_path, setting.data(0), **setting.flags())
    for path in (tmp_path / "a.ckpt", tmp_path / "b.ckpt"):
        model = Model()
        model.fail_validation = (1, 1)
        saver = Saver(path, "exception")
        fit(tmp_path, setting.data(0), saver, model=model, ckpt=ckpt, **setting.flags())
        ckpt = path
    saver = Saver(tmp_path / "c.ckpt", "validation")
    resumed, model = fit(tmp_path, setting.data(0), saver, ckpt=ckpt, **setting.flags())
    assert model.validated == [8] * int(1 / validate)
    counts, expected = (
        each.fit_loop.epoch_loop.val_loop.batch_progress.state_dict() for each in (resumed, whole)
    )
    expected["total"]["ready"] += 1
    expected["total"]["started"] += 1
    assert counts == expected
    # Saved behind that validation: it is not taken for an interrupted one.
    if validate == 0.5:
        path = tmp_path / "d.ckpt"
        first = Saver(path, "validation", 0)
        fit(tmp_path, setting.data(0), first, ckpt=ckpt, **setting.flags())
        _, model = fit(tmp_path, setting.data(0), ckpt=path, **setting.flags())
        assert model.validated == [8]


def test_a_limit_that_is_reached_by_the_conversion(tmp_path: Path) -> None:
    """Of five batches, eight are behind: the epoch is over."""
    run_chain(tmp_path, [Stop("batch", 4), None], elastic(4, limit=5), elastic(2, limit=5))


@pytest.mark.parametrize("mode", ["max_size_cycle", "max_size", "min_size"])
@pytest.mark.parametrize(("before", "after"), [(2, 4), (4, 2)])
@pytest.mark.parametrize("samples", [4, 16])
def test_several_loaders(mode: str, before: int, after: int, samples: int, tmp_path: Path) -> None:
    # As many batches of the short one are behind as of the long one: both change alike.
    settings = (elastic(size, short=20, mode=mode) for size in (before, after))
    run_chain(tmp_path, [Stop("batch", samples // before), None], *settings)


# --- with and without the entry point ---

ADVICE = "add Trainer(callbacks=[lit_loader.LoaderStateCallback()])"


@not_installed
def test_without_the_callback_the_loader_says_so_once(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    with pytest.warns(UserWarning, match=re.escape(ADVICE)) as told:
        trainer, _ = fit(tmp_path, plain_loader, max_steps=2, max_epochs=-1)
        trainer.save_checkpoint(path)
        trainer.save_checkpoint(path)
    assert sum(ADVICE in str(warning.message) for warning in told) == 1
    with pytest.warns(UserWarning, match=re.escape(ADVICE)) as told:
        fit(tmp_path, plain_loader, ckpt=path, max_steps=4, max_epochs=-1)
    assert sum(ADVICE in str(warning.message) for warning in told) == 1


@not_installed
def test_with_the_line_that_it_names_it_is_silent_and_exact(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    expected = seen(tmp_path, plain_loader, LoaderStateCallback())
    # It need not be the first of the callbacks.
    fit(tmp_path, plain_loader, Saver(path, "batch", 5), LoaderStateCallback(), fail=6)
    assert seen(tmp_path, plain_loader, LoaderStateCallback(), ckpt=path) == expected[5:]


def kinds(trainer: Trainer) -> list[type]:
    return [type(each) for each in trainer.callbacks if isinstance(each, LoaderStateCallback)]


@pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers")
@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before")
def test_a_trainer_of_torchs_loaders_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"

    def torchs() -> Any:
        return torch.utils.data.DataLoader(Augmented(), 4, True)

    trainer, _ = fit(tmp_path, torchs, max_steps=2, max_epochs=-1)
    assert kinds(trainer) == []
    trainer.save_checkpoint(path)
    saved = torch.load(path, weights_only=True)
    trainer, model = fit(tmp_path, torchs, ckpt=path, max_steps=4, max_epochs=-1)
    assert "combined_loader" not in saved["loops"]["fit_loop"]["state_dict"]
    # Lightning's own progress is not mended: this is what it does with a loader without a state.
    assert [each[:2] for each in model.seen] == [(1, 2), (1, 3)]
    assert kinds(trainer) == []


def test_a_list_of_callbacks_serves_several_trainers(tmp_path: Path) -> None:
    """Lightning adds the callbacks of entry points to the very list that it was given."""
    callbacks: list[Callback] = [Saver(tmp_path / "never.ckpt", "never")]
    for _ in range(2):
        trainer = quiet_trainer(tmp_path, callbacks=callbacks)
        trainer.fit(Model(), plain_loader())
        assert kinds(trainer) == [LoaderStateCallback]


def test_the_plugin_imports_no_more_than_it_must() -> None:
    """Every Trainer of the environment loads it; and Hydra imports lit_loader in any program."""
    script = f"""
    import runpy, sys
    callbacks = runpy.run_path({trainer_plugin.__file__!r})["callbacks"]
    assert callbacks() == []
    assert "lit_loader" not in sys.modules and "torch" not in sys.modules
    import lit_loader
    (callback,) = callbacks()
    assert type(callback).__name__ == "LoaderStateCallback"
    assert "lit_loader.loader" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, timeout=200)
