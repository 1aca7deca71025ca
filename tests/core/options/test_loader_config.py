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
    BATCH = "batch"


@pytest.mark.parametrize("kind", [np.asarray, torch.tensor], ids=["array", "tensor"])
def test_arrays_and_tensors_without_dimensions_are_single_values(kind: Any) -> None:
    given = {
        "batch_size": kind(3), "shuffle": kind(True), "drop_last": kind(False), "seed": kind(7),
        "num_workers": kind(2), "timeout": kind(2.5), "persistent_workers": kind(True),
        "num_replicas": kind(2), "rank": kind(0), "in_order": kind(False),
        "memory_budget": kind(10),
    }  # fmt: skip
    config = LoaderConfig(**given)
    for name, value in given.items():
        got = getattr(config, name)
        assert (type(got), got) == (type(value.item()), value.item())
    for name in ("batch_size", "seed", "timeout"):
        with pytest.raises(OptionError, match=f"^lit_loader: {name} must be .*, got {name}=True"):
            LoaderConfig(**{name: kind(True)})


def test_strings_of_other_classes_become_plain_ones() -> None:
    """torch.load(weights_only=True) would refuse a state with one of them."""
    for word in (np.str_("batch"), Word.BATCH):
        assert type(LoaderConfig(seeding=word).seeding) is str
        state = io.BytesIO()
        torch.save(DataLoader([1], seeding=word).state_dict(), state)
        state.seek(0)
        DataLoader([1]).load_state_dict(torch.load(state, weights_only=True))


@pytest.mark.parametrize(
    "options",
    [
        {"shuffle": False, "sampler": [3, 1]},
        {"batch_sampler": [[0], [1, 2]], "shuffle": 0, "drop_last": 0},
        {"seed": 2**64 - 1, "seeding": "sample"},
        {"pin_memory_device": "cuda:1"},
        {"max_worker_restarts": 0, "memory_budget": 1},
        {"on_sample_error": "skip", "max_sample_errors": 0},
    ],
)
def test_accepted(options: dict[str, object]) -> None:
    """At their limits; what else there is loaders are made with all over the tests."""
    config = LoaderConfig(**options)  # type: ignore[arg-type]
    for name, value in options.items():
        assert getattr(config, name) is value or getattr(config, name) == value


# --- refused ---

REFUSED: dict[str, dict[str, Any]] = {
    "batch_size must be a whole number of at least 1, got batch_size=0": {"batch_size": 0},
    "batch_size must be a whole number of at least 1, got batch_size=True": {"batch_size": True},
    "whole number of at least 0, or 'auto', got num_workers='2.5'": {"num_workers": "2.5"},
    "whole number of at least 0 and below 100000, got num_workers=1000": {"num_workers": 10**30},
    "whole number of at least 0, or 'auto', got num_workers=-1": {"num_workers": -1},
    "whole number of at least 0, or 'auto', got num_workers='all'": {"num_workers": "all"},
    "num_workers='auto' needs batches that do not depend on who makes them":
        {"num_workers": "auto", "seeding": "worker"},
    "shuffle must be True or False, got shuffle='no'": {"shuffle": "no"},
    "timeout must be a finite number of seconds, 0 or more, got timeout=-1": {"timeout": -1},
    "got timeout=nan": {"timeout": math.nan, "num_workers": 1},
    "prefetch_factor must be a whole number of at": {"prefetch_factor": 0, "num_workers": 1},
    "sampler must be an iterable, or a callable that makes one from the dataset": {"sampler": 5},
    "from the dataset, got sampler=tensor(2)": {"sampler": torch.tensor(2)},
    "batch_sampler must be an iterable, or a callable": {"batch_sampler": "ab"},
    "sampler decides the order itself: leave shuffle at None": {"sampler": [1], "shuffle": True},
    "batch_sampler takes the place of batch_size: leave batch_size at 1, got batch_size=8":
        {"batch_sampler": [[1]], "batch_size": 8},
    "batch_size at 1, got batch_size=None": {"batch_sampler": [[1]], "batch_size": None},
    "batch_sampler takes the place of shuffle": {"batch_sampler": [[1]], "shuffle": True},
    "batch_sampler takes the place of sampler": {"batch_sampler": [[1]], "sampler": [1]},
    "batch_sampler takes the place of drop_last": {"batch_sampler": [[1]], "drop_last": True},
    "drop_last needs batches: set batch_size": {"batch_size": None, "drop_last": True},
    "persistent_workers needs worker processes: set num_workers to at least 1 or leave "
    "persistent_workers at False, got persistent_workers=True and num_workers=0":
        {"persistent_workers": True},
    "prefetch_factor needs worker processes: set num_workers to": {"prefetch_factor": 2},
    "multiprocessing_context needs worker processes": {"multiprocessing_context": "fork"},
    "multiprocessing_context must be a multiprocessing context or one of 'fork":
        {"multiprocessing_context": "frok", "num_workers": 1},
    "or one of 'fork', 'spawn', 'forkserver', got multiprocessing_context=<object object":
        {"multiprocessing_context": object(), "num_workers": 1},
    "collate_fn must be a callable, got the string 'my.collate': pass the function itself, in "
    "Hydra as {_target_: hydra.utils.get_method, path: my.collate}": {"collate_fn": "my.collate"},
    "worker_init_fn must be a callable, got worker_init_fn=3": {"worker_init_fn": 3},
    "reseed_fn must be a callable, got reseed_fn={}": {"reseed_fn": {}},
    "generator must be a torch.Generator, got generator=42": {"generator": 42},
    "pin_memory_device must be a string, got": {"pin_memory_device": None},
    "seed must be a whole number of at least 0 and below 18446744073709551616": {"seed": -1},
    "got seed=18446744073709551616": {"seed": 2**64},
    "seeding must be one of 'batch', 'sample', 'worker', got seeding=": {"seeding": "batches"},
    "uneven_ranks must be one of 'pad', 'drop', 'keep', got uneven_ranks=N": {"uneven_ranks": None},
    "rank and num_replicas are given together or not at all, got rank=0 and num": {"rank": 0},
    "rank must be less than num_replicas, got rank=2 and num_rep": {"rank": 2, "num_replicas": 2},
    "num_replicas must be a whole number of at least 1": {"rank": 0, "num_replicas": 0},
    "max_worker_restarts must be a whole number of at least 0, got": {"max_worker_restarts": -1},
    "on_sample_error must be one of 'raise', 'skip', 'replace', got on_sample_error='ignore'":
        {"on_sample_error": "ignore"},
    "max_sample_errors needs bad samples to be passed over: set on_sample_error to 'skip' or "
    "'replace' or leave max_sample_errors at None, got max_sample_errors=3 and on_sample_error":
        {"max_sample_errors": 3},
    "max_sample_errors must be a whole number of at least 0, got max_sample_errors=-1":
        {"on_sample_error": "skip", "max_sample_errors": -1},
    "sample_retries must be a whole number of at least 0, got sample_": {"sample_retries": 0.5},
    "sample_retries.times must be a whole number of at": {"sample_retries": {"times": -1}},
    "sample_retries.backoff must be a finite number of": {"sample_retries": {"backoff": -1}},
    "sample_retries.on must be a list of exception classes": {"sample_retries": {"on": OSError}},
    "names, got sample_retries.on='OSError'": {"sample_retries": {"on": "OSError"}},
    "a list of exception classes or of their": {"sample_retries": {"on": [KeyboardInterrupt]}},
    "sample_retries.on holds a name that cannot be imported (AttributeError: module 'builtins'":
        {"sample_retries": {"on": ["builtins.OSErorr"]}},
    "unknown option 'sample_retries.time': did you mean 'times'?": {"sample_retries": {"time": 3}},
    "unknown option 'retry_backoff': did you mean sample_retries=Retry(": {"retry_backoff": 1},
    "unknown option 'transient_errors': did you mean sample_retries=R": {"transient_errors": []},
    "unknown option 'share_lists': did you mean dataset.files = SharedSequence(":
        {"share_lists": True},
    "memory_budget must be a whole number (bytes) of at least 1, got mem": {"memory_budget": 0},
    "memory_budget must be a number of bytes, or text such as '2 GB' or '512 MiB', got memo":
        {"memory_budget": "much"},
    "unknown option 'num_worker': did you mean 'num_workers'?": {"num_worker": 4},
    "unknown option 'colour': options are ": {"colour": 4},
}  # fmt: skip


@pytest.mark.parametrize("message", REFUSED)
def test_refused_in_one_line(message: str) -> None:
    for make in (LoaderConfig().merged, functools.partial(DataLoader, range(4))):
        with pytest.raises(OptionError) as caught:
            make(**REFUSED[message])
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)
        assert isinstance(caught.value, ValueError)


def test_names_of_exceptions_become_classes() -> None:
    names = ["builtins.ConnectionError", "subprocess:TimeoutExpired", KeyError, "OSError"]
    config = LoaderConfig(sample_retries={"on": names})
    found = Retry(3, 0.1, (ConnectionError, subprocess.TimeoutExpired, KeyError, OSError))
    assert config.sample_retries == config.merged(batch_size=2).sample_retries == found
    assert LoaderConfig(sample_retries=found).sample_retries is found
    assert DataLoader(range(4), sample_retries=2).sample_retries == 2


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("1GB", 10**9), ("4 GB", 4 * 10**9), ("1.5 mib", 3 << 19), ("12", 12), ("8 TB", 8 * 10**12)],
)
def test_sizes_may_be_text(text: str, nbytes: int) -> None:
    assert LoaderConfig(memory_budget=text).memory_budget == nbytes
    if nbytes < 1 << 42:
        assert CachedDataset(range(3), text).memory == nbytes
    assert DataLoader(range(3), memory_budget=text).memory_budget == nbytes


def test_a_presets_options_for_workers_give_way_to_none() -> None:
    """In Hydra, where nobody sees whether a preset or the user has set them: a sweep reaches 0."""
    of_workers = {"persistent_workers": True, "prefetch_factor": 4}
    assert LoaderConfig.from_options(num_workers=0, **of_workers) == LoaderConfig()
    assert LoaderConfig.from_options(**of_workers, num_workers="0") == LoaderConfig()
    kept = LoaderConfig.from_options(num_workers=2, timeout=9, **of_workers)
    assert (kept.persistent_workers, kept.prefetch_factor, kept.timeout) == (True, 4, 9)
    with pytest.warns(UserWarning, match="^lit_loader: timeout=9 has no effect: num_workers=0 "):
        assert LoaderConfig.from_options(timeout=9) == LoaderConfig()
    for wrong in ({"timeout": -1}, {"prefetch_factor": 0}, {"persistent_workers": "maybe"}):
        with pytest.raises(OptionError, match=f"^lit_loader: {next(iter(wrong))} must be"):
            LoaderConfig.from_options(**wrong)


# --- copies and conversions ---


def test_merged_overrides_and_validates() -> None:
    config = LoaderConfig(batch_size=4, num_workers=2)
    merged = config.merged(batch_size=8, persistent_workers=True)
    assert (merged.batch_size, merged.num_workers, merged.persistent_workers) == (8, 2, True)
    assert config.batch_size == 4
    with pytest.raises(OptionError, match="persistent_workers needs worker processes"):
        merged.merged(num_workers=0)
    with pytest.raises(OptionError, match="did you mean 'batch_size'"):
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
    with pytest.raises(OptionError, match="batch_sampler factory must return an iterable, got 3"):
        LoaderConfig(batch_sampler=len).with_samplers_for(dataset)


def add(a: int, b: int) -> int:
    return a + b


def test_a_users_own_partial_is_left_alone() -> None:
    class Mine(functools.partial):  # type: ignore[type-arg]
        pass

    mine = Mine(add, 1)
    assert LoaderConfig(collate_fn=mine).collate_fn is mine
