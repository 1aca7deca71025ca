"""Exceptions of user code: they reach the consumer, with their type, and the iterator lives on."""

import pickle
import re

import pytest
import torch

from tests.support.datasets import Call, Squares, Stream
from tests.support.samples import uncollated as as_is
from tests.support.tools import flat, is_oracle, raises, whole_text


def failing_at(*where, error=ValueError):
    """A map-style function that raises at some indices."""

    def fetch_that_fails(index):
        if index in where:
            raise error(f"bad sample {index}")
        return index

    return fetch_that_fails


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("batch_size", [1, 2, None])
def test_an_iterator_survives_bad_samples(loader_class, num_workers, batch_size, persistent):
    if persistent and not num_workers:
        pytest.skip("there is nothing to persist")
    loader = loader_class(
        Call(failing_at(2, 7), 10),
        batch_size=batch_size,
        num_workers=num_workers,
        persistent_workers=persistent,
    )
    size = batch_size or 1
    batches = [[*range(start, start + size)] for start in range(0, 10, size)]
    expected = ["bad" if {2, 7} & {*batch} else batch for batch in batches]
    for _ in range(2):
        iterator, seen = iter(loader), []
        while True:
            try:
                seen.append(flat([next(iterator)]))
            except ValueError as error:
                assert "bad sample" in str(error)
                seen.append("bad")
                error.__traceback__ = None
            except StopIteration:
                break
        assert seen == expected


ERRORS = [
    *(ValueError, KeyError, IndexError, TypeError, AttributeError, OSError, RuntimeError),
    *(FileNotFoundError, NotImplementedError, ZeroDivisionError, AssertionError, MemoryError),
    *(EOFError, TimeoutError, ConnectionResetError, BrokenPipeError, pickle.PicklingError),
]


def fetch_that_fails(index):
    raise ERRORS[index](f"bad sample {index}")


def test_an_exception_keeps_its_type_and_message(loader_class, num_workers):
    loader = loader_class(Call(fetch_that_fails, len(ERRORS)), num_workers=num_workers)
    iterator = iter(loader)
    for index, error in enumerate(ERRORS):
        with raises(error) as caught:
            next(iterator)
        text = whole_text(caught.value)
        assert f"bad sample {index}" in text
        assert "fetch_that_fails" in text, "the worker's traceback is missing"


class NoFile(Stream):
    def __iter__(self):
        raise FileNotFoundError("no shard")


class NoIdea(Squares):
    def __len__(self):
        raise OSError("index file lost")


def without_label(index):
    try:
        {}["missing"]
    except KeyError as error:
        raise ValueError("no label") from error


def stopping(index):
    if index == 2:
        raise StopIteration
    return index


def unpicklable(index):
    class LocalError(ValueError):
        def __init__(self, message):
            super().__init__(message)
            self.handle = lambda: None

    raise LocalError("cannot travel")


def nonleaf(index):
    return torch.ones(2, requires_grad=True) * 2


RAISED = {
    "cause": (Call(without_label), {}, ValueError, r"KeyError: 'missing'[\s\S]*no label"),
    "iter": (NoFile(), {}, FileNotFoundError, "no shard"),
    "length": (NoIdea(), {}, OSError, "index file lost"),
    "index": ([1, 2], {"sampler": [99]}, IndexError, ""),
    "index in a batch": ([1, 2], {"batch_sampler": [[99]]}, IndexError, ""),
    # Torch ends the epoch without a word, sends the class by name and hangs, or just hangs.
    "ours: StopIteration": (Call(stopping, 5), {}, RuntimeError, "StopIteration"),
    "ours: unpicklable": (
        Call(unpicklable), {}, (ValueError, RuntimeError), "LocalError.*cannot travel"
    ),
    "ours: nonleaf": (
        Call(nonleaf), {"batch_size": None, "collate_fn": as_is}, RuntimeError, "detach"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RAISED)
def test_what_is_raised(loader_class, num_workers, name):
    dataset, options, error, text = RAISED[name]
    if name.startswith("ours") and is_oracle(loader_class):
        pytest.skip("torch does not raise it")
    if name == "ours: nonleaf" and not num_workers:
        pytest.skip("nothing is carried")
    with raises(error) as caught:
        list(loader_class(dataset, num_workers=num_workers, **options))
    assert re.search(text, whole_text(caught.value))


def test_the_length_of_a_dataset_to_shuffle(loader_class):
    with pytest.raises(OSError, match="index file lost"):
        loader_class(NoIdea(), shuffle=True)


@pytest.mark.ours_only
def test_batches_before_a_samplers_exception_are_delivered(loader_class, num_workers):
    """Torch raises as soon as it draws ahead, batches before what was asked for."""

    def draw():
        yield from range(3)
        raise LookupError("sampler broke")

    iterator = iter(loader_class(Squares(6), sampler=draw(), num_workers=num_workers))
    values = []
    with raises(LookupError, match="sampler broke"):
        for batch in iterator:
            values += flat([batch])
    assert values == [0, 1, 4]
    assert list(iterator) == []
