"""``num_shards``: what a reader gives does not depend on who serves it, or on how often it stops.

The reference is a loader without workers and ranks. Every sample says which reader it was read by,
what the dataset was told about it, and what it drew from each generator.
"""

import functools
import itertools
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import ChainDataset, get_worker_info

import lit_loader
from lit_loader import DataLoader, MixtureStream, OptionError, StateError, TransportError
from tests.support.exact import StripedByWorkerInfo, Unshared, state_behind
from tests.support.samples import Counting
from tests.support.shard_data import COLUMNS, KINDS

SHARDS, LENGTH, SIZE = 4, 45, 3


def stream(kind: str) -> Any:
    return KINDS[kind](LENGTH, "torch")


def loader(dataset: Any, workers: int = 0, ranks: int = 1, rank: int = 0, **options: Any) -> Any:
    options = {"batch_size": SIZE, "num_shards": SHARDS, "seed": 7, **options}
    if ranks > 1:
        options |= {"num_replicas": ranks, "rank": rank, "uneven_ranks": "keep"}
    return DataLoader(dataset, num_workers=workers, **options)


def content(batch: Tensor) -> bytes:
    return batch.numpy().tobytes()


@functools.cache
def reference(kind: str) -> list[bytes]:
    return [content(batch) for batch in loader(stream(kind))]


def test_rounds_and_what_a_reader_is_told() -> None:
    batches = [np.frombuffer(batch).reshape(-1, COLUMNS) for batch in reference("iterator")]
    shards = [int(batch[0, 0]) for batch in batches]
    assert shards == [*range(SHARDS)] * 4  # 12 or 11 samples each, in threes
    for batch in batches:
        shard = batch[0, 0]
        assert (batch[:, [0, 1, 2, 3, 5]] == [shard, SHARDS, shard, SHARDS, 0]).all()
        assert (batch[:, 4] == batch[:, 6]).all()  # info.seed and torch.initial_seed()
    numbers = sorted(int(row[7]) for batch in batches for row in batch)
    assert numbers == [*range(LENGTH)]
    assert get_worker_info() is None


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_dataset_written_for_torch(workers: int) -> None:
    batches = [batch.tolist() for batch in loader(StripedByWorkerInfo(20), workers)]
    assert batches[:5] == [[0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7, 11], [12, 16]]
    assert sorted(itertools.chain(*batches)) == [*range(20)]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_that_does_not_ask(workers: int) -> None:
    with pytest.warns(UserWarning, match=r"Unshared is read by 4 readers \(num_shards\).*LL201"):
        assert len([*loader(Unshared(4), workers)]) == 8
    with pytest.warns(UserWarning, match="Unshared is read by 2 readers .*LL201"):
        [*DataLoader(Unshared(4), num_workers=2)]


class Sized(Counting):
    def __len__(self) -> int:
        return self.length


def test_the_length_is_not_known() -> None:
    """Four readers of five samples each make eight batches, and not seven."""
    one = loader(Sized())
    with pytest.raises(TypeError, match="num_shards=4"):
        len(one)
    assert len([*one]) == 8
    for options in ({"batch_size": None}, {"num_shards": 1}, {"num_shards": None}):
        assert len(loader(Sized(), **options)) == len([*loader(Sized(), **options)])


class Remembers(Counting):
    """Keeps what it has given in a list, and large numbers in arrays."""

    def __init__(self, table: np.ndarray[Any, Any]) -> None:
        super().__init__()
        self.given: list[int] = []
        self.table = table

    def __iter__(self) -> Iterator[Any]:
        for number in super().__iter__():
            self.given.append(number)
            self.table[0] += not self.table.flags.writeable or 1
            yield torch.tensor([number, len(self.given), int(self.table[0])])


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_each_reader_has_a_copy(workers: int) -> None:
    dataset = Remembers(np.zeros(3))
    rows = torch.cat([*loader(dataset, workers)])
    for row in rows.tolist():
        assert row[1] == row[2] == row[0] // SHARDS + 1
    assert dataset.given == [] and dataset.table[0] == 0


@pytest.mark.usefixtures("by_fork")  # cloudpickle would carry the file to another process
@pytest.mark.parametrize("workers", [0, 1])
def test_a_dataset_that_cannot_be_copied(workers: int) -> None:
    dataset = Counting()
    with open(os.devnull) as dataset.file:  # type: ignore[attr-defined]
        error = pytest.raises(TransportError, match=r"dataset\.file.*each shard has a copy")
        with error, loader(dataset, workers) as one:
            next(iter(one))


def _asks_for_the_dataset(worker: int) -> None:
    info = get_worker_info()
    assert info is not None and (info.id, info.num_workers) == (worker, 1)
    info.dataset.length = 3


def test_worker_init_fn_finds_no_dataset() -> None:
    with (
        pytest.raises(OptionError, match="worker_init_fn asks for .*num_shards"),
        loader(Counting(), 1, worker_init_fn=_asks_for_the_dataset) as one,
    ):
        next(iter(one))


class SplitByRanks(Counting):
    """Says so as streams of other libraries do."""

    def __init__(self, **said: Any) -> None:
        super().__init__()
        vars(self).update(said)


class SplitUnasked(SplitByRanks, Unshared):
    """Asks nobody which share it is to give."""


class Settings(dict[str, Any]):
    """Has every attribute, as some libraries' configurations do."""

    def __getattr__(self, name: str) -> Any:
        return Settings()


def split_by_node(shards: Any) -> Any:
    return shards


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ({"_distributed": (0, 2)}, "split_dataset_by_node"),
        ({"pipeline": [list, split_by_node]}, r"split_by_node \(pass nodesplitter=None\)"),
        ({"pipeline": [functools.partial(split_by_node)]}, "split_by_node"),
    ],
)
def test_a_stream_that_is_split_by_ranks_already(said: dict[str, Any], name: str) -> None:
    dataset = SplitByRanks(**said)
    with pytest.raises(OptionError, match=f"by {name}.*split it again"):
        DataLoader(dataset, num_shards=4, num_replicas=2, rank=0)
    for outer in (MixtureStream([Counting(), dataset]), ChainDataset([Counting(), dataset])):
        with pytest.raises(OptionError, match="split it again"):
            DataLoader(outer, num_shards=4, num_replicas=2, rank=0)
    DataLoader(SplitByRanks(settings=Settings()), num_shards=4, num_replicas=2, rank=0)
    DataLoader(dataset, num_shards=4)  # one rank, as far as the loader is concerned
    [
        *DataLoader(SplitUnasked(**said), num_replicas=2, rank=0, uneven_ranks="keep", seed=1)
    ]  # and is not told of other ranks


@pytest.mark.parametrize(
    "options",
    [
        {"num_shards": 0},
        {"num_shards": 2, "dataset": [1, 2]},
        {"num_shards": 6, "num_replicas": 4, "rank": 0},
        {"num_shards": 2, "num_replicas": 4, "rank": 0},
        {"num_workers": "auto"},
        {"num_shards": 2, "uneven_ranks": "drop"},
    ],
)
def test_refused_options(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="num_shards"):
        DataLoader(**{"dataset": Counting(), **options})


def states_at(taken: list[int], epoch: int = 0, **options: Any) -> list[dict[str, Any]]:
    """States of as many ranks, each after so many batches."""
    states = []
    for rank, number in enumerate(taken):
        one = loader(Counting(40), 0, len(taken), rank, **options)
        one.set_epoch(epoch)
        states.append(state_behind(one, number))
    return states


def test_what_does_not_fit_is_not_merged() -> None:
    merge = lit_loader.merge_states
    one, two = states_at([2, 2])
    assert [part[:2] for part in merge([two, one])["readers"]] == [[0, 1], [1, 1], [2, 1], [3, 1]]
    assert merge([merge([one, two])]) == merge([one, two])
    plain = DataLoader(Counting(), num_workers=0)
    next(iter(plain))
    whole = DataLoader([1, 2, 3], seed=1)  # type: ignore[arg-type]
    before = whole.state_dict()
    assert merge([before, before]) == before
    next(iter(whole))
    wrong: list[tuple[Any, str]] = [
        ([one], "of all"),
        ([one, two, two], "of all"),
        ([one, states_at([2, 3])[1]], "different steps.*after 2 batches.*after 3 batches"),
        ([one, states_at([2, 2], epoch=1)[1]], "different steps.*epoch 0 .*epoch 1 "),
        ([one, states_at([2, 2], seed=8)[1]], "seed=7, but this loader has seed=8"),
        ([], "must be a list"),
        (None, "must be a list"),
        (one, "must be a list"),
        ([{}], "state_dict"),
        ([plain.state_dict()] * 2, "own"),
        ([before, whole.state_dict()], "different steps"),
    ]
    for states, text in wrong:
        with pytest.raises(StateError, match=text):
            merge(states)


def test_a_rank_that_does_not_know_of_its_end_is_not_merged() -> None:
    states = []
    for rank in range(2):
        one = loader(Counting(5), 0, 2, rank, batch_size=1, num_shards=2)
        batches = iter(one)
        states.append([one.state_dict() for _ in zip(range(4), batches, strict=False)])
    # Rank 0 has three samples, rank 1 has two, and does not know of its end yet.
    assert [len(each) for each in states] == [3, 2]
    with pytest.raises(StateError, match="different steps"):
        lit_loader.merge_states([states[0][2], states[1][1]])


def test_states_that_do_not_fit_are_refused() -> None:
    one, two = states_at([2, 2])
    for options in ((), (0, 2, 1)):
        with pytest.raises(StateError, match="LL303"):
            loader(Counting(40), *options).load_state_dict(one)
    merged = lit_loader.merge_states([one, two])
    with pytest.raises(StateError, match="num_shards=4, but this loader has num_shards=8"):
        loader(Counting(40), num_shards=8).load_state_dict(merged)
    with pytest.raises(StateError, match="taken with num_"):
        DataLoader(Counting(40), batch_size=SIZE, seed=7).load_state_dict(merged)
    with pytest.raises(StateError):
        DataLoader([1, 2], seed=7).load_state_dict(merged)  # type: ignore[arg-type]
