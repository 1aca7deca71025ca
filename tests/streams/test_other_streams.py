"""Streams made as other libraries' are, with habits of their own: what they leave out, and keep."""

import itertools
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

from lit_loader import DataLoader, MixtureStream
from tests.support.exact import loaded
from tests.support.samples import share
from tests.support.tools import lists


def shuffled(length: int) -> Any:
    """A Hugging Face stream whose state says how much it has read: more than what it has given."""
    rows = pytest.importorskip("datasets").Dataset.from_dict({"x": [*range(length)]})
    return rows.to_iterable_dataset(num_shards=4).shuffle(seed=4, buffer_size=8)


def numbers(samples: list[dict[str, int]]) -> torch.Tensor:
    return torch.tensor([sample["x"] for sample in samples])


def stopped(make: Callable[[], DataLoader[Any]], stop: int) -> tuple[Any, Any, Any]:
    """A whole epoch; that of another loader up to a stop, and its state there."""
    with make() as whole, make() as one:
        return lists(whole), lists(itertools.islice(one, stop)), one.state_dict()


@pytest.mark.parametrize("workers", [0, 2])
def test_nothing_is_lost(workers: int) -> None:
    def loader() -> DataLoader[Any]:
        options: dict[str, Any] = {"num_workers": workers, "num_shards": 4, "seed": 1}
        return DataLoader(shuffled(80), 3, collate_fn=numbers, **options)

    expected, found, state = stopped(loader, 9)
    assert sorted(itertools.chain(*expected)) == [*range(80)] != [*itertools.chain(*expected)]
    with loader() as one, pytest.warns(UserWarning, match="leaves out its shuffle buffer.*LL308"):
        one.load_state_dict(state)
        assert found + lists(one) == expected


class Holding(IterableDataset[int]):
    """Tells the stream that it holds its epoch."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def set_epoch(self, epoch: int) -> None:
        self.stream.set_epoch(epoch)

    def __iter__(self) -> Iterator[int]:
        return (row["x"] for row in self.stream)


@pytest.mark.filterwarnings("ignore:.*LL201")
@pytest.mark.parametrize("persistent", [False, True])
def test_an_epoch_is_set_in_one_worker(persistent: bool) -> None:
    """Hugging Face's would be that of all forked workers, and each would add to it."""

    def epochs(stream: Any) -> list[Any]:
        options: Any = {"persistent_workers": persistent, "multiprocessing_context": "fork"}
        with DataLoader(Holding(stream), None, num_workers=2, seed=1, **options) as one:
            found = []
            for epoch in range(3):
                one.set_epoch(epoch)
                found.append([*one])
            return found

    here = shuffled(24)
    found = epochs(here)
    assert found == epochs(shuffled(24))
    assert [sorted(each) for each in found] == [[*range(24)]] * 3
    assert found[0] != found[1] != found[2]
    assert here.epoch == 2  # and not what workers have added to it


class OfAnotherProtocol(IterableDataset[int]):
    """Its own library's loader counts for it, as LitData's and Mosaic's do."""

    def __iter__(self) -> Iterator[int]:
        return iter(share(range(40)))

    def state_dict(self, num_samples: int, from_beginning: bool) -> dict[str, int]:
        return {"epoch": 0, "sample_in_epoch": num_samples}

    def load_state_dict(self, state: dict[str, int]) -> None:
        raise AssertionError("it is not called")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_dict_with_arguments_is_not_called(workers: int) -> None:
    def loader() -> DataLoader[Any]:
        return DataLoader(OfAnotherProtocol(), 3, num_workers=workers, seed=1)

    expected, found, state = stopped(loader, 5)
    assert sorted(itertools.chain(*expected)) == [*range(40)]
    with loader() as one, pytest.warns(UserWarning, match="state_dict with arguments.*LL308"):
        one.load_state_dict(state)
        assert found + lists(one) == expected


class Counting(IterableDataset[int]):
    """Counts its epochs by itself, and shuffles by their number."""

    epoch = -1

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        order = list(range(24))
        random.Random(self.epoch).shuffle(order)
        return iter(order)


class Announced(Counting):
    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch - 1


@pytest.mark.filterwarnings("ignore:.*LL308")
@pytest.mark.parametrize(("dataset", "exact"), [(Counting, False), (Announced, True)])
@pytest.mark.parametrize("options", [{}, {"num_workers": 1, "persistent_workers": True}])
def test_epochs_that_a_stream_counts_by_itself(
    dataset: Any, exact: bool, options: dict[str, Any]
) -> None:
    """They begin again in a new process, which is reported; those that it is told do not."""

    def make() -> DataLoader[Any]:
        return DataLoader(dataset(), 4, seed=1, **options)

    with make() as first:
        list(first)
        first.set_epoch(1)
        iterator = iter(first)
        found = [next(iterator).tolist() for _ in range(3)]
        state = first.state_dict()
        expected = found + lists(iterator)
    with make() as resumed, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        resumed.load_state_dict(state)
        assert (found + lists(resumed) == expected) == exact
    assert ["LL321" in str(each.message) for each in caught].count(True) == (not exact)


# --- one that keeps the place it was brought to, as Hugging Face's ---


class Kept(IterableDataset[int]):
    """Begins at the state that it was given, each time that it is iterated in that epoch."""

    def __init__(self, first: int, length: int) -> None:
        self.numbers, self.epoch, self.at = range(first, first + length), 0, 0
        self._starting_state_dict: Any = None

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, int] | None) -> None:
        self._starting_state_dict = state

    def __iter__(self) -> Iterator[int]:
        start = self._starting_state_dict
        self.at = start["at"] if start and start["epoch"] == self.epoch else 0
        for number in self.numbers[self.at :]:
            self.at += 1
            yield number


def test_the_same_epoch_again_after_a_resume() -> None:
    loader = DataLoader(Kept(0, 12), 4)
    start, iterator = loader.state_dict(), iter(loader)
    whole = [next(iterator).tolist() for _ in range(2)]
    state = loader.state_dict()
    whole += lists(iterator)
    resumed = DataLoader(Kept(0, 12), 4)
    for _ in range(2):
        resumed.load_state_dict(state)
        assert lists(resumed) == whole[2:]
        resumed.set_epoch(0)
        assert lists(resumed) == whole
    resumed.load_state_dict(state)
    next(iter(resumed))
    resumed.load_state_dict(start)
    assert lists(resumed) == whole


@pytest.mark.filterwarnings("ignore:.*LL333")
def test_it_begins_where_its_user_has_brought_it() -> None:
    stream = Kept(0, 12)
    stream.load_state_dict({"at": 4, "epoch": 0})
    loader = DataLoader(stream, 4)
    iterator = iter(loader)
    first = next(iterator).tolist()
    loader.load_state_dict(loader.state_dict())
    assert [first, *lists(loader)] == [[4, 5, 6, 7], [8, 9, 10, 11]]
    loader.set_epoch(0)
    assert lists(loader) == [[4, 5, 6, 7], [8, 9, 10, 11]]


@pytest.mark.parametrize("shards", [None, 1])
def test_a_source_that_is_repeated_after_a_resume(shards: int | None) -> None:
    def make() -> DataLoader[Any]:
        sources = [Kept(0, 10), Kept(100, 7)]
        mixture = MixtureStream(sources, epoch_length=60, stopping_strategy="repeat")
        return DataLoader(mixture, 4, num_shards=shards, seed=1)

    for stop in (1, 3, 9):
        expected, found, state = stopped(make, stop)
        assert found + lists(loaded(make(), state)) == expected


# --- torchdata's Stateful protocol ---


class Noting(IterableDataset[int]):
    """Notes what is called of it, and of its iterator; both have a state."""

    def __init__(self, calls: list[str], name: str = "dataset") -> None:
        self.calls, self.name, self.place = calls, name, 0

    def __iter__(self) -> Any:
        self.calls.append("iter")
        return Noting(self.calls, "iterator")

    def __next__(self) -> int:
        self.place += 1
        return self.place

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.calls.append(f"load {self.name}")
        self.place = state["place"]


@pytest.mark.filterwarnings("ignore")
def test_in_which_order_datasets_are_restored() -> None:
    """As torchdata does it."""
    torchdata = pytest.importorskip("torchdata.stateful_dataloader")
    for cls in (DataLoader, torchdata.StatefulDataLoader):
        loader, calls = cls(Noting([]), batch_size=3), list[str]()
        iterator = iter(loader)
        list(itertools.islice(iterator, 6))
        resumed = cls(Noting(calls), batch_size=3)
        resumed.load_state_dict(loader.state_dict())
        next(iter(resumed))
        assert calls == ["load dataset", "iter", "load iterator"], cls
