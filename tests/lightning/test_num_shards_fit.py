"""Trainings on streams with ``num_shards``: checkpoints of all readers, resumed by other ranks.

That one rank goes on with other workers is in test_resume.py ("shards").
"""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributed import HashStore, distributed_c10d
from torch.utils.data import IterableDataset

from lit_loader import DataLoader, LoaderDataModule, merge_states
from lit_loader.lightning import rank_states
from lit_loader.lightning.rank_states import RankStates
from tests.support import sharded_fit
from tests.support.exact import digest, state_behind
from tests.support.lightning_runs import SaveAt, quiet_trainer
from tests.support.programs import run_program
from tests.support.samples import Counting, Placed
from tests.support.sharded_fit import EPOCHS, Model, options, plain, stream

Seen = list[Any]


class Counted(Model):
    """Notes which batch of the epoch the Trainer takes each for."""

    def note(self, batch: Tensor) -> int:
        return self.trainer.fit_loop.epoch_loop.batch_idx


def whole() -> Seen:
    """What a loader without ranks and workers gives."""
    loader = DataLoader(stream(), **options(0))
    return [[epoch, int(batch[0, 0]), digest(batch)] for epoch in range(EPOCHS) for batch in loader]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_four_ranks_then_two_then_one(tmp_path: Path) -> None:
    expected = whole()
    done = 0
    for name, ranks, stop, before in [
        ("four", 4, 2, ""),
        ("two", 2, 11, "four"),  # the Trainer's steps: 2 of them were done by four ranks
        ("one", 1, 0, "two"),
    ]:
        run_program(Path(sharded_fit.__file__), tmp_path, ranks, "", f"{name},{stop},{before}")
        seen = [json.loads((tmp_path / f"{name}-{rank}.json").read_text()) for rank in range(ranks)]
        assert len({len(steps) for steps in seen}) == 1
        together = [step for steps in zip(*seen, strict=True) for step in steps]
        assert together == expected[done : done + len(together)]
        done += len(together)
    assert done == len(expected)


def test_ranks_count_alike_where_they_have_been_given_more_or_less(tmp_path: Path) -> None:
    """Three steps of two ranks are six batches: two of four ranks have had two, two have had one.

    Gradients that are accumulated, and validations, begin where a rank's count says.
    """
    file = tmp_path / "3.ckpt"
    quiet_trainer(tmp_path, max_steps=3, callbacks=[SaveAt(file, 3)]).fit(Model(), plain(2, 0))
    checkpoint = torch.load(file, weights_only=True)
    states = checkpoint["loops"]["fit_loop"]["state_dict"]
    states["combined_loader"] = [
        merge_states([*states["combined_loader"], state_behind(plain(2, 1), 3)])
    ]
    torch.save(checkpoint, file)
    seen = []
    for rank in range(4):
        model = Counted()
        quiet_trainer(tmp_path, max_epochs=1).fit(model, plain(4, rank), ckpt_path=file)
        seen.append(model.seen)
    assert [counts[0] for counts in seen] == [2] * 4
    assert [len(counts) for counts in seen] == [4, 4, 5, 5]


@pytest.mark.timeout(300)
def test_unequal_shards_under_ddp(tmp_path: Path) -> None:
    """Stopped where one rank repeats (or in the second epoch), and resumed."""

    def seen(name: str) -> list[Seen]:
        return [json.loads((tmp_path / f"{name}-{rank}.json").read_text()) for rank in range(2)]

    run_program(
        *(Path(sharded_fit.__file__), tmp_path, 2, "pad"),
        *("whole,0,", "first,14,", "second,0,first"),
    )
    whole = seen("whole")
    for rank, steps in enumerate(whole):
        epochs = [[step[1:] for step in steps if step[0] == epoch] for epoch in range(EPOCHS)]
        assert tuple(map(len, epochs)) == (17, 17)
        assert {reader % 2 for epoch in epochs for reader, _ in epoch} == {rank}
        distinct = [len({digest for _, digest in epoch}) for epoch in epochs]
        assert distinct == [11 if rank == 1 else 17] * EPOCHS
    first, second = seen("first"), seen("second")
    assert [one + other for one, other in zip(first, second, strict=True)] == whole


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> HashStore:
    """Pretend that this process is one of a job, whose store it has."""
    made = HashStore()
    monkeypatch.setattr(distributed_c10d, "_get_default_store", lambda: made)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    return made


def states_after(*steps: int) -> list[dict[str, Any]]:
    """States of as many ranks, each after so many batches."""
    return [
        state_behind(sharded_fit.plain(len(steps), rank), taken) for rank, taken in enumerate(steps)
    ]


def test_a_rank_that_does_not_come(store: HashStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_states, "PATIENCE", 0.01)
    states = states_after(2, 2)
    with pytest.warns(RuntimeWarning, match="holds the stream position of rank 0 only"):
        assert RankStates().merged(states[:1], 0, 2) == states[:1]


def test_a_rank_that_is_elsewhere(store: HashStore) -> None:
    one, other = states_after(2, 3)
    RankStates().merged([other], 0, 2)
    with pytest.warns(RuntimeWarning, match="taken after 2 batches on one rank and after 3"):
        assert RankStates().merged([one], 0, 2) == [one]


class Validated(Model):
    """Notes the samples that it is trained on, and how often it is validated."""

    width, validated = 1, 0

    def note(self, batch: Tensor) -> Any:
        return batch.flatten().tolist()

    def validation_step(self, *_: Any) -> None:
        self.validated += 1


class Sized(Counting):
    def __len__(self) -> int:
        return self.length


@pytest.mark.parametrize("samples", [21, 24])
def test_an_epoch_ends_with_its_stream(samples: int, tmp_path: Path) -> None:
    """And not at the length of the dataset, of which batches are not whole."""
    model, stream = Validated(), Sized(samples, lambda number: torch.tensor([number]))
    shards = {"num_shards": 5}
    data = LoaderDataModule({"train": stream, "val": [0.0]}, {"batch_size": 4}, train=shards)
    quiet_trainer(tmp_path, max_epochs=2, num_sanity_val_steps=0).fit(model, data)
    assert sorted(itertools.chain(*model.seen)) == sorted(2 * [*range(samples)])
    assert model.validated == 2


class WithArrays(Placed, IterableDataset[Tensor]):
    """Has arrays in its state, which have no ``==`` for the whole."""

    def numbers(self) -> range:
        return range(24)

    def item(self, number: int) -> Tensor:
        return torch.full((12,), number)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "held": [np.arange(3.0), torch.zeros(2)]}


@pytest.mark.parametrize("shards", [None, 1])
def test_a_state_with_arrays(shards: int | None, tmp_path: Path) -> None:
    def fit(ckpt_path: Path | None, **more: Any) -> Seen:
        model = Model()
        options = {"batch_size": 4, "num_shards": shards, "seed": 1}
        data = LoaderDataModule({"train": WithArrays()}, options)
        trainer = quiet_trainer(tmp_path, **more)
        trainer.fit(model, data, ckpt_path=ckpt_path, weights_only=False)
        return model.seen

    path = tmp_path / "one.ckpt"
    first = fit(None, callbacks=[SaveAt(path, 2)], max_steps=2)
    assert first + fit(path) == fit(None)
