"""LoaderConfig: what it accepts, what it refuses and in which words; one truth in four places."""

import enum
import functools
import inspect
import io
import math
import subprocess
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch.utils.data import RandomSampler, TensorDataset, WeightedRandomSampler

import lit_loader
from lit_loader import CachedDataset, DataLoader, LoaderConfig, OptionError, Retry
from tests.support.tools import refused

LOADER_CONF = Path(__file__).parents[3] / "conf" / "lit_loader" / "loader"


def options_of(file: str) -> dict[str, object]:
    content = yaml.safe_load((LOADER_CONF / file).read_text())
    return {name: value for name, value in content.items() if name != "defaults" and name[0] != "_"}


# --- one truth in four places ---


def test_constructor_dataclass_and_files_are_equal() -> None:
    signature = inspect.signature(lit_loader.DataLoader.__init__).parameters
    constructor = {n: p.default for n, p in signature.items() if n not in ("self", "dataset")}
    dataclass = {field.name: field.default for field in fields(LoaderConfig)}
    inherited = {name: f"${{loader.{name}}}" for name in dataclass}
    assert [*constructor.items()] == [*dataclass.items()]
    assert [*options_of("default.yaml").items()] == [*dataclass.items()]
    assert [*options_of("_inherit.yaml").items()] == [*inherited.items()]


# --- accepted, and normalised ---


def test_flags_and_numbers_are_normalised() -> None:
    config = LoaderConfig(
        batch_size=np.int64(3), shuffle=1, drop_last=np.bool_(True), pin_memory=0, num_workers=2,
        timeout=np.float32(2.5), prefetch_factor=np.uint8(4), seed=np.int64(7),
    )  # fmt: skip
    assert (config.batch_size, config.prefetch_factor, config.seed) == (3, 4, 7)
    assert all(type(v) is int for v in (config.batch_size, config.prefetch_factor, config.seed))
    assert (config.shuffle, config.drop_last, config.pin_memory) == (True, True, False)
    assert all(type(v) is bool for v in (config.shuffle, config.drop_last, config.pin_memory))
    assert config.timeout == 2.5
    assert type(config.timeout) is float


class Word(str, enum.Enum):
    SAMPLE = "sample"


@pytest.mark.parametrize("kind", [np.asarray, torch.tensor], ids=["array", "tensor"])
def test_arrays_and_tensors_without_dimensions_are_single_values(kind: Any) -> None:
    given = {
        "batch_size": kind(3), "shuffle": kind(True), "drop_last": kind(False), "seed": kind(7),
        "num_workers": kind(2), "timeout": kind(2.5), "persistent_workers": kind(True),
        "num_replicas": kind(2), "rank": kind(0), "in_order": kind(False),
    }  # fmt: skip
    config = LoaderConfig(**given)
    for name, value in given.items():
        got = getattr(config, name)
        assert (type(got), got) == (type(value.item()), value.item())
    for name in ("batch_size", "seed", "timeout"):
        with pytest.raises(OptionError, match=f"{name}=True"):
            LoaderConfig(**{name: kind(True)})


def test_strings_of_other_classes_become_plain_ones() -> None:
    """torch.load(weights_only=True) would refuse a state with one of them."""
    for word in (np.str_("sample"), Word.SAMPLE):
        assert type(LoaderConfig(seeding=word).seeding) is str
        state = io.BytesIO()
        torch.save(DataLoader([1], seeding=word).state_dict(), state)
        state.seek(0)
        DataLoader([1], seeding="sample").load_state_dict(torch.load(state, weights_only=True))


@pytest.mark.parametrize(
    "options",
    [
        {"shuffle": False, "sampler": [3, 1]},
        {"batch_sampler": [[0], [1, 2]], "shuffle": 0, "drop_last": 0},
        {"seed": 2**64 - 1, "seeding": "sample"},
        {"pin_memory_device": "cuda:1"},
        {"max_worker_restarts": 0},
        {"on_sample_error": "skip", "max_sample_errors": 0},
    ],
)
def test_accepted(options: dict[str, object]) -> None:
    """At their limits; what else there is loaders are made with all over the tests."""
    config = LoaderConfig(**options)  # type: ignore[arg-type]
    for name, value in options.items():
        assert getattr(config, name) is value or getattr(config, name) == value


# --- refused ---

REFUSED: list[dict[str, Any]] = [
    *({"batch_size": value} for value in (0, True, 2.5, "many")),
    *({"num_workers": value} for value in ("2.5", 10**30, -1, "all")),
    *({"timeout": value, "num_workers": 1} for value in (-1, math.nan, "soon")),
    *({"seed": value} for value in (-1, 2**64, "x")),
    *({"sampler": value} for value in (5, torch.tensor(2))),
    *({"seeding": value} for value in ("batches", "worker")),
    *({"collate_fn": value} for value in ("my.collate", 3)),
    *({"multiprocessing_context": value, "num_workers": 1} for value in ("frok", object())),
    *({"sample_retries": {"on": value}} for value in (OSError, "OSError", [KeyboardInterrupt])),
    *({"sample_retries": value} for value in (0.5, {"times": -1}, {"backoff": -1}, {"time": 3})),
    {"shuffle": "no"},
    {"prefetch_factor": 0, "num_workers": 1},
    {"batch_sampler": "ab"},
    {"worker_init_fn": 3},
    {"reseed_fn": {}},
    {"generator": 42},
    {"pin_memory_device": None},
    {"uneven_ranks": None},
    {"max_worker_restarts": -1},
    {"on_sample_error": "ignore"},
    {"rank": 0, "num_replicas": 0},
    # those that contradict each other, or have nothing to act on
    {"sampler": [1], "shuffle": True},
    {"batch_sampler": [[1]], "batch_size": 8},
    {"batch_sampler": [[1]], "batch_size": None},
    {"batch_sampler": [[1]], "shuffle": True},
    {"batch_sampler": [[1]], "sampler": [1]},
    {"batch_sampler": [[1]], "drop_last": True},
    {"drop_last": True, "batch_size": None},
    {"persistent_workers": True, "num_workers": 0},
    {"prefetch_factor": 2, "num_workers": 0},
    {"multiprocessing_context": "fork", "num_workers": 0},
    {"rank": 0},
    {"rank": 2, "num_replicas": 2},
    {"max_sample_errors": 3},
    {"on_sample_error": "skip", "max_sample_errors": -1},
]


@pytest.mark.parametrize("options", REFUSED, ids=lambda options: "-".join(options))
def test_refused_in_one_line_that_names_the_option(options: dict[str, Any]) -> None:
    for make in (LoaderConfig().merged, functools.partial(DataLoader, range(4))):
        message = refused(lambda make=make: make(**options))  # type: ignore[misc]
        assert any(name in message for name in options)
        assert "\n" not in message


def test_an_unknown_option_names_the_nearest() -> None:
    assert "did you mean num_workers?" in refused(lambda: LoaderConfig().merged(num_worker=1))


def test_names_of_exceptions_become_classes() -> None:
    names = ["builtins.ConnectionError", "subprocess:TimeoutExpired", KeyError, "OSError"]
    config = LoaderConfig(sample_retries={"on": names})
    found = Retry(3, 0.1, (ConnectionError, subprocess.TimeoutExpired, KeyError, OSError))
    assert config.sample_retries == config.merged(batch_size=2).sample_retries == found
    assert LoaderConfig(sample_retries=found).sample_retries is found
    assert DataLoader(range(4), sample_retries=2).sample_retries == 2


@pytest.mark.parametrize(
    ("text", "nbytes"), [("1GB", 10**9), ("4 GB", 4 * 10**9), ("1.5 mib", 3 << 19), ("12", 12)]
)
def test_sizes_may_be_text(text: str, nbytes: int) -> None:
    assert CachedDataset(range(3), text).memory == nbytes


# --- copies and conversions ---


def test_merged_overrides_and_validates() -> None:
    config = LoaderConfig(batch_size=4, num_workers=2)
    merged = config.merged(batch_size=8, persistent_workers=True)
    assert (merged.batch_size, merged.num_workers, merged.persistent_workers) == (8, 2, True)
    assert config.batch_size == 4
    with pytest.raises(OptionError, match="persistent_workers"):
        merged.merged(num_workers=0)
    with pytest.raises(OptionError, match="did you mean batch_size"):
        config.merged(batchsize=2)


def weighted(dataset: TensorDataset) -> WeightedRandomSampler:
    return WeightedRandomSampler(torch.ones(len(dataset)), num_samples=5)


def test_sampler_factories_are_called_with_the_dataset() -> None:
    dataset = TensorDataset(torch.arange(3))
    sampler = LoaderConfig(sampler=weighted).with_samplers_for(dataset).sampler
    assert isinstance(sampler, WeightedRandomSampler)
    assert len(sampler.weights) == 3
    made = LoaderConfig(sampler=RandomSampler).with_samplers_for(dataset)
    assert isinstance(made.sampler, RandomSampler)
    plain = LoaderConfig(sampler=[0])
    assert plain.with_samplers_for(dataset) is plain
    with pytest.raises(OptionError, match="batch_sampler"):
        LoaderConfig(batch_sampler=len).with_samplers_for(dataset)


def test_a_users_own_partial_is_left_alone() -> None:
    class Mine(functools.partial):  # type: ignore[type-arg]
        pass

    mine = Mine(max, 1)
    assert LoaderConfig(collate_fn=mine).collate_fn is mine
