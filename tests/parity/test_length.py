"""``len()`` of loaders and iterators, for both kinds of datasets, and how it follows growth."""

from __future__ import annotations

import warnings

import pytest

from .datasets import CountingSampler, NoLength, SizedStream, Squares, Stream
from .tools import flat


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, 10),
        ({"batch_size": 3}, 4),
        ({"batch_size": 3, "drop_last": True}, 3),
        ({"batch_size": 5}, 2),
        ({"batch_size": 11}, 1),
        ({"batch_size": 11, "drop_last": True}, 0),
        ({"batch_size": None}, 10),
        ({"batch_size": 4, "sampler": [1, 2, 3, 4, 5]}, 2),
        ({"batch_size": None, "sampler": [1, 2, 3]}, 3),
        ({"batch_sampler": [[0], [1, 2], []]}, 3),
        ({"batch_size": 4, "shuffle": True}, 3),
    ],
)
@pytest.mark.parametrize("num_workers", [0, 1])
def test_map_style(loader_class, options, expected, num_workers):
    loader = loader_class(Squares(10), num_workers=num_workers, **options)
    assert len(loader) == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, 10),
        ({"batch_size": 3}, 4),
        ({"batch_size": 3, "drop_last": True}, 3),
        ({"batch_size": None}, 10),
        ({"batch_size": 3, "num_workers": 2}, 4),
    ],
)
def test_iterable_style_with_a_length(loader_class, options, expected):
    assert len(loader_class(SizedStream(10), **options)) == expected


def test_iterable_style_without_a_length(loader_class):
    loader = loader_class(Stream(3))
    with pytest.raises(TypeError):
        len(loader)
    assert flat(loader) == [0, 1, 2]


def test_map_style_without_a_length_or_sampler(loader_class):
    loader = loader_class(NoLength())
    with pytest.raises(TypeError):
        len(loader)


def test_a_sampler_without_a_length(loader_class):
    loader = loader_class(Squares(), sampler=iter([1, 2]))
    with pytest.raises(TypeError):
        len(loader)


def test_an_empty_dataset(loader_class, num_workers):
    loader = loader_class([], num_workers=num_workers)
    assert len(loader) == 0
    assert list(loader) == []
    assert list(loader_class([], batch_size=None, num_workers=num_workers)) == []
    assert list(loader_class(Stream(0), batch_size=2, num_workers=num_workers)) == []
    assert list(loader_class([1, 2], batch_size=3, drop_last=True, num_workers=num_workers)) == []


def test_shuffling_an_empty_dataset_is_refused(loader_class):
    with pytest.raises(ValueError, match="num_samples"):
        loader_class([], shuffle=True)


@pytest.mark.parametrize("shuffle", [False, True])
def test_it_follows_a_dataset_that_grows(loader_class, num_workers, shuffle):
    data = [1, 2, 3]
    loader = loader_class(data, batch_size=2, num_workers=num_workers, shuffle=shuffle)
    assert len(loader) == 2
    assert sorted(flat(loader)) == [1, 2, 3]
    data.extend([4, 5])
    assert len(loader) == 3
    assert sorted(flat(loader)) == [1, 2, 3, 4, 5]
    del data[1:]
    assert len(loader) == 1
    assert flat(loader) == [1]


def test_it_follows_a_sampler_that_grows(loader_class):
    sampler = CountingSampler(2)
    loader = loader_class(Squares(), sampler=sampler)
    assert (len(loader), flat(loader)) == (2, [0, 1])
    sampler.length = 4
    assert (len(loader), flat(loader)) == (4, [0, 1, 4, 9])


def test_it_follows_an_iterable_dataset(loader_class):
    dataset = SizedStream(4)
    loader = loader_class(dataset, batch_size=2)
    assert len(loader) == 2
    dataset.promised = 8
    assert len(loader) == 4


def test_an_iterator_has_the_length_of_its_loader(loader_class):
    iterator = iter(loader_class(Squares(10), batch_size=4))
    assert len(iterator) == 3
    next(iterator)
    assert len(iterator) == 3


@pytest.mark.parametrize("batch_size", [1, None])
def test_a_broken_promise_warns(loader_class, num_workers, batch_size):
    dataset = SizedStream(6, promised=4)
    loader = loader_class(dataset, batch_size=batch_size, num_workers=num_workers)
    assert len(loader) == 4
    iterator = iter(loader)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*(promised|reported)")
        values = [int(next(iterator)) for _ in range(4)]
    with pytest.warns(UserWarning, match=r"(?i)len.*\b4\b|\b4\b.*len"):
        values += [int(value) for value in iterator]
    expected = list(range(6))
    if num_workers:
        expected = [value for value in expected for _ in range(num_workers)]
    assert values == expected


def test_no_warning_unless_the_length_was_asked_for(loader_class, num_workers):
    loader = loader_class(SizedStream(6, promised=4), num_workers=num_workers)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*(promised|reported)")
        assert len(list(loader)) == 6 * max(num_workers, 1)


def test_fewer_samples_than_promised_is_no_warning(loader_class, num_workers):
    loader = loader_class(SizedStream(3, promised=20), num_workers=num_workers)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*(promised|reported)")
        assert len(loader) == 20
        assert len(list(loader)) == 3 * max(num_workers, 1)
