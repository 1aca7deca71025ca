"""Batches under a budget of tokens: their bounds, their order, ranks, and exact resume."""

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lit_loader import DataLoader, OptionError, StateError
from lit_loader.data.mixture import MixtureDataset
from lit_loader.data.token_budget import TokenBudgetBatchSampler
from tests.core.options.test_refusals import refused
from tests.parity.tools import lists
from tests.support.exact import loaded, through_file
from tests.support.samples import Call

BUDGET = 200


def lengths(count: int = 300, longest: int = 100) -> np.ndarray:
    """Lengths as texts have them: many short ones, a few long ones."""
    drawn = np.random.default_rng(5).lognormal(3.0, 0.8, count)
    return np.clip(drawn, 1, longest).astype(np.int64)


def sampler(**options: Any) -> TokenBudgetBatchSampler:
    return TokenBudgetBatchSampler(lengths(), **{"max_tokens": BUDGET, "seed": 1, **options})


def epoch(made: TokenBudgetBatchSampler, number: int) -> list[list[int]]:
    made.set_epoch(number)
    return list(made)


def padded(batch: list[int], of: np.ndarray) -> int:
    return int(len(batch) * of[batch].max())


# --- what an epoch holds ---


@given(
    st.lists(st.integers(0, 50), max_size=80),
    st.integers(50, 300),
    st.integers(1, 5),
    st.booleans(),
    st.booleans(),
    st.none() | st.integers(1, 9),
    st.floats(0, 1),
    st.sampled_from([1, 8]),
)
def test_budget_and_counts_hold_in_every_epoch(
    given_lengths: list[int],
    max_tokens: int,
    replicas: int,
    shuffle: bool,
    drop_last: bool,
    max_samples: int | None,
    spread: float,
    multiple: int,
) -> None:
    made = TokenBudgetBatchSampler(
        given_lengths, max_tokens, num_replicas=replicas, shuffle=shuffle, drop_last=drop_last,
        max_samples=max_samples, spread=spread, pad_to_multiple_of=multiple, too_long="skip",
    )  # fmt: skip
    sizes = -(-np.maximum(given_lengths, 1) // multiple) * multiple
    fitting = [i for i, size in enumerate(sizes) if size <= max_tokens // multiple * multiple]
    for number in range(3):
        batches = epoch(made, number)
        assert len(batches) == len(made)
        assert all(padded(batch, sizes) <= max_tokens for batch in batches)
        assert all(0 < len(batch) <= (max_samples or 80) for batch in batches)
        held = Counter(itertools.chain.from_iterable(batches))
        assert set(held.values()) <= {1}
        assert set(held) <= set(fitting)
        if not drop_last:
            assert sorted(held) == fitting
        # Batches of single samples cannot be halved.
        assert len(batches) % replicas == 0 or all(len(batch) == 1 for batch in batches)


def test_padding_is_small_and_told() -> None:
    long = lengths(5000, 500)
    made = TokenBudgetBatchSampler(long, 2000, seed=3)
    told = made.statistics()
    batches = list(made)
    assert told.batches == len(batches) == len(made)
    assert told.samples == 5000
    assert told.tokens == long.sum()
    assert told.padded_tokens == sum(padded(batch, long) for batch in batches)
    assert told.largest == max(padded(batch, long) for batch in batches) <= 2000
    assert told.padding == 1 - told.tokens / told.padded_tokens < 0.1
    assert TokenBudgetBatchSampler(long, 2000, spread=0).statistics().padding < told.padding
    assert TokenBudgetBatchSampler(long, 2000, spread=1).statistics().padding > 0.3
    assert TokenBudgetBatchSampler([], 4).statistics().padding == 0


def test_without_shuffling_the_longest_come_first() -> None:
    made = TokenBudgetBatchSampler([3, 9, 1, 9, 2, 5], 18, shuffle=False)
    assert epoch(made, 0) == epoch(made, 7) == [[1, 3], [5, 0, 4], [2]]


def test_dropping_the_last() -> None:
    assert list(TokenBudgetBatchSampler([2] * 5, 4, shuffle=False)) == [[0, 1], [2, 3], [4]]
    assert len(TokenBudgetBatchSampler([2] * 5, 4, drop_last=True)) == 2
    assert len(TokenBudgetBatchSampler([2] * 6, 4, drop_last=True)) == 3
    assert len(TokenBudgetBatchSampler([2] * 6, 4, drop_last=True, num_replicas=2)) == 2
    made = TokenBudgetBatchSampler([2] * 50, 20, drop_last=True, max_samples=8)
    left = [set(range(50)).difference(*epoch(made, number)) for number in range(4)]
    assert all(len(samples) == 2 for samples in left)
    assert len(set(map(frozenset, left))) > 1


@pytest.mark.parametrize("policy", ["skip", "truncate"])
def test_samples_beyond_the_budget(policy: str) -> None:
    made = TokenBudgetBatchSampler([3, 11, 4, 30], 10, too_long=policy)
    held = sorted(itertools.chain.from_iterable(made))
    assert held == ([0, 2] if policy == "skip" else [0, 1, 2, 3])
    told = made.statistics()
    assert (told.skipped, told.tokens) == ((2, 7) if policy == "skip" else (0, 27))
    assert told.largest <= 10


# --- refused ---


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        (
            [3, 11, 4, 30],
            {},
            "samples are longer than max_tokens=10 allows (2 of 4; sample 1 has 11 tokens): raise "
            "max_tokens, or set too_long to 'skip' or 'truncate'",
        ),
        ([3], {"max_tokens": 0}, "max_tokens must be a whole number of at least 1 and below 9"),
        ([3], {"max_tokens": 2**63}, "max_tokens must be a whole number of at least 1 and below 9"),
        ([3], {"max_tokens": True}, "max_tokens must be a whole number of at least 1 and below 9"),
        ([3], {"max_samples": 1.5}, "max_samples must be a whole number of at least 1, got max_s"),
        ([3], {"num_replicas": 0}, "num_replicas must be a whole number of at least 1, got"),
        ([3], {"seed": -1}, "seed must be a whole number of at least 0, got seed=-1"),
        ([3], {"spread": 2}, "spread must be between 0 and 1, got spread=2"),
        ([3], {"spread": "0.1"}, "spread must be between 0 and 1, got spread='0.1'"),
        (
            [3],
            {"too_long": "cut"},
            "must be one of 'raise', 'skip', 'truncate', got too_long='cut'",
        ),
        ([3], {"pad_to_multiple_of": 16}, "pad_to_multiple_of must not exceed max_tokens, or no"),
        ([3, -1], {}, "source must not be negative, got -1 for sample 1"),
        ([1.5], {}, "source must be the samples' lengths, one whole number each, or a dataset"),
        (Call(int, 3), {}, "attribute 'lengths' that holds them, got Call"),
    ],
)
def test_refused(source: Any, options: dict[str, Any], message: str) -> None:
    options = {"max_tokens": 10, **options}
    assert message in refused(lambda: TokenBudgetBatchSampler(source, **options))


# --- ranks ---


@pytest.mark.parametrize("replicas", [2, 3, 8])
def test_ranks_get_as_many_batches_of_similar_size(replicas: int) -> None:
    of = lengths()
    epochs = []
    for rank in range(replicas):
        batches = sampler(num_replicas=replicas)
        loader = DataLoader(
            Call(int, 300), batch_sampler=batches, num_replicas=replicas, rank=rank, seed=9
        )
        epochs.append([batch.tolist() for batch in loader])
        assert len(loader) == len(epochs[-1]) == len(batches) // replicas
    steps = list(zip(*epochs, strict=True))
    assert sorted(itertools.chain(*itertools.chain(*steps))) == list(range(300))
    apart = [max(of[b].max() for b in step) / min(of[b].max() for b in step) for step in steps]
    alone = [of[batch].max() for batch in sampler()]
    shuffled = [max(alone[i : i + replicas]) / min(alone[i : i + replicas]) for i in range(20)]
    assert np.median(apart) < np.median(shuffled)


@pytest.mark.parametrize(("shuffle", "bound"), [(True, 1.01), (False, 1.02)])
def test_a_step_has_equal_tokens_with_and_without_padding(shuffle: bool, bound: float) -> None:
    of = np.clip(np.random.default_rng(0).lognormal(5, 1, 20_000), 16, 1024).astype(np.int64)
    made = TokenBudgetBatchSampler(of, 8192, num_replicas=8, spread=0.2, shuffle=shuffle)
    batches = list(made)
    tokens = np.array([of[batch].sum() for batch in batches]).reshape(-1, 8)
    sizes = np.array([padded(batch, of) for batch in batches]).reshape(-1, 8)
    # 1.027 and 1.012 where the samples of a step are dealt as they come.
    assert (tokens.max(axis=1) / tokens.mean(axis=1)).mean() < bound
    assert (sizes.max(axis=1) / sizes.mean(axis=1)).mean() < bound


def test_the_ranks_are_those_of_torch_distributed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sampler().num_replicas == 1
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 4)
    made = sampler()
    assert made.num_replicas == 4
    assert len(made) % 4 == 0
    assert sampler(num_replicas=2).num_replicas == 2


def test_fewer_samples_than_ranks_are_left_to_the_loader() -> None:
    got = []
    for rank in range(4):
        batches = TokenBudgetBatchSampler([5, 5, 5], 10, num_replicas=4)
        loader = DataLoader(Call(int, 3), batch_sampler=batches, num_replicas=4, rank=rank)
        got.append([batch.tolist() for batch in loader])
    assert [len(batches) for batches in got] == [1, 1, 1, 1]
    assert {i for batches in got for batch in batches for i in batch} == {0, 1, 2}


# --- resume ---


def test_resume_on_another_number_of_ranks() -> None:
    def loader(replicas: int, rank: int = 0) -> DataLoader[Any]:
        ranks = {"num_replicas": replicas, "rank": rank}
        return DataLoader(Call(int, 300), batch_sampler=sampler(num_replicas=2), **ranks)

    whole = lists(loader(1))
    first = [loader(2, rank) for rank in range(2)]
    for pair in itertools.islice(zip(*first, strict=True), 5):
        assert len(pair) == 2
    resumed = loaded(loader(1), through_file(first[1].state_dict()))
    assert lists(resumed) == whole[10:]


@pytest.mark.parametrize("change", [{"seed": 2}, {"max_tokens": 150}, {"num_replicas": 4}])
def test_states_of_other_batches_are_refused(change: dict[str, Any]) -> None:
    """Also without a loader of ours, which would see most of it at once: test_fingerprint.py."""
    first: Any = iter(sampler())
    next(first)
    other: Any = iter(sampler(**change))
    with pytest.raises(
        StateError, match="state is of other batches than this TokenBudgetBatchSampler makes: resu"
    ):
        other.load_state_dict(first.state_dict())


def test_lengths_of_something_else() -> None:
    """A mixture's are those of its sources: most samples would never come."""
    mixture = MixtureDataset([range(30), range(12)])
    with pytest.raises(OptionError, match="must have one for each sample, got 2 for 42 samples"):
        TokenBudgetBatchSampler(mixture, 100)
