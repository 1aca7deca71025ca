"""Real Trainers, stopped and resumed: each step sees what it would have seen anyway.

Each resumed run is compared with the last part of one that was not interrupted: data, epoch, batch
index, which batch is the last, validations. Another number of ranks is in test_one_import.py and
test_num_shards_fit.py.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint, OnExceptionCheckpoint
from lightning.pytorch.utilities import CombinedLoader
from torch import Tensor

from lit_loader import (
    DataLoader,
    LoaderDataModule,
    LoaderStateCallback,
    RandomStateCallback,
    StateError,
)
from lit_loader.lightning import trainer_plugin
from tests.support.datasets import drawn
from tests.support.exact import Augmented, digest
from tests.support.lightning_runs import quiet_trainer
from tests.support.samples import Call, Counting, StatefulCounting

pytestmark = [
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no"),
    pytest.mark.filterwarnings("ignore:Your `IterableDataset` has `__len__` defined"),
    pytest.mark.filterwarnings("ignore:.*ckpt_path="),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
    pytest.mark.filterwarnings("ignore:.*Counting has no state_dict"),
    pytest.mark.filterwarnings("ignore:`train_dataloader` yielded None"),
    pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers"),
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
        self.validations: list[tuple[int, int]] = []  # epoch, and batches of it before
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
    """Saves in one hook, with steps in the name: after this number of steps; None: each time."""

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
        return [*found] if group == "lightning.pytorch.callbacks_factory" else []

    monkeypatch.setattr("lightning.fabric.utilities.registry.entry_points", entry_points)


# --- chains of stops, by the settings of the Trainer ---


def plain_loader() -> DataLoader[Any]:
    return DataLoader(Augmented(), 4, True, seed=5)


@dataclass(frozen=True)
class Setting:
    """How a run is trained; ``short``: samples of a second loader."""

    workers: int = 0
    by_steps: bool = False
    accumulate: int = 1
    limit: int | None = None
    validate_every: int | float | None = None
    short: int | None = None
    estimate: bool = False
    stream: bool = False

    @property
    def length(self) -> int:
        return self.limit or (6 if self.stream else BATCHES)

    def steps(self, batches: int) -> int:
        """Optimizer steps in a number of batches; an epoch's last batch always steps."""
        epochs, rest = divmod(batches, self.length)
        return epochs * math.ceil(self.length / self.accumulate) + rest // self.accumulate

    def data(self, workers: int) -> Any:
        options = {"batch_size": 4, "seed": 5, "num_workers": workers}
        options["persistent_workers"] = workers > 0
        if self.stream:
            return LoaderDataModule(
                {"train": StatefulCounting(22, drawn)}, {**options, "num_shards": 2}
            )
        train: Any = Augmented()
        if self.short:
            train = {"long": train, "short": Augmented(self.short)}
        datasets = {"train": train}
        if self.validate_every is not None:
            datasets["val"] = Augmented(8)
        return LoaderDataModule(datasets, options, train={"shuffle": True})

    def flags(self, stop_after: int | None = None) -> dict[str, Any]:
        options: dict[str, Any] = {"accumulate_grad_batches": self.accumulate}
        options["max_epochs"] = EPOCHS
        if self.by_steps or stop_after is not None:
            options["max_epochs"] = -1
            options["max_steps"] = self.steps(stop_after or EPOCHS * self.length)
        if self.limit is not None:
            options["limit_train_batches"] = self.limit
        if self.validate_every is not None:
            options["val_check_interval"] = self.validate_every
        return options

    def model(self, fail: int = -1, error: type[BaseException] = LookupError) -> Model:
        model = Model(fail, error)
        model.estimate = self.estimate
        return model


@cache
def uninterrupted(setting: Setting) -> Model:
    _, model = fit(Path("unused"), setting.data(0), model=setting.model(), **setting.flags())
    assert [each.batch_idx for each in model.seen] == [*range(setting.length)] * EPOCHS
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


def run_chain(root: Path, stops: list[Stop | None], setting: Setting) -> None:
    """Run after run, each resumed from the one before; every step is compared."""
    checkpoint, done = None, 0
    for number, stop in enumerate(stops):
        # Another number of workers at each resume.
        data = setting.data(setting.workers and (setting.workers, 1, 0)[number % 3])
        path = root / f"{number}.ckpt"
        kind, saved, further = stop or Stop("max_steps", EPOCHS * setting.length)
        if kind == "max_steps":
            flags = setting.flags(None if stop is None else saved)
            model, end, savers = setting.model(), saved, []
        else:
            end = saved + (further if kind in ("batch", "epoch", "validation") else 0)
            error = KeyboardInterrupt if kind == "interrupt" else LookupError
            fails = end < EPOCHS * setting.length
            flags, model = setting.flags(), setting.model(end - done if fails else -1, error)
            hook = "exception" if kind == "interrupt" else kind
            savers = [Saver(path, hook, saved - done)]
        trainer, _ = fit(root, data, *savers, model=model, ckpt=checkpoint, **flags)
        if not savers:
            trainer.save_checkpoint(path)
        assert model.seen == uninterrupted(setting).seen[done:end], stops[: number + 1]
        if setting.accumulate == 1:  # else it may come between two optimizer steps
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
    "workers, by steps": Setting(workers=2, by_steps=True),
    "accumulate, limit": Setting(accumulate=2, limit=5),
    "validate": Setting(validate_every=1.0, estimate=True),
    "two loaders": Setting(short=10, by_steps=True, validate_every=3),
    "shards": Setting(stream=True, workers=2),
}
CHAINS: dict[str, Callable[[int, str], list[Stop | None]]] = {
    "hooks": lambda length, epoch: [
        Stop("batch", 2, 2), Stop("batch", length, 2), Stop("batch", length + 3, 0),
        Stop(epoch, 2 * length),
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
        "last", [(0, 10), (8, 21)],
    ),
    "epochs": (lambda root: ModelCheckpoint(root, save_last=True), "last", [(0, 9), (7, 21)]),
    "exception": (OnExceptionCheckpoint, "", [(0, 9), (9, 21)]),
}  # fmt: skip


@pytest.mark.parametrize("name", OWN)
def test_the_trainers_own_checkpoints(name: str, tmp_path: Path) -> None:
    make, ckpt, runs = OWN[name]
    setting = Setting(validate_every=1.0 if name == "epochs" else None)
    given: Any = None
    for start, end in runs:
        fail = end - start if end < EPOCHS * BATCHES else -1
        callbacks = [make(tmp_path)] if ckpt or fail >= 0 else []
        options = setting.flags() | {"fail": fail, "ckpt": given}
        got = seen(tmp_path, setting.data(0), *callbacks, **options)
        assert got == uninterrupted(setting).seen[start:end]
        given = ckpt or tmp_path / "on_exception.ckpt"


class Dropout(Model):
    """A model that draws."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.seen[-1] = self.seen[-1]._replace(data=f"{self.seen[-1].data} {torch.rand(1).item()}")
        return loss


@pytest.mark.parametrize("own_generator", [False, True])
@pytest.mark.parametrize(
    ("hook", "steps"), [("start", 0), ("batch", 3), ("batch", BATCHES), ("epoch", BATCHES)]
)
def test_without_a_seed_the_callback_restores_what_the_program_draws(
    hook: str, steps: int, own_generator: bool, tmp_path: Path
) -> None:
    def run(seed: int, *callbacks: Callback, **options: Any) -> list[Seen]:
        torch.manual_seed(seed)
        generator = torch.Generator().manual_seed(seed) if own_generator else None
        # What unseeded generators of a dataset count from is known when a pass has begun.
        dataset = Augmented() if steps else Call(drawn, 26)
        loader = DataLoader(dataset, 4, True, generator=generator)
        return seen(tmp_path, loader, RandomStateCallback(), *callbacks, model=Dropout(), **options)

    path = tmp_path / "a.ckpt"
    whole = run(1, Saver(path, hook, steps))
    assert run(2, ckpt=path) == whole[steps:]


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

    whole = seen(tmp_path, Data(), Saver(tmp_path / "a.ckpt", "batch", 3))
    failing = Data()
    failing.fails = True
    assert seen(tmp_path, failing, fail=9, ckpt=tmp_path / "a.ckpt") == []
    assert seen(tmp_path, Data(), ckpt=tmp_path / "b.ckpt") == whole[3:]


class Peek(Callback):
    """Takes a batch of the training loader in a hook, once, as programs do to log examples."""

    def __init__(self, hook: str) -> None:
        self.hook: str | None = hook
        setattr(self, hook, self.peek)

    def peek(self, trainer: Trainer, *args: Any) -> None:
        if self.hook is not None:
            next(iter(trainer.train_dataloader))
            self.hook = None


@pytest.mark.parametrize("hook", ["on_train_start", "on_train_epoch_start", "on_train_batch_end"])
def test_a_state_is_not_that_of_a_peek(hook: str, tmp_path: Path) -> None:
    path, options = tmp_path / "a.ckpt", {"max_epochs": -1, "max_steps": 3}
    whole = seen(tmp_path, plain_loader(), Peek(hook))
    assert (
        seen(tmp_path, plain_loader(), Saver(path, "batch", 3), Peek(hook), **options) == whole[:3]
    )
    assert seen(tmp_path, plain_loader(), ckpt=path) == whole[3:]
    if hook == "on_train_batch_end":
        assert seen(tmp_path, plain_loader(), Peek(hook), ckpt=path) == whole[3:]


@pytest.mark.parametrize("steps", [3, BATCHES])
def test_a_checkpoint_of_a_run_with_torchs_loader(
    steps: int, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    """Saved mid-epoch, a warning says what is lost; at the end of an epoch nothing is."""
    path = tmp_path / "a.ckpt"
    torchs = torch.utils.data.DataLoader(Augmented(), 4)
    seen(tmp_path, torchs, Saver(path, "batch", steps), fail=steps)
    seen(tmp_path, plain_loader(), Saver(tmp_path / "b.ckpt", "batch", 2), ckpt=path)
    seen(tmp_path, plain_loader(), ckpt=tmp_path / "b.ckpt")  # one of ours
    seen(tmp_path, plain_loader())
    assert sum("LL327" in str(each.message) for each in recwarn) == (steps < BATCHES)


def test_a_checkpoint_that_is_validated_with_does_not_move_a_later_fit(tmp_path: Path) -> None:
    setting, path = Setting(validate_every=1.0), tmp_path / "a.ckpt"
    seen(tmp_path, setting.data(0), Saver(path, "batch", 3), fail=4, **setting.flags())
    model, data = Model(), setting.data(0)
    trainer = quiet_trainer(tmp_path, max_epochs=EPOCHS)
    trainer.validate(model, data, ckpt_path=path, verbose=False, weights_only=True)
    trainer.fit(model, data)
    assert model.seen == uninterrupted(setting).seen
    assert isinstance(trainer.callbacks[0], LoaderStateCallback)


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    setting, path = Setting(short=10), tmp_path / "a.ckpt"
    seen(tmp_path, setting.data(0), Saver(path, "epoch", BATCHES), fail=BATCHES)
    with pytest.raises(StateError, match="2 training loaders"):
        seen(tmp_path, Setting().data(0), ckpt=path)
    seen(tmp_path, plain_loader(), Saver(path, "batch", 3), fail=4)
    with pytest.raises(StateError, match="dataset_length=26, .* dataset_length=24.*LL301"):
        seen(tmp_path, DataLoader(Augmented(24), 4, True, seed=5), ckpt=path)


def test_the_resumed_epoch_does_not_start_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    started: list[int] = []

    class Starting(Saver):
        def on_train_epoch_start(self, trainer: Trainer, *_: Any) -> None:
            started.append(trainer.current_epoch)

    caplog.set_level("INFO")
    seen(tmp_path, plain_loader(), Starting(tmp_path / "a.ckpt", "batch", BATCHES + 1))
    seen(tmp_path, plain_loader(), Starting(tmp_path, "never"), ckpt=tmp_path / "a.ckpt")
    assert started == [0, 1, 2, 2]
    assert "continues epoch 1 at batch 1" in caplog.text


# --- loaders with and without a length, combined ---


def combined(kinds: Any, mode: str | None) -> Any:
    """Loaders by a letter and their number of samples, in batches of 2; each has its seed."""
    seeds = itertools.count()

    def tree(kind: Any) -> Any:
        if isinstance(kind, dict):
            return {name: tree(part) for name, part in kind.items()}
        if isinstance(kind, list):
            return [tree(part) for part in kind]
        samples, seed = int(kind[1:]), next(seeds)
        stream = Counting(samples, lambda number: torch.tensor([1000.0 + number]))
        mapped = Call(lambda index: index + torch.rand(1) / 2, samples)
        options: dict[str, Any] = {
            "s": {"dataset": stream},
            "n": {"dataset": stream, "num_shards": 2},
            "m": {"dataset": mapped, "shuffle": True},
        }[kind[0]]
        return DataLoader(batch_size=2, seed=seed, **options)

    return tree(kinds) if mode is None else CombinedLoader(tree(kinds), mode)


COMBINED: dict[str, tuple[Any, str | None, dict[str, Any]]] = {
    # Without a length Lightning takes a batch ahead.
    "shards, limit": ("n8", None, {"limit_train_batches": 3}),
    "min_size, the stream ends": ({"a": "s6", "b": "m8"}, "min_size", {}),
    "max_size, the map-style ends": ({"a": "s10", "b": "m4"}, "max_size", {}),
    "cycled stream": ({"a": "n4", "b": "m9"}, "max_size_cycle", {}),
    "nested": ([{"x": "m6", "y": ["s10", "m4"]}, "n6"], None, {}),
}


@pytest.mark.parametrize("name", COMBINED)
def test_combined_and_resumed_after_each_step(name: str, tmp_path: Path) -> None:
    kinds, mode, options = COMBINED[name]
    run = functools.partial(seen, tmp_path, max_epochs=2, **options)
    savers = Saver(tmp_path / "{}.ckpt", "batch"), Saver(tmp_path / "epoch{}.ckpt", "epoch")
    expected = run(combined(kinds, mode), *savers)
    assert {each.epoch for each in expected} == {0, 1}
    length = sum(each.epoch == 0 for each in expected)
    for file, step in [*((str(n), n) for n in range(1, len(expected))), (f"epoch{length}", length)]:
        got = run(combined(kinds, mode), ckpt=tmp_path / f"{file}.ckpt")
        assert got == expected[step:], file
    if name == "nested":
        for step in (0, length - 1, length):
            run(combined(kinds, mode), Saver(tmp_path / "failed.ckpt", "exception"), fail=step)
            got = run(combined(kinds, mode), ckpt=tmp_path / "failed.ckpt")
            assert got == expected[step:], step


def test_one_loader_under_two_keys_is_reported_where_it_cannot_resume(tmp_path: Path) -> None:
    def loaders() -> CombinedLoader:
        loader = plain_loader()
        return CombinedLoader({"a": loader, "b": loader}, "min_size")

    amid, end = (Saver(tmp_path / f"{hook}.ckpt", hook) for hook in ("batch", "epoch"))
    fit(tmp_path, loaders(), end)
    reported = "one training loader is under several keys"
    with pytest.warns(UserWarning, match=reported):
        fit(tmp_path, loaders(), amid, fail=2)
    with pytest.warns(UserWarning, match=reported):
        fit(tmp_path, loaders(), ckpt=amid.path)


@pytest.mark.parametrize("kind", ["stream", "map-style"])
def test_loaders_that_are_reloaded_go_on(kind: str, tmp_path: Path) -> None:
    """A resumed run with new loaders in each epoch is exact, also after a failed first step."""

    def loaders() -> Any:
        if kind == "stream":
            return DataLoader(Counting(9, lambda n: n + torch.rand(1) / 2), 2, seed=3)
        return DataLoader(Call(lambda index: index + torch.rand(1) / 2, 13), 2, True, seed=3)

    def run(*callbacks: Callback, **options: Any) -> list[Seen]:
        return seen(tmp_path, loaders, *callbacks, reload_dataloaders_every_n_epochs=1, **options)

    hooks = ("start", "batch", "epoch")
    expected = run(*(Saver(tmp_path / (hook + "{}.ckpt"), hook) for hook in hooks))
    begins = [step for step, each in enumerate(expected) if each.batch_idx == 0]
    for hook, step in [("batch", begins[1] - 1), ("start", begins[1]), ("epoch", begins[2])]:
        assert run(ckpt=tmp_path / f"{hook}{step}.ckpt") == expected[step:], (hook, step)
    run(Saver(tmp_path / "failed.ckpt", "exception"), fail=begins[1])
    assert run(ckpt=tmp_path / "failed.ckpt") == expected[begins[1] :]


def test_reloaded_loaders_without_a_seed_are_reported(tmp_path: Path) -> None:
    def data() -> Any:
        return DataLoader(Call(drawn, 26), 4, True)

    path, again = tmp_path / "a.ckpt", {"reload_dataloaders_every_n_epochs": 1}
    fit(tmp_path, data, RandomStateCallback(), Saver(path, "epoch", BATCHES), **again)
    with pytest.warns(UserWarning, match="makes one iterator less"):
        fit(tmp_path, data, RandomStateCallback(), ckpt=path, **again)


@pytest.mark.parametrize("interruptions", [1, 2])
def test_an_interrupted_validation_is_run_as_a_whole(interruptions: int, tmp_path: Path) -> None:
    """Lightning would validate on the number of batches that were left, and begin at the first."""
    setting, ckpt = Setting(validate_every=3), None
    for number in range(interruptions):
        stopped = Model()
        stopped.fail_validation = (1, 1)
        saver = Saver(tmp_path / f"{number}.ckpt", "exception")
        fit(tmp_path, setting.data(0), saver, model=stopped, ckpt=ckpt, **setting.flags())
        ckpt = saver.path
    _, model = fit(tmp_path, setting.data(0), ckpt=ckpt, **setting.flags())
    assert model.seen == uninterrupted(setting).seen[3:]
    assert model.validated == [8] * (2 * EPOCHS)


# --- the end of a fit ---


class Pruned(Exception):
    pass


class Prune(Callback):
    """Raises as a tuner's callback does that gives a trial up."""

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.sanity_checking:
            raise Pruned


def test_pruned_trials_leave_no_workers(tmp_path: Path) -> None:
    options = {"num_workers": 1, "persistent_workers": True}
    before = psutil.Process().children()  # a fork server of another test's, say
    for _ in range(2):
        train, val = (DataLoader(Augmented(8), 4, **options) for _ in range(2))
        trainer = quiet_trainer(tmp_path, callbacks=[Prune()])
        with pytest.raises(Pruned):
            trainer.fit(Model(), train, val)
        assert psutil.Process().children() == before
    quiet_trainer(tmp_path).validate(Model(), val, verbose=False)
    assert psutil.Process().children() == before


# --- with and without the entry point ---


@pytest.mark.parametrize("installed", [False], indirect=True)
def test_with_the_callback_passed_it_need_not_be_installed(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    expected = seen(tmp_path, plain_loader, LoaderStateCallback())
    # It need not be the first of the callbacks.
    fit(tmp_path, plain_loader, Saver(path, "batch", 5), LoaderStateCallback(), fail=6)
    assert seen(tmp_path, plain_loader, LoaderStateCallback(), ckpt=path) == expected[5:]


def kinds(trainer: Trainer) -> list[type]:
    return [type(each) for each in trainer.callbacks if isinstance(each, LoaderStateCallback)]


def test_a_trainer_of_torchs_loaders_is_left_alone(tmp_path: Path) -> None:
    def torchs() -> Any:
        return torch.utils.data.DataLoader(Augmented(), 4, True)

    trainer, _ = fit(tmp_path, torchs, max_steps=2, max_epochs=-1)
    assert kinds(trainer) == []
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    saved = torch.load(tmp_path / "a.ckpt", weights_only=True)
    assert "combined_loader" not in saved["loops"]["fit_loop"]["state_dict"]


def test_a_list_of_callbacks_serves_several_trainers(tmp_path: Path) -> None:
    """Lightning adds the callbacks of entry points to the very list that it was given."""
    callbacks: list[Callback] = [Saver(tmp_path / "never.ckpt", "never")]
    for _ in range(2):
        trainer = quiet_trainer(tmp_path, callbacks=callbacks)
        trainer.fit(Model(), plain_loader())
        assert kinds(trainer) == [LoaderStateCallback]
