"""Options that are refused with one line that says what, why and what to do."""

from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from lit_loader import (
    BalancedBatchSampler,
    DataLoader,
    MixtureDataset,
    MixtureSampler,
    MixtureStream,
    OptionError,
    PackingBatchSampler,
    TokenBudgetBatchSampler,
)
from tests.support.exact import loaded
from tests.support.samples import Call, Counting, Rows

WORKERS = pytest.mark.parametrize("num_workers", [0, 2])


def refused(attempt: Callable[[], object], kind: type[Exception] = OptionError) -> str:
    """The message, on one line, with which something is refused."""
    with pytest.raises(kind) as caught:
        attempt()
    message = str(caught.value)
    assert "\n" not in message
    return message


# --- datasets ---


def test_what_has_no_samples_is_refused_when_it_is_read() -> None:
    for dataset, told in ((5, "5 (int)"), (None, "None (NoneType)"), (len, "(builtin_function")):
        message = refused(lambda dataset=dataset: iter(DataLoader(dataset)))  # type: ignore[misc]
        assert message.startswith(
            "lit_loader: dataset must have __getitem__ (and __len__), __getitems__ or"
        )
        assert told in message
    assert refused(lambda: iter(DataLoader(Rows))) == (  # type: ignore[arg-type]
        "lit_loader: dataset must be an object, got the class Rows itself: call it, as in Rows()"
    )


def test_what_can_only_be_iterated_and_is_no_iterable_dataset() -> None:
    for dataset, told in (((x for x in [1]), "(generator)"), ({1, 2}, "{1, 2} (set)")):
        message = refused(lambda dataset=dataset: iter(DataLoader(dataset)))  # type: ignore[misc]
        assert "or be an IterableDataset, got " in message and told in message
        assert message.endswith("whose __iter__ begins it again for each epoch")


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
        assert message.startswith(
            f"lit_loader: {type(sampler).__name__} was made for 8 samples, and the data"
        )
        assert f"(range) has {length}. Make" in message
        DataLoader(range(8), **{name: sampler})  # type: ignore[misc]


class Flat:
    def __iter__(self) -> Iterator[int]:
        return iter([1, 2])


@WORKERS
@pytest.mark.parametrize(
    ("sampler", "told"),
    [
        ([1, 2], "1 (int)"),
        (Flat(), "1 (int)"),
        (np.arange(1, 3), "1 (int64)"),
        (torch.arange(1, 3), "tensor(1) (Tensor)"),
        ([None], "None (NoneType)"),
        ([[0], 7], "7 (int)"),
    ],
    ids=["list", "iterable", "array", "tensor", "none", "later"],
)
def test_a_flat_batch_sampler(sampler: Any, told: str, num_workers: int) -> None:
    loader = DataLoader(Rows(8), batch_sampler=sampler, num_workers=num_workers)
    message = refused(lambda: list(loader)).replace("np.int64(1)", "1")
    assert message == (
        f"lit_loader: batch_sampler gave {told}, where a list of the batch's indices is expected: "
        "give lists, or use sampler with batch_size"
    )


def test_a_sampler_of_ours_is_no_batch_sampler() -> None:
    mixture = MixtureDataset([range(4)])
    message = refused(lambda: DataLoader(mixture, batch_sampler=MixtureSampler(mixture)))
    assert message == (
        "lit_loader: batch_sampler must give lists of indices, but MixtureSampler gives single "
        "ones: pass it as sampler, with batch_size"
    )


# --- samplers and mixtures ---


def mixture(weights: Any = None) -> MixtureDataset:
    return MixtureDataset({"a": range(3), "b": range(5)}, weights)


@pytest.mark.parametrize(
    "weights",
    [
        [0.75, 0.25],
        np.array([3, 1], np.float32),
        np.array([3, 1]),
        [Fraction(3, 4), Decimal("0.25")],
    ],
    ids=["float", "float32", "int64", "exact"],
)
def test_numbers_of_every_kind_are_weights(weights: Any) -> None:
    sampler = MixtureSampler(mixture(weights), epoch_length=1024)
    assert sampler.counts(0) == {"a": 768, "b": 256}


@pytest.mark.parametrize("kind", [np.int64, np.asarray, torch.tensor])
def test_numbers_of_every_kind_are_options_of_samplers(kind: Any) -> None:
    """NumPy's would overflow at the first draw, or at a late one."""

    def drawn(seed: Any, length: Any, weights: Any) -> list[Any]:
        sampler = MixtureSampler(mixture(weights), epoch_length=length, shuffle=True, seed=seed)
        sampler.set_epoch(2**56)
        told = DataLoader(range(8), sampler=sampler, seed=0).state_dict()["fingerprint"]
        return [list(sampler), repr(sampler), told]

    weights = [3 * 10**12, 10**12]
    assert drawn(kind(1), kind(64), list(map(kind, weights))) == drawn(1, 64, weights)

    def streamed(seed: Any, length: Any, strategy: Any) -> list[Any]:
        stream = MixtureStream([[1] * 50, [2] * 50], [1, 3], length, strategy, seed)
        loader = DataLoader(stream, 4, seed=0)
        return [[b.tolist() for b in loader], repr(stream), loader.state_dict()["fingerprint"]]

    assert streamed(kind(2), kind(9), np.str_("repeat")) == streamed(2, 9, "repeat")

    def budgeted(one: Any, many: Any, share: Any, true: Any, word: Any) -> list[Any]:
        sampler = TokenBudgetBatchSampler(
            [3, 1, 2, 5, 4, 4] * 4, many, max_samples=many, shuffle=true, drop_last=true,
            spread=share, pad_to_multiple_of=one, too_long=word, num_replicas=one, seed=one,
        )  # fmt: skip
        told = DataLoader(range(24), batch_sampler=sampler, seed=0).state_dict()["fingerprint"]
        return [list(sampler), repr(sampler), told]

    given = budgeted(kind(1), kind(8), kind(0.25), kind(True), np.str_("skip"))
    assert given == budgeted(1, 8, 0 if kind is np.int64 else 0.25, True, "skip")


# --- epochs ---


@pytest.mark.parametrize("epoch", ["x", 1.0, None, True])
def test_an_epoch_is_a_whole_number(epoch: Any) -> None:
    expected = f"lit_loader: epoch must be a whole number, got epoch={epoch!r}"
    loader = DataLoader(Rows(4), shuffle=True)
    for target in (
        loader, loader.sampler, DataLoader(Counting(4)), MixtureSampler(mixture()),
        TokenBudgetBatchSampler([1, 2], 8),
    ):  # fmt: skip
        assert refused(lambda target=target: target.set_epoch(epoch)) == expected  # type: ignore


def test_epochs_of_other_integer_types_and_below_zero() -> None:
    loader = DataLoader(Call(int, 40), 40, shuffle=True, seed=1)

    def order(epoch: Any) -> list[int]:
        loader.set_epoch(epoch)
        [batch] = loader
        found: list[int] = batch.tolist()
        return found

    assert order(np.int64(3)) == order(3) != order(-3) == order(torch.tensor(-3))
    loader.set_epoch(-3)
    resumed = DataLoader(Call(int, 40), 40, shuffle=True, seed=1)
    [batch] = loaded(resumed, loader.state_dict())
    assert batch.tolist() == order(-3)


class Told(Call):
    """Its samples are the epoch that it was told."""

    told = 7

    def set_epoch(self, epoch: int) -> None:
        self.told = epoch

    def __getitem__(self, index: int) -> int:
        return self.told


@pytest.mark.process
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_dataset_is_told_an_epoch_below_zero(num_workers: int) -> None:
    for epoch in (-1, -3, 2):
        with DataLoader(Told(int, 2), 2, num_workers=num_workers) as loader:
            loader.set_epoch(epoch)
            [batch] = loader
            assert batch.tolist() == [epoch, epoch]
