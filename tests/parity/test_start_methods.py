"""fork, spawn and forkserver, chosen by name, by context object and by the process's default."""

from __future__ import annotations

import multiprocessing
import os
import sys

import pytest
import torch

from .datasets import (
    Interval,
    Noise,
    Squares,
    describe_worker,
    split_interval,
)
from .tools import as_is, flat, is_oracle, raises, whole_text

METHODS = multiprocessing.get_all_start_methods()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("as_object", [False, True], ids=["name", "context"])
def test_map_style(loader_class, method, as_object):
    context = multiprocessing.get_context(method) if as_object else method
    loader = loader_class(
        Squares(8),
        batch_size=3,
        num_workers=1,
        multiprocessing_context=context,
        persistent_workers=True,
    )
    for _ in range(2):
        assert flat(loader) == [i * i for i in range(8)]
    assert loader.multiprocessing_context.get_start_method() == method


@pytest.mark.parametrize("method", METHODS)
def test_iterable_style_with_worker_init_fn(loader_class, method):
    loader = loader_class(
        Interval(3, 10),
        num_workers=2,
        worker_init_fn=split_interval,
        multiprocessing_context=method,
    )
    assert flat(loader) == [3, 7, 4, 8, 5, 9, 6]


class Facts(Squares):
    def __getitem__(self, index):
        return describe_worker()


@pytest.mark.parametrize("method", METHODS)
def test_facts_about_a_worker(loader_class, method):
    loader = loader_class(
        Facts(2), batch_size=None, num_workers=1, collate_fn=as_is, multiprocessing_context=method
    )
    for fact in loader:
        assert (fact["id"], fact["num_workers"], fact["threads"]) == (0, 1, 1)
        assert fact["pid"] != os.getpid()


def test_the_start_method_does_not_change_the_seeds(loader_class):
    rows = []
    for method in METHODS:
        loader = loader_class(
            Noise(),
            batch_size=2,
            num_workers=1,
            generator=torch.Generator().manual_seed(3),
            multiprocessing_context=method,
        )
        rows.append(torch.cat(list(loader)).tolist())
    assert all(row == rows[0] for row in rows)


class WithLambda(Squares):
    """Holds something that cannot be pickled."""

    def __init__(self):
        super().__init__(3)
        self.transform = lambda value: value + 1

    def __getitem__(self, index):
        return self.transform(index)


def test_fork_carries_lambdas(loader_class):
    loader = loader_class(
        WithLambda(),
        num_workers=1,
        collate_fn=lambda samples: samples[0],
        worker_init_fn=lambda worker_id: None,
        multiprocessing_context="fork",
    )
    assert list(loader) == [1, 2, 3]


@pytest.mark.parametrize("what", ["dataset", "collate_fn", "worker_init_fn"])
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_lambda_under_spawn_is_an_error(loader_class, what, method, monkeypatch):
    monkeypatch.setitem(sys.modules, "cloudpickle", None)  # with which we carry it
    options = {} if what == "dataset" else {what: lambda value: value}
    dataset = WithLambda() if what == "dataset" else Squares(3)
    loader = loader_class(dataset, num_workers=1, multiprocessing_context=method, **options)
    with raises((TypeError, AttributeError, ValueError, RuntimeError)) as caught:
        list(loader)
    assert "lambda" in whole_text(caught.value)
    if not is_oracle(loader_class):
        assert what in str(caught.value)


def test_the_context_can_be_changed_between_epochs(loader_class):
    loader = loader_class(Squares(3), num_workers=1, multiprocessing_context="fork")
    assert flat(loader) == [0, 1, 4]
    loader.multiprocessing_context = "spawn"
    assert flat(loader) == [0, 1, 4]
