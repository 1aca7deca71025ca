"""Real Trainers, resumed with another batch size or number of ranks: nothing left out.

Each resumed run is compared with the last part of a run that had the new batch size all along:
data, epoch, batch index, which batch is the last, validations. Seeds are those of the samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import CombinedLoader
from torch import Tensor, nn, optim

from lit_loader import DataLoader, LoaderDataModule
from tests.support import older_lightning  # noqa: F401
from tests.support.exact import Augmented, digest

pytestmark = pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no")

SAMPLES, EPOCHS = 24, 2


class Model(LightningModule):
    """Notes every whole training step and every validation; fails in a step, if told to."""

    def __init__(self, fail: int = -1, fail_validation: tuple[int, int] | None = None) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 1)
        self.fail, self.fail_validation = fail, fail_validation
        self.seen: list[Any] = []
        self.validations: list[tuple[int, int]] = []
        self.validated: list[int] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if len(self.seen) == self.fail:
            raise LookupError("in a step")
        trainer = self.trainer
        rows = batch if isinstance(batch, Tensor) else batch[0]
        several = [batch] if isinstance(batch, Tensor) else batch
        names = "+".join("ended" if each is None else digest(each) for each in several)
        self.seen.append((trainer.current_epoch, batch_idx, trainer.is_last_batch, names))
        return self.layer(rows.float()).mean()

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
        return optim.SGD(self.parameters(), lr=0.01)


class Saver(Callback):
    def __init__(self, path: Path, hook: str, steps: int) -> None:
        self.path, self.hook, self.steps = path, hook, steps

    def save(self, trainer: Trainer, hook: str) -> None:
        done = len(trainer.lightning_module.seen)
        if hook == self.hook and done == self.steps and not trainer.sanity_checking:
            trainer.save_checkpoint(self.path)

    def on_train_batch_end(self, trainer: Trainer, *args: Any) -> None:
        self.save(trainer, "batch")

    def on_train_epoch_end(self, trainer: Trainer, *args: Any) -> None:
        self.save(trainer, "epoch")

    def on_validation_end(self, trainer: Trainer, *args: Any) -> None:
        self.save(trainer, "validation")

    def on_exception(self, trainer: Trainer, *args: Any) -> None:
        self.save(trainer, "exception")


def fit(
    batch_size: int,
    *callbacks: Callback,
    validate: float | None = None,
    checkpoint: Path | None = None,
    fail: int = -1,
    fail_validation: tuple[int, int] | None = None,
    data: Any = None,
    **options: Any,
) -> tuple[Trainer, Model]:
    model = Model(fail, fail_validation)
    datasets = {"train": Augmented(SAMPLES)}
    if validate is not None:
        datasets["val"] = Augmented(8)
        options["val_check_interval"] = validate
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=list(callbacks),
        **{"max_epochs": EPOCHS, **options},
    )
    common = {"batch_size": batch_size, "seed": 5, "seeding": "sample"}
    module = data or LoaderDataModule(datasets, common, train={"shuffle": True})
    try:
        trainer.fit(model, module, ckpt_path=checkpoint, weights_only=True)
    except LookupError:
        assert fail >= 0 or fail_validation is not None
    return trainer, model


@dataclass(frozen=True)
class Case:
    """A run stopped after some samples, and resumed.

    Attributes:
        before: Batch size of the first run.
        after: That of the second.
        kind: What saves: a hook, or "max_steps", where the run ends by itself and is saved then.
        samples: Where.
        validate: val_check_interval.
        accumulate: accumulate_grad_batches.
    """

    before: int
    after: int
    kind: str
    samples: int
    validate: float | None = None
    accumulate: int = 1

    def possible(self) -> bool:
        within, each = self.samples % SAMPLES, SAMPLES // self.before
        if self.samples % self.before or within % self.after:
            return False
        if self.kind == "epoch":
            return not within
        if self.kind == "validation":
            if self.validate is None:
                return False
            every = self.validate if self.validate == 3 else int(each * self.validate)
            return ((self.samples // self.before - 1) % each + 1) % every == 0
        return self.kind != "max_steps" or self.accumulate == 1


def cases() -> Iterator[Case]:
    for before, after in [(2, 4), (8, 2), (6, 4), (4, 4)]:
        for kind in ("batch", "exception", "max_steps", "validation", "epoch"):
            for samples in (8, 12, 16, 24, 32, 40):
                for validate in (None, 0.5, 1.0, 3):
                    for accumulate in (1, 2):
                        case = Case(before, after, kind, samples, validate, accumulate)
                        if case.possible():
                            yield case


SMOKE = {
    Case(2, 4, "batch", 8),
    Case(2, 4, "exception", 12, 0.5),
    Case(2, 4, "max_steps", 32, 1.0),
    Case(8, 2, "batch", 16, None, 2),
    Case(8, 2, "validation", 24, 1.0),
    Case(6, 4, "validation", 12, 0.5, 2),
    Case(6, 4, "epoch", 24, 3),
    Case(4, 4, "batch", 24, 1.0),
}
CASES = [
    pytest.param(case, id=str(case)[5:-1], marks=[] if case in SMOKE else [pytest.mark.slow])
    for case in cases()
]


@cache
def uninterrupted(batch_size: int, validate: float | None, accumulate: int) -> Model:
    _, model = fit(batch_size, validate=validate, accumulate_grad_batches=accumulate)
    return model


@pytest.mark.parametrize("case", CASES)
def test_another_batch_size(case: Case, tmp_path: Path) -> None:
    path, steps = tmp_path / "a.ckpt", case.samples // case.before
    options: dict[str, Any] = {
        "validate": case.validate, "accumulate_grad_batches": case.accumulate,
    }  # fmt: skip
    if case.kind == "max_steps":
        trainer, _ = fit(case.before, max_steps=steps, max_epochs=-1, **options)
        trainer.save_checkpoint(path)
    else:
        fail = steps if case.kind == "exception" else steps + 1
        fit(case.before, Saver(path, case.kind, steps), fail=fail, **options)
    trainer, model = fit(case.after, checkpoint=path, **options)
    expected = uninterrupted(case.after, case.validate, case.accumulate)
    done, each = case.samples // case.after, SAMPLES // case.after
    assert model.seen == expected.seen[done:]

    def later(validations: list[tuple[int, int]]) -> list[tuple[int, int]]:
        # Whether one at the very place of the checkpoint comes before or after it is the hook's.
        return [(epoch, batch) for epoch, batch in validations if epoch * each + batch > done]

    assert later(model.validations) == later(expected.validations)
    assert set(model.validated) <= {8}
    assert trainer.fit_loop.epoch_loop._batches_that_stepped == trainer.global_step


@pytest.mark.parametrize(("before", "after"), [(2, 4), (4, 2), (4, 4)])
def test_an_interrupted_validation_is_run_as_a_whole(
    before: int, after: int, tmp_path: Path
) -> None:
    """Lightning would validate on as many batches as were left, and begin with the first."""
    saver = Saver(tmp_path / "a.ckpt", "exception", 12 // before)
    _, stopped = fit(before, saver, validate=0.5, fail_validation=(1, 1))
    assert stopped.validated == [before]
    _, model = fit(after, validate=0.5, checkpoint=tmp_path / "a.ckpt")
    assert model.seen == uninterrupted(after, 0.5, 1).seen[12 // after :]
    assert model.validated == [8, 8, 8, 8]


def test_a_limit_that_is_reached_by_the_conversion(tmp_path: Path) -> None:
    """Of five batches, eight are behind: the epoch is over."""
    fit(4, Saver(tmp_path / "a.ckpt", "batch", 4), fail=5, limit_train_batches=5)
    _, model = fit(2, checkpoint=tmp_path / "a.ckpt", limit_train_batches=5)
    _, expected = fit(2, limit_train_batches=5)
    assert model.seen == expected.seen[5:]


@pytest.mark.parametrize("mode", ["max_size_cycle", "max_size", "min_size"])
@pytest.mark.parametrize(("before", "after"), [(2, 4), (4, 2)])
@pytest.mark.parametrize("samples", [4, 16])
def test_several_loaders(mode: Any, before: int, after: int, samples: int, tmp_path: Path) -> None:
    class Several(LoaderDataModule):
        def train_dataloader(self) -> Any:
            # As many batches of the short one are behind as of the long one: both change alike.
            loaders = [self.make_loader("train"), self.make_loader("train", Augmented(20))]
            return CombinedLoader(loaders, mode)

    def data(size: int) -> LoaderDataModule:
        common = {"batch_size": size, "seed": 5, "seeding": "sample"}
        return Several({"train": Augmented(SAMPLES)}, common, train={"shuffle": True})

    steps = samples // before
    fit(before, Saver(tmp_path / "a.ckpt", "batch", steps), fail=steps + 1, data=data(before))
    _, model = fit(after, checkpoint=tmp_path / "a.ckpt", data=data(after))
    _, expected = fit(after, data=data(after))
    assert model.seen == expected.seen[samples // after :]


@pytest.mark.parametrize(
    ("before", "after", "samples"), [(2, 4, 8), (4, 2, 8), (4, 1, 16), (1, 3, 12)]
)
def test_another_number_of_ranks(before: int, after: int, samples: int, tmp_path: Path) -> None:
    """Rank 0 alone, with the share that it has among so many: its batches are a part of all."""

    def fit_rank(ranks: int, *callbacks: Callback, **options: Any) -> Model:
        class Own(LoaderDataModule):
            def train_dataloader(self) -> Any:
                return DataLoader(
                    Augmented(SAMPLES), 2, True, num_replicas=ranks, rank=0, seed=5,
                    seeding="sample",
                )  # fmt: skip

        trainer_options = {"use_distributed_sampler": False}
        return fit(2, *callbacks, data=Own(), **trainer_options, **options)[1]

    steps = samples // (2 * before)
    fit_rank(before, Saver(tmp_path / "a.ckpt", "batch", steps), fail=steps + 1)
    model = fit_rank(after, checkpoint=tmp_path / "a.ckpt")
    assert model.seen == fit_rank(after).seen[samples // (2 * after) :]
