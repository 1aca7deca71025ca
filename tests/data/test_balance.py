"""Batches of equal cost for all ranks of a step: what they hold, how equal, ranks and resume."""

import itertools
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lightning.pytorch import LightningModule

from lit_loader import BalancedBatchSampler, DataLoader, LoaderDataModule, StateError
from lit_loader.data.balance import deal
from tests.core.options.test_refusals import refused
from tests.parity.tools import lists
from tests.support.exact import loaded, through_file
from tests.support.lightning_runs import quiet_trainer
from tests.support.samples import Call


def costs(count: int, seed: int = 0) -> np.ndarray:
    """Lengths as texts have them."""
    drawn = np.random.default_rng(seed).lognormal(5, 1, count)
    return np.clip(drawn, 16, 1024).astype(np.int64)


def loader(
    batches: Any, replicas: int = 1, rank: int = 0, count: int = 300, **options: Any
) -> DataLoader[Any]:
    ranks = {"num_replicas": replicas, "rank": rank}
    return DataLoader(Call(int, count), batch_sampler=batches, **ranks, **options)


def of_ranks(replicas: int, **options: Any) -> list[list[list[int]]]:
    """All ranks' batches, step by step."""
    ranks = [
        lists(loader(BalancedBatchSampler(costs(300), 4, **options), replicas, rank))
        for rank in range(replicas)
    ]
    return [list(step) for step in zip(*ranks, strict=True)]


# --- what a step holds, and how equal it is ---


def test_a_step_holds_what_a_plain_shuffle_gives_it() -> None:
    plain = DataLoader(range(300), 8 * 4, shuffle=True, seed=5)
    for epoch in range(3):
        plain.set_epoch(epoch)
        batches = BalancedBatchSampler(costs(300), 4, group=8, seed=5)
        batches.set_epoch(epoch)
        given_out = iter(batches)
        for whole in lists(plain):
            run = itertools.islice(given_out, 8)
            assert sorted(itertools.chain(*run)) == sorted(whole)


@pytest.mark.parametrize(
    ("batches", "size", "bound", "random"), [(8, 16, 1.01, 1.37), (8, 8, 1.02, 1.55)]
)
def test_the_slowest_of_a_step_is_hardly_above_the_mean(
    batches: int, size: int, bound: float, random: float
) -> None:
    """8 ranks × 16 samples; 2 ranks × 4 accumulated batches × 8 samples."""
    of = costs(40_000)

    def slowest(chosen: list[list[int]]) -> np.ndarray:
        sums = [of[batch].sum() for batch in chosen if len(batch) == size]
        steps = np.array(sums[: len(sums) // batches * batches]).reshape(-1, batches)
        ratio: np.ndarray = steps.max(axis=1) / steps.mean(axis=1)
        return ratio

    balanced = slowest(list(BalancedBatchSampler(of, size, batches, seed=1)))
    plain = slowest(lists(DataLoader(range(len(of)), size, shuffle=True, seed=1)))
    assert balanced.mean() < bound
    assert balanced.max() < 1 + 5 * (bound - 1)
    assert plain.mean() == pytest.approx(random, abs=0.05)


def test_parts_of_a_step_have_similar_samples() -> None:
    """2 ranks × 2 accumulated batches × 8 samples, padded to the longest."""
    of = costs(20_000)

    def padded(batches: Any) -> np.ndarray:
        sizes = [of[batch].max() for batch in batches]
        return np.array(sizes).reshape(-1, 2, 2).max(axis=2).sum(axis=1)  # ranks wait

    whole = BalancedBatchSampler(of, 8, 4, parts=2)
    plain = lists(DataLoader(range(20_000), 8, shuffle=True, seed=0))
    assert padded(plain).mean() / padded(whole).mean() > 1.2
    assert sorted(itertools.chain(*itertools.islice(whole, 4))) == sorted(
        itertools.chain(*plain[:4])
    )
    assert sorted(itertools.chain(*whole)) == list(range(20_000))
    pairs = np.array([[of[batch].mean() for batch in whole]]).reshape(-1, 2)
    assert 1 < (pairs.max(axis=1) / pairs.mean(axis=1)).mean() < 1.05


@given(
    st.lists(st.integers(0, 50) | st.floats(0, 50), max_size=70),
    st.integers(1, 5),
    st.integers(1, 6),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2**62 - 1),
)
def test_every_sample_comes_once_in_batches_of_one_size(
    given_costs: list[float], size: int, group: int, shuffle: bool, drop_last: bool, epoch: int
) -> None:
    made = BalancedBatchSampler(given_costs, size, group, shuffle=shuffle, drop_last=drop_last)
    made.set_epoch(epoch)
    batches = list(made)
    assert len(batches) == len(made)
    held = sorted(itertools.chain(*batches))
    rest = len(given_costs) % (group * size)
    whole = (len(given_costs) - rest) // size
    if drop_last:
        assert len(held) == len({*held}) == len(given_costs) - rest
    else:
        assert held == list(range(len(given_costs)))
    assert all(len(batch) == size for batch in batches[:whole])
    sizes = {len(batch) for batch in batches[whole:]}
    assert not sizes or (min(sizes) > 0 and max(sizes) - min(sizes) <= 1)
    if not shuffle and whole:
        assert sorted(itertools.chain(*batches[:group])) == list(range(group * size))
    backwards = made.order(epoch)(np.arange(len(made))[::-1])
    assert [batch.tolist() for batch in backwards] == batches[::-1]


@given(st.data(), st.integers(1, 4), st.integers(1, 6), st.integers(1, 6), st.integers(0, 2))
def test_dealing(data: Any, runs: int, batches: int, size: int, fixed: int) -> None:
    number = st.lists(st.integers(0, 1000), min_size=batches * size, max_size=batches * size)
    given_costs = np.array([data.draw(number) for _ in range(runs)], float)
    dealt = deal(given_costs, batches, fixed)
    assert dealt.shape == (runs, batches, size)
    for run, each in zip(given_costs, dealt, strict=True):
        assert sorted(each.ravel()) == list(range(batches * size))
        sums = run[each].sum(axis=1)
        in_order = run.reshape(batches, size).sum(axis=1)
        assert sums.max() <= max(in_order.max(), sums.mean() + run.max())
        # No single exchange would bring the dearest and the cheapest closer together.
        if fixed:
            longest = np.sort(run[each].max(axis=1))
            assert longest.tolist() == np.sort(run)[-batches:].tolist()


def test_millions_of_samples() -> None:
    """The first batch is there sooner than they are sorted; the next cost what they always do."""

    def seconds(call: Callable[[], Any]) -> float:
        begin = time.process_time()
        call()
        return time.process_time() - begin

    def next_ones(count: int) -> float:
        batches = iter(BalancedBatchSampler(costs(count), 16, 8))
        next(batches)
        return min(seconds(lambda: [next(batches) for _ in range(500)]) for _ in range(5))

    many = costs(2_000_000)
    first = min(seconds(lambda: next(iter(BalancedBatchSampler(many, 16, 8)))) for _ in range(3))
    assert first < 3 * min(seconds(lambda: np.argsort(many)) for _ in range(3))
    assert next_ones(2_000_000) < 5 * next_ones(50_000)


# --- ranks, states ---


@pytest.mark.parametrize("replicas", [2, 4])
def test_ranks_take_every_so_manyth(replicas: int) -> None:
    whole = list(BalancedBatchSampler(costs(300), 4, 8, seed=3))
    steps = of_ranks(replicas, group=8, seed=3)
    assert list(itertools.chain(*steps))[: len(whole)] == whole


def test_resume_on_another_number_of_ranks() -> None:
    def made(replicas: int, rank: int = 0, group: int = 8, workers: int = 0) -> DataLoader[Any]:
        batches = BalancedBatchSampler(costs(300), 4, group, seed=3)
        return loader(batches, replicas, rank, num_workers=workers)

    whole = lists(made(1))
    first = made(2, 1)
    assert [batch.tolist() for batch in itertools.islice(first, 6)] == whole[1:12:2]
    state = through_file(first.state_dict())
    for workers in (0, 2):
        ranks = [lists(loaded(made(4, rank, workers=workers), state)) for rank in range(4)]
        assert list(itertools.chain(*zip(*ranks, strict=True)))[: len(whole) - 12] == whole[12:]
    with pytest.raises(StateError, match="12 batches into an epoch of groups of 8, and this Bal"):
        made(4, group=4).load_state_dict(state)
    with pytest.raises(StateError, match="of 12 batches, of all ranks together, is not a "):
        made(8).load_state_dict(state)


@pytest.mark.parametrize("steps", [8, 16, 40])
def test_resume_with_other_groups_at_an_edge(steps: int) -> None:
    """No sample is lost, and none comes twice."""
    eight = BalancedBatchSampler(costs(300), 4, 8, seed=3)
    first = loader(eight, 2)
    assert len(list(itertools.islice(first, steps))) == steps
    state = through_file(first.state_dict())
    before = list(itertools.chain(*list(eight)[: 2 * steps]))
    other = [BalancedBatchSampler(costs(300), 4, 16, seed=3) for _ in range(4)]
    ranks = [lists(loaded(loader(each, 4, rank), state)) for rank, each in enumerate(other)]
    after = list(itertools.chain(*itertools.chain(*ranks)))
    assert sorted(before + after) == list(range(300))


# --- Lightning ---


class Model(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        return (self.weight * batch).sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.0)


class Weighed(Call):
    """A dataset that has what its samples cost."""

    def __init__(self) -> None:
        super().__init__(float, 64)
        self.milliseconds = costs(64).astype(float)


def test_a_group_is_the_trainers_step(tmp_path: Any) -> None:
    def batches(dataset: Any) -> BalancedBatchSampler:
        return BalancedBatchSampler(dataset, 4, costs_in="milliseconds")

    data = LoaderDataModule({"train": Weighed()}, train={"batch_sampler": batches})
    trainer = quiet_trainer(tmp_path, max_epochs=1, accumulate_grad_batches=4)
    trainer.fit(Model(), data)
    assert trainer.train_dataloader.batch_sampler.group == 4
    assert BalancedBatchSampler(Weighed(), 4, costs_in="milliseconds").group == 1


# --- refused ---


class Owing:
    lengths = (-2, 1)


@pytest.mark.parametrize(
    ("given_costs", "options", "message"),
    [
        ([1, -1], {}, "costs must not be negative, infinite or NaN, got -1 for sample 1"),
        ([1, float("nan")], {}, "costs must not be negative, infinite or NaN, got nan for sample"),
        (Owing(), {}, "Owing.lengths must not be negative, infinite or NaN, got -2 for sample 0"),
        (["a"], {}, "costs must be the samples' lengths, one number each, or a dataset with an"),
        (Weighed(), {"costs_in": "cost"}, "attribute 'cost' that holds them, got Weighed"),
        ([1], {"group": 4, "parts": 3}, "group must be a multiple of parts=3, got group=4: give"),
        ([1], {"group": 0}, "group must be a whole number of at least 1, got group=0"),
        ([1], {"batch_size": 0}, "batch_size must be a whole number of at least 1, got batch_siz"),
    ],
)
def test_refused(given_costs: Any, options: dict[str, Any], message: str) -> None:
    options = {"batch_size": 2, **options}
    assert message in refused(lambda: BalancedBatchSampler(given_costs, **options))
