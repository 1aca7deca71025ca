"""States that an earlier layout of the package has written are resumed, to the byte.

``states/loaders.pt`` holds, by kind of loader, a state after two batches of epoch 2, and what came
then; ``states/trainer.ckpt`` is a Trainer's checkpoint after 8 of 12 steps. Both were written when
all modules of the package lay side by side, by the classes below. ``loaders-0.3.pt`` and
``trainer-*-0.3.ckpt`` are the same of release 0.3.0, of more kinds.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
)

import lit_loader
from lit_loader import (
    DataLoader,
    LoaderDataModule,
    StateError,
)
from lit_loader.core.seeding.bases import Bases
from tests.support.exact import loaded, state_behind
from tests.support.lightning_runs import quiet_trainer

STATES = Path(__file__).parent / "states"
LENGTH = 23


class Noisy:
    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> torch.Tensor:
        drawn = (
            random.randrange(10**6),
            int(np.random.randint(10**6)),
            int(torch.randint(10**6, ())),
        )
        return torch.tensor([index, *drawn])


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        share, shares = lit_loader.get_shard()
        for index in range(share, LENGTH, shares):
            yield torch.tensor([index, random.randrange(10**6)])


class Stateful(IterableDataset[torch.Tensor]):
    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        while self.at < LENGTH:
            self.at += 1
            yield torch.tensor([self.at, random.randrange(10**6)])
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def shuffled(**options: Any) -> Callable[[], DataLoader[Any]]:
    return lambda: DataLoader(Noisy(), 4, shuffle=True, seed=5, **options)


def sampled() -> DataLoader[Any]:
    sampler = RandomSampler(range(LENGTH), generator=torch.Generator().manual_seed(3))
    return DataLoader(Noisy(), 4, sampler=sampler, seed=5)


class Sharded(Stateful):
    """Gives a reader's share, and says where in that it is."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        share, shares = lit_loader.get_shard()
        while self.at * shares + share < LENGTH:
            self.at += 1
            yield torch.tensor([(self.at - 1) * shares + share, random.randrange(10**6)])
        self.at = 0


class Countdown(Sampler[int]):
    """Has a state of its own, and draws nothing."""

    def __init__(self) -> None:
        self.left = LENGTH

    def __iter__(self) -> Iterator[int]:
        while self.left:
            self.left -= 1
            yield self.left
        self.left = LENGTH

    def __len__(self) -> int:
        return LENGTH

    def state_dict(self) -> dict[str, int]:
        return {"left": self.left}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.left = state["left"]


def batch_sampled() -> DataLoader[Any]:
    sampler = RandomSampler(range(LENGTH), generator=torch.Generator().manual_seed(3))
    return DataLoader(Noisy(), batch_sampler=BatchSampler(sampler, 4, drop_last=True), seed=5)


def distributed() -> DataLoader[Any]:
    sampler = DistributedSampler(range(LENGTH), 2, 1, seed=5)  # type: ignore[arg-type]
    return DataLoader(Noisy(), 4, sampler=sampler, seed=5)


LOADERS: dict[str, Callable[[], DataLoader[Any]]] = {
    "shuffled": shuffled(),
    "ranked": shuffled(num_replicas=2, rank=1),
    "workers": shuffled(num_workers=2),
    "seeding-sample": shuffled(seeding="sample"),
    "sampler": sampled,
    "stream": lambda: DataLoader(Stream(), 4, seed=5),
    "stream-workers": lambda: DataLoader(Stream(), 4, seed=5, num_workers=2),
    "stateful": lambda: DataLoader(Stateful(), 4, seed=5),
}
ALL = {
    **LOADERS,
    "unseeded": lambda: DataLoader(Noisy(), 4, shuffle=True),
    "in-order": lambda: DataLoader(Noisy(), 4, num_workers=2, seed=5),
    "countdown": lambda: DataLoader(Noisy(), 4, sampler=Countdown(), seed=5),
    "batch-sampler": batch_sampled,
    "distributed": distributed,
    "shards": lambda: DataLoader(Sharded(), 4, seed=5, num_shards=3, num_workers=2),
    "shards-again": lambda: DataLoader(Stream(), 4, seed=5, num_shards=3),
    "stateful-workers": lambda: DataLoader(Sharded(), 4, seed=5, num_workers=2),
}


COMPARED = ("stateful",)
"""Streams of which a state of 0.3 leads some batches back, which are read again."""


@pytest.mark.filterwarnings("ignore:.*Stream has no state_dict")
@pytest.mark.parametrize(
    ("file", "kind"),
    [*(("loaders.pt", kind) for kind in LOADERS), *(("loaders-0.3.pt", kind) for kind in ALL)],
)
def test_loaders(file: str, kind: str) -> None:
    written = torch.load(STATES / file, weights_only=True)[kind]
    loader = loaded(ALL[kind](), written["state"])
    told: Any = nullcontext()
    if "0.3" in file and kind in COMPARED:  # by what only that release could say again
        told = pytest.warns(UserWarning, match="the state was saved by a release before 0.4, and")
    with told:
        assert [batch.tolist() for batch in loader] == written["rest"]
    assert [batch.tolist() for batch in loader] == written["next"]


class Rows:
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index), torch.rand(()).item()])


class RowStream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return (Rows()[index] for index in range(24))


TRAINED: dict[str, Callable[[], Any]] = {
    "rows": Rows,
    "stream": RowStream,
}
TRAINED_OPTIONS: dict[str, dict[str, Any]] = {
    "rows": {"shuffle": True},
}


class Seeing(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(1))
        self.seen: list[Any] = []

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        self.seen.append(batch.tolist())
        return self.w.sum() * batch.sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def trained(tmp_path: Path, kind: str, checkpoint: Path | None) -> list[Any]:
    model, options = Seeing(), TRAINED_OPTIONS.get(kind, {})
    loader = {"batch_size": 4, "seed": 7, "num_workers": 0, **options}
    trainer = quiet_trainer(tmp_path, max_epochs=2)
    trainer.fit(model, LoaderDataModule({"train": TRAINED[kind]()}, loader), ckpt_path=checkpoint)
    return model.seen


def test_a_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rest = trained(tmp_path, "rows", STATES / "trainer.ckpt")
    monkeypatch.setattr(Bases, "of", classmethod(lambda cls, seed: cls(*[seed] * 4, older=True)))
    assert rest == trained(tmp_path, "rows", None)[8:]


@pytest.mark.filterwarnings("ignore:.*Stream has no state_dict")
@pytest.mark.parametrize("kind", TRAINED)
def test_a_trainer_of_0_3(kind: str, tmp_path: Path) -> None:
    written = torch.load(STATES / "loaders-0.3.pt", weights_only=True)[f"trainer-{kind}"]
    assert trained(tmp_path, kind, STATES / f"trainer-{kind}-0.3.ckpt") == written


def test_versions() -> None:
    state = state_behind(DataLoader(Noisy(), 4, seed=3), 1)
    DataLoader(Noisy(), 4, seed=3).load_state_dict(state | {"version": 2})
    for change, words in (
        ({"version": state["version"] + 1}, "but only version 3 is known here: resume with the "),
        ({"version": None}, "but only version 3 is known here: resume with the release"),
        ({"version": 1}, "but only version 3 is known here: resume with the release"),
    ):
        with pytest.raises(StateError, match=words):
            DataLoader(Noisy(), 4, seed=3).load_state_dict(state | change)


@pytest.mark.parametrize(
    ("changes", "advice"),
    [
        ({"seed": 0}, "pass the state's seed as the loader's seed option"),
        ({"seeding": "sample"}, "resume with the same seeding"),
        ({"shuffle": True}, "resume with the same sampler or shuffle option"),
        ({"dataset": range(7)}, "resume with the dataset that the state was taken from"),
    ],
)
def test_a_loader_of_other_options_is_refused(changes: dict[str, Any], advice: str) -> None:
    options: dict[str, Any] = {"dataset": Noisy(), "batch_size": 4, "seed": 3}
    state = state_behind(DataLoader(**options), 1)
    with pytest.raises(StateError, match=f"state was taken with .*{advice}"):
        DataLoader(**options | changes).load_state_dict(state)
