"""Iterators: begun, shared, abandoned, in child processes, in and out of order."""

import gc
import multiprocessing
import pickle
from collections.abc import Iterable, Iterator, Sized

import pytest
import torch
from torch.utils.data import IterableDataset

from tests.support.datasets import Call, Squares, Stream
from tests.support.samples import uncollated as as_is
from tests.support.tools import flat, lists

OPTIONS = [{"num_workers": 0}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}]


@pytest.fixture(params=OPTIONS, ids=["in-process", "workers", "persistent"])
def options(request):
    return request.param


def test_protocols(loader_class, options):
    loader = loader_class(Squares(3), **options)
    assert isinstance(loader, Iterable)
    assert isinstance(loader, Sized)
    iterator = iter(loader)
    assert isinstance(iterator, Iterator)
    assert iter(iterator) is iterator
    assert flat(iterator) == [0, 1, 4]
    for _ in range(3):
        with pytest.raises(StopIteration):
            next(iterator)
    first, *rest = loader
    assert (int(first), len(rest)) == (0, 2)


@pytest.mark.parametrize("taken", [0, 1, 3])
@pytest.mark.parametrize("kind", [Squares, Stream])
def test_an_abandoned_epoch_leaves_nothing_behind(loader_class, options, taken, kind):
    loader = loader_class(kind(30), batch_size=2, **options)
    whole = lists(loader)
    for _ in range(3):
        iterator = iter(loader)
        for expected in whole[:taken]:
            assert next(iterator).tolist() == expected
        del iterator
        assert lists(loader) == whole


def test_nested_iteration(loader_class, num_workers):
    loader = loader_class(range(3), num_workers=num_workers)
    pairs = [(int(a), int(b)) for a in loader for b in loader]
    assert pairs == [(a, b) for a in range(3) for b in range(3)]


def test_shuffled_iterators_are_independent(loader_class, num_workers):
    loader = loader_class(range(40), shuffle=True, num_workers=num_workers)
    first, second = iter(loader), iter(loader)
    pairs = list(zip(flat(first), flat(second), strict=True))
    assert sorted(a for a, _ in pairs) == sorted(b for _, b in pairs) == list(range(40))
    assert any(a != b for a, b in pairs)


def load_and_send(loader_class, connection, options):
    connection.send(flat(loader_class(Squares(5), **options)))
    connection.close()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_loader_in_a_child_process(loader_class, num_workers, method):
    if (method == "spawn") == (num_workers == 0):
        pytest.skip("a spawned process starts workers, a forked one none")
    options = {"num_workers": num_workers}
    context = multiprocessing.get_context(method)
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=load_and_send, args=(loader_class, sender, options))
    child.start()
    sender.close()
    with receiver:
        assert receiver.recv() == [0, 1, 4, 9, 16]
    child.join(60)
    assert child.exitcode == 0
    child.close()


class OvertakenBy:
    """The first sample waits at a gate, which another one or the consumer opens."""

    def __init__(self, gate, opener):
        self.gate = gate
        self.opener = opener

    def __call__(self, index):
        if index == self.opener:
            self.gate.open()
        if index == 0:
            assert self.gate.wait()
        return index


@pytest.mark.usefixtures("by_fork")
@pytest.mark.parametrize("persistent", [False, True])
def test_batches_keep_their_order_however_the_workers_finish(loader_class, gate, persistent):
    loader = loader_class(
        Call(OvertakenBy(gate, opener=1), 12), num_workers=2, persistent_workers=persistent
    )
    assert flat(loader) == list(range(12))


@pytest.mark.usefixtures("by_fork")
def test_out_of_order_a_slow_batch_is_overtaken(loader_class, gate):
    loader = loader_class(Call(OvertakenBy(gate, opener=None), 12), num_workers=2, in_order=False)
    iterator = iter(loader)
    early = [int(next(iterator)) for _ in range(5)]
    assert 0 not in early
    gate.open()
    assert sorted(early + flat(iterator)) == list(range(12))


def test_an_iterator_cannot_be_pickled(loader_class, options):
    iterator = iter(loader_class(Squares(3), **options))
    with pytest.raises((NotImplementedError, TypeError)):
        pickle.dumps(iterator)
    assert flat(iterator) == [0, 1, 4]


def test_changing_the_options_of_a_loader_spares_its_iterators(loader_class, num_workers):
    loader = loader_class(Squares(6), batch_size=2, num_workers=num_workers, collate_fn=as_is)
    iterator = iter(loader)
    assert next(iterator) == [0, 1]
    loader.collate_fn = torch.tensor
    assert list(iterator) == [[4, 9], [16, 25]]


def test_a_stream_that_is_left_is_closed_at_once(loader_class):
    """What it holds, files and buffers, would pile up."""
    closed = []

    class Lines(IterableDataset):
        def __iter__(self):
            try:
                yield from range(100)
            finally:
                closed.append(True)

    loader = loader_class(Lines(), batch_size=4)
    gc.disable()
    try:
        for _ in range(3):
            for _ in loader:
                break
    finally:
        gc.enable()
    assert len(closed) >= 2  # the last one may be held by the loop's own variable
