"""The constructor: names, defaults, attributes, what is refused, what may change later; copies."""

import copy
import inspect
import multiprocessing
import pickle
import queue
import threading
import warnings
from multiprocessing.context import SpawnContext

import pytest
import torch
from torch.utils.data import RandomSampler

import lit_loader
from tests.support.datasets import Squares, Stream
from tests.support.samples import uncollated as as_is
from tests.support.tools import flat, is_oracle


class ThreadContext(SpawnContext):
    """Starts a thread where multiprocessing starts a process."""

    class Process(threading.Thread):  # type: ignore[assignment]
        pid = 0

    class Queue(queue.Queue):
        def close(self):
            pass

        def cancel_join_thread(self):
            pass


@pytest.mark.ours_only
def test_the_signature_begins_with_torchs(loader_class):
    def shape(cls):
        parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
        return {p.name: (p.default, p.kind) for p in parameters}

    theirs, ours = shape(torch.utils.data.DataLoader), shape(loader_class)
    assert list(ours)[: len(theirs)] == list(theirs)
    assert {name: ours[name] for name in theirs} == theirs
    extra = [name for name in ours if name not in theirs]
    assert all(ours[name][1] is inspect.Parameter.KEYWORD_ONLY for name in extra)


@pytest.mark.parametrize("name", ["pin_memory", "persistent_workers", "shuffle"])
def test_none_is_false(loader_class, name):
    """As it comes out of a program's arguments, or a file of options."""
    loader = loader_class([0, 1, 2], batch_size=2, **{name: None})
    assert [batch.tolist() for batch in loader] == [[0, 1], [2]]


@pytest.mark.parametrize(
    "options", [{"shuffle": True}, {"sampler": [0]}, {"batch_sampler": [[0]]}], ids="".join
)
def test_refused_with_an_iterable_dataset(loader_class, options):
    """What is refused with any dataset is in tests/core/options/test_loader_config.py."""
    [(name, value)] = options.items()
    with pytest.raises(ValueError, match=name) as caught:
        loader_class(Stream(), **options)
    if not is_oracle(loader_class):
        assert "\n" not in str(caught.value) and repr(value) in str(caught.value)


@pytest.mark.parametrize(
    "name", ["batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"]
)
def test_attributes_that_cannot_be_reassigned(loader_class, name):
    loader = loader_class(Squares(), batch_size=2)
    before = getattr(loader, name)
    with pytest.raises(ValueError, match=name):
        setattr(loader, name, before)
    assert getattr(loader, name) is before


def test_num_workers_can_be_reassigned(loader_class):
    loader = loader_class(Squares(6), batch_size=2, num_workers=2)
    loader.num_workers = 0
    assert flat(loader) == [0, 1, 4, 9, 16, 25]
    loader.num_workers = 1
    assert flat(loader) == [0, 1, 4, 9, 16, 25]


def test_collate_fn_can_be_reassigned(loader_class, num_workers):
    loader = loader_class(Squares(4), batch_size=2, num_workers=num_workers)
    list(loader)
    loader.collate_fn = as_is
    assert list(loader) == [[0, 1], [4, 9]]


def test_the_context_is_given_by_name_or_object(loader_class):
    loader = loader_class(Squares(), num_workers=1, multiprocessing_context="fork")
    assert loader.multiprocessing_context.get_start_method() == "fork"
    context = multiprocessing.get_context("spawn")
    loader.multiprocessing_context = context
    assert loader.multiprocessing_context.get_start_method() == "spawn"
    with pytest.raises(ValueError, match="multiprocessing_context"):
        loader.multiprocessing_context = "thread"
    loader.multiprocessing_context = None
    assert loader.multiprocessing_context is None


def test_a_context_of_threads_serves_torch_and_ours_names_its_own_way(loader_class):
    """MONAI's ThreadDataLoader(use_thread_workers=True) gives one."""
    options = {"num_workers": 1, "multiprocessing_context": ThreadContext()}
    if not is_oracle(loader_class):
        with pytest.raises(lit_loader.OptionError, match="set worker_method='thread'"):
            loader_class(Squares(), **options)
        loader = loader_class(Squares(), num_workers=1)
        with pytest.raises(lit_loader.OptionError, match="set worker_method='thread'"):
            loader.multiprocessing_context = ThreadContext()
        options = {"num_workers": 1, "worker_method": "thread"}
    assert flat(loader_class(Squares(), **options)) == flat(loader_class(Squares()))


def test_subscripts_are_types(loader_class):
    annotated = loader_class[int]
    assert annotated(Squares(2)).batch_size == 1

    class OfInts(loader_class[int]):
        pass

    assert flat(OfInts(Squares(3))) == [0, 1, 4]


def test_subclasses(loader_class):
    class Named(loader_class):
        def __init__(self, *args, name, **kwargs):
            self.name = name
            super().__init__(*args, **kwargs)
            self.seen = 0

        def __iter__(self):
            for batch in super().__iter__():
                self.seen += 1
                yield batch

        def __len__(self):
            return super().__len__() + 1

    loader = Named(Squares(4), batch_size=2, name="train")
    assert flat(loader) == [0, 1, 4, 9]
    assert (loader.name, loader.seen, len(loader)) == ("train", 2, 3)
    with pytest.raises(ValueError, match="batch_size"):
        loader.batch_size = 3


def test_more_workers_than_processors(loader_class):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loader_class(Squares(), num_workers=4096)
    assert [each.category for each in caught] == [UserWarning]
    assert str(caught[0].message).startswith("This DataLoader will create 4096 worker processes")


# --- a loader that was never iterated can be pickled and copied, like any configuration ---


def by_pickle(loader):
    return pickle.loads(pickle.dumps(loader))


@pytest.fixture(params=[copy.copy, copy.deepcopy, by_pickle], ids=["copy", "deepcopy", "pickle"])
def duplicate(request):
    return request.param


def test_a_copy_loads_the_same(loader_class, num_workers, duplicate):
    loader = loader_class(Squares(5), batch_size=2, num_workers=num_workers, collate_fn=as_is)
    twin = duplicate(loader)
    assert type(twin) is loader_class
    assert twin is not loader
    assert list(twin) == list(loader) == [[0, 1], [4, 9], [16]]
    assert (twin.batch_size, twin.num_workers, len(twin)) == (2, num_workers, 3)
    with pytest.raises(ValueError, match="batch_size"):
        twin.batch_size = 3
    twin.num_workers = 1
    assert twin.num_workers == 1


def test_a_copy_goes_on_by_itself() -> None:
    """What a copy of our loader is asked for does not move the loader's own position."""
    loader = lit_loader.DataLoader(list(range(20)), 4, shuffle=True, seed=1)
    next(iter(loader))
    copied, before = copy.copy(loader), loader.state_dict()
    assert copied.state_dict() == before
    epochs = [[batch.tolist() for batch in copied] for _ in range(2)]
    assert loader.state_dict() == before
    assert [[batch.tolist() for batch in loader] for _ in range(2)] == epochs


@pytest.mark.parametrize("deep", [copy.deepcopy, by_pickle])
def test_a_copy_after_an_epoch_that_was_left_goes_on_as_the_loader(num_workers, deep) -> None:
    """Not behind what was drawn ahead for workers."""
    sampler = RandomSampler(range(40), generator=torch.Generator().manual_seed(3))
    loader = lit_loader.DataLoader(range(40), 4, sampler=sampler, num_workers=num_workers)
    for _, _ in zip(loader, range(3), strict=False):
        pass
    twin = deep(loader)
    assert flat(twin) == flat(loader)


@pytest.mark.parametrize(
    ("option", "value"),
    [("prefetch_factor", -3), ("prefetch_factor", 0), ("num_workers", -1), ("timeout", -1),
     ("pin_memory", "x"), ("seed", -1), ("collate_fn", 3), ("generator", torch.Generator)],
)  # fmt: skip
def test_an_option_that_is_set_later_is_checked(option: str, value: object) -> None:
    loader = lit_loader.DataLoader(list(range(20)), 4, num_workers=2)
    with pytest.raises(lit_loader.OptionError, match=f"^lit_loader: {option} must be "):
        setattr(loader, option, value)
    loader.num_workers = 0
    assert len(list(loader)) == 5
