"""The same bytes however they are loaded, stopped and resumed: compared with one process's run.

Starting spawned workers takes seconds. Forked workers therefore go through the whole matrix of
numbers of workers, seedings and places to stop; spawn and forkserver go through the seedings and
the places with one set of persistent workers each, and meet the other methods when resumed.
"""

from __future__ import annotations

import random
from collections import Counter
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from lit_loader import DataLoader
from tests.support.exact import Augmented, digests, noisy_collate, taken, through_file

BATCHES = 7
STOPS = (0, 1, 3, BATCHES - 1, BATCHES)
WORKERS = (0, 1, 2, 4)


def make(**options: Any) -> DataLoader[Any]:
    options = {"batch_size": 4, "shuffle": True, "seed": 11} | options
    return DataLoader(Augmented(), collate_fn=noisy_collate, **options)


def generators_state() -> tuple[Any, ...]:
    return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()


@cache
def reference(seeding: str) -> list[list[str]]:
    """Three uninterrupted epochs in this process."""
    loader = make(seeding=seeding)
    epochs = [digests(loader) for _ in range(3)]
    assert len({batch for epoch in epochs for batch in epoch}) == 3 * BATCHES
    return epochs


@pytest.mark.parametrize("seeding", ["batch", "sample"])
@pytest.mark.parametrize("workers", WORKERS)
def test_epochs_are_equal_for_any_number_of_workers(workers: int, seeding: str) -> None:
    before = generators_state()
    with make(num_workers=workers, seeding=seeding, persistent_workers=workers > 0) as loader:
        assert [digests(loader) for _ in range(3)] == reference(seeding)
    assert generators_state() == before


@pytest.mark.parametrize("seeding", ["batch", "sample"])
@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("stop", STOPS)
def test_stopped_and_resumed_twice(workers: int, seeding: str, stop: int) -> None:
    """Each resume has other workers, prefetching and order of completion than the run before."""
    expected = reference(seeding)
    second, third = (WORKERS[(WORKERS.index(workers) + step) % 4] for step in (1, 2))
    again = min(stop + 2, BATCHES)

    with make(num_workers=workers, seeding=seeding) as loader:
        assert digests(loader) == expected[0]
        got, _ = taken(loader, stop)
        assert got == expected[1][:stop]
        state = through_file(loader.state_dict())

    with make(
        num_workers=second, seeding=seeding, prefetch_factor=3 if second else None
    ) as resumed:
        resumed.load_state_dict(state)
        got, _ = taken(resumed, again - stop)
        assert got == expected[1][stop:again]
        state = through_file(resumed.state_dict())

    with make(
        num_workers=third, seeding=seeding, prefetch_factor=1 if third else None, in_order=False
    ) as resumed:
        resumed.load_state_dict(state)
        assert Counter(digests(resumed)) == Counter(expected[1][again:])
        assert Counter(digests(resumed)) == Counter(expected[2])


@pytest.mark.parametrize(
    ("method", "seeding"), [("spawn", "batch"), ("spawn", "sample"), ("forkserver", "sample")]
)
def test_other_start_methods(method: str, seeding: str) -> None:
    """One set of workers: every stop by loading in place."""
    options = {
        "multiprocessing_context": method,
        "num_workers": 2,
        "persistent_workers": True,
    }
    expected = reference(seeding)
    with make(seeding=seeding, **options) as loader:
        assert digests(loader) == expected[0]
        for stop in STOPS:
            loader.set_epoch(1)
            got, iterator = taken(loader, stop)
            assert got == expected[1][:stop]
            state = through_file(loader.state_dict())
            with make(seeding=seeding) as resumed:
                resumed.load_state_dict(state)
                assert digests(resumed) == expected[1][stop:]
            loader.load_state_dict(state)
            assert digests(loader) == expected[1][stop:]
            assert digests(loader) == expected[2]
            del iterator


def test_sample_seeding_does_not_depend_on_the_batch_size() -> None:
    def rows(batch_size: int) -> list[str]:
        loader = DataLoader(Augmented(), batch_size, True, seed=11, seeding="sample")
        return digests(row for batch in loader for row in batch)

    assert rows(4) == rows(5) == rows(26)


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("stop", range(BATCHES + 1))
def test_out_of_order_loses_and_repeats_nothing(workers: int, stop: int) -> None:
    expected = Counter(reference("batch")[0])
    with make(num_workers=workers, in_order=False, prefetch_factor=3) as loader:
        got, _ = taken(loader, stop)
        state = through_file(loader.state_dict())
    for options in ({}, {"num_workers": 2, "in_order": False}):
        with make(**options) as resumed:
            resumed.load_state_dict(state)
            assert Counter(got) + Counter(digests(resumed)) == expected


def test_the_parents_generators_are_not_touched_by_a_loop_left_early() -> None:
    before = generators_state()
    for workers in (0, 2):
        with make(num_workers=workers) as loader:
            _, iterator = taken(loader, 2)
            loader.state_dict()
            assert generators_state() == before
            del iterator
    assert generators_state() == before


def test_worker_seeding_resumes_with_the_right_indices() -> None:
    """PyTorch's own scheme makes no promise about random numbers, but the order is exact."""
    with make(seeding="worker", num_workers=2) as loader:
        whole = [batch[:, 0].tolist() for batch in loader]
    with make(seeding="worker", num_workers=2) as loader:
        taken(loader, 3)
        state = loader.state_dict()
    with make(seeding="worker", num_workers=1) as resumed:
        resumed.load_state_dict(state)
        assert [batch[:, 0].tolist() for batch in resumed] == whole[3:]
