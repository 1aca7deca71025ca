"""Ranks, simulated in one process: every index stream is shared out, and resumed on other ranks."""

import itertools
from typing import Any

import pytest
import torch
from torch.utils.data import DistributedSampler, RandomSampler

from lit_loader import DataLoader, OptionError, StateError
from tests.support.exact import loaded, state_behind
from tests.support.samples import Call, Counting
from tests.support.tools import lists

LENGTH = 50


def ranks(count: int, **options: Any) -> list[DataLoader[Any]]:
    options = {"batch_size": 4, "seed": 3} | options
    return [
        DataLoader(Call(int, LENGTH), **options, num_replicas=count, rank=rank)
        for rank in range(count)
    ]


@pytest.mark.parametrize("count", [3, 4])
def test_padded_ranks_are_those_of_torch(count: int) -> None:
    for rank, loader in enumerate(ranks(count)):
        torchs = DistributedSampler(range(LENGTH), count, rank, shuffle=False)  # type: ignore[arg-type]
        assert [*itertools.chain(*lists(loader))] == [*torchs]


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_distributed_sampler_leaves_the_rest_to_the_option(shuffle: bool) -> None:
    found: list[int] = []
    for rank in range(2):
        sampler: Any = DistributedSampler(range(51), 2, rank, shuffle)  # type: ignore[arg-type]
        for batch in DataLoader(range(51), 4, sampler=sampler, uneven_ranks="keep"):
            found += batch.tolist()
    assert sorted(found) == [*range(51)]


def test_a_position_within_a_batch_is_refused() -> None:
    state = state_behind(ranks(2, batch_size=6)[0], 1)
    with pytest.raises(StateError, match="multiple of"):
        ranks(2)[0].load_state_dict(state)


def test_out_of_order_in_mid_epoch_fits_only_its_own_topology() -> None:
    state = ranks(1, batch_size=12)[0].state_dict()
    state |= {"batches": 1, "ahead": [2]}
    ranks(1, batch_size=12)[0].load_state_dict(state)
    with pytest.raises(StateError, match="in_order=False"):
        ranks(2, batch_size=6)[0].load_state_dict(state)


@pytest.mark.filterwarnings("ignore:.*LL334")
@pytest.mark.parametrize(("length", "size"), [(10, 2), (1, 4)])
def test_behind_the_end_more_ranks_leave_off_more(length: int, size: int) -> None:
    """Nothing is left to be given, and nothing to be warned of."""

    def loader(**options: Any) -> DataLoader[Any]:
        generator = torch.Generator().manual_seed(2)
        order = RandomSampler(range(length), generator=generator)
        return DataLoader(range(length), size, sampler=order, seed=1, **options)

    state = state_behind(loader(), len(loader()))
    resumed = loader(num_replicas=4, rank=0, uneven_ranks="drop")
    assert [*loaded(resumed, state)] == []


# --- what divides the data is chosen when a loader is made ---


@pytest.mark.parametrize(
    ("name", "value"),
    [("num_replicas", 2), ("rank", 0), ("num_shards", 4), ("uneven_ranks", "drop")],
)
def test_what_would_do_nothing_later_is_refused(name: str, value: Any) -> None:
    loader = DataLoader(range(4), num_replicas=2, rank=1, seed=0)
    with pytest.raises(OptionError, match=name):
        setattr(loader, name, value)
    assert [batch.tolist() for batch in loader] == [[1], [3]]


# --- a job whose processes all read the same ---


def test_a_stream_that_splits_by_readers_is_not_told_to_say_that_it_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else every rank would go on with all of the shards, and hear no more of it."""
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with pytest.warns(UserWarning, match="num_replicas=") as caught:
        assert len(list(DataLoader(Counting(8), 1, num_shards=4))) == 8
    assert len(caught) == 1
    shares = [
        DataLoader(
            Counting(8), 1, num_shards=4, num_replicas=2, rank=rank, uneven_ranks="keep", seed=0
        )
        for rank in range(2)
    ]
    assert sorted(int(batch) for share in shares for batch in share) == list(range(8))
