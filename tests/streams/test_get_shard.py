"""`lit_loader.get_shard()` of a stream under torch's own loader, and advice on `num_shards`."""

import warnings
from typing import Any

import pytest
from torch.utils.data import DataLoader as TorchLoader

from lit_loader import DataLoader, MixtureStream
from tests.support.ranks import of_ranks
from tests.support.samples import Counting, ints


@pytest.mark.parametrize("loader_class", [TorchLoader, DataLoader])
@pytest.mark.parametrize("workers", [0, 3])
def test_each_sample_comes_once(loader_class: Any, workers: int) -> None:
    loader = loader_class(Counting(24), batch_size=2, num_workers=workers)
    assert sorted(ints(loader)) == list(range(24))


def test_each_sample_of_a_mixture_comes_once() -> None:
    def loader(loader_class: Any) -> Any:
        mixture = MixtureStream(
            {"one": Counting(24)}, stopping_strategy="all_exhausted_without_replacement", seed=1
        )
        return loader_class(mixture, batch_size=2, num_workers=3)

    for loader_class in (TorchLoader, DataLoader):
        assert sorted(ints(loader(loader_class))) == list(range(24))


def shares(rank: int, method: str) -> list[list[int]]:
    found = []
    for workers in (0, 2 if method == "fork" else 1):
        options: Any = {"multiprocessing_context": method} if workers else {}
        for kind in (TorchLoader, DataLoader):
            found.append(ints(kind(Counting(24), batch_size=2, num_workers=workers, **options)))
    return found


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_each_sample_comes_once_on_two_ranks(method: str) -> None:
    for one, other in zip(*of_ranks(2, shares, method), strict=True):
        assert len(one) == len(other) == 12 and sorted(one + other) == list(range(24))


def test_workers_without_a_reader_are_told_of() -> None:
    def begin(**options: Any) -> None:
        settings = {"num_replicas": 2, "rank": 0, "uneven_ranks": "keep", "num_workers": 2}
        with DataLoader(Counting(24), **{**settings, **options}) as loader:
            iter(loader)

    with pytest.warns(UserWarning, match="num_shards=2 keeps 1 of the 2 workers busy.*idle"):
        begin(num_shards=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        begin(num_shards=4)
