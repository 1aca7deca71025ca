"""The configuration as an application sees it: found, typed, inherited, instantiated."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.errors import ConfigCompositionException
from hydra.utils import instantiate
from omegaconf import DictConfig, MissingMandatoryValue
from torch.utils.data import WeightedRandomSampler

from lit_loader import LoaderConfig, LoaderDataModule
from tests.support.hydra_apps import Compose, Numbers, composing, refusal


def offset_collate(samples: list[int], offset: int) -> list[int]:
    return [sample + offset for sample in samples]


def rare_first(dataset: Numbers, num_samples: int) -> WeightedRandomSampler:
    return WeightedRandomSampler(torch.ones(len(dataset)), num_samples)


@pytest.fixture
def application(tmp_path: Path) -> Iterator[Compose]:
    with composing(tmp_path, val=6) as compose:
        yield compose


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


def test_common_option_reaches_every_split(application: Compose) -> None:
    data = module(application("loader.num_workers=4", "loader.batch_size=32"))
    assert {c.num_workers for c in data.configs.values()} == {4}
    assert {c.batch_size for c in data.configs.values()} == {32}


def test_split_option_reaches_one_split(application: Compose) -> None:
    data = module(application("loader.batch_size=32", "data.val.batch_size=512"))
    sizes = {split: config.batch_size for split, config in data.configs.items()}
    assert sizes == {"train": 32, "val": 512, "test": 32, "predict": 32}


def test_presets(application: Compose) -> None:
    workers = instantiate(application("lit_loader/loader@loader=workers").loader)
    assert (workers.num_workers, workers.persistent_workers) == (2, True)
    fragile = instantiate(application("lit_loader/loader@loader=fragile_data").loader)
    assert (fragile.on_sample_error, fragile.sample_retries, fragile.timeout) == ("replace", 3, 120)
    debug = instantiate(application("lit_loader/loader@loader=debug").loader)
    assert debug == LoaderConfig()


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
    ("overrides", "message"),
    [
        (["+loader.nun_workers=4"], "unknown option 'nun_workers': did you mean 'num_workers'?"),
        (["+data.val.batchsize=4"], "unknown option 'batchsize': did you mean 'batch_size'?"),
        (["loader.num_workers=-1"], "num_workers must be a whole number of at least 0, or 'auto'"),
        (["loader.num_workers=two"], "of at least 0, or 'auto', got num_workers='two'"),
        (["loader.persistent_workers=true"], "persistent_workers needs worker processes: set num_"),
        (["loader.collate_fn=my.collate"], "in Hydra as {_target_: hydra.utils.get_method, path: "),
        (["loader.seeding=sampel"], "seeding must be one of 'batch', 'sample', 'worker'"),
        (["data.datasets=null"], "datasets must be a mapping from split to dataset or factory"),
        (["+data.datasets.dev=${data.datasets.val}"], "datasets has an unknown split 'dev'"),
    ],
)
def test_refused_while_instantiating(
    application: Compose, overrides: list[str], message: str
) -> None:
    assert message in refusal(application(*overrides).data)


def test_datasets_are_mandatory(tmp_path: Path) -> None:
    (tmp_path / "app.yaml").write_text("defaults: [{lit_loader/datamodule@data: default}]")
    with initialize_config_dir(str(tmp_path), version_base="1.3"):
        cfg = compose("app")
    with pytest.raises(MissingMandatoryValue, match="data.datasets"):
        instantiate(cfg.data)


# --- callables and containers ---


def test_partial_function_carries_nothing_of_hydra(application: Compose) -> None:
    target = f"{{_target_: {__name__}.offset_collate, _partial_: true, offset: 10}}"
    collate = module(application(f"data.val.collate_fn={target}")).configs["val"].collate_fn
    assert type(collate) is functools.partial
    assert b"hydra" not in pickle.dumps(collate).replace(__name__.encode(), b"")
    assert collate([1, 2]) == [11, 12]


def test_sampler_factory_is_called_with_the_dataset(application: Compose) -> None:
    target = f"{{_target_: {__name__}.rare_first, _partial_: true, num_samples: 4}}"
    data = module(application(f"data.train.sampler={target}", "data.train.shuffle=null"))
    data.setup("fit")
    loader = data.train_dataloader()
    assert isinstance(loader.sampler, WeightedRandomSampler)
    assert len(loader.sampler.weights) == 12
    assert len(loader) == 4


def test_lists_of_nodes_that_do_not_convert() -> None:
    """Hydra's own default: lists come as nodes."""
    numbers = [{"_target_": f"{__name__}.Numbers", "length": length} for length in (4, 6)]
    options = {"batch_size": 2, "transient_errors": ["KeyError"]}
    target = {"_target_": "lit_loader.LoaderDataModule", "loader": options}
    data = instantiate({**target, "datasets": {"train": numbers[0], "val": numbers}})
    data.setup("fit")
    loaders = data.val_dataloader()
    assert [len(loader) for loader in loaders] == [2, 3]
    assert loaders[1].transient_errors == (KeyError,)
    target = {"_target_": "lit_loader.MixtureDataset"}
    mixture = instantiate({**target, "datasets": numbers, "weights": [3, 1]})
    assert (mixture.lengths, list(mixture.weights)) == ([4, 6], [3, 1])


def test_loads_through_workers(application: Compose) -> None:
    data = module(application("loader.num_workers=1", "loader.batch_size=4"))
    data.setup("fit")
    values: list[Any] = [batch.tolist() for batch in data.val_dataloader()]
    data.close()
    assert values == [[0, 1, 2, 3], [4, 5]]
