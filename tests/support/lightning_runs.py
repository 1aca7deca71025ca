"""For the tests with Lightning.

A dataset, a model that notes what it sees, a callback that saves on the way, and quiet Trainers.
Releases of Lightning before 2.6, whose Trainer has no ``weights_only``, are given it: they load a
checkpoint as ``torch.load`` does by default.
"""

import functools
import inspect
from pathlib import Path
from typing import Any, NamedTuple

import lightning
import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from tests.support.exact import digests
from tests.support.samples import OfLength

needs_2_6 = pytest.mark.skipif(
    tuple(map(int, lightning.__version__.split(".")[:2])) < (2, 6),
    reason="finders before Lightning 2.6 look further than they are asked to",
)


def _without(method: Any) -> Any:
    @functools.wraps(method)
    def call(*args: Any, weights_only: Any = None, **kwargs: Any) -> Any:
        return method(*args, **kwargs)

    return call


for _name in ("fit", "validate", "test", "predict"):
    if "weights_only" not in inspect.signature(getattr(Trainer, _name)).parameters:
        setattr(Trainer, _name, _without(getattr(Trainer, _name)))


class Points(OfLength):
    """Vectors of three that hold their own index."""

    length = 12

    def __getitem__(self, index: int) -> Tensor:
        return torch.full((3,), float(index))


class Step(NamedTuple):
    """One step: where in the run it came, and the indices in its batch."""

    split: str
    epoch: int
    batch_idx: int
    loader: int
    indices: Any


class Noting(LightningModule):
    """Notes each step; a batch may be a tensor, or a list or dict of tensors and None."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)
        self.lr = 0.01
        self.steps: list[Step] = []

    def seen(self, split: str) -> list[Any]:
        """The indices of each batch of a split, the sanity check's left out."""
        return [step.indices for step in self.steps if step.split == split]

    def _note(self, split: str, batch: Any, batch_idx: int, loader: int = 0) -> Tensor:
        parts = {dict: lambda: list(batch.values()), list: lambda: batch}.get(
            type(batch), lambda: [batch]
        )()
        if self.trainer.sanity_checking:
            split = "sanity"
        indices = _indices(batch)
        self.steps.append(Step(split, self.trainer.current_epoch, batch_idx, loader, indices))
        return self.layer(torch.cat([part for part in parts if part is not None])).mean()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self._note("train", batch, batch_idx)

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self._note("val", batch, batch_idx, dataloader_idx)

    def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self._note("test", batch, batch_idx, dataloader_idx)

    def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Tensor:
        self._note("predict", batch, batch_idx, dataloader_idx)
        return batch[:, 0]

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.lr)


def _indices(batch: Any) -> Any:
    if isinstance(batch, dict):
        return {name: _indices(part) for name, part in batch.items()}
    if isinstance(batch, (list, tuple)):
        return [_indices(part) for part in batch]
    return None if batch is None else [int(value) for value in batch[:, 0]]


class Seen(LightningModule):
    """Notes which samples, made with which random numbers, it is trained on."""

    width = 8  # numbers of a sample

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(self.width, 1)
        self.seen: list[Any] = []

    def note(self, batch: Tensor) -> Any:
        rows = zip(batch[:, 0].tolist(), digests(batch), strict=True)
        return [f"{index:.0f}:{digest}" for index, digest in rows]

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        self.seen.append(self.note(batch))
        return self.layer(batch.float()).mean()

    def predict_step(self, batch: Tensor, batch_idx: int) -> list[int]:
        return [int(index) for index in batch[:, 0]]

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class SaveAt(Callback):
    """Saves a checkpoint after so many steps."""

    def __init__(self, path: Path, steps: int) -> None:
        self.path, self.steps = path, steps

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if trainer.global_step == self.steps:
            trainer.save_checkpoint(self.path)


class Parallel:
    """What a data module asks of a Trainer, as one of a strategy with several ranks says it."""

    overfit_batches = 0.0

    def __init__(self, num_replicas: int, rank: int, shard: bool = True) -> None:
        self.distributed_sampler_kwargs = {"num_replicas": num_replicas, "rank": rank}
        self._accelerator_connector = type("", (), {"use_distributed_sampler": shard})


def quiet_trainer(root: Path, kind: Any = Trainer, **options: Any) -> Trainer:
    """One epoch on the CPU, with nothing printed or written, unless the options say otherwise."""
    quiet: dict[str, Any] = {
        "accelerator": "cpu",
        "devices": 1,
        "max_epochs": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "default_root_dir": root,
    }
    made: Trainer = kind(**{**quiet, **options})
    return made
