"""Trainings on streams with ``num_shards``: checkpoints of all readers, and epochs' ends.

That ranks and one rank go on is in test_one_import.py and test_resume.py ("shards").
"""

import itertools
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed import HashStore, distributed_c10d
from torch.utils.data import IterableDataset

from lit_loader import DataLoader, LoaderDataModule, get_epoch
from lit_loader.lightning import rank_states
from lit_loader.lightning.rank_states import RankStates
from tests.support import tail_ranks
from tests.support.exact import state_behind
from tests.support.lightning_runs import quiet_trainer
from tests.support.samples import Counting
from tests.support.sharded_fit import Model


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
        state_behind(tail_ranks.loader("iterator", "keep", 0, 2, rank), taken)
        for rank, taken in enumerate(steps)
    ]


def test_a_rank_that_does_not_come(store: HashStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_states, "PATIENCE", 0.01)
    states = states_after(2, 2)
    with pytest.warns(RuntimeWarning, match="holds the stream position of rank 0 only"):
        assert RankStates().merged(states[:1], 0, 2) == states[:1]


def test_a_rank_that_is_elsewhere(store: HashStore) -> None:
    one, other = states_after(2, 3)
    RankStates().merged([other], 0, 2)
    with pytest.warns(RuntimeWarning, match="different steps"):
        assert RankStates().merged([one], 0, 2) == [one]


class Validated(Model):
    """Notes the samples that it is trained on, and how often it is validated."""

    width, validated = 1, 0

    def note(self, batch: Tensor) -> Any:
        return batch.flatten().tolist()

    def validation_step(self, *_: Any) -> None:
        self.validated += 1


class Live(IterableDataset[Tensor]):
    """A queue, of which ten make an epoch: what was taken is gone."""

    def __init__(self) -> None:
        self.taken, self.epochs = 0, list[int]()

    def __iter__(self) -> Iterator[Tensor]:
        self.epochs.append(get_epoch())
        for _ in range(10):
            self.taken += 1
            yield torch.tensor([self.taken])


@pytest.mark.skipif(
    version("lightning") < "2.6", reason="Lightning 2.5 drops the batch of ours too"
)
@pytest.mark.filterwarnings("ignore:.* has no state_dict", "ignore:You defined a `validation_step`")
def test_a_resume_between_epochs_takes_nothing_in_vain(tmp_path: Path) -> None:
    """Of torch's loader Lightning takes a batch, before it knows where it is, and drops it."""
    file, first = tmp_path / "end.ckpt", quiet_trainer(tmp_path, max_epochs=1)
    first.fit(Validated(), DataLoader(Live(), 2))
    first.save_checkpoint(file)
    live, model = Live(), Validated()
    quiet_trainer(tmp_path, max_epochs=3).fit(model, DataLoader(live, 2), ckpt_path=file)
    assert [*itertools.chain(*model.seen)] == [*range(1, 21)]
    assert live.taken == 20 and live.epochs == [1, 2]


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
