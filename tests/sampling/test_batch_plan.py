"""Batch plans: a function of (seed, epoch, batch number) for every kind of sampler and shard."""

from __future__ import annotations

import collections
import itertools
import pickle
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from lit_loader.errors import StateError
from lit_loader.sampling.batch_plan import BatchPlan
from lit_loader.sampling.epoch_batches import EpochBatches
from lit_loader.sampling.orders import OrderedSampler, ShuffledSampler
from lit_loader.sampling.shard import Shard
from lit_loader.seeding.generator_state import preserved
from lit_loader.seeding.seeds import seed_worker

N = 53


class Plain(Sampler[int]):
    """Counts how far it has been drawn from."""

    def __init__(self, length: int = N) -> None:
        self.length = length
        # Not as numbers in attributes of its own: what those count would be part of the position.
        self.counts: collections.Counter[str] = collections.Counter()

    @property
    def drawn(self) -> int:
        return self.counts["drawn"]

    @property
    def iterated(self) -> int:
        return self.counts["iterated"]

    def __iter__(self) -> Iterator[int]:
        self.counts["iterated"] += 1
        for index in range(self.length):
            self.counts["drawn"] += 1
            yield index

    def __len__(self) -> int:
        return self.length


class Unsized:
    def __iter__(self) -> Iterator[int]:
        return iter(range(N))


class Drawing(Plain):
    """Draws from all the global generators, some at the start and some at each step."""

    def __iter__(self) -> Iterator[int]:
        for index in torch.randperm(self.length).tolist():
            yield 10_000 * index + 100 * random.randrange(100) + int(np.random.randint(100))


class Epochal(Plain):
    """Has an order for each epoch, as programs write it."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        yield from np.random.RandomState(self.epoch).permutation(self.length).tolist()


class Stateful(Plain):
    """A sampler that can tell and take up its position."""

    def __init__(self, length: int = N) -> None:
        super().__init__(length)
        self.state: dict[str, Any] = {"seen": []}
        self.loaded = False

    def __iter__(self) -> Iterator[int]:
        if not self.loaded:
            self.state["seen"] = []
        self.loaded = False
        for index in range(len(self.state["seen"]), self.length):
            self.counts["drawn"] += 1
            self.state["seen"].append(index)
            yield index * 3

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state, self.loaded = state, True


class Counter:
    """An iterator that can tell and take up its position."""

    def __init__(self, owner: StatefulIterator) -> None:
        self.owner, self.next = owner, 0

    def __iter__(self) -> Counter:
        return self

    def __next__(self) -> int:
        if self.next == N:
            raise StopIteration
        self.owner.counts["drawn"] += 1
        self.next += 1
        return self.next - 1

    def state_dict(self) -> dict[str, Any]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.next = state["next"]


class StatefulIterator(Plain):
    def __iter__(self) -> Counter:  # type: ignore[override]
        return Counter(self)


class Batches:
    """A batch sampler of uneven batches, which are not lists."""

    def __iter__(self) -> Iterator[Any]:
        yield from [(0,), (1, 2), "abc", {"k": 3}, (4, 5)]

    def __len__(self) -> int:
        return 5


WEIGHTS = [float(number % 5 + 1) for number in range(N)]

SAMPLERS: dict[str, Callable[[], Any]] = {
    "ordered": lambda: OrderedSampler(range(N)),
    "shuffled": lambda: ShuffledSampler(range(N), seed=3),
    "shuffled, computed": lambda: ShuffledSampler(range(2000), seed=3),
    "sequential": lambda: SequentialSampler(range(N)),
    "random": lambda: RandomSampler(range(N)),
    "replacement": lambda: RandomSampler(range(N), replacement=True, num_samples=70),
    "subset": lambda: SubsetRandomSampler(range(5, N)),
    "weighted": lambda: WeightedRandomSampler(WEIGHTS, 60),
    "list": lambda: [(number, "x") for number in range(N)],
    "array": lambda: np.arange(N),
    "plain": Plain,
    "drawing": Drawing,
    "epochal": Epochal,
    "stateful": Stateful,
    "stateful iterator": StatefulIterator,
    "inherited": lambda: type("Mine", (RandomSampler,), {})(range(N)),
    "distributed": lambda: DistributedSampler(range(N), num_replicas=3, rank=1),
}


OWN = {"ordered", "shuffled", "shuffled, computed"}


@pytest.fixture(params=SAMPLERS)
def sampler(request: pytest.FixtureRequest) -> Any:
    return SAMPLERS[request.param]()


@pytest.fixture(autouse=True)
def _leave_the_generators_as_they_were() -> Iterator[None]:
    with preserved():
        seed_worker(0)
        yield


def global_state() -> list[Any]:
    return [random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()]


# ------------------------------------------------------------------------------ plain behaviour


def test_batches_of_the_sampler(sampler: Any) -> None:
    plan = BatchPlan(sampler, batch_size=8, seed=3)
    batches = list(EpochBatches(plan, 0))
    assert len(batches) == len(plan)
    assert all(type(batch) is list and len(batch) == 8 for batch in batches[:-1])
    assert sum(map(len, batches)) == len(sampler)


def test_own_orders_give_python_ints() -> None:
    for own in (OrderedSampler(range(10)), ShuffledSampler(range(10))):
        assert {
            type(index)
            for batch in EpochBatches(BatchPlan(own, batch_size=4), 0)
            for index in batch
        } == {int}
        assert {type(index) for index in EpochBatches(BatchPlan(own, batch_size=None), 0)} == {int}


def test_indices_of_users_are_not_changed() -> None:
    indices = [(1, "a"), np.int64(3), "k", None]
    [batch] = EpochBatches(BatchPlan(indices, batch_size=10), 0)
    assert all(a is b for a, b in zip(batch, indices, strict=True))
    single = list(EpochBatches(BatchPlan(indices, batch_size=None), 0))
    assert all(a is b for a, b in zip(single, indices, strict=True))


@pytest.mark.parametrize("drop_last", [False, True])
def test_drop_last(drop_last: bool) -> None:
    for make, size in itertools.product(SAMPLERS.values(), [1, 2, 7, 8, N - 1, N, N + 1, 10 * N]):
        sampler = make()
        plan = BatchPlan(sampler, batch_size=size, drop_last=drop_last, seed=3)
        batches = list(EpochBatches(plan, 0))
        assert len(batches) == len(plan)
        assert len(plan) == (len(sampler) // size if drop_last else -(-len(sampler) // size))
        if drop_last:
            assert all(len(batch) == size for batch in batches)


def test_what_a_batch_sampler_yields_is_not_changed() -> None:
    plan = BatchPlan(None, Batches())
    assert len(plan) == 5
    assert list(EpochBatches(plan, 0)) == [(0,), (1, 2), "abc", {"k": 3}, (4, 5)]
    assert list(EpochBatches(plan, 0, 3)) == [{"k": 3}, (4, 5)]


def test_a_list_of_batches_may_be_a_sampler() -> None:
    plan = BatchPlan(BatchSampler(SequentialSampler(range(5)), 2, False), batch_size=None)
    assert list(EpochBatches(plan, 0)) == [[0, 1], [2, 3], [4]]


def test_an_unsized_sampler_has_no_length() -> None:
    plan = BatchPlan(Unsized(), batch_size=8)
    with pytest.raises(TypeError):
        len(plan)
    assert [index for batch in EpochBatches(plan, 0) for index in batch] == list(range(N))


def test_an_infinite_sampler_is_drawn_from_as_needed() -> None:
    plan = BatchPlan(itertools.count(), batch_size=3, shard=Shard(1, 2))  # type: ignore[arg-type]
    assert list(itertools.islice(EpochBatches(plan, 0), 2)) == [[1, 3, 5], [7, 9, 11]]


def test_nothing_is_asked_of_a_sampler_before_the_first_batch() -> None:
    sampler = Plain()
    plan = BatchPlan(sampler, batch_size=4)
    batches = EpochBatches(plan, 0, 2)
    assert sampler.iterated == sampler.drawn == 0
    next(batches)
    assert (sampler.iterated, sampler.drawn) == (1, 12)


def test_positions_count_batches() -> None:
    batches = EpochBatches(BatchPlan(OrderedSampler(range(10)), batch_size=4), 0, 1)
    assert batches.position == 1
    list(batches)
    assert batches.position == 3


def test_a_samplers_exception_comes_out() -> None:
    class Failing:
        def __iter__(self) -> Iterator[int]:
            yield 0
            raise KeyError("lost")

    before = global_state()
    batches = EpochBatches(BatchPlan(Failing(), batch_size=1), 0)
    assert next(batches) == [0]
    with pytest.raises(KeyError, match="lost"):
        next(batches)
    assert list(batches) == []
    assert global_state() == before


# ------------------------------------------------------------------- a function of seed and epoch


def test_any_batch_is_reached(sampler: Any) -> None:
    plan = BatchPlan(sampler, batch_size=8, seed=3)
    whole = list(EpochBatches(plan, 2))
    for start in [*range(len(whole) + 1), len(whole) + 5]:
        assert list(EpochBatches(plan, 2, start)) == whole[start:]


def test_equal_seeds_give_equal_streams() -> None:
    for make in SAMPLERS.values():
        seed_worker(1)
        first = BatchPlan(make(), batch_size=8, seed=3)
        epochs = [list(EpochBatches(first, epoch)) for epoch in range(3)]
        seed_worker(2)
        second = BatchPlan(make(), batch_size=8, seed=lambda: 3)
        assert [list(EpochBatches(second, epoch)) for epoch in (2, 1, 0)] == epochs[::-1]


def test_epochs_differ() -> None:
    names = ["shuffled", "random", "replacement", "subset", "weighted", "drawing"]
    for name in names:
        plan = BatchPlan(SAMPLERS[name](), batch_size=8, seed=3)
        epochs = [list(EpochBatches(plan, epoch)) for epoch in range(3)]
        assert epochs[0] != epochs[1] != epochs[2] != epochs[0], name


def test_seeds_differ() -> None:
    for name in ["random", "replacement", "subset", "weighted", "drawing"]:
        plans = [BatchPlan(SAMPLERS[name](), batch_size=8, seed=seed) for seed in (1, 2)]
        assert list(EpochBatches(plans[0], 0)) != list(EpochBatches(plans[1], 0)), name


def test_the_global_generators_stay_as_they_are(sampler: Any) -> None:
    plan = BatchPlan(sampler, batch_size=8, seed=3)
    before = global_state()
    batches = EpochBatches(plan, 0)
    next(batches)
    assert global_state() == before
    list(batches)
    list(EpochBatches(plan, 1, 3))
    assert global_state() == before


def test_torchs_samplers_are_not_changed() -> None:
    sampler = RandomSampler(range(N))
    batches = EpochBatches(BatchPlan(sampler, batch_size=8), 0)
    next(batches)
    assert sampler.generator is None
    outer = BatchSampler(sampler, 4, False)
    next(EpochBatches(BatchPlan(None, outer), 0))
    assert outer.sampler is sampler
    assert sampler.generator is None


def test_a_batch_sampler_of_a_random_sampler_is_a_function_of_the_seed() -> None:
    def make(seed: int) -> BatchPlan:
        return BatchPlan(None, BatchSampler(RandomSampler(range(N)), 8, True), seed=seed)

    before = global_state()
    whole = list(EpochBatches(make(1), 0))
    assert len(whole) == len(make(1)) == N // 8
    assert list(EpochBatches(make(1), 0, 2)) == whole[2:]
    assert list(EpochBatches(make(2), 0)) != whole
    assert list(EpochBatches(make(1), 1)) != whole
    assert global_state() == before


# ---------------------------------------------------------------------------------------- epochs


def test_a_programs_own_sampler_is_told_nothing() -> None:
    sampler = Epochal()
    next(EpochBatches(BatchPlan(sampler, batch_size=8), 5))
    next(EpochBatches(BatchPlan(None, BatchSampler(sampler, 4, False)), 7))
    assert "epoch" not in vars(sampler)


def test_own_samplers_show_the_running_epoch() -> None:
    sampler = ShuffledSampler(range(N), seed=3)
    plan = BatchPlan(sampler, batch_size=N, seed=3)
    [batch] = EpochBatches(plan, 4)
    assert list(sampler) == batch


@pytest.mark.parametrize("make", [lambda: OrderedSampler(range(9)), Epochal])
def test_an_epoch_set_on_the_sampler_is_a_request(make: Callable[[], Any]) -> None:
    sampler = make()
    plan = BatchPlan(sampler, batch_size=2)
    assert plan.sampler.requested_epoch() is None
    sampler.set_epoch(3)
    assert plan.sampler.requested_epoch() == 3
    batches = EpochBatches(plan, 3)
    assert plan.sampler.requested_epoch() == 3
    next(batches)
    assert plan.sampler.requested_epoch() is None
    next(EpochBatches(plan, 4))
    assert plan.sampler.requested_epoch() is None


def test_an_own_sampler_sees_a_request_for_the_same_epoch() -> None:
    sampler = OrderedSampler(range(9))
    plan = BatchPlan(sampler, batch_size=2)
    next(EpochBatches(plan, 0))
    sampler.set_epoch(0)
    assert plan.sampler.requested_epoch() == 0


# --------------------------------------------------------------------------------------- sharding


def ranks_of(
    make: Callable[[], Any], size: int | None, num_replicas: int, tail: Any, drop_last: bool = False
) -> list[list[Any]]:
    plans = [
        BatchPlan(make(), None, size, drop_last, Shard(rank, num_replicas, tail), seed=3)
        for rank in range(num_replicas)
    ]
    ranks = [list(EpochBatches(plan, 1)) for plan in plans]
    assert [len(plan) for plan in plans] == [len(rank) for rank in ranks]
    return ranks


def stream_of(ranks: list[list[Any]]) -> list[Any]:
    """Put the global stream together again from each rank's batches."""
    stream = []
    for batches in itertools.zip_longest(*ranks, fillvalue=[]):
        for row in itertools.zip_longest(*batches, fillvalue=Shard):
            stream += [item for item in row if item is not Shard]
    return stream


KINDS = ["ordered", "shuffled", "weighted", "drawing", "plain"]


@settings(deadline=None, max_examples=150)
@given(
    st.sampled_from(KINDS), st.integers(1, 9), st.integers(1, 7), st.sampled_from(["pad", "drop"])
)
def test_ranks_have_equally_many_and_equally_large_batches(
    name: str, size: int, num_replicas: int, tail: str
) -> None:
    ranks = ranks_of(SAMPLERS[name], size, num_replicas, tail)
    assert len({tuple(map(len, rank)) for rank in ranks}) == 1
    whole = stream_of(ranks_of(SAMPLERS[name], size * num_replicas, 1, tail))
    stream = stream_of(ranks)
    cut = min(len(stream), len(whole))
    assert stream[:cut] == whole[:cut]
    if tail == "pad":
        assert cut == len(whole)
        assert stream[cut:] == whole[: len(stream) - cut]
    else:
        assert len(whole) - len(stream) == len(whole) % num_replicas


@settings(deadline=None, max_examples=80)
@given(st.sampled_from(KINDS), st.integers(1, 9), st.integers(1, 7))
def test_keep_is_exact(name: str, size: int, num_replicas: int) -> None:
    whole = stream_of(ranks_of(SAMPLERS[name], size * num_replicas, 1, "keep"))
    assert stream_of(ranks_of(SAMPLERS[name], size, num_replicas, "keep")) == whole


@settings(deadline=None, max_examples=80)
@given(
    st.sampled_from(KINDS), st.integers(1, 9), st.integers(1, 7), st.sampled_from(["pad", "drop"])
)
def test_drop_last_leaves_full_batches(name: str, size: int, num_replicas: int, tail: str) -> None:
    ranks = ranks_of(SAMPLERS[name], size, num_replicas, tail, drop_last=True)
    assert {len(batch) for rank in ranks for batch in rank} <= {size}
    assert len({len(rank) for rank in ranks}) == 1


@pytest.mark.parametrize("make", [lambda n: OrderedSampler(range(n)), Plain])
def test_fewer_samples_than_ranks(make: Callable[[int], Any]) -> None:
    for length in range(3):
        expected = {
            "pad": [[[rank % length]] if length else [] for rank in range(5)],
            "drop": [[]] * 5,
            "keep": [[[rank]] if rank < length else [] for rank in range(5)],
        }
        for tail, ranks in expected.items():
            assert ranks_of(lambda: make(length), 2, 5, tail) == ranks  # noqa: B023


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        ("pad", [[(0,), "abc", (4, 5)], [(1, 2), {"k": 3}, (0,)]]),
        ("drop", [[(0,), "abc"], [(1, 2), {"k": 3}]]),
        ("keep", [[(0,), "abc", (4, 5)], [(1, 2), {"k": 3}]]),
    ],
)
def test_batch_samplers_are_striped_by_batches(tail: Any, expected: Any) -> None:
    plans = [BatchPlan(None, Batches(), shard=Shard(rank, 2, tail)) for rank in range(2)]
    assert [list(EpochBatches(plan, 0)) for plan in plans] == expected
    assert [len(plan) for plan in plans] == [len(batches) for batches in expected]
    assert [list(EpochBatches(plan, 0, 2)) for plan in plans] == [
        batches[2:] for batches in expected
    ]


def test_single_indices_are_striped() -> None:
    assert ranks_of(lambda: range(5), None, 2, "pad") == [[0, 2, 4], [1, 3, 0]]
    assert ranks_of(lambda: OrderedSampler(range(5)), None, 2, "keep") == [[0, 2, 4], [1, 3]]


@pytest.mark.parametrize("batched", [True, False])
def test_a_distributed_sampler_is_not_sharded_again(batched: bool) -> None:
    sampler = DistributedSampler(range(N), num_replicas=3, rank=1)
    shard = Shard(1, 3)
    plan = (
        BatchPlan(sampler, None, 4, shard=shard)
        if batched
        else BatchPlan(None, BatchSampler(sampler, 4, False), shard=shard)
    )
    sampler.set_epoch(2)
    expected = list(BatchSampler(sampler, 4, False))
    assert list(EpochBatches(plan, 2)) == expected
    assert plan.num_replicas == 3


# ------------------------------------------------------------------------------ elastic positions


@pytest.mark.parametrize("tail", ["pad", "keep"])
@pytest.mark.parametrize("name", ["shuffled", "weighted", "drawing", "plain", "stateful"])
def test_going_on_with_other_ranks_gives_the_rest(name: str, tail: Any) -> None:
    whole = stream_of(ranks_of(SAMPLERS[name], 8, 1, tail))
    for batches in range(5):
        for num_replicas in (1, 2, 4, 8):
            plans = [
                BatchPlan(
                    SAMPLERS[name](),
                    None,
                    8 // num_replicas,
                    False,
                    Shard(rank, num_replicas, tail),
                    3,
                )
                for rank in range(num_replicas)
            ]
            start = plans[0].start_for(batches * 8)
            rest = stream_of([list(EpochBatches(plan, 1, start)) for plan in plans])
            assert rest[: len(whole) - 8 * batches] == whole[8 * batches :]


def test_positions_between_batches_are_refused() -> None:
    plan = BatchPlan(OrderedSampler(range(N)), batch_size=4, shard=Shard(0, 2))
    assert plan.start_for(16) == 2
    with pytest.raises(StateError) as caught:
        plan.start_for(20)
    assert str(caught.value) == (
        "the state's position of 20 samples is not a multiple of batch_size * num_replicas = 4 * 2:"
        " resume with a batch_size and num_replicas whose product divides it"
    )


@given(
    st.integers(0, 60),
    st.integers(1, 9),
    st.integers(1, 5),
    st.sampled_from(["pad", "drop", "keep"]),
)
def test_positions_of_batches_and_back(
    length: int, size: int, num_replicas: int, tail: Any
) -> None:
    plan = BatchPlan(Plain(length), batch_size=size, shard=Shard(0, num_replicas, tail))
    for batches in range(len(plan) + 1):
        samples = plan.samples_after(batches)
        assert samples <= length
        assert plan.start_for(samples) == batches
        assert plan.fits(batches, samples)
        assert not batches or not plan.fits(batches - 1, samples)
        assert plan.samples_after(batches + 1) == samples or not plan.fits(batches + 1, samples)
    if tail != "drop":
        assert plan.samples_after(len(plan)) == length
    for other in (1, 2, 3):
        end = BatchPlan(Plain(length), batch_size=other).start_for(length)
        assert end == -(-length // other)


def test_positions_without_a_length() -> None:
    plan = BatchPlan(Unsized(), batch_size=8)
    assert plan.samples_after(100) == 800
    assert plan.start_for(800) == 100


def test_positions_of_a_distributed_sampler_count_all_ranks() -> None:
    plan = BatchPlan(DistributedSampler(range(N), 3, 0), batch_size=4)
    assert plan.global_size == 12
    assert plan.samples_after(2) == 24
    assert plan.samples_after(len(plan)) == 54
    assert plan.start_for(54) == len(plan)


# ---------------------------------------------------------------------------------- sampler states


def resumable(state: Any) -> Any:
    """Send a state through a checkpoint."""
    return pickle.loads(pickle.dumps(state))


def test_functions_of_the_seed_have_digests_alone() -> None:
    for name in SAMPLERS.keys() - {"stateful", "stateful iterator"}:
        plan = BatchPlan(SAMPLERS[name](), batch_size=8)
        batches = EpochBatches(plan, 0)
        assert batches.state() is None
        next(batches)
        state = batches.state()
        assert state is None if name in OWN else {"drawn"} <= set(state or ()) <= DIGESTS
        assert set(plan.sampler.state() or ()) <= DIGESTS


DIGESTS = {"drawn", "heads"}


@pytest.mark.parametrize("kind", [Stateful, StatefulIterator])
@pytest.mark.parametrize("shard", [Shard(), Shard(2, 3), Shard(1, 3, "keep")])
@pytest.mark.parametrize("size", [5, None])
def test_stateful_samplers_are_restored(kind: Any, shard: Shard, size: int | None) -> None:
    batches = EpochBatches(BatchPlan(kind(), batch_size=size, shard=shard), 0)
    whole, states = [], []
    for batch in batches:
        whole.append(batch)
        states.append(resumable(batches.state()))
    for position, state in enumerate(states, start=1):
        sampler = kind()
        resumed = EpochBatches(BatchPlan(sampler, batch_size=size, shard=shard), 0, position, state)
        assert list(resumed) == whole[position:]


@pytest.mark.parametrize("kind", [Stateful, StatefulIterator])
def test_a_resumed_epoch_gives_the_states_of_the_first(kind: Any) -> None:
    plan = BatchPlan(kind(), batch_size=5, shard=Shard(0, 3))
    batches = EpochBatches(plan, 0)
    next(batches)
    given_state = resumable(batches.state())
    next(batches)
    expected = resumable(batches.state())
    resumed = EpochBatches(BatchPlan(kind(), batch_size=5, shard=Shard(0, 3)), 0, 1, given_state)
    next(resumed)
    assert resumed.state() == expected


@pytest.mark.parametrize(("length", "tail"), [(54, "pad"), (53, "drop"), (53, "keep"), (53, "pad")])
def test_the_streams_head_is_drawn_again(length: int, tail: Any) -> None:
    plan = BatchPlan(Stateful(length), batch_size=5, shard=Shard(2, 3, tail))
    batches = EpochBatches(plan, 0)
    whole = [next(batches)]
    state = resumable(batches.state())
    whole += batches
    resumed = BatchPlan(Stateful(length), batch_size=5, shard=Shard(2, 3, tail))
    assert list(EpochBatches(resumed, 0, 1, state)) == whole[1:]


def test_a_state_does_not_change_with_the_sampler() -> None:
    batches = EpochBatches(BatchPlan(Stateful(), batch_size=5), 0)
    next(batches)
    state = batches.state()
    assert state is not None
    copy = resumable(state)
    next(batches)
    assert state == copy


def test_a_stateful_sampler_without_a_state_is_replayed() -> None:
    plan = BatchPlan(Stateful(), batch_size=5)
    whole = list(EpochBatches(plan, 0))
    assert list(EpochBatches(plan, 0, 3)) == whole[3:]


def test_a_stateful_sampler_in_a_batch_sampler() -> None:
    plan = BatchPlan(None, BatchSampler(Stateful(), 5, False))
    batches = EpochBatches(plan, 0)
    whole = [next(batches), next(batches)]
    state = resumable(batches.state())
    rest = list(batches)
    assert [index for batch in whole + rest for index in batch] == list(range(0, 3 * N, 3))
    other = Stateful()
    resumed = EpochBatches(BatchPlan(None, BatchSampler(other, 5, False)), 0, 2, state)
    assert list(resumed) == rest


@pytest.mark.parametrize("wrap", [False, True])
@pytest.mark.parametrize("replacement", [False, True])
def test_a_samplers_own_generator_goes_on_from_epoch_to_epoch(
    wrap: bool, replacement: bool
) -> None:
    def make() -> BatchPlan:
        generator = torch.Generator().manual_seed(5)
        torch.rand(3, generator=generator)  # a position that the initial seed does not tell
        sampler = RandomSampler(range(100), replacement=replacement, generator=generator)
        return (
            BatchPlan(None, BatchSampler(sampler, 8, False))
            if wrap
            else BatchPlan(sampler, None, 8)
        )

    plan = make()
    expected = [list(EpochBatches(plan, epoch)) for epoch in range(4)]
    assert expected[0] != expected[1] != expected[2]

    plan = make()
    list(EpochBatches(plan, 0))
    between = resumable(plan.sampler.state())
    batches = EpochBatches(plan, 1)
    assert [next(batches) for _ in range(3)] == expected[1][:3]
    within = resumable(batches.state())
    assert len(pickle.dumps(within)) < 3500

    other = make()
    assert list(EpochBatches(other, 1, 3, within)) == expected[1][3:]
    assert list(EpochBatches(other, 2)) == expected[2]
    assert list(EpochBatches(other, 3)) == expected[3]
    other = make()
    assert [list(EpochBatches(other, 1, 0, between)), list(EpochBatches(other, 2))] == expected[1:3]


@pytest.mark.parametrize(
    ("state", "what"),
    [
        ({"generator": b""}, "a generator of its own"),
        ({"sampler": {}}, "state_dict and load_state_dict (of the sampler)"),
        ({"iterator": {}}, "state_dict and load_state_dict (of the iterator)"),
    ],
)
def test_states_of_other_samplers_are_refused(state: dict[str, Any], what: str) -> None:
    batches = EpochBatches(BatchPlan(Plain(), batch_size=5), 0, 1, state)
    with pytest.raises(StateError) as caught:
        next(batches)
    assert str(caught.value) == (
        f"the state is of a sampler with {what}, which Plain has not: "
        f"resume with the sampler that the state was taken from"
    )


def test_states_survive_a_safe_checkpoint(tmp_path: Any) -> None:
    sampler = RandomSampler(range(100), generator=torch.Generator())
    batches = EpochBatches(BatchPlan(sampler, batch_size=8), 0)
    next(batches)
    torch.save(batches.state(), tmp_path / "state.pt")
    assert torch.load(tmp_path / "state.pt", weights_only=True) == batches.state()
