"""`DataLoader` is one of torch's class: what programs of torch's world look at, set and override.

The first tests compare with the class of the torch that is installed: they fail when that class
gets an attribute or a method that ours says nothing true about.
"""

import gc
import pickle
import weakref
from operator import itemgetter
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from torch.utils.data import DataLoader as TorchLoader

from lit_loader import DataLoader
from tests.support.datasets import SizedStream
from tests.support.samples import Counting, OfLength
from tests.support.tools import children

LENGTH = 10
DATA = TensorDataset(torch.arange(LENGTH))


class Numbers(OfLength):
    """Read sample by sample, in workers if there are any."""

    length = LENGTH

    def __getitem__(self, index: int) -> tuple[torch.Tensor]:
        return (torch.tensor(index),)


def ids(loader: Any) -> list[list[int]]:
    return [batch[0].tolist() for batch in loader]


OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "batches": {"batch_size": 4, "drop_last": True, "collate_fn": itemgetter(0)},
    "samples": {"batch_size": None},
    "shuffled": {"batch_size": 3, "shuffle": True, "generator": torch.Generator()},
    "sampler": {"sampler": WeightedRandomSampler([1.0] * LENGTH, 5)},
    "batch_sampler": {"batch_sampler": [[1, 2], [3]]},
    "workers": {
        "num_workers": 1, "persistent_workers": True, "timeout": 3, "worker_init_fn": print,
        "multiprocessing_context": "fork", "in_order": False, "pin_memory_device": "",
    },
}  # fmt: skip


@pytest.mark.parametrize("dataset", [DATA, SizedStream(LENGTH)], ids=["map", "iterable"])
@pytest.mark.parametrize("case", OPTIONS)
def test_attributes_are_those_of_torchs(case: str, dataset: Any) -> None:
    options = OPTIONS[case]
    if dataset is not DATA and options.keys() & {"shuffle", "sampler", "batch_sampler"}:
        pytest.skip("not for iterable datasets")
    ours, theirs = DataLoader(dataset, **options), TorchLoader(dataset, **options)
    assert isinstance(ours, TorchLoader)
    _ = (len(ours), len(theirs)) if case == "batches" else None
    properties = [n for n, v in vars(TorchLoader).items() if isinstance(v, property)]
    # Where torch keeps the context nobody looks: it is read as the property below.
    names = vars(theirs).keys() - {"_DataLoader__multiprocessing_context"}
    for name in [*names, *properties]:
        mine, other = getattr(ours, name), getattr(theirs, name)
        if isinstance(other, Sampler):
            # Samplers that torch has made itself: ours are of the same kind. Its endless one for
            # iterable datasets is private.
            known = (BatchSampler, RandomSampler, SequentialSampler, WeightedRandomSampler)
            kind = next((kind for kind in known if isinstance(other, kind)), Sampler)
            assert isinstance(mine, kind), name
        elif name == "collate_fn" or isinstance(other, torch.Generator):
            assert mine is other, name
        else:
            assert mine == other, name


class WithNumbersOfItsOwn(DataLoader[Any]):
    """Notes where it runs, as programs for several processes do; it asks for no sharding."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.rank, self.num_replicas = 1, 3


@pytest.mark.filterwarnings("ignore:.*Counting has no state_dict")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [Counting, Numbers])
def test_what_a_subclass_notes_as_its_rank_shares_nothing_out(kind: Any, workers: int) -> None:
    plain, noted = (
        each(kind(), 2, num_workers=workers, seed=1) for each in (DataLoader, WithNumbersOfItsOwn)
    )
    assert noted.state_dict() == plain.state_dict()
    assert list(map(str, noted)) == list(map(str, plain))
    iterator = iter(noted)
    next(iterator)
    plain.load_state_dict(noted.state_dict())
    assert list(map(str, plain)) == list(map(str, iterator))


@pytest.mark.filterwarnings("ignore:.*Counting has no state_dict")
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", [Counting, Numbers])
def test_no_cycle_keeps_a_loader_that_was_iterated(kind: Any, workers: int) -> None:
    gc.collect()
    gc.disable()
    try:
        loader: Any = DataLoader(kind(), 2, num_workers=workers, persistent_workers=workers > 0)
        list(loader)
        next(iter(loader))
        parts = [weakref.ref(part) for part in (loader, loader._core)]
        del loader
        assert [part() for part in parts] == [None, None]
    finally:
        gc.enable()


# --- classes that others derive from a loader ---


class Filtering(DataLoader[Any]):
    """As PyG's loaders: the iterator is wrapped where torch makes its own."""

    def _get_iterator(self) -> Any:
        return map(lambda batch: batch[0] * 2, super()._get_iterator())


def test_get_iterator_may_be_overridden() -> None:
    assert [batch.tolist() for batch in Filtering(DATA, 5)] == [
        [0, 2, 4, 6, 8],
        [10, 12, 14, 16, 18],
    ]


# --- _iterator ---


def test_iterator_is_that_of_persistent_workers_and_ends_them() -> None:
    others = children()
    loader = DataLoader(Numbers(), 2, num_workers=1, persistent_workers=True)
    assert loader._iterator is None
    iterator = iter(loader)
    next(iterator)
    assert loader._iterator is iterator
    before = children() - others
    loader._iterator._shutdown_workers()
    assert not children() & before
    assert len(list(loader)) == 5
    loader._iterator = None
    assert loader._iterator is None
    assert not children() & before
    del loader._iterator
    assert len(list(loader)) == 5
    loader.close()


# --- samplers, iterated by others ---


def test_an_order_that_others_iterate_is_another_each_time() -> None:
    sampler: Any = DataLoader(DATA, shuffle=True).sampler
    orders = {tuple(sampler) for _ in range(4)}
    assert len(orders) == 4
    assert not hasattr(sampler, "set_epoch")  # programs would take it for a DistributedSampler
    generator = sampler.generator = torch.Generator().manual_seed(5)  # as accelerate does
    order = list(sampler)
    generator.manual_seed(5)
    assert list(sampler) == order == list(RandomSampler(DATA, generator=generator.manual_seed(5)))


def test_the_loader_says_when_torchs_makes_its_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lit_loader.core.sampling.orders._warned", False)
    loader = DataLoader(DATA, 4, shuffle=True)
    rebuilt = TorchLoader(DATA, batch_sampler=loader.batch_sampler)
    with pytest.warns(UserWarning, match="LL706") as caught:
        assert len(list(rebuilt)) == 3
        assert len(list(rebuilt)) == 3
    assert len(caught) == 1
    assert list(loader.sampler)  # nobody else's business


# --- sharding ---


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("batch_sampler", [False, True])
def test_a_distributed_sampler_is_taken_for_what_it_says(
    shuffle: bool, drop_last: bool, batch_sampler: bool
) -> None:
    for rank in range(3):
        sampler = DistributedSampler(DATA, 3, rank, shuffle=shuffle, seed=7, drop_last=drop_last)
        options: Any = {"batch_size": 2, "sampler": sampler}
        if batch_sampler:
            options = {"batch_sampler": BatchSampler(sampler, 2, False)}
        loader = DataLoader(DATA, **options)
        for epoch in (0, 3, 1):
            sampler.set_epoch(epoch)
            assert ids(loader) == list(BatchSampler(sampler, 2, False))
            assert len(loader) == len(ids(TorchLoader(DATA, **options)))


def test_a_sampler_and_ranks_that_contradict_each_other_are_refused() -> None:
    sampler = DistributedSampler(DATA, 3, 1)
    with pytest.raises(ValueError, match="num_replicas"):
        DataLoader(DATA, sampler=sampler, rank=0, num_replicas=2)
    assert ids(DataLoader(DATA, 4, sampler=sampler, rank=1, num_replicas=3)) == [[*sampler]]


SOURCES: dict[str, dict[str, Any]] = {
    "ordered": {"batch_size": 2},
    "shuffled": {"batch_size": 2, "shuffle": True},
    "sampler": {"batch_size": 2, "sampler": [3, 1, 4, 1, 5]},
    "batch_sampler": {"batch_sampler": [[0], [1, 2], [3, 4]]},
    "samples": {"batch_size": None, "shuffle": True},
}


@pytest.mark.parametrize("tail", ["pad", "drop", "keep"])
@pytest.mark.parametrize("case", SOURCES)
def test_a_sharded_loader_shows_a_distributed_sampler(case: str, tail: str) -> None:
    """Lightning looks for one before it puts in its own; its items are what this rank reads."""
    for rank in range(2):
        options = {"seed": 3, "uneven_ranks": tail, **SOURCES[case]}
        loader = DataLoader(DATA, rank=rank, num_replicas=2, **options)
        sampler: Any = loader.sampler
        assert isinstance(sampler, DistributedSampler)
        assert (sampler.rank, sampler.num_replicas) == (rank, 2)
        shown: Any = loader._index_sampler
        for epoch in (0, 4):
            loader.set_epoch(epoch)
            given = ids(loader) if case != "samples" else [int(item[0]) for item in loader]
            assert list(shown) == given
            assert len(shown) == len(loader) == len(given)
        assert sampler.total_size >= sampler.num_samples == len(list(sampler))
        # Taken over by another loader (as Lightning does for predictions) it shards once.
        if loader.batch_sampler is not None:
            own = {} if case == "shuffled" else {"seed": 3}
            again = DataLoader(DATA, batch_sampler=shown, **own)
            again.set_epoch(4)
            assert ids(again) == given


# --- samplers that are changed, and told, between epochs ---


CHANGES: dict[str, Any] = {
    "longer": lambda loader: setattr(loader.batch_sampler, "batch_size", 3),
    "the rest": lambda loader: setattr(loader.batch_sampler, "drop_last", True),
    "sampler": lambda loader: setattr(loader.batch_sampler, "sampler", [7, 8, 9]),
    "batch sampler": lambda loader: object.__setattr__(loader, "batch_sampler", [[4], [5, 6]]),
}


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("options", [{}, {"sampler": [3, 1, 4, 1, 5]}], ids=["default", "own"])
@pytest.mark.parametrize("change", CHANGES)
def test_samplers_that_are_changed_are_followed(change: Any, options: Any, workers: int) -> None:
    with DataLoader(Numbers(), 2, num_workers=workers, **options) as ours:
        theirs = TorchLoader(Numbers(), 2, **options)
        for loader in (ours, theirs):
            assert ids(loader)
            CHANGES[change](loader)
        assert (len(ours), ids(ours)) == (len(theirs), ids(theirs))


# --- keywords ---


class Deriving(DataLoader[Any]):
    def __init__(self, dataset: Any, width: int = 3, **options: Any) -> None:
        super().__init__(dataset, **options)
        self.width = width


@pytest.mark.parametrize("kind", [DataLoader, Deriving])
def test_a_misspelt_keyword_is_a_type_error_that_names_the_nearest(kind: Any) -> None:
    with pytest.raises(TypeError):
        TorchLoader(DATA, num_worker=2)  # type: ignore[call-arg]
    for wrong, right in {"num_worker": "num_workers", "batchsize": "batch_size"}.items():
        with pytest.raises(TypeError, match=f"'{wrong}': did you mean {right}?"):
            kind(DATA, **{wrong: 2})
    with pytest.raises(TypeError, match="unknown option 'frobnicate'"):
        kind(DATA, frobnicate=1)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'dataset'"):
        kind()
    again = pickle.loads(pickle.dumps(Deriving(DATA, width=4, batch_size=5)))
    assert (again.width, again.batch_size, len(list(again))) == (4, 5, 2)
