"""Batch samplers by length: what batches hold, how equal those of a step are, ranks, resume."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from lightning.pytorch import LightningModule

from lit_loader import (
    BalancedBatchSampler,
    DataLoader,
    LoaderDataModule,
    MixtureDataset,
    OptionError,
    PackingBatchSampler,
    StateError,
    TokenBudgetBatchSampler,
)
from tests.support.exact import loaded, through_file
from tests.support.lightning_runs import quiet_trainer
from tests.support.samples import Call
from tests.support.tools import lists

KINDS = [BalancedBatchSampler, PackingBatchSampler, TokenBudgetBatchSampler]
"""All take lengths and a size."""


def texts(count: int, longest: int = 1024) -> Any:
    """Lengths as texts have them: many short ones, a few long ones."""
    drawn = np.random.default_rng(0).lognormal(5, 1, count)
    return np.clip(drawn, 16, longest).astype(np.int64)


def epochs(made: Any, count: int) -> list[list[list[int]]]:
    found = []
    for number in range(count):
        made.set_epoch(number)
        found.append(list(made))
    return found


def flat(batches: Any) -> list[int]:
    return list(itertools.chain.from_iterable(batches))


def of_rank(made: Any, replicas: int, rank: int = 0, **options: Any) -> DataLoader[Any]:
    dataset = Call(int, len(made.lengths))
    return DataLoader(
        dataset, batch_sampler=made, num_replicas=replicas, rank=rank, seed=9, **options
    )


def padded(batch: list[int], of: Any) -> int:
    return int(len(batch) * of[batch].max())


def slowest(batches: Any, of: Any, size: Callable[[list[int], Any], int], step: int) -> float:
    """The largest batch of a step over their mean, on average."""
    sizes = [size(batch, of) for batch in batches]
    steps = np.array(sizes[: len(sizes) // step * step]).reshape(-1, step)
    return float((steps.max(axis=1) / steps.mean(axis=1)).mean())


def tokens(batch: list[int], of: Any) -> int:
    return int(of[batch].sum())


# --- what batches hold ---


@given(
    st.lists(st.integers(0, 50) | st.floats(0, 50), max_size=70),
    *(st.integers(1, 5), st.integers(1, 6), st.booleans(), st.booleans()),
)
def test_balanced_batches(
    lengths: list[float], size: int, group: int, shuffle: bool, drop_last: bool
) -> None:
    made = BalancedBatchSampler(lengths, size, group, shuffle=shuffle, drop_last=drop_last)
    rest = len(lengths) % (group * size)
    whole = (len(lengths) - rest) // size
    for batches in epochs(made, 2):
        assert len(batches) == len(made)
        held = sorted(flat(batches))
        if drop_last:
            assert len(held) == len({*held}) == len(lengths) - rest
        else:
            assert held == list(range(len(lengths)))
        assert all(len(batch) == size for batch in batches[:whole])
        sizes = {len(batch) for batch in batches[whole:]}
        assert not sizes or (min(sizes) > 0 and max(sizes) - min(sizes) <= 1)
        if not shuffle and whole:
            assert sorted(flat(batches[:group])) == list(range(group * size))
    backwards = made.order(1)(np.arange(len(made))[::-1])
    assert [batch.tolist() for batch in backwards] == batches[::-1]


@example([0, 0, 0, 38], 40, None, 4, False, False)  # fewer packs than ranks, one of one sample
@given(
    st.lists(st.integers(0, 60), max_size=80),
    *(st.integers(40, 90), st.none() | st.integers(1, 20), st.integers(1, 4)),
    *(st.booleans(), st.booleans()),
)
def test_packs(
    lengths: list[int], room: int, window: int | None, replicas: int, shuffle: bool, drop: bool
) -> None:
    made = PackingBatchSampler(
        lengths, room, window=window, num_replicas=replicas, shuffle=shuffle, drop_last=drop,
        too_long="skip",
    )  # fmt: skip
    fitting = [index for index, length in enumerate(lengths) if length <= room]
    for packs in epochs(made, 3):
        hold_each_once(packs, made, fitting, replicas, drop)
        assert all(sum(lengths[index] or 1 for index in pack) <= room for pack in packs)


@given(
    st.lists(st.integers(0, 50), max_size=80),
    *(st.integers(50, 300), st.integers(1, 5), st.booleans(), st.booleans()),
    *(st.none() | st.integers(1, 9), st.floats(0, 1), st.sampled_from([1, 8])),
)
def test_token_budgets(
    lengths: list[int], budget: int, replicas: int, shuffle: bool, drop: bool,
    max_samples: int | None, spread: float, multiple: int,
) -> None:  # fmt: skip
    made = TokenBudgetBatchSampler(
        lengths, budget, num_replicas=replicas, shuffle=shuffle, drop_last=drop,
        max_samples=max_samples, spread=spread, pad_to_multiple_of=multiple, too_long="skip",
    )  # fmt: skip
    sizes = -(-np.maximum(lengths, 1) // multiple) * multiple
    fitting = [i for i, size in enumerate(sizes) if size <= budget // multiple * multiple]
    for batches in epochs(made, 3):
        hold_each_once(batches, made, fitting, replicas, drop)
        assert all(padded(batch, sizes) <= budget for batch in batches)
        assert all(len(batch) <= (max_samples or 80) for batch in batches)


def hold_each_once(batches: Any, made: Any, fitting: list[int], replicas: int, drop: bool) -> None:
    """As many batches in every epoch, divided evenly unless they are single samples."""
    assert len(batches) == len(made) and all(batches)
    held = flat(batches)
    assert len(held) == len({*held}) and {*held} <= {*fitting}
    assert drop or sorted(held) == fitting
    assert len(batches) % replicas == 0 or all(len(batch) == 1 for batch in batches)


def test_orders_of_the_dataset() -> None:
    made = TokenBudgetBatchSampler([3, 9, 1, 9, 2, 5], 18, shuffle=False)
    assert epochs(made, 2) == [[[1, 3], [5, 0, 4], [2]]] * 2  # the longest first
    packs = PackingBatchSampler([30] * 20, 60, window=4, shuffle=False)
    assert list(packs)[:3] == [[0, 1], [2, 3], [4, 5]]
    for kind in KINDS:
        shuffled = kind(texts(300), 2048 if kind is PackingBatchSampler else 1024)
        one, other = epochs(shuffled, 2)
        assert one != other and [one, other] == epochs(shuffled, 2)
        assert list(kind([], 60)) == []


# --- how full, how equal ---


@pytest.mark.parametrize(
    ("room", "options", "least"),
    [
        (2048, {}, 0.98),
        (8192, {"num_replicas": 8}, 0.97),
        (2048, {"window": 100}, 0.92),
        (2048, {"drop_last": True, "num_replicas": 8}, 0.98),
    ],
)
def test_packs_are_full(room: int, options: dict[str, Any], least: float) -> None:
    made = PackingBatchSampler(texts(50_000), room, **options)
    for epoch in (0, 3):
        made.set_epoch(epoch)
        assert sum(tokens(pack, made.lengths) for pack in made) > least * room * len(made)
    # In the order of the samples, as many to a pack as fit: 78 to 97 %.


def test_padding_is_small() -> None:
    of = texts(5000, 500)
    made = TokenBudgetBatchSampler(of, 2000, seed=3)
    assert of.sum() > 0.9 * sum(padded(batch, of) for batch in made)
    wide = TokenBudgetBatchSampler(of, 2000, spread=1)
    assert of.sum() < 0.7 * sum(padded(batch, of) for batch in wide)


@pytest.mark.parametrize(("shuffle", "bound"), [(True, 1.03), (False, 1.04)])
def test_batches_of_a_step_cost_about_the_same(shuffle: bool, bound: float) -> None:
    of = texts(20_000)
    made = TokenBudgetBatchSampler(of, 8192, num_replicas=8, spread=0.2, shuffle=shuffle)
    assert slowest(list(made), of, tokens, 8) < 1.05
    assert slowest(list(made), of, padded, 8) < bound


@pytest.mark.parametrize(("size", "bound"), [(16, 1.01), (8, 1.02)])
def test_the_slowest_of_a_step_is_hardly_above_the_mean(size: int, bound: float) -> None:
    of = texts(40_000)
    balanced = slowest(BalancedBatchSampler(of, size, 8, seed=1), of, tokens, 8)
    plain = slowest(lists(DataLoader(range(len(of)), size, shuffle=True, seed=1)), of, tokens, 8)
    assert balanced < bound < 1.3 < plain


# --- what is too long, or left over ---


@pytest.mark.parametrize("kind", KINDS[1:])
def test_samples_beyond_the_budget(kind: Any) -> None:
    with pytest.raises(OptionError, match="2 of 4; sample 1 has 11 tokens"):
        kind([3, 11, 4, 30], 10)
    skipped, cut = (kind([3, 11, 4, 30], 10, too_long=policy) for policy in ("skip", "truncate"))
    assert (sorted(flat(skipped)), sorted(flat(cut))) == ([0, 2], [0, 1, 2, 3])


# --- ranks ---


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("replicas", [2, 3])
def test_ranks_take_every_so_manyth_batch(kind: Any, replicas: int) -> None:
    group = {"group" if kind is BalancedBatchSampler else "num_replicas": replicas}
    size = 4 if kind is BalancedBatchSampler else 1024
    whole = list(kind(texts(300), size, **group))
    ranks = [lists(of_rank(kind(texts(300), size, **group), replicas, r)) for r in range(replicas)]
    assert flat(zip(*ranks, strict=True)) == whole and sorted(flat(whole)) == list(range(300))


def test_the_ranks_are_those_of_torch_distributed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 4)
    for kind in KINDS:
        assert kind(texts(100), 1024).group == 4
    assert len(TokenBudgetBatchSampler(texts(100), 1024)) % 4 == 0
    assert TokenBudgetBatchSampler(texts(100), 1024, num_replicas=2).num_replicas == 2


# --- resume ---


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_resume_on_another_number_of_ranks(kind: Any, workers: int) -> None:
    name = "group" if kind is BalancedBatchSampler else "num_replicas"

    def made(of: int = 4) -> Any:
        return kind(texts(300), 4 if name == "group" else 1024, seed=3, **{name: of})

    whole = list(made())
    first = of_rank(made(), 2, 1)
    assert [batch.tolist() for batch in itertools.islice(first, 2)] == whole[1:4:2]
    state = through_file(first.state_dict())
    ranks = [
        lists(loaded(of_rank(made(), 4, rank, num_workers=workers), state)) for rank in range(4)
    ]
    assert flat(zip(*ranks, strict=True)) == whole[4:]
    with pytest.raises(StateError, match="divides the samples differently"):
        of_rank(made(3), 1).load_state_dict(state)
    with pytest.raises(StateError, match="not a multiple of batch_size . num_replicas = 1 . 8"):
        of_rank(made(), 8).load_state_dict(state)


@pytest.mark.filterwarnings("ignore:.*LL334")
@pytest.mark.parametrize("steps", [8, 16, 40])
def test_resume_with_other_groups_at_an_edge(steps: int) -> None:
    """No sample is lost, and none comes twice."""

    def made(group: int) -> Any:
        return BalancedBatchSampler(texts(300), 4, group, seed=3)

    first = of_rank(made(8), 2)
    assert len(list(itertools.islice(first, steps))) == steps
    state = through_file(first.state_dict())
    ranks = [lists(loaded(of_rank(made(16), 4, rank), state)) for rank in range(4)]
    assert sorted(flat([*list(made(8))[: 2 * steps], *flat(ranks)])) == list(range(300))


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
        self.milliseconds = texts(64).astype(float)


def test_a_group_is_the_trainers_step(tmp_path: Any) -> None:
    def batches(dataset: Any) -> BalancedBatchSampler:
        return BalancedBatchSampler(dataset, 4, lengths_from="milliseconds")

    data = LoaderDataModule({"train": Weighed}, train={"batch_sampler": batches})
    trainer = quiet_trainer(tmp_path, max_epochs=1, accumulate_grad_batches=4)
    trainer.fit(Model(), data)
    assert trainer.train_dataloader.batch_sampler.group == 4
    assert batches(Weighed()).group == 1


# --- refused ---


class Owing:
    lengths = (-2, 1)


@pytest.mark.parametrize(
    ("kind", "lengths", "options", "message"),
    [
        (KINDS[0], [1, -1], {}, "got -1 for sample 1"),
        (KINDS[0], [1, float("nan")], {}, "NaN, got nan for sample 1"),
        (KINDS[0], Owing(), {}, "Owing.lengths must not be negative"),
        (KINDS[0], ["a"], {}, "lengths must be one number for each"),
        (KINDS[0], Weighed(), {"lengths_from": "cost"}, "attribute 'cost'"),
        (KINDS[0], [1], {"group": 0}, "group must be a whole number of at least 1"),
        (KINDS[0], [1], {"length_from": "cost"}, "did you mean lengths_from?"),
        (KINDS[1], [1.5], {}, "one whole number for each sample"),
        (KINDS[2], Call(int, 3), {}, "attribute 'lengths' that holds them"),
        (KINDS[2], MixtureDataset([range(3), range(5)]), {}, "got 2 for 8 samples"),
        (KINDS[2], [3], {"max_tokens": 2**63}, "max_tokens must be a whole number of at least 1"),
        (KINDS[2], [3], {"seed": -1}, "seed must be a whole number of at least 0"),
        (KINDS[2], [3], {"spread": 2}, "spread must be a number from 0 to 1"),
        (KINDS[2], [3], {"too_long": "cut"}, "must be one of 'raise', 'skip', 'truncate'"),
        (KINDS[2], [3], {"pad_to_multiple_of": 16}, "must not exceed max_tokens"),
    ],
)
def test_refused(kind: Any, lengths: Any, options: dict[str, Any], message: str) -> None:
    size = {"batch_size" if kind is BalancedBatchSampler else "max_tokens": 10}
    with pytest.raises(OptionError) as caught:
        kind(lengths, **{**size, **options})
    assert message in str(caught.value)
