"""Transient errors: read again until it works, and no trace of it in the batches."""

import random
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import IterableDataset

import lit_loader
from lit_loader import DataLoader
from lit_loader.data import sample_errors
from lit_loader.data.sample_errors import MAX_BACKOFF
from lit_loader.errors import SampleErrorsError
from tests.parity.tools import Gate
from tests.support.exact import noisy_collate
from tests.support.samples import Call, Counting, OfLength

# `Draws` holds one, which cannot be taken back and has nothing to do with what samples are.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is a random.SystemRandom:UserWarning"),
    pytest.mark.usefixtures("by_fork"),  # a SystemRandom cannot be pickled
]


class Draws:
    """Draws from every kind of generator there is; each normal deviate leaves one in reserve."""

    def __init__(self) -> None:
        self.python = random.Random(1)
        self.system = random.SystemRandom()
        self.torch = torch.Generator().manual_seed(2)
        self.pcg = np.random.default_rng(3)
        self.twister = np.random.Generator(np.random.MT19937(4))
        self.philox = np.random.Generator(np.random.Philox(5))
        self.legacy = np.random.RandomState(6)
        self.legacy_pcg = np.random.RandomState(np.random.PCG64(7))

    def __call__(self) -> list[float]:
        return [
            random.gauss(0, 1),
            np.random.normal(),
            float(torch.rand((), dtype=torch.float64)),
            self.python.gauss(0, 1),
            float(torch.rand((), generator=self.torch, dtype=torch.float64)),
            self.pcg.random(dtype=np.float32),  # half a draw, the other half kept
            self.twister.normal(),
            self.philox.random(),
            self.legacy.normal(),
            self.legacy_pcg.normal(),
        ]


class Flaky(OfLength):
    """Draws, and fails ``times`` times on each of ``bad``, having drawn one value more."""

    length = 14

    def __init__(self, times: int = 2, error: type[Exception] = OSError) -> None:
        self.draws = Draws()
        self.error = error
        self.left = dict.fromkeys((0, 3, 4, 11), times)

    def __getitem__(self, index: int) -> Tensor:
        drawn = self.draws()
        if self.left.get(index, 0):
            self.left[index] -= 1
            self.draws()
            raise self.error(f"no sample {index} yet")
        return torch.tensor([index, *drawn], dtype=torch.float64)


class FlakyTogether(Flaky):
    """Asked for whole batches."""

    def __getitems__(self, indices: list[int]) -> list[Tensor]:
        return [self[index] for index in indices]


class FlakyStream(IterableDataset[Tensor]):
    """The same, iterated; its iterator is where it was after an exception."""

    def __init__(self, times: int = 2) -> None:
        self.samples = Flaky(times)
        self.place = 0

    def __iter__(self) -> Iterator[Tensor]:
        self.place, self.step = lit_loader.get_shard()
        return self

    def __next__(self) -> Tensor:
        if self.place >= 14:
            raise StopIteration
        sample = self.samples[self.place]
        self.place += self.step
        return sample


def epochs(dataset: Any, workers: int, **options: Any) -> tuple[list[Any], int]:
    """What two epochs give, and how often samples of the first were read again."""
    with DataLoader(
        dataset, batch_size=4, num_workers=workers, persistent_workers=workers > 0,
        collate_fn=noisy_collate, seed=9, retry_backoff=0, **options,
    ) as loader:  # fmt: skip
        iterators = iter(loader), iter(loader)
        batches = [batch.tolist() for iterator in iterators for batch in iterator]
        return batches, iterators[0].sample_errors.retries


# --- no trace ---


@pytest.mark.parametrize("seeding", ["batch", "sample", "worker"])
@pytest.mark.parametrize("kind", [Flaky, FlakyTogether, FlakyStream])
@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_batches_are_those_of_a_clean_run(
    kind: Any, seeding: str, policy: str, workers: int
) -> None:
    clean, none = epochs(kind(times=0), workers, seeding=seeding)
    assert len(clean) == 2 * 4 or workers
    # As many as each sample needs; a batch of several that fail, asked for at once, needs more.
    retries = 4 if kind is FlakyTogether else 2
    retried, times = epochs(
        kind(), workers, seeding=seeding, sample_retries=retries, on_sample_error=policy
    )
    assert retried == clean
    assert (none, times) == (0, 8)


# --- how often, and what ---


def test_after_the_last_retry_the_error_counts(workers: int) -> None:
    options: dict[str, Any] = {"num_workers": workers, "sample_retries": 2, "retry_backoff": 0}
    with (
        DataLoader(Flaky(times=3), batch_size=14, **options) as loader,
        pytest.raises(OSError, match="no sample 0 yet"),
    ):
        list(loader)
    with DataLoader(Flaky(times=3), 14, on_sample_error="skip", **options) as loader:
        iterator = iter(loader)
        assert [len(batch) for batch in iterator] == [10]
        errors = iterator.sample_errors.errors
        assert [error.retries for error in errors] == [2] * 4
        assert "no sample 0 yet after 2 retries; skipped; " in str(errors[0])
        assert (iterator.sample_errors.retries, iterator.sample_errors.count) == (8, 4)


def test_a_replacement_is_tried_again_too() -> None:
    seen: set[int] = set()

    def read(index: int) -> int:
        if index == 0:
            raise ValueError
        if index not in seen:
            seen.add(index)
            raise OSError
        return index

    loader = DataLoader(
        Call(read), sample_retries=1, retry_backoff=0, on_sample_error="replace", seed=1
    )
    iterator = iter(loader)
    assert int(next(iterator)) in seen
    assert (iterator.sample_errors.retries, iterator.sample_errors.count) == (1, 1)


def test_other_errors_are_not_tried_again() -> None:
    read = []

    def fail(index: int) -> None:
        read.append(index)
        raise KeyError(index)

    options: dict[str, Any] = {"sample_retries": 5, "on_sample_error": "skip"}
    with pytest.raises(SampleErrorsError):
        next(iter(DataLoader(Call(fail, 2), **options)))
    assert read == [0, 1]
    read.clear()
    options |= {"transient_errors": ["builtins.LookupError"], "retry_backoff": 0}
    with pytest.raises(SampleErrorsError):
        next(iter(DataLoader(Call(fail, 1), **options)))
    assert read == [0] * 6


def test_a_generator_is_not_tried_again_in_vain() -> None:
    loader = DataLoader(Counting(4, Flaky().__getitem__), sample_retries=5, on_sample_error="skip")
    with pytest.raises(OSError, match="no sample 0 yet") as caught:
        list(loader)
    if sys.version_info >= (3, 11):
        assert caught.value.__notes__[0].startswith("a generator cannot go on after an exception")


def test_a_batch_asked_for_at_once_is_tried_again_at_once_and_then_one_by_one() -> None:
    class Remote:  # it has no __getitem__ at all
        def __init__(self) -> None:
            self.asked: list[list[int]] = []

        def __len__(self) -> int:
            return 3

        def __getitems__(self, indices: list[int]) -> list[int]:
            self.asked.append(indices)
            if 1 in indices and (len(indices) > 1 or self.asked.count(indices) == 1):
                raise ConnectionError("not now")
            return indices

    dataset: Any = Remote()
    options: dict[str, Any] = {"batch_size": 3, "retry_backoff": 0}
    assert [b.tolist() for b in DataLoader(dataset, sample_retries=1, **options)] == [[0, 1, 2]]
    assert dataset.asked == [[0, 1, 2], [0, 1, 2], [0], [1], [1], [2]]
    dataset = Remote()
    with pytest.raises(ConnectionError):
        list(DataLoader(dataset, **options))
    assert dataset.asked == [[0, 1, 2]]


# --- the wait ---


def test_the_wait_doubles_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(sample_errors.time, "sleep", slept.append)
    totals = []

    def fail(index: int) -> None:
        totals.append(sum(slept))
        slept.clear()
        raise OSError

    loader = DataLoader(Call(fail, 1), sample_retries=9, retry_backoff=0.1, on_sample_error="skip")
    with pytest.raises(SampleErrorsError):
        next(iter(loader))
    assert totals == pytest.approx([0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0])
    assert MAX_BACKOFF == 10.0


@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_the_wait_ends_when_the_batch_is_no_longer_wanted(policy: str, gate: Gate) -> None:
    """The worker is there for the next epoch at once."""

    def sample(index: int) -> int:
        if index == 1 and lit_loader.get_epoch() == 0:
            gate.open()
            raise OSError
        return index

    options: Any = {"on_sample_error": policy, "sample_retries": 9, "retry_backoff": MAX_BACKOFF}
    with DataLoader(Call(sample, 4), num_workers=1, persistent_workers=True, **options) as loader:
        iterator = iter(loader)
        next(iterator)
        assert gate.wait()
        begun = time.monotonic()
        assert [int(batch) for batch in loader] == [0, 1, 2, 3]
        assert time.monotonic() - begun < MAX_BACKOFF
