"""Options that are refused with one line that says what, why and what to do."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from lit_loader import (
    BalancedBatchSampler,
    DataLoader,
    MixtureDataset,
    MixtureSampler,
    PackingBatchSampler,
    TokenBudgetBatchSampler,
)
from tests.support.exact import loaded
from tests.support.samples import Call, Counting, Rows
from tests.support.tools import refused

WORKERS = pytest.mark.parametrize("num_workers", [0, 2])


# --- datasets ---


@pytest.mark.parametrize("dataset", [5, None, len, Rows, (x for x in [1]), {1, 2}], ids=range(6))
def test_what_has_no_samples_is_refused_when_it_is_read(dataset: Any) -> None:
    message = refused(lambda: iter(DataLoader(dataset)))
    assert "dataset must " in message


# --- batch samplers ---


@pytest.mark.parametrize("length", [7, 9])
def test_a_sampler_of_another_dataset(length: int) -> None:
    """Samples would be left out, without a word, or not be there."""
    mixture = MixtureDataset([range(5), range(3)])
    for sampler in (
        BalancedBatchSampler([1] * 8, 2),
        PackingBatchSampler([1] * 8, 4),
        TokenBudgetBatchSampler([1] * 8, 4),
        MixtureSampler(mixture),
    ):
        name = "sampler" if isinstance(sampler, MixtureSampler) else "batch_sampler"
        message = refused(lambda: DataLoader(range(length), **{name: sampler}))  # type: ignore[misc]  # noqa: B023
        assert type(sampler).__name__ in message and "was made for" in message
        DataLoader(range(8), **{name: sampler})  # type: ignore[misc]


class Flat:
    def __iter__(self) -> Iterator[int]:
        return iter([1, 2])


@WORKERS
@pytest.mark.parametrize(
    "sampler",
    [[1, 2], Flat(), np.arange(1, 3), torch.arange(1, 3), [None], [[0], 7]],
    ids=["list", "iterable", "array", "tensor", "none", "later"],
)
def test_a_flat_batch_sampler(sampler: Any, num_workers: int) -> None:
    loader = DataLoader(Rows(8), batch_sampler=sampler, num_workers=num_workers)
    assert "batch_sampler gave" in refused(lambda: list(loader))


def test_a_sampler_of_ours_is_no_batch_sampler() -> None:
    mixture = MixtureDataset([range(4)])
    message = refused(lambda: DataLoader(mixture, batch_sampler=MixtureSampler(mixture)))
    assert "must give lists" in message


# --- samplers and mixtures ---


def mixture(weights: Any = None) -> MixtureDataset:
    return MixtureDataset({"a": range(3), "b": range(5)}, weights)


# --- epochs ---


@pytest.mark.parametrize("epoch", ["x", 1.0, None, True, 2**62, -(2**62) - 1], ids=str)
def test_an_epoch_is_a_whole_number(epoch: Any) -> None:
    loader = DataLoader(Rows(4), shuffle=True)
    for target in (
        loader, DataLoader(Counting(4)), MixtureSampler(mixture()),
        TokenBudgetBatchSampler([1, 2], 8),
    ):  # fmt: skip
        message = refused(lambda target=target: target.set_epoch(epoch))  # type: ignore
        assert f"got epoch={epoch!r}" in message


def test_epochs_of_other_integer_types_and_below_zero() -> None:
    def order(epoch: Any) -> list[int]:
        loader = DataLoader(Call(int, 40), 40, shuffle=True, seed=1)
        loader.set_epoch(epoch)
        [batch] = loader
        found: list[int] = batch.tolist()
        return found

    assert order(np.int64(3)) == order(3) != order(-3) == order(torch.tensor(-3))
    loader, resumed = (DataLoader(Call(int, 40), 40, shuffle=True, seed=1) for _ in range(2))
    loader.set_epoch(-3)
    [batch] = loaded(resumed, loader.state_dict())
    assert batch.tolist() == order(-3)


@pytest.mark.parametrize(
    ("former", "text"),
    [
        ("memory_budget", "prefetch_factor"),
        ("concurrent_reads", "read_threads"),
        ("share_lists", "SharedSequence"),
        ("num_remote_workers", "RayWorkers"),
        ("retry_backoff", "sample_retries=Retry"),
        ("check_determinism", "check_determinism.loader"),
    ],
)
def test_a_former_option_is_refused_with_what_to_write(former: str, text: str) -> None:
    with pytest.raises(TypeError, match=f"unknown option '{former}': did you mean .*{text}"):
        DataLoader(range(3), **{former: 1})
