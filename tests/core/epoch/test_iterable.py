"""Iterable datasets: shares over ranks and workers, and what a resume says and refuses."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

from lit_loader import DataLoader, StateError
from tests.support.datasets import Lines, StatefulStream
from tests.support.exact import StripedByWorkerInfo, Unshared, digests, state_behind, taken
from tests.support.samples import Counting


def test_another_number_of_workers_is_refused() -> None:
    with DataLoader(StatefulStream(24), 4, num_workers=2, seed=7) as loader:
        state = state_behind(loader, 1)
    with pytest.raises(StateError, match="num_workers=2, but this loader has num_workers=1"):
        DataLoader(StatefulStream(24), 4, num_workers=1, seed=7).load_state_dict(state)


def test_a_dataset_state_of_another_rank_is_refused() -> None:
    def of_rank(rank: int, kind: type[Lines]) -> DataLoader[Any]:
        options: Any = {"num_replicas": 2, "rank": rank, "uneven_ranks": "keep"}
        return DataLoader(kind(18), 4, seed=7, **options)

    loader = of_rank(0, StatefulStream)
    taken(loader, 1)
    of_rank(0, StatefulStream).load_state_dict(loader.state_dict())
    with pytest.raises(StateError, match="rank=0, but this loader has rank=1"):
        of_rank(1, StatefulStream).load_state_dict(loader.state_dict())

    # What only counts batches is the same on every rank: Lightning saves rank 0's for all.
    loader, other = of_rank(0, Lines), of_rank(1, Lines)
    expected = digests(other)
    taken(loader, 1)
    other = of_rank(1, Lines)
    with pytest.warns(UserWarning, match="Lines has no state_dict"):
        other.load_state_dict(loader.state_dict())
    assert digests(other) == expected[1:]


RANKS = {"num_replicas": 2, "uneven_ranks": "keep", "seed": 1}


class AskedByInit(Unshared):
    """Its share is set from outside, as torch's own example does it."""

    start = 0

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.length, 2))


def set_share(worker: int) -> None:
    info = get_worker_info()
    assert info is not None
    info.dataset.start = worker


class AskedLate(IterableDataset[int]):
    """A generator, whose body asks when the first sample is wanted."""

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        assert info is not None
        yield from range(info.id, 10, info.num_workers)


@pytest.mark.parametrize(
    ("dataset", "init"),
    [(StripedByWorkerInfo(10), None), (AskedByInit(10), set_share), (AskedLate(), None)],
)
def test_whoever_asks_torch_for_its_share_is_not_warned(dataset: Any, init: Any) -> None:
    with DataLoader(dataset, 2, num_workers=2, worker_init_fn=init) as loader:
        assert sorted(torch.cat(list(loader)).tolist()) == list(range(10))


@pytest.mark.parametrize(
    "options", [{"num_workers": 2}, {**RANKS, "rank": 1}], ids=["workers", "ranks"]
)
def test_ignoring_the_share_is_warned_about_once(options: dict[str, Any]) -> None:
    with DataLoader(Unshared(10), 2, **options) as loader:
        with pytest.warns(UserWarning, match="Unshared") as record:
            list(loader)
            list(loader)
        assert len(record) == 1


def test_another_loaders_asking_does_not_count() -> None:
    options: Any = {**RANKS, "rank": 0}
    good, bad = DataLoader(Counting(10), 2, **options), DataLoader(Unshared(10), 2, **options)
    with pytest.warns(UserWarning, match="Unshared") as record:
        for _ in zip(good, bad, strict=False):
            pass
    assert len(record) == 1
