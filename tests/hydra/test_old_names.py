"""Names that were given up, as an application's files and command lines have them."""

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from torch.utils.data import RandomSampler

from lit_loader import LoaderConfig, LoaderDataModule, OptionError, PadCollate
from lit_loader.compat.old_names import OLD_OPTIONS, PRESETS
from tests.support.programs import run_with_lightning

SET: dict[str, Any] = {
    "check_exactness": 2, "reads": 4, "remote_workers": 3, "shard_tail": "keep",
}  # fmt: skip
DATA = {"_target_": "builtins.range", "_args_": [12]}

Application = Callable[..., DictConfig]


@pytest.fixture
def application(tmp_path: Path) -> Iterator[Application]:
    """Composes an application whose file has these settings."""

    def composed(*overrides: str, **settings: Any) -> DictConfig:
        file = OmegaConf.create({"data": {"datasets": {"train": DATA, "val": DATA}}})
        defaults = "defaults: [{lit_loader/datamodule@data: default}, _self_]\n"
        text = OmegaConf.to_yaml(OmegaConf.merge(file, settings))
        (tmp_path / "app.yaml").write_text(defaults + text)
        return compose("app", overrides=[*overrides])

    with initialize_config_dir(str(tmp_path), version_base="1.3"):
        yield composed


def made(cfg: DictConfig, *names: str) -> dict[str, LoaderConfig]:
    """The splits' options; each name is met, with a warning, which Python shows once."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        data: LoaderDataModule = instantiate(cfg.data)
    told = {str(each.message) for each in caught if each.category is DeprecationWarning}
    assert len(told) == len(names) and all(any(name in one for one in told) for name in names)
    return data.configs


def test_without_old_names_nothing_is_said(application: Application) -> None:
    assert made(application())["val"] == LoaderConfig()


@pytest.mark.parametrize("name", SET)
@pytest.mark.parametrize("place", ["loader", "data.train"])
def test_an_option(application: Application, name: str, place: str) -> None:
    assert sorted(SET) == sorted(OLD_OPTIONS)
    new = OLD_OPTIONS[name]
    told = f"lit_loader: {name} is called {new} now"
    on_the_line = application(f"{place}.{name}={SET[name]}")
    outer, _, inner = place.partition(".")
    value = {name: SET[name]}
    in_the_file = application(**{outer: {inner: value} if inner else value})
    for cfg in (on_the_line, in_the_file):
        configs = made(cfg, told)
        assert getattr(configs["train"], new) == SET[name], outer
        other = getattr(configs["val"], new)
        assert other == (getattr(LoaderConfig, new) if inner else SET[name])


def test_an_option_that_a_preset_sets(application: Application) -> None:
    """As programs of 0.3 have started remote workers."""
    preset, line = "lit_loader/loader@loader=", "loader.remote_workers=32"
    told = "preset cluster is called ray now", "remote_workers is called num_remote_workers now"
    both = made(application(f"{preset}cluster", line), *told)
    for configs in (both, made(application(f"{preset}ray", line), told[1])):
        assert configs["val"].num_remote_workers == 32
        assert configs["val"].num_workers == "auto"
    new = application(f"{preset}cluster", "loader.num_remote_workers=5")
    assert made(new, told[0])["train"].num_remote_workers == 5


def test_a_configuration_that_was_written_down(application: Application) -> None:
    """Of a run of 0.3, which Hydra has put beside its output: every option, by its old name."""
    cfg = application()
    for node in (cfg.loader, *(cfg.data[split] for split in ("train", "val", "test", "predict"))):
        OmegaConf.set_struct(node, False)
    plain: Any = OmegaConf.to_container(cfg.data, resolve=True)
    for options in (plain["loader"], plain["train"], plain["val"]):
        for old, new in OLD_OPTIONS.items():
            options[old] = SET[old] if old != "remote_workers" else 0
            del options[new]
    told = "lit_loader: reads is called concurrent_reads now", "uneven_ranks"
    with pytest.warns(DeprecationWarning, match=told[1]):
        configs = instantiate(plain).configs
    assert (configs["val"].concurrent_reads, configs["train"].uneven_ranks) == (4, "keep")


@pytest.mark.parametrize("old", PRESETS)
def test_a_preset(application: Application, old: str) -> None:
    new, told = PRESETS[old], f"lit_loader: preset {old} is called {PRESETS[old]} now: use the new"
    if old == "with_replacement":
        options = "data.train.shuffle=null", "+lit_loader/sampler@data.train="
        cfg = application(*options[:1], options[1] + old)
        with pytest.warns(DeprecationWarning, match=told):
            loader = instantiate(cfg.data).train_dataloader()
        assert type(loader.sampler) is RandomSampler and loader.sampler.replacement
        return
    place = "data.train" if old == "inherit" else "loader"
    size = "loader.batch_size=3"
    configs = made(application(f"lit_loader/loader@{place}={old}", size), told)
    assert configs == made(application(f"lit_loader/loader@{place}={new}", size))


def test_collation(application: Application) -> None:
    options = "+lit_loader/collate@loader.collate_fn=pad", "loader.collate_fn.pad_value=-1"
    collate = made(application(*options), "pad_value is called padding_value now")["train"]
    assert isinstance(collate.collate_fn, PadCollate) and collate.collate_fn.padding_value == -1
    both = *options, "loader.collate_fn.padding_value=-2"
    with pytest.raises(Exception, match="pad_value is the old name of padding_value") as caught:
        instantiate(application(*both).data)
    assert isinstance(caught.value, OptionError) or "OptionError" in str(caught.value)


PROGRAM = """
import hydra

from builder import build


@hydra.main(version_base="1.3", config_path=".", config_name="app")
def main(cfg):
    data = build(cfg)
    print(len(data.train_dataloader()), len(data.val_dataloader()))


if __name__ == "__main__":
    main()
"""


@pytest.mark.process
def test_who_typed_it_sees_it_once(tmp_path: Path) -> None:
    """Also where another module instantiates, whose DeprecationWarnings Python shows nobody."""
    builder = "from hydra.utils import instantiate\n\n\ndef build(cfg):\n    return "
    (tmp_path / "builder.py").write_text(builder + "instantiate(cfg.data)\n")
    (tmp_path / "train.py").write_text(PROGRAM)
    file = {"data": {"batch_size": 4, "datasets": {"train": DATA, "val": DATA, "test": DATA}}}
    defaults = "defaults: [{lit_loader/datamodule@data: default}, _self_]\n"
    (tmp_path / "app.yaml").write_text(defaults + OmegaConf.to_yaml(file))
    typed = "loader.check_exactness=2", "loader.reads=2", "lit_loader/loader@loader=fragile_data"
    text = run_with_lightning(tmp_path, tmp_path / "train.py", *typed)
    assert "3 3" in text
    for name in ("check_exactness is called", "reads is called", "preset fragile_data is called"):
        assert text.count(name) == 1, text
    assert text.count("train.py:9: DeprecationWarning: lit_loader: ") == 2
