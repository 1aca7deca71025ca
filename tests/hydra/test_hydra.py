"""The configuration as an application sees it: found, typed, inherited, loaded."""

import contextlib
import functools
import inspect
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hydra
import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.errors import ConfigCompositionException, InstantiationException
from omegaconf import DictConfig, MissingMandatoryValue, OmegaConf, ValidationError
from omegaconf.errors import OmegaConfBaseException
from torch.utils.data import WeightedRandomSampler

from lit_loader import (
    LoaderConfig,
    LoaderDataModule,
    LoaderMonitor,
    LoaderStateCallback,
    MixtureSampler,
    OptionError,
    Packed,
    PackingBatchSampler,
    Retry,
    TokenBudgetBatchSampler,
)
from lit_loader.data.pad import PadCollate, Padded
from lit_loader.hydra.schema import hydra_schema
from tests.support.samples import OfLength

Compose = Callable[..., DictConfig]

instantiate: Callable[..., Any] = hydra.utils.instantiate
if not hydra.__version__.startswith("1.3"):
    # What the configuration may call; all else is refused.
    admitted = ["lit_loader.*", f"{__name__}.*"]
    instantiate = functools.partial(instantiate, _execution_whitelist_=admitted)

CONF = Path(__file__).parents[2] / "conf" / "lit_loader"
GROUPS = {
    "loader": {
        *("debug", "default", "fault_tolerant", "_inherit", "ray", "split"),
        *("auto", "reproducible", "storage", "threads", "throughput"),
        "workers",
    },
    "remote": {"ray"},
    "sampler": {*("balanced", "mixture", "packing", "token_budget", "random", "weighted")},
    "collate": {"list", "pack", "pad"},
    "callbacks": {"monitor", "state"},
}


class Numbers(OfLength):
    """0, 1, 2, ..."""

    length = 12

    def __getitem__(self, index: int) -> int:
        return range(self.length)[index]


def refusal(node: Any) -> str:
    """Instantiates what must be refused; returns the one line that says why."""
    with pytest.raises((InstantiationException, OptionError)) as caught:
        instantiate(node)
    if isinstance(caught.value, OptionError):  # from Hydra 1.4 on
        return str(caught.value)
    (line,) = [line for line in str(caught.value).splitlines() if "OptionError" in line]
    assert line.startswith(("OptionError(", "UnknownOptionError("))
    return line


@pytest.fixture
def application(tmp_path: Path) -> Iterator[Compose]:
    """An application whose configuration, written to a directory, is composed in this process.

    It knows nothing of where lit_loader keeps its files. Both splits have 12 samples.
    """
    (tmp_path / "app.yaml").write_text(f"""
defaults:
  - lit_loader/datamodule@data: default
  - _self_
data:
  datasets:
    train: {{_target_: {__name__}.Numbers, _partial_: true}}
    val: {{_target_: {__name__}.Numbers, _partial_: true}}
""")
    with initialize_config_dir(str(tmp_path), version_base="1.3"):
        yield lambda *overrides: compose("app", overrides=list(overrides))


def composed(folder: Path, defaults: str, *overrides: str) -> DictConfig:
    """An application with these defaults alone."""
    (folder / "alone.yaml").write_text(f"defaults: [{{{defaults}}}]")
    with initialize_config_dir(str(folder), version_base="1.3"):
        return compose("alone", overrides=[*overrides])


def module(cfg: DictConfig) -> LoaderDataModule:
    made = instantiate(cfg.data)
    assert isinstance(made, LoaderDataModule)
    return made


# --- found and inherited ---


def test_defaults_give_the_default_config(application: Compose) -> None:
    cfg = application()
    assert instantiate(cfg.loader) == LoaderConfig()
    data = module(cfg)
    assert data.configs["val"] == LoaderConfig()
    assert data.configs["train"] == LoaderConfig(shuffle=True)


def test_common_options_reach_every_split_unless_it_has_its_own(application: Compose) -> None:
    overrides = "loader.num_workers=4", "loader.batch_size=32", "data.val.batch_size=512"
    data = module(application(*overrides))
    assert {c.num_workers for c in data.configs.values()} == {4}
    sizes = {split: config.batch_size for split, config in data.configs.items()}
    assert sizes == {"train": 32, "val": 512, "test": 32, "predict": 32}


@pytest.mark.parametrize("place", ["loader", "data", "data.val"])
@pytest.mark.parametrize("preset", ["auto", "fault_tolerant", "throughput"])
def test_a_sweep_reaches_no_workers(application: Compose, preset: str, place: str) -> None:
    said = {"fault_tolerant": "timeout=120.* has no effect: num_workers=0"}.get(preset)
    with pytest.warns(UserWarning, match=said) if said else contextlib.nullcontext():
        configs = module(
            application(f"lit_loader/loader@loader={preset}", f"{place}.num_workers=0")
        ).configs
    val, train = configs["val"], configs["train"]
    assert (val.num_workers, val.persistent_workers, val.prefetch_factor) == (0, False, None)
    expected = {"auto": "auto", "throughput": 4}.get(preset, 2)
    assert train.num_workers == (expected if place == "data.val" else 0)


# --- refused ---


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("loader.num_worker=4", "Key 'num_worker' not in 'LoaderSchema'"),
        ("data.val.num_worker=4", "Key 'num_worker' not in 'LoaderSchema'"),
        ("loader.num_workers=2.5", "Value '2.5' of type 'float' is incompatible with type hint"),
        ("loader.shuffle=maybe", "Value 'maybe' is not a valid bool"),
        ("loader.batch_size=1.5", "could not be converted to Integer"),
    ],
)
def test_refused_while_composing(application: Compose, override: str, message: str) -> None:
    with pytest.raises(ConfigCompositionException) as caught:
        application(override)
    assert message in f"{caught.value}{caught.value.__cause__}"


@pytest.mark.parametrize(
    ("override", "part"),
    [
        ("+data.loader.nun_workers=4", "num_workers"),
        ("+loader.nun_workers=4", "unknown option 'loader.nun_workers': did you mean num_workers"),
        ("+data.val.batchsize=4", "batch_size"),
        ("+data.prefetch_factor=4", "loader.prefetch_factor="),
        ("data.num_workers=-1", "got num_workers=-1"),
        ("+lit_loader/sampler@data.train=balanced", "data.train.batch_sampler.batch_size="),
    ],
    ids=range(6),
)
def test_refused_while_instantiating(application: Compose, override: str, part: str) -> None:
    assert part in refusal(application(override).data)


def test_the_override_that_people_type_works(application: Compose) -> None:
    """Both places of the common options; a sampler takes the place of the shuffling."""
    overrides = "data.loader.num_workers=4", "loader.prefetch_factor=3", "data.val.num_workers=1"
    configs = module(application(*overrides, "+data.train.sampler=[3,1]", "+data.seed=5")).configs
    found = {one: (own.num_workers, own.prefetch_factor) for one, own in configs.items()}
    assert found == {"train": (4, 3), "val": (1, 3), "test": (4, 3), "predict": (4, 3)}
    assert (configs["train"].shuffle, configs["train"].sampler) == (None, [3, 1])
    assert {own.seed for own in configs.values()} == {5}


def test_datasets_are_mandatory(tmp_path: Path) -> None:
    cfg = composed(tmp_path, "lit_loader/datamodule@data: default")
    with pytest.raises(MissingMandatoryValue, match="data.datasets"):
        instantiate(cfg.data)


def test_the_schema_as_a_structured_config() -> None:
    """What OmegaConf makes of LoaderConfig itself is an error: it knows no Literal or Callable."""
    cfg = OmegaConf.merge(OmegaConf.structured(hydra_schema()), {"num_workers": "auto"})
    assert instantiate(cfg) == LoaderConfig(num_workers="auto")
    with pytest.raises(ValidationError):
        cfg.batch_size = "many"
    with pytest.raises(OmegaConfBaseException, match="annotation: Callable|Unions of containers"):
        OmegaConf.structured(LoaderConfig)  # which Troubleshooting lists


# --- callables and containers ---


def test_lists_of_nodes_that_do_not_convert() -> None:
    """Hydra's own default: lists come as nodes."""
    numbers = [{"_target_": f"{__name__}.Numbers", "length": length} for length in (4, 6)]
    options = {"batch_size": 2, "sample_retries": {"times": 2, "on": ["KeyError"]}}
    target = {"_target_": "lit_loader.LoaderDataModule", "loader": options}
    data = instantiate({**target, "datasets": {"train": numbers[0], "val": numbers}})
    data.setup("fit")
    loaders = data.val_dataloader()
    assert [len(loader) for loader in loaders] == [2, 3]
    assert loaders[1].sample_retries == Retry(2, on=[KeyError])
    target = {"_target_": "lit_loader.MixtureDataset"}
    mixture = instantiate({**target, "datasets": numbers, "weights": [3, 1]})
    assert (mixture.lengths, list(mixture.weights)) == ([4, 6], [3, 1])


# --- the groups: what there is ---

Batches = list[Any]


class Noisy(Numbers):
    """Each number with a random one."""

    def __getitem__(self, index: int) -> Any:
        return index, random.random()


class Named(Numbers):
    """Entries of different lengths, and one that is not to be padded."""

    def __getitem__(self, index: int) -> Any:
        piece = torch.full((1 + index,), index)
        return {"tokens": piece, "labels": piece, "box": torch.zeros(4)}


class Documents(Numbers):
    """Tensors of 1 to 5 elements, which are the document's number."""

    def __init__(self, length: int = 12) -> None:
        super().__init__(length)
        self.lengths = [1 + index % 5 for index in range(length)]

    def __getitem__(self, index: int) -> Any:
        return torch.full((self.lengths[index],), index)


def dataset(name: str, split: str = "train") -> str:
    return f"data.datasets.{split}._target_={__name__}.{name}"


def epochs(cfg: DictConfig, count: int = 1, split: str = "train") -> tuple[Batches, Any]:
    """Loads through the data module; returns all batches, and the loader, which is closed."""
    data = module(cfg)
    data.setup("fit")
    loader = getattr(data, f"{split}_dataloader")()
    batches = [batch for _ in range(count) for batch in loader]
    loader.close()
    return batches, loader


def plain(batches: Batches) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


def test_every_file_is_tested_here() -> None:
    present = {group: {path.stem for path in (CONF / group).glob("*.yaml")} for group in GROUPS}
    assert present == GROUPS


def test_one_entry_admits_every_target() -> None:
    """Hydra 1.4 asks for a list of them: ``lit_loader.*`` is enough."""
    texts = "".join(path.read_text() for path in CONF.rglob("*.yaml"))
    targets = re.findall(r"^ *_target_: (?!null)(.*)", texts, flags=re.MULTILINE)
    assert len(targets) > 10
    assert [target for target in targets if not target.startswith("lit_loader.")] == []


# --- presets ---


def test_reproducible(application: Compose) -> None:
    """Each sample has its random number, whatever torch's seed, the workers and the batches are."""

    def drawn(*overrides: str) -> dict[int, float]:
        torch.manual_seed(len(overrides))
        cfg = application("lit_loader/loader@loader=reproducible", dataset("Noisy"), *overrides)
        batches, _ = epochs(cfg)
        return {
            index: value
            for indices, values in batches
            for index, value in zip(indices.tolist(), values.tolist(), strict=True)
        }

    first = drawn()
    assert sorted(first) == list(range(12))
    alone = drawn("loader.num_workers=0", "loader.persistent_workers=false", "loader.batch_size=5")
    assert list(alone.items()) == list(first.items())
    assert drawn("loader.seed=1") != first


# --- samplers ---


def test_mixture(application: Compose) -> None:
    sources = f"[{{_target_: {__name__}.Numbers, length: 30}}, {{_target_: {__name__}.Numbers}}]"
    mixture = (
        "{_target_: lit_loader.MixtureDataset, _partial_: true, "
        f"datasets: {sources}, weights: [3, 1]}}"
    )
    cfg = application(
        "+lit_loader/sampler@data.train=mixture",
        "data.train.sampler.epoch_length=1024",
        "loader.batch_size=128",
        f"++data.datasets.train={mixture}",
    )
    batches, loader = epochs(cfg, 2)
    assert type(loader.sampler) is MixtureSampler
    assert [len(batch) for batch in batches] == [128] * 16
    ours = range(loader.dataset.lengths[0])
    assert sum(index in ours for index in loader.sampler) == 768


def test_token_budget(application: Compose) -> None:
    cfg = application(
        "loader.batch_size=32",  # of the other splits
        "+lit_loader/sampler@data.train=token_budget",
        "+lit_loader/collate@data.train.collate_fn=pad",
        "data.train.batch_sampler.max_tokens=10",
        "data.train.collate_fn.padding_value=-1",
        dataset("Documents"),
    )
    batches, loader = epochs(cfg)
    assert type(loader.batch_sampler) is TokenBudgetBatchSampler
    assert type(loader.collate_fn) is PadCollate
    assert all(type(batch) is Padded and batch.values.numel() <= 10 for batch in batches)
    assert sorted(i for batch in batches for i in batch.values[:, 0].tolist()) == list(range(12))
    assert {i for batch in batches for i in batch.values[~batch.mask()].tolist()} <= {-1}
    assert len(epochs(cfg, split="val")[0]) == 1


def test_packing(application: Compose) -> None:
    cfg = application(
        "+lit_loader/sampler@data.train=packing",
        "+lit_loader/collate@data.train.collate_fn=pack",
        "data.train.batch_sampler.max_tokens=10",
        "data.train.collate_fn.pad_to_multiple_of=8",
        dataset("Documents"),
    )
    batches, loader = epochs(cfg)
    assert type(loader.batch_sampler) is PackingBatchSampler
    assert all(type(batch) is Packed and len(batch.values) in (8, 16) for batch in batches)
    held = [i for b in batches for i in b.values[(b.position_ids == 0) & (b.sequence_ids >= 0)]]
    assert sorted(held) == list(range(12))


def test_weighted(application: Compose, tmp_path: Path) -> None:
    np.save(tmp_path / "weights.npy", [0.0, 1.0] * 6)
    cfg = application(
        "+lit_loader/sampler@data.train=weighted",
        f"data.train.sampler.weights.file={tmp_path}/weights.npy",
        "data.train.sampler.num_samples=20",
        "loader.batch_size=4",
        "loader.seed=1",
    )
    batches, loader = epochs(cfg, 2)
    assert type(loader.sampler) is WeightedRandomSampler
    drawn = plain(batches)
    assert len(drawn) == 10
    assert {index % 2 for batch in drawn for index in batch} == {1}
    assert drawn[:5] != drawn[5:]
    assert plain(epochs(cfg, 2)[0]) == drawn


# --- collators and callbacks ---


def test_pad_by_name(application: Compose) -> None:
    cfg = application(
        "+lit_loader/collate@data.val.collate_fn=pad",
        "data.val.collate_fn.padding_value={tokens: 0, labels: -100}",
        "data.val.num_workers=1",
        "data.val.batch_size=3",
        dataset("Named", "val"),
    )
    first, *_ = epochs(cfg, split="val")[0]
    assert first["tokens"].values.tolist() == [[0, 0, 0], [1, 1, 0], [2, 2, 2]]
    assert first["labels"].values.tolist() == [[0, -100, -100], [1, 1, -100], [2, 2, 2]]
    assert first["box"].shape == (3, 4)


def test_callbacks_in_the_order_of_the_list(tmp_path: Path) -> None:
    both = "lit_loader/callbacks@callbacks: [state, monitor]"
    cfg = composed(tmp_path, both, "callbacks.loader_monitor.progress_bar=false")
    made = [instantiate(callback) for callback in cfg.callbacks.values()]
    assert list(map(type, made)) == [LoaderStateCallback, LoaderMonitor]
    # The monitor's file has the defaults, and no others.
    monitor = {key: x for key, x in cfg.callbacks.loader_monitor.items() if key != "_target_"}
    parameters = inspect.signature(LoaderMonitor).parameters
    assert monitor == {**{name: p.default for name, p in parameters.items()}, "progress_bar": False}
