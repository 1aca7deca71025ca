"""What a user reads: errors without a word of the architecture, and the repr of public objects."""

import os
import traceback
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from lit_loader import (
    DataLoader,
    LoaderConfig,
    MixtureStream,
    SharedSequence,
    TokenBudgetBatchSampler,
    WorkerDiedError,
)
from tests.support.samples import Counting


class Ending(TensorDataset):
    """Its third sample ends the worker that reads it."""

    def __getitem__(self, index: int) -> Any:
        if index == 2:
            os._exit(7)
        return super().__getitem__(index)


def test_a_death_has_no_second_traceback() -> None:
    dataset = Ending(torch.arange(8))
    with DataLoader(dataset, 4, num_workers=1, max_worker_restarts=0) as loader:
        with pytest.raises(WorkerDiedError, match="fetching index 2") as caught:
            next(iter(loader))
        shown = "".join(traceback.format_exception(caught.value))
    assert "During handling" not in shown
    assert "BoardRow" not in shown
    message = str(caught.value)
    assert "exited by itself with code 7: something in the dataset, collate_fn or" in message


DATA = TensorDataset(torch.arange(10))

SHOWN: list[tuple[Any, str]] = [
    (
        lambda: DataLoader(DATA, 4, shuffle=True),
        "DataLoader(TensorDataset, batch_size=4, sampler=ShuffledSampler, num_workers=0)",
    ),
    (
        lambda: DataLoader(DATA, batch_size=None, rank=1, num_replicas=2),
        "DataLoader(TensorDataset, batch_size=None, sampler=OrderedSampler, num_workers=0, "
        "rank=1 of num_replicas=2)",
    ),
    (
        lambda: iter(DataLoader(Counting(), 2, num_workers=2)),
        "<LoaderIterator of DataLoader(Counting, batch_size=2, num_workers=2): not begun>",
    ),
    (
        lambda: LoaderConfig(sampler=list(range(1000)), drop_last=True),
        "LoaderConfig(sampler=[0, 1, 2, 3, 4, 5, ...], drop_last=True)",
    ),
    (
        lambda: MixtureStream({"web": [1], "books": [2]}, [3, 1]),
        "MixtureStream(weights={'books': 1, 'web': 3}, epoch_length=None, "
        "stopping_strategy='first_exhausted', seed=0)",
    ),
    (lambda: SharedSequence([1, 2]), "SharedSequence(2 records, 34 bytes)"),
    (
        lambda: TokenBudgetBatchSampler([5] * 2000, 10, seed=3),
        "TokenBudgetBatchSampler(2,000 samples in 1,000 batches, shuffle=True, "
        "num_replicas=1, seed=3)",
    ),
]


def test_repr() -> None:
    for make, text in SHOWN:
        assert repr(make()) == text


def test_an_iterator_tells_where_it_is() -> None:
    iterator = iter(DataLoader(DATA, 4))
    shown = [repr(iterator), *(repr(iterator) for _ in iterator), repr(iterator)]
    where = ["not begun", *(f"epoch 0, batch {n}" for n in (1, 2, 3)), "epoch 0, ended"]
    assert [text.rpartition(": ")[2] for text in shown] == [f"{each}>" for each in where]


def test_a_config_can_be_made_again_from_its_repr() -> None:
    config = LoaderConfig(batch_size=None, num_workers=3, seed=7, persistent_workers=True)
    assert eval(repr(config), {"LoaderConfig": LoaderConfig}) == config
