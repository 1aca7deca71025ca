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
    seed = batches[0][0, 4]  # of the pass
    for batch in batches:
        shard = batch[0, 0]
        own = seed + shard
        assert (batch[:, :7] == [shard, SHARDS, shard, SHARDS, own, 0, own]).all()
    numbers = sorted(int(row[7]) for batch in batches for row in batch)
    assert numbers == [*range(LENGTH)]
    assert get_worker_info() is None


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_dataset_written_for_torch(workers: int) -> None:
    batches = [batch.tolist() for batch in loader(StripedByWorkerInfo(20), workers)]
    assert batches[:5] == [[0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7, 11], [12, 16]]
    assert sorted(itertools.chain(*batches)) == [*range(20)]


@pytest.mark.process
@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_that_does_not_ask(workers: int) -> None:
    text = r"Unshared is iterated by 4 readers \(num_shards\) and has not asked"
    with pytest.warns(UserWarning, match=text):
        assert len([*loader(Unshared(4), workers)]) == 8
    text = r"by 2 readers \(workers x ranks\).*get_shard\(\), and pass num_shards, with which"
    with pytest.warns(UserWarning, match=text):
        [*DataLoader(Unshared(4), num_workers=2)]


class StripedByRankAndWorker(StripedByWorkerInfo):
    """Divides itself among ranks, and that among workers."""

    def __init__(self, name: str) -> None:
        super().__init__()
        setattr(self, name, 1)


@pytest.mark.parametrize(
    ("workers", "name"), [(1, "rank"), (2, "distributed_env"), (1, "_rank_world")]
)
def test_a_dataset_that_asks_for_its_worker_alone(workers: int, name: str) -> None:
    """Which says nothing of ranks; with ``num_shards`` it does. Some hold what knows of them."""
    ranks: dict[str, Any] = {"num_replicas": 2, "rank": 0, "num_workers": workers}
    shards: dict[str, Any] = {"num_shards": 4, "uneven_ranks": "keep"}
    text = "StripedByWorkerInfo is iterated on 2 ranks and has asked get_worker_info"
    with pytest.warns(UserWarning, match=text):
        assert len([*DataLoader(StripedByWorkerInfo(20), **ranks)]) == 20
    assert len([*DataLoader(StripedByWorkerInfo(20), **shards, **ranks)]) == 10
    [*DataLoader(StripedByRankAndWorker(name), **ranks)]
    text = f"StripedByRankAndWorker has an attribute '{name}': if it takes the share of its rank by"
    with pytest.warns(UserWarning, match=text):
        [*DataLoader(StripedByRankAndWorker(name), **shards, **ranks)]


class Sized(Counting):
    def __len__(self) -> int:
        return self.length


def test_the_length_is_not_known() -> None:
    """Four readers of five samples each make eight batches, and not seven."""
    one = loader(Sized())
    with pytest.raises(TypeError, match="Sized is read by num_shards=4 readers, and its __len__"):
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
        text = r"dataset\.file: .* cannot be copied, and with num_shards each reader has a copy"
        with pytest.raises(TransportError, match=text), loader(dataset, workers) as one:
            next(iter(one))


def _asks_for_the_dataset(worker: int) -> None:
    info = get_worker_info()
    assert info is not None and (info.id, info.num_workers) == (worker, 1)
    info.dataset.length = 3


def test_worker_init_fn_finds_no_dataset() -> None:
    with (
        pytest.raises(
            OptionError, match="worker_init_fn asks for get_worker_info.*with num_shards"
        ),
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
    text = f"SplitByRanks is split by ranks already, by {name}.*, and num_shards=4 readers of 2"
    with pytest.raises(OptionError, match=text):
        DataLoader(dataset, num_shards=4, num_replicas=2, rank=0)
    for outer in (MixtureStream([Counting(), dataset]), ChainDataset([Counting(), dataset])):
        with pytest.raises(OptionError, match=f"{type(outer).__name__} is split by ranks already"):
            DataLoader(outer, num_shards=4, num_replicas=2, rank=0)
    DataLoader(SplitByRanks(settings=Settings()), num_shards=4, num_replicas=2, rank=0)
    DataLoader(dataset, num_shards=4)  # one rank, as far as the loader is concerned
    [*DataLoader(SplitUnasked(**said), num_replicas=2, rank=0)]  # and is not told of other ranks


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_shards": 0}, "num_shards must be a whole number of at least 1"),
        ({"num_shards": 2, "dataset": [1, 2]}, "num_shards applies to an IterableDataset"),
        ({"num_shards": 6, "num_replicas": 4, "rank": 0}, "use 4 or 8, got num_shards=6 and"),
        ({"num_shards": 2, "num_replicas": 4, "rank": 0}, "use 4, got num_shards=2 and num_repl"),
        ({"num_shards": 2, "seeding": "worker"}, "num_shards makes readers that do not depend"),
        ({"num_workers": "auto"}, "does not apply to an IterableDataset without num_shards, whose"),
        (
            {"num_shards": 2, "uneven_ranks": "drop"},
            "'drop' is for map-style .*: pass 'pad', .* or 'keep'",
        ),
    ],
)
def test_refused_options(options: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionError, match=text):
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
        ([one], "of all 2 ranks, each once, got 1 states .* ranks .0."),
        ([one, two, two], "of all 2 ranks, each once, got 3 states"),
        ([one, states_at([2, 3])[1]], "after 2 batches on one rank and after 3 on another"),
        ([one, states_at([2, 2], epoch=1)[1]], "in epoch 0 and in epoch 1"),
        ([one, states_at([2, 2], seed=8)[1]], "taken with seed=7, but this loader has seed=8"),
        ([], "states must be those of all ranks, got none"),
        (None, "states must be a list of those of all ranks, got None"),
        (one, "states must be a list of those of all ranks, got {"),
        ([{}], "must be the dict that state_dict"),
        ([plain.state_dict()] * 2, "read without num_shards are each rank's own"),
        ([before, whole.state_dict()], "states differ, which are the same on all ranks"),
    ]
    for states, text in wrong:
        with pytest.raises(StateError, match=text):
            merge(states)


def test_a_rank_that_has_ended_may_be_merged() -> None:
    states = []
    for rank in range(2):
        one = loader(Counting(5), 0, 2, rank, batch_size=1, num_shards=2)
        batches = iter(one)
        states.append([one.state_dict() for _ in zip(range(4), batches, strict=False)])
    # Rank 0 has three samples, rank 1 has two, and does not know of its end yet.
    assert [len(each) for each in states] == [3, 2]
    with pytest.raises(StateError, match="after 2 batches on one rank and after 3"):
        lit_loader.merge_states([states[0][2], states[1][1]])


def test_states_that_do_not_fit_are_refused() -> None:
    one, two = states_at([2, 2])
    with pytest.raises(StateError, match=r"readers of one rank, \[0, 2\] of 4, but rank 0 of 1"):
        loader(Counting(40)).load_state_dict(one)
    with pytest.raises(StateError, match="load what lit_loader.merge_states makes"):
        loader(Counting(40), 0, 2, 1).load_state_dict(one)
    merged = lit_loader.merge_states([one, two])
    with pytest.raises(StateError, match="num_shards=4, but this loader has num_shards=8"):
        loader(Counting(40), num_shards=8).load_state_dict(merged)
    with pytest.raises(StateError, match="taken with num_"):
        DataLoader(Counting(40), batch_size=SIZE, seed=7).load_state_dict(merged)
    for name, value in [
        ("readers", []),
        ("readers", [[0, 1, None, False]]),
        ("readers", [[5, 1, None, False], *merged["readers"]]),
        ("readers", [*merged["readers"], [3, 1, None, False]]),
        ("readers", [[0], *merged["readers"][1:]]),
        ("readers", 3),
        ("readers", {"a": 1}),
        ("since", -1),
        ("since", "x"),
        ("batches", 9),
        ("fingerprint", {**merged["fingerprint"], "num_replicas": 0}),
        ("fingerprint", {**merged["fingerprint"], "num_shards": None}),
        ("workers", [[1, None, False]]),
    ]:
        with pytest.raises(StateError):
            loader(Counting(40)).load_state_dict({**merged, name: value})
            pytest.fail(f"{name}={value} was loaded")
    with pytest.raises(StateError):
        DataLoader([1, 2], seed=7).load_state_dict(merged)  # type: ignore[arg-type]
