"""States from outside: damaged, of something else, or made to do harm; loaded or a StateError."""

import copy
import functools
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import RandomSampler, Sampler, WeightedRandomSampler

from lit_loader import (
    DataLoader,
    MixtureDataset,
    MixtureSampler,
    MixtureStream,
    OptionError,
    StateError,
    TokenBudgetBatchSampler,
)
from lit_loader.core.state.state_validation import MAX_BATCHES, MAX_COUNT
from tests.support.datasets import Stream
from tests.support.samples import Call, StatefulCounting
from tests.support.stateful_data import SAMPLERS, STREAMS, sampling
from tests.support.tools import refused

LENGTH = 22


# --- what states are of ---

ANY = Call(lambda index: 0, LENGTH)
"""Takes any index: what is wrong then is the loader's, not the dataset's."""


class Places(Sampler[int]):
    """Has a state and an epoch, and does what user code does with bad ones: raises anything."""

    def __init__(self) -> None:
        self.epoch = self.place = 0

    def set_epoch(self, epoch: int) -> None:
        random.Random().seed(epoch)
        np.random.RandomState(epoch)  # below 2**32
        self.epoch = epoch

    def __len__(self) -> int:
        return LENGTH

    def __iter__(self) -> Iterator[int]:
        start, self.place = self.place, 0
        for place in range(start, LENGTH):
            self.place = place + 1
            yield place

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place, "history": [[1, 2], {"a": (3, None)}]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place = state["place"]


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def mixture(**options: Any) -> MixtureStream:
    sources = [Stream(LENGTH), StatefulCounting(LENGTH), Stream(LENGTH)]
    return MixtureStream(sources, [3, 2, 0], **options)


def mapped(**options: Any) -> dict[str, Any]:
    return {"dataset": ANY, "batch_size": 4, "seed": 1, **options}


def batches(sampler: Any, **options: Any) -> dict[str, Any]:
    return {"dataset": ANY, "batch_sampler": sampler, "seed": 1, **options}


KINDS: dict[str, Callable[[], dict[str, Any]]] = {
    "order": mapped,
    "seed of nobody's": lambda: mapped(seed=None, shuffle=True),
    "shuffle, a rank": lambda: mapped(shuffle=True, num_replicas=2, rank=1),
    "generator": lambda: mapped(sampler=RandomSampler(range(LENGTH), generator=generator())),
    "weighted": lambda: mapped(
        sampler=WeightedRandomSampler([1.0] * LENGTH, LENGTH, generator=generator())
    ),
    "stateful": lambda: mapped(sampler=Places()),
    "stateful, a rank": lambda: mapped(sampler=Places(), num_replicas=3, rank=0),
    "drawn again": lambda: mapped(sampler=list(range(LENGTH))),
    "token budget": lambda: batches(TokenBudgetBatchSampler(([3, 1, 2, 5, 4] * 5)[:LENGTH], 8)),
    "mixture": lambda: {
        "dataset": (both := MixtureDataset([range(30), range(9)])),
        "batch_size": 4,
        "sampler": MixtureSampler(both, epoch_length=20),
        "seed": 1,
    },
    "iterable": lambda: mapped(dataset=Stream(LENGTH)),
    "iterable with a state": lambda: mapped(dataset=StatefulCounting(LENGTH)),
    "stream": lambda: mapped(dataset=mixture()),
}  # fmt: skip


KINDS |= {
    f"stream with {kind}": lambda made=made: mapped(dataset=made(LENGTH, "torch"))
    for kind, made in STREAMS.items()
    if kind != "neither"
}  # fmt: skip
KINDS |= {
    f"{use} with {kind}": lambda use=use, kind=kind: {
        "dataset": ANY, "seed": 1, **sampling(use, kind, LENGTH, "torch")[1],
    }
    for use, kind in itertools.product(["sampler", "batch sampler"], SAMPLERS)
    if kind != "neither"
}  # fmt: skip


def make(kind: str, workers: int = 0) -> DataLoader[Any]:
    return DataLoader(**KINDS[kind](), num_workers=workers)


@functools.cache
def taken_at(kind: str, taken: int, workers: int = 0) -> dict[str, Any]:
    with make(kind, workers) as loader:
        iterator = iter(loader)
        for _ in range(taken):
            next(iterator, None)
        state = loader.state_dict()
        assert len(state) <= 10
        return state


# --- what is done to them ---


def deep(levels: int, innermost: Any = None) -> Any:
    value = innermost
    for _ in range(levels):
        value = [value]
    return value


def selfish() -> dict[str, Any]:
    value: dict[str, Any] = {"version": 4}
    value["sampler"] = value["fingerprint"] = value["readers"] = value
    return value


def laughing() -> Any:
    """A list whose written form has a billion elements."""
    value: Any = ["ha"]
    for _ in range(30):
        value = [value, value]
    return value


CONSTANTS: list[Any] = [
    *(None, True, -1, 1, LENGTH, 2**31, MAX_BATCHES - 1, MAX_BATCHES, MAX_COUNT - 1, 2**63),
    *(2**64 - 1, 10**5000, 1.0, float("nan"), float("-inf"), 1j),
    *("", "1\n2", "x" * 100_000, b"", np.int64(2), np.float64(2), np.str_("batch")),
    *(bytes(10**6), bytes(5056), generator().get_state().numpy().tobytes()[:-9]),
]
JUNK: list[Callable[[], Any]] = [
    *(lambda value=value: value for value in CONSTANTS),
    lambda: torch.tensor(3),
    lambda: torch.arange(3),
    lambda: torch.zeros(2, requires_grad=True) * 2,
    lambda: torch.empty(3, device="meta"),
    lambda: torch.zeros(1).expand(10**12),
    lambda: np.arange(4.0),
    lambda: np.array([None, {}], object),
    list,
    dict,
    set,
    lambda: [1, 2, 3],
    lambda: [[0, None, False]],
    lambda: {1: 2, "a": 3, None: 4, (5,): 6},
    lambda: {"generator": b"x", "sampler": 3, "head": {}},
    lambda: {"sampler": {"position": 3}, "due": [10**30, None]},
    lambda: {"iterator": {"position": "3"}},
    lambda: {"sampler": {"position": []}, "over": 1},
    lambda: [3, {"dataset": {"position": "x"}}, False, 1],
    lambda: {"head": [10**30, "a", None]},
    lambda: deep(3),
    lambda: deep(100),
    lambda: deep(100_000),
    laughing,
    selfish,
    lambda: lambda: 3,
    lambda: iter(()),
    object,
]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place within a state, by the keys that lead there."""
    yield path
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], (*path, key))
    elif isinstance(value, (list, tuple)):
        for number, child in enumerate(value):
            yield from places(child, (*path, number))


def changed(state: Any, path: tuple[Any, ...], how: str, junk: Any) -> Any:
    """A copy of a state with one place put out of order."""
    if not path:
        return {"replace": junk, "delete": {}, "wrap": [state]}.get(how, state)
    parent, key = state, path[-1]
    for step in path[:-1]:
        parent = parent[step]
    if isinstance(parent, tuple):
        return state
    if how == "delete":
        del parent[key]
    elif how == "insert":
        if isinstance(parent, dict):
            parent[junk if isinstance(junk, (int, float, str, bytes)) else key] = junk
        else:
            parent.insert(key, junk)
    else:
        parent[key] = [parent[key]] if how == "wrap" else junk
    return state


@st.composite
def mutations(draw: st.DrawFn, state: Any) -> Any:
    state = copy.deepcopy(state)
    for _ in range(draw(st.integers(1, 3))):
        # Not into what an earlier change has put there: that may contain itself.
        field = draw(st.sampled_from(list(state))) if state else None
        inside = itertools.islice(places(state.get(field), (field,)), 40) if state else ()
        path = draw(st.sampled_from([(), *(path for path in inside if len(path) <= 6)]))
        how = draw(st.sampled_from(["replace", "replace", "replace", "delete", "insert", "wrap"]))
        junk = draw(st.sampled_from(JUNK))()
        state = changed(state, path, how, junk)
        if not isinstance(state, dict) or state is junk:
            break
    return state


def attempt(kind: str, state: Any, workers: int = 0) -> str | None:
    """Load a state and begin; gives the refusal, if there is one. Nothing else may be raised."""
    with make(kind, workers) as loader:
        before = loader.state_dict()
        try:
            loader.load_state_dict(state)
        except StateError as error:
            assert loader.state_dict() == before  # nothing of it has been taken over
            return str(error)
        try:
            next(iter(loader), None)
        except StateError as error:
            return str(error)
    return None


def fuzz(data: st.DataObject, kind: str, workers: int) -> None:
    taken = data.draw(st.sampled_from([0, 1, 3] if workers else [0, 1, 3, 9]))
    refusal = attempt(kind, data.draw(mutations(taken_at(kind, taken, workers))), workers)
    if refusal is not None and not workers:  # those from a worker have its traceback
        assert "\n" not in refusal
        assert len(refusal) < 600


def fuzzing(examples: int) -> Any:
    any_speed = {"suppress_health_check": list(HealthCheck)}
    return settings(max_examples=examples, derandomize=True, database=None, **any_speed)


quiet = pytest.mark.filterwarnings(
    "ignore:.*(has no state_dict and load_state_dict|has not asked which of them):UserWarning"
)


@quiet
@fuzzing(200)
@given(st.data())
def test_any_state_is_loaded_or_refused(data: st.DataObject) -> None:
    fuzz(data, data.draw(st.sampled_from(sorted(KINDS))), 0)


@quiet
@fuzzing(10)
@given(st.data())
def test_so_is_any_where_workers_read(data: st.DataObject) -> None:
    fuzz(data, data.draw(st.sampled_from(["iterable with a state", "stream with both"])), 2)


# --- what users' own objects have put there ---


@pytest.mark.parametrize("part", [deep(100), selfish(), laughing()])
def test_what_a_sampler_has_put_there_may_be_anything(part: Any) -> None:
    seen = []

    class Any_(Places):
        def load_state_dict(self, state: dict[str, Any]) -> None:
            seen.append(state)

    state = copy.deepcopy(taken_at("stateful", 1))
    state["sampler"]["sampler"] = part
    loader = DataLoader(**mapped(sampler=Any_()))
    state["fingerprint"]["order"] = "Any_"
    loader.load_state_dict(state)
    next(iter(loader))
    assert type(seen[0]) is type(part)
    assert seen[0] is not part


def test_a_part_that_is_nested_too_deeply_is_refused() -> None:
    state = copy.deepcopy(taken_at("stateful", 1))
    state["sampler"]["sampler"] = deep(100_000)
    message = refused(lambda: make("stateful").load_state_dict(state), StateError)
    assert "sampler" in message and "RecursionError" in message


# --- what is said ---


@pytest.mark.parametrize(
    ("kind", "path", "junk", "word"),
    [
        ("order", ["version"], True, "LL324"),
        ("order", ["version"], 3, "0.4"),
        ("order", ["epoch"], 10**5000, "epoch"),
        ("order", ["fingerprint", 3], 4, "fingerprint"),
        ("order", ["fingerprint", "seed"], torch.tensor(1), "fingerprint['seed']"),
        ("order", ["readers"], [], "readers"),
        ("order", ["ahead"], [3], "ahead"),
        ("order", ["sampler"], [1], "sampler"),
        ("iterable", ["readers"], None, "readers"),
        ("iterable with a state", ["readers"], [{}], "readers"),
        ("token budget", ["sampler", "order", "batches"], -1, "sampler['order']"),
        ("stateful", ["sampler", "drawn"], [1, 2], "sampler['drawn']"),
        ("generator", ["sampler", "generator"], bytes(16), "torch.Generator"),
        ("sampler with both", ["sampler", "iterator", "position"], None, "cannot load its part"),
        ("shuffle, a rank", ["sampler"], {"distributed": "x"}, "sampler['distributed']"),
    ],
    ids=itertools.count(),
)
@quiet
def test_one_line_tells_what_is_wrong(kind: str, path: list[Any], junk: Any, word: str) -> None:
    state = copy.deepcopy(taken_at(kind, 3))
    part = state
    for step in path[:-1]:
        part = part[step]
    part[path[-1]] = junk
    told = attempt(kind, state)
    assert told is not None
    assert "\n" not in told and word in told


def test_a_position_behind_the_epochs_end_is_refused() -> None:
    """Else the rest of the epoch would be passed over without a word."""
    with DataLoader(range(50), 4, shuffle=True, seed=1) as loader:
        next(iter(loader))
        state = loader.state_dict() | {"batches": 14}
        with pytest.raises(StateError, match="batches"):
            loader.load_state_dict(state)


# --- epochs that no run comes to ---


@pytest.mark.parametrize("epoch", [2**62, -(2**62) - 1, 10**5000], ids=["above", "below", "far"])
def test_epochs_that_no_state_can_hold_are_refused(epoch: int) -> None:
    for target in (make("order"), TokenBudgetBatchSampler([1, 2], 8)):
        with pytest.raises(OptionError, match="epoch"):
            target.set_epoch(epoch)
