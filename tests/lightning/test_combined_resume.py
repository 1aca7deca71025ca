"""Loaders with and without a length, combined by Lightning: resumed anywhere, steps are the same.

Lightning takes a batch ahead, of all loaders at once, where their combination has no length; that
depends on the mode and on limits.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import CombinedLoader
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, RandomSampler

import lit_loader
from lit_loader import DataLoader, LoaderDataModule
from tests.support import older_lightning  # noqa: F401
from tests.support.lightning_runs import quiet_trainer

pytestmark = [
    pytest.mark.filterwarnings("ignore:Stream has no state_dict"),
    pytest.mark.filterwarnings("ignore:Found `dataloader_iter`"),
    pytest.mark.filterwarnings("ignore:You are using the `dataloader_iter`"),
    pytest.mark.filterwarnings("ignore:You requested to overfit"),
    pytest.mark.filterwarnings("ignore:`train_dataloader` yielded None"),
]


class Stream(IterableDataset[Tensor]):
    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[Tensor]:
        shard, num_shards = lit_loader.get_shard()
        for number in range(shard, self.samples, num_shards):
            yield torch.tensor([1000.0 + number])


class Map(Dataset[Tensor]):
    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Tensor:
        return index + torch.rand(1) / 2


class Model(LightningModule):
    """Notes what each whole step saw; the step after ``last`` steps fails."""

    def __init__(self, last: int = -1) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen: list[Any] = []
        self.last = last

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if len(self.seen) == self.last:
            raise LookupError("in a step")
        leaves = CombinedLoader(batch).flattened
        rows = [None if leaf is None else leaf.flatten().tolist() for leaf in leaves]
        self.seen.append((self.trainer.current_epoch, batch_idx, rows))
        return self.layer(torch.ones(1)).sum()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class WithIterator(Model):
    """Takes its batches itself, so that Lightning takes none ahead."""

    def training_step(self, dataloader_iter: Any) -> Tensor:  # type: ignore[override]
        batch, batch_idx, _ = next(dataloader_iter)
        return super().training_step(batch, batch_idx)


class Saver(Callback):
    def __init__(self, root: Path) -> None:
        self.root = root
        self.numbers = itertools.count(1)

    def on_train_batch_end(self, trainer: Trainer, *args: Any) -> None:
        trainer.save_checkpoint(self.root / f"{next(self.numbers)}.ckpt")

    def on_exception(self, trainer: Trainer, *args: Any) -> None:
        trainer.save_checkpoint(self.root / "failed.ckpt")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        trainer.save_checkpoint(self.root / f"epoch{trainer.current_epoch}.ckpt")


def made(kind: str, seed: int = 0) -> DataLoader[Any]:
    """A loader of ``kind``: a letter and how many samples, in batches of 2."""
    samples = int(kind[1:])
    if kind[0] == "s":
        return DataLoader(Stream(samples), 2, seed=seed)
    if kind[0] == "n":
        return DataLoader(Stream(samples), 2, num_shards=2, seed=seed)
    if kind[0] == "r":
        return DataLoader(Map(samples), 2, sampler=RandomSampler(range(samples)), seed=seed)
    return DataLoader(Map(samples), 2, shuffle=True, seed=seed)


def combined(kinds: Any, mode: str | None) -> Any:
    seeds = itertools.count()

    def tree(kind: Any) -> Any:
        if isinstance(kind, dict):
            return {name: tree(part) for name, part in kind.items()}
        if isinstance(kind, list):
            return [tree(part) for part in kind]
        return made(kind, next(seeds))

    return tree(kinds) if mode is None else CombinedLoader(tree(kinds), mode)


def fit(
    root: Path, kinds: Any, mode: str | None, model: Model, path: Path | None = None, **options: Any
) -> list[Any]:
    trainer = quiet_trainer(root, max_epochs=2, callbacks=[Saver(root)], **options)
    try:
        trainer.fit(model, combined(kinds, mode), ckpt_path=path, weights_only=True)
    except LookupError:
        assert len(model.seen) == model.last
    return model.seen


CASES: dict[str, tuple[Any, str | None, dict[str, Any]]] = {
    "stream, limit": ("s8", None, {"limit_train_batches": 3}),
    "shards, limit": ("n8", None, {"limit_train_batches": 3}),
    "stream, overfit": ("s8", None, {"overfit_batches": 2}),
    "min_size": ({"a": "s8", "b": "m6"}, "min_size", {}),
    "min_size, the stream ends": ({"a": "s6", "b": "m8"}, "min_size", {}),
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
    "nested": ([{"x": "m6", "y": ["s10", "m4"]}, "n6"], None, {}),
}


@pytest.mark.parametrize("name", CASES)
def test_resumed_after_each_step(name: str, tmp_path: Path) -> None:
    kinds, mode, options = CASES[name]
    torch.manual_seed(3)  # for torch's sampler
    expected = fit(tmp_path, kinds, mode, Model(), **options)
    assert {epoch for epoch, *_ in expected} == {0, 1}
    again = tmp_path / "again"
    for step in range(1, len(expected)):
        got = fit(again, kinds, mode, Model(), tmp_path / f"{step}.ckpt", **options)
        assert got == expected[step:], step
    got = fit(again, kinds, mode, Model(), tmp_path / "epoch0.ckpt", **options)
    assert got == [seen for seen in expected if seen[0] > 0], "after the epoch"


@pytest.mark.parametrize("name", ["max_size, the map-style ends", "cycled map-style", "nested"])
def test_resumed_after_a_step_that_failed(name: str, tmp_path: Path) -> None:
    kinds, mode, options = CASES[name]
    expected = fit(tmp_path, kinds, mode, Model(), **options)
    for step in range(len(expected)):
        fit(tmp_path, kinds, mode, Model(step), **options)
        got = fit(tmp_path, kinds, mode, Model(), tmp_path / "failed.ckpt", **options)
        assert got == expected[step:], step


def test_a_step_that_takes_its_batches_itself(tmp_path: Path) -> None:
    kinds = {"a": "s8", "b": "m8"}
    expected = fit(tmp_path, kinds, "max_size", WithIterator())
    for step in (1, 3):
        got = fit(tmp_path / "again", kinds, "max_size", WithIterator(), tmp_path / f"{step}.ckpt")
        assert [rows for *_, rows in got] == [rows for *_, rows in expected[step:]], step


def test_a_split_of_a_stream_and_a_map_style_dataset(tmp_path: Path) -> None:
    def data() -> LoaderDataModule:
        datasets = {"train": {"stream": Stream(8), "map": Map(8)}}
        return LoaderDataModule(datasets, {"batch_size": 2, "seed": 1}, train={"shuffle": None})

    def run(root: Path, **options: Any) -> list[Any]:
        model, trainer = Model(), quiet_trainer(root, max_epochs=2, callbacks=[Saver(root)])
        trainer.fit(model, datamodule=data(), weights_only=True, **options)
        return model.seen

    expected = run(tmp_path)
    assert len(expected) == 8
    for step in (2, 4, 5):
        assert run(tmp_path / "again", ckpt_path=tmp_path / f"{step}.ckpt") == expected[step:], step
