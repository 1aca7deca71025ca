"""A state that is loaded where the dataset has grown, or shrunk, since it was taken."""

from itertools import chain
from typing import Any

import pytest
from torch.utils.data import RandomSampler

from lit_loader import DataLoader, StateError
from tests.support.datasets import SizedStream
from tests.support.exact import loaded, through_file
from tests.support.samples import Call

TOLD = "the dataset had 40 samples"


def loader(length: int, **options: Any) -> DataLoader[Any]:
    return DataLoader(Call(int, length), **{"batch_size": 4, "shuffle": True, "seed": 3, **options})


def epoch(source: Any) -> list[list[int]]:
    return [batch.tolist() for batch in source]


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "the rest is dropped": {"batch_size": 12, "drop_last": True},
    "a smaller last batch": {"batch_size": 12},
    "ranks": {"num_replicas": 3, "rank": 1, "batch_size": 5},
    "ranks that drop": {"num_replicas": 3, "rank": 1, "batch_size": 5, "uneven_ranks": "drop"},
    "another batch size": {"batch_size": 5},
    "workers": {"num_workers": 2, "persistent_workers": True},
}


@pytest.mark.filterwarnings("ignore:.*LL334")
@pytest.mark.parametrize("length", [60, 20])
@pytest.mark.parametrize("where", ["behind the last batch", "behind the loop"])
@pytest.mark.parametrize("case", OPTIONS)
def test_at_an_epochs_end(case: str, where: str, length: int) -> None:
    options = OPTIONS[case]
    if "dropped" in case and where == "behind the last batch":
        pytest.skip("only a loop that asks for the end has passed over the rest")
    before = loader(40, **{**options, **({"batch_size": 4} if "another" in case else {})})
    iterator = iter(before)
    for _ in range(len(before)):
        next(iterator)
    if where == "behind the loop":
        assert next(iterator, None) is None
    state = through_file(before.state_dict())
    before.close()
    expected = loader(length, **options)
    expected.set_epoch(1)
    with loader(length, **options) as resumed:
        with pytest.warns(UserWarning, match=TOLD):
            resumed.load_state_dict(state)
        if where == "behind the last batch":
            assert epoch(resumed) == []
        resumed.set_epoch(1)
        assert epoch(resumed) == epoch(expected)
    expected.close()


def test_in_mid_epoch_the_refusal_names_a_way_out() -> None:
    before = loader(40, seed=None)
    next(iter(before))
    state = before.state_dict()
    with pytest.raises(StateError, match="dataset_length=40.*set_epoch"):
        loaded(loader(60, seed=None), state)


def test_a_sampler_of_the_users_and_a_stream() -> None:
    sampled = loader(40, shuffle=None, sampler=RandomSampler(range(40)))
    streamed = DataLoader(SizedStream(40), 4)
    for before in (sampled, streamed):
        epoch(before)
        state = before.state_dict()
        after = (
            loader(60, shuffle=None, sampler=RandomSampler(range(60)))
            if before is sampled
            else DataLoader(SizedStream(60), 4)
        )
        with pytest.warns(UserWarning, match=TOLD):
            after.load_state_dict(state)
        assert sorted(chain(*epoch(after))) == [*range(60)]
