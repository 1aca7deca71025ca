"""Exceptions of user code: they reach the consumer, with their type, and the iterator lives on."""

from __future__ import annotations

import pickle

import pytest

from .datasets import (
    Call,
    Squares,
    Stream,
    StumblingStream,
)
from .tools import as_is, flat, is_oracle, raises, whole_text


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
    for _ in range(2):
        iterator = iter(loader)
        values, errors = [], 0
        while True:
            try:
                values += flat([next(iterator)])
            except ValueError as error:
                assert "bad sample" in str(error)
                errors += 1
                error.__traceback__ = None
            except StopIteration:
                break
        size = batch_size or 1
        lost = {i for bad in (2, 7) for i in range(bad // size * size, bad // size * size + size)}
        assert values == [i for i in range(10) if i not in lost]
        assert errors == 2


def test_bad_batches_come_in_their_place(loader_class):
    iterator = iter(loader_class(Call(failing_at(1), 4), num_workers=2))
    assert int(next(iterator)) == 0
    with raises(ValueError, match="bad sample 1"):
        next(iterator)
    assert flat(iterator) == [2, 3]


@pytest.mark.parametrize(
    "error",
    [ValueError, KeyError, IndexError, TypeError, AttributeError, OSError, RuntimeError,
     FileNotFoundError, NotImplementedError, ZeroDivisionError, AssertionError, MemoryError,
     EOFError, TimeoutError, ConnectionResetError, BrokenPipeError, pickle.PicklingError],
)  # fmt: skip
def test_an_exception_keeps_its_type_and_message(loader_class, num_workers, error):
    loader = loader_class(Call(failing_at(1, error=error), 2), num_workers=num_workers)
    with raises(error) as caught:
        list(loader)
    text = whole_text(caught.value)
    assert "bad sample 1" in text
    assert "fetch_that_fails" in text, "the worker's traceback is missing"


def test_an_unpicklable_exception(loader_class, num_workers):
    class LocalError(ValueError):
        def __init__(self, message):
            super().__init__(message)
            self.handle = lambda: None

    def sample(index):
        raise LocalError("cannot travel")

    # In a queue an unpicklable result would vanish: torch sends the class by name and hangs.
    if num_workers and is_oracle(loader_class):
        pytest.skip("torch cannot send it")
    loader = loader_class(Call(sample), num_workers=num_workers)
    with raises((LocalError, RuntimeError)) as caught:
        list(loader)
    text = whole_text(caught.value)
    assert "LocalError" in text
    assert "cannot travel" in text


def test_a_chained_exception_tells_its_cause(loader_class, num_workers):
    def sample(index):
        try:
            {}["missing"]
        except KeyError as error:
            raise ValueError("no label") from error

    with raises(ValueError, match="no label") as caught:
        list(loader_class(Call(sample), num_workers=num_workers))
    assert "missing" in whole_text(caught.value)


@pytest.mark.ours_only
def test_stopiteration_from_a_map_style_dataset_is_an_error(loader_class, num_workers):
    """Torch ends the epoch there without a word."""

    def sample(index):
        if index == 2:
            raise StopIteration
        return index

    with raises(RuntimeError, match="StopIteration"):
        list(loader_class(Call(sample, 5), num_workers=num_workers))


def test_the_iter_of_a_stream(loader_class, num_workers):
    class NoFile(Stream):
        def __iter__(self):
            raise FileNotFoundError("no shard")

    with raises(FileNotFoundError, match="no shard"):
        list(loader_class(NoFile(), num_workers=num_workers))


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("batch_size", [1, None])
def test_a_stream_that_can_go_on(loader_class, num_workers, batch_size):
    loader = loader_class(StumblingStream(4, at=2), batch_size=batch_size, num_workers=num_workers)
    iterator = iter(loader)
    assert [int(next(iterator)) for _ in range(2)] == [0, 1]
    with raises(ValueError, match="stumbled at 2"):
        next(iterator)
    assert [int(value) for value in iterator] == [3]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_generator_that_fails_is_over(loader_class, num_workers):
    class Broken(Stream):
        def __iter__(self):
            yield 1
            raise ValueError("end of tape")

    iterator = iter(loader_class(Broken(), num_workers=num_workers))
    assert int(next(iterator)) == 1
    with raises(ValueError, match="end of tape"):
        next(iterator)
    assert list(iterator) == []


def test_one_failing_stream_spares_the_other(loader_class):
    class HalfBroken(Stream):
        def __iter__(self):
            from torch.utils.data import get_worker_info

            if get_worker_info().id == 0:
                raise ValueError("bad shard")
            yield from range(3)

    iterator = iter(loader_class(HalfBroken(), num_workers=2))
    with raises(ValueError, match="bad shard"):
        next(iterator)
    if not is_oracle(loader_class):  # torch's broken worker answers again, with its own error
        assert flat(iterator) == [0, 1, 2]


def test_the_length_of_a_dataset(loader_class, num_workers):
    class NoIdea(Squares):
        def __len__(self):
            raise OSError("index file lost")

    with raises(OSError, match="index file lost"):
        list(loader_class(NoIdea(), num_workers=num_workers))
    with raises(OSError, match="index file lost"):
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


def test_a_loader_is_usable_after_an_exception(loader_class, num_workers):
    broken = {"now": True}

    def sample(index):
        if broken["now"]:
            raise ValueError("not yet")
        return index

    loader = loader_class(Call(sample, 3), num_workers=num_workers)
    with raises(ValueError, match="not yet"):
        list(loader)
    broken["now"] = False
    assert flat(loader) == [0, 1, 2]


def test_a_nonleaf_that_requires_grad_is_refused(loader_class):
    import torch

    def sample(index):
        return torch.ones(2, requires_grad=True) * 2

    # Torch's worker prints the error in a thread and the consumer would wait for ever.
    if is_oracle(loader_class):
        pytest.skip("torch hangs")
    loader = loader_class(Call(sample), batch_size=None, num_workers=1, collate_fn=as_is)
    with raises(RuntimeError, match="detach"):
        list(loader)


@pytest.mark.parametrize("option", ["sampler", "batch_sampler"])
def test_a_sampler_of_a_wrong_index(loader_class, num_workers, option):
    values = [99] if option == "sampler" else [[99]]
    loader = loader_class([1, 2], num_workers=num_workers, **{option: values})
    with raises(IndexError):
        list(loader)
