"""torch's DataPipes are sharded and shuffled as under torch's loader."""

from typing import Any

import pytest
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import IterDataPipe
from torch.utils.data.datapipes.iter import IterableWrapper

from lit_loader import DataLoader

LENGTH = 24


def pipe(shuffle: bool = False) -> "IterDataPipe[float]":
    found = IterableWrapper(list(range(LENGTH)))
    return (found.shuffle() if shuffle else found).sharding_filter().map(float)


def epochs(loader: Any) -> list[list[float]]:
    return [[value for batch in loader for value in batch.tolist()] for _ in range(2)]


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_sharding_filter_gives_each_worker_its_share(workers: int) -> None:
    expected = epochs(TorchLoader(pipe(), 4, num_workers=workers))
    assert epochs(DataLoader(pipe(), 4, num_workers=workers)) == expected
    with DataLoader(pipe(), 4, num_workers=workers, persistent_workers=workers > 0) as loader:
        assert epochs(loader) == expected


@pytest.mark.filterwarnings("ignore:.*no effect")
@pytest.mark.parametrize("workers", [0, 2])
def test_ranks_and_workers_have_shares_of_their_own(workers: int) -> None:
    ranks = [
        epochs(DataLoader(pipe(), 2, num_workers=workers, rank=rank, num_replicas=2, seed=1))
        for rank in range(2)
    ]
    assert sorted(ranks[0][0] + ranks[1][0]) == list(range(LENGTH))


def test_shards_do_not_depend_on_workers() -> None:
    none, two = (
        epochs(DataLoader(pipe(shuffle=True), 4, num_workers=workers, num_shards=4, seed=1))
        for workers in (0, 2)
    )
    assert none == two
    assert sorted(none[0]) == sorted(none[1]) == list(range(LENGTH))


@pytest.mark.parametrize("shards", [None, 2])
def test_a_shuffled_pipe_is_resumed(shards: int | None) -> None:
    def loader() -> DataLoader[Any]:
        return DataLoader(pipe(shuffle=True), 4, num_workers=2, num_shards=shards, seed=1)

    expected = [batch.tolist() for batch in loader()]
    with loader() as first:
        iterator = iter(first)
        begun = [next(iterator).tolist() for _ in range(3)]
        state = first.state_dict()
    with loader() as second, pytest.warns(UserWarning, match="LL308"):
        second.load_state_dict(state)
        assert begun + [batch.tolist() for batch in second] == expected


@pytest.mark.parametrize("workers", [0, 2])
def test_shuffled_pipes_are_shuffled_before_the_shares(workers: int) -> None:
    first, second = epochs(DataLoader(pipe(shuffle=True), 4, num_workers=workers, shuffle=True))
    assert first != second
    assert sorted(first) == sorted(second) == list(range(LENGTH))


@pytest.mark.parametrize("workers", [0, 2])
def test_shuffle_false_turns_the_pipes_shuffle_off(workers: int) -> None:
    options: dict[str, Any] = {"num_workers": workers, "shuffle": False}
    theirs = epochs(TorchLoader(pipe(shuffle=True), 4, **options))
    assert epochs(DataLoader(pipe(shuffle=True), 4, **options)) == theirs
