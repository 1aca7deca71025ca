"""The checkpoint state: round trips, independence, and a clear refusal of what does not fit."""

from __future__ import annotations

import io
import pickle
import re
from typing import Any

import pytest
import torch

from lit_loader.checkpoint.loader_state import ELASTIC, VERSION, LoaderState
from lit_loader.checkpoint.sampler_state import pack_generator
from lit_loader.errors import StateError

FINGERPRINT: dict[str, int | float | str | bool | None] = {
    "dataset_length": 1_281_167,
    "seed": 2**64 - 1,
    "seeding": "batch",
    "order": "shuffled",
    "batch_size": 256,
    "num_replicas": 8,
    "drop_last": False,
    "shard_tail": "pad",
}


def make(**changes: Any) -> LoaderState:
    fields: dict[str, Any] = {"version": VERSION, "epoch": 3, "batches": 10, "samples": 20_480}
    return LoaderState.from_dict(fields | {"fingerprint": FINGERPRINT} | changes)


def through_torch(state: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """Save and load like a checkpoint; also give the size in bytes."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True), len(file.getvalue())


PACKED = pack_generator(torch.Generator())


@pytest.mark.parametrize(
    "state",
    [
        make(),
        make(epoch=0, batches=0, samples=0),
        make(sampler={"generator": PACKED, "head": [1, 2], "sampler": {"yielded": 7}}),
        make(ahead=(12, 14)),
        make(workers=[[5, {"iterator": {"position": 1}}, False, 1], [5, None, True, 1]]),
        make(workers=[[5, {"dataset": 1, "iterator": None}, False, 2], [5, {}, False, 5]]),
    ],
)
def test_states_survive_a_checkpoint_file(state: LoaderState) -> None:
    loaded, _ = through_torch(state.to_dict())
    assert loaded == state.to_dict()
    assert LoaderState.from_dict(loaded) == state


def test_states_are_small() -> None:
    assert len(pickle.dumps(make().to_dict())) < 400
    assert through_torch(make().to_dict())[1] < 2000


def test_states_have_a_version_and_only_what_is_needed() -> None:
    assert make().to_dict() == {
        "version": VERSION,
        "epoch": 3,
        "batches": 10,
        "samples": 20_480,
        "fingerprint": FINGERPRINT,
        "ahead": [],
    }


def test_a_state_given_out_shares_nothing() -> None:
    sampler = {"seen": [1, 2]}
    state = make(sampler=sampler)
    first = state.to_dict()
    sampler["seen"].append(3)
    first["fingerprint"]["seed"] = 0
    assert first["sampler"] == {"seen": [1, 2]}
    assert state.to_dict()["fingerprint"]["seed"] == 2**64 - 1
    read = LoaderState.from_dict(first)
    first["sampler"]["seen"].append(4)
    assert read.position.sampler == {"seen": [1, 2]}


def refused(state: Any) -> str:
    with pytest.raises(StateError) as caught:
        LoaderState.from_dict(state)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("state", [None, [], {}, {"epoch": 1}, "x" * 1000])
def test_what_is_no_state_is_refused(state: Any) -> None:
    message = refused(state)
    assert message.startswith("state must be the dict that state_dict() of a lit_loader.DataLoader")
    assert len(message) < 200


@pytest.mark.parametrize("version", [0, VERSION + 1, "1", None])
def test_unknown_versions_are_refused(version: Any) -> None:
    assert refused(make().to_dict() | {"version": version}) == (
        f"state has version {version!r}, but only version 2 is known here: "
        f"resume with the release of lit_loader that the state was taken with"
    )


def test_the_first_version_is_read_where_it_means_the_same() -> None:
    state = make().to_dict() | {"version": 1, "workers": None, "sampler": {"generator": b""}}
    with_own_parts = state | {"sampler": {"iterator": 3}}
    for refusal in (with_own_parts, state | {"workers": [[1, None, False]]}):
        assert refused(refusal) == (
            "state has version 1, but the parts of iterable datasets and samplers have another "
            "form since: resume with the release of lit_loader that the state was taken with"
        )
    del state["sampler"], state["workers"]
    assert LoaderState.from_dict(state) == LoaderState.from_dict(state | {"version": 2})


@pytest.mark.parametrize("name", ["epoch", "batches", "samples"])
@pytest.mark.parametrize("value", [-1, 1.0, "1", None, True])
def test_bad_counts_are_refused(name: str, value: Any) -> None:
    least = " of at least 0"
    if name == "epoch":  # an epoch that is set may be below 0
        least, value = "", -(2**63) if value == -1 else value
    expected = (
        f"state's {name} must be a whole number{least}, got {value!r}: resume with a state as "
        "state_dict() gave it"
    )
    assert refused(make().to_dict() | {name: value}) == expected


def test_a_bad_fingerprint_is_refused() -> None:
    expected = (
        "state's fingerprint must be a dict, got [1]: resume with a state as state_dict() gave it"
    )
    assert refused(make().to_dict() | {"fingerprint": [1]}) == expected


def test_an_equal_fingerprint_fits() -> None:
    make().check(dict(FINGERPRINT))


@pytest.mark.parametrize("name", sorted(ELASTIC))
def test_elastic_fields_may_differ(name: str) -> None:
    make().check(FINGERPRINT | {name: 1})


@pytest.mark.parametrize(
    ("name", "value", "advice"),
    [
        ("dataset_length", 7, "resume with the dataset that the state was taken from"),
        ("seed", 0, "pass the state's seed as the loader's seed option"),
        ("seeding", "sample", "resume with the same seeding"),
        ("order", "ordered", "resume with the same sampler or shuffle option"),
        ("num_workers", 4, "an iterable dataset's position belongs to its workers: resume with as"),
    ],
)
def test_other_fields_may_not(name: str, value: Any, advice: str) -> None:
    expected = (
        f"state was taken with {name}={FINGERPRINT.get(name)!r}, but this loader has "
        f"{name}={value!r}: {advice}"
    )
    with pytest.raises(StateError, match=f"^{re.escape(expected)}"):
        make().check(FINGERPRINT | {name: value})


def test_a_field_that_is_missing_here_is_a_difference() -> None:
    fingerprint = {name: value for name, value in FINGERPRINT.items() if name != "seed"}
    with pytest.raises(StateError, match="but this loader has seed=None"):
        make().check(fingerprint)


# --- translated to another loader's batches ---


class Plan:
    def __init__(self, answer: int = 5) -> None:
        self.asked: list[int] = []
        self.answer = answer

    def start_for(self, samples: int) -> int:
        self.asked.append(samples)
        return self.answer

    def fits(self, batches: int, samples: int) -> bool:
        return samples == 20_480 and batches == 10


def test_a_state_whose_counts_do_not_fit_together() -> None:
    for wrong in ({"samples": 20_479}, {"batches": 9}):
        with pytest.raises(StateError, match=r"samples must be those of (10|9) batches"):
            make(**wrong).to_position(FINGERPRINT, Plan(), True)


def test_the_same_batches_are_not_translated() -> None:
    plan = Plan()
    position = make(ahead=(12,), sampler={"sampler": 1}).to_position(FINGERPRINT, plan, True)
    assert (position.epoch, position.seed, position.batches) == (3, 2**64 - 1, 10)
    assert (position.ahead, position.sampler, plan.asked) == ((12,), {"sampler": 1}, [])


@pytest.mark.parametrize("name", sorted(ELASTIC))
def test_other_batches_are_found_by_their_samples(name: str) -> None:
    plan = Plan()
    assert make().to_position({**FINGERPRINT, name: 2}, plan, False).batches == 5
    assert plan.asked == [20_480]
    with pytest.raises(StateError, match="taken with in_order=False in mid-epoch fits only"):
        make(ahead=(12,)).to_position({**FINGERPRINT, name: 2}, plan, False)
    with pytest.raises(StateError, match="batches must be less than"):
        make().to_position({**FINGERPRINT, name: 2}, Plan(2**40), False)


def test_readers_keep_their_places() -> None:
    workers = [[5, {"dataset": 1}, False, 1], [5, None, True]]
    state = make(workers=workers)
    position = state.to_position(FINGERPRINT, None, True)
    assert LoaderState(position, 20_480, FINGERPRINT).to_dict() == state.to_dict()
    assert not state.reads_again
    assert make(workers=[[5, None, False], [5, None, True]]).reads_again
    with pytest.raises(StateError, match="cannot be pickled"):
        make(workers=[[10, {"dataset": lambda: 0}, False, 1]]).to_position(FINGERPRINT, None, True)


@pytest.mark.parametrize("seed", [None, -1, 2**64, "1", 1.0, True])
def test_a_seed_that_is_none_is_not_taken_over(seed: Any) -> None:
    assert make(fingerprint={**FINGERPRINT, "seed": seed}).seed is None
    assert make().seed == 2**64 - 1
