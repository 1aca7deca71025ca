"""Resizes, kills and breaks at random places of one loader's life: every epoch is what it was."""

from __future__ import annotations

import collections
import os
import random
import signal
import warnings
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from lit_loader import DataLoader

SAMPLES, BATCH, EPOCHS = 200, 5, 6


class Ragged(Dataset[Any]):
    """Samples of different sizes, with a number that is drawn."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        return torch.full((1 + index % 50,), index), random.random()


def as_lists(samples: list[Any]) -> Any:
    return [tensor for tensor, _ in samples], [number for _, number in samples]


def frozen(batch: Any) -> Any:
    return [tensor.tolist() for tensor in batch[0]], batch[1]


def loader_of(**options: Any) -> Any:
    return DataLoader(Ragged(), BATCH, shuffle=True, seed=3, collate_fn=as_lists, **options)


def act_at_random(acts: int, seed: int) -> collections.Counter[str]:
    """Compare epochs until so many things have been done to the loader; returns what was done."""
    rng, done = random.Random(seed), collections.Counter[str]()
    plain, expected = loader_of(), {}
    for epoch in range(EPOCHS):
        plain.set_epoch(epoch)
        expected[epoch] = [frozen(batch) for batch in plain]
    with loader_of(num_workers=3, persistent_workers=True, max_worker_restarts=10**6) as loader:
        while done.total() < acts:
            epoch = rng.randrange(EPOCHS)
            batches = expected[epoch]
            last = rng.randrange(len(batches)) if rng.random() < 0.3 else None
            loader.set_epoch(epoch)
            found = []
            for number, batch in enumerate(loader):
                found.append(frozen(batch))
                if number == last:
                    done["break"] += 1
                    break
                if rng.random() < 0.02:
                    loader.resize(rng.randint(1, 5))
                    done["resize"] += 1
                elif rng.random() < 0.02:
                    try:
                        os.kill(rng.choice(loader._core.pool.workers.pids), signal.SIGKILL)
                    except ProcessLookupError:
                        continue
                    done["kill"] += 1
            assert found == (batches if last is None else batches[: last + 1]), f"epoch {epoch}"
    return done


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def test_some_acts() -> None:
    assert len(act_at_random(40, seed=0)) == 3


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_thousand_acts() -> None:
    assert min(act_at_random(1000, seed=1).values()) > 100
