"""The groups that lit_loader brings: each composes and loads, on the command line and off it.

Here are also the ways in which applications meet them: shell completion, launchers, and a project
of its own that has the wheel installed.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import sysconfig
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig
from torch.utils.data import Dataset, RandomSampler, WeightedRandomSampler

from lit_loader import (
    DataLoader,
    LoaderConfig,
    LoaderDataModule,
    LoaderMonitor,
    LoaderStateCallback,
    MixtureSampler,
    TokenBudgetBatchSampler,
)
from lit_loader.pad import PadCollate, Padded

ROOT = Path(__file__).parent.parent
CONF = ROOT / "conf" / "lit_loader"
GROUPS = {
    "loader": {
        *("debug", "default", "fragile_data", "inherit"),
        *("reproducible", "throughput", "workers"),
    },
    "sampler": {"mixture", "token_budget", "weighted", "with_replacement"},
    "collate": {"list", "pad"},
    "callbacks": {"monitor", "state"},
}
PRESETS = sorted(GROUPS["loader"] - {"inherit"})

Compose = Callable[..., DictConfig]
Batches = list[Any]


class Numbers(Dataset[int]):
    """0, 1, 2, ..."""

    def __init__(self, length: int = 12) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return range(self.length)[index]


class Noisy(Numbers):
    """Each number with a random one."""

    def __getitem__(self, index: int) -> Any:
        return index, random.random()


class Broken(Numbers):
    """One number cannot be read."""

    def __getitem__(self, index: int) -> int:
        if index == 7:
            raise ValueError("7 is broken")
        return super().__getitem__(index)


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


APPLICATION = f"""
defaults:
  - lit_loader/datamodule@data: default
  - _self_
data:
  datasets:
    train: {{_target_: {__name__}.Numbers, _partial_: true}}
    val: {{_target_: {__name__}.Numbers, _partial_: true}}
"""


@pytest.fixture
def application(tmp_path: Path) -> Iterator[Compose]:
    (tmp_path / "app.yaml").write_text(APPLICATION)
    with initialize_config_dir(str(tmp_path), version_base="1.3"):
        yield lambda *overrides: compose("app", overrides=list(overrides))


def dataset(name: str, split: str = "train") -> str:
    return f"data.datasets.{split}._target_={__name__}.{name}"


def epochs(cfg: DictConfig, count: int = 1, split: str = "train") -> tuple[Batches, Any]:
    """Loads through the data module; returns all batches, and the loader, which is closed."""
    data = instantiate(cfg.data)
    assert isinstance(data, LoaderDataModule)
    data.setup("fit")
    loader = getattr(data, f"{split}_dataloader")()
    batches = [batch for _ in range(count) for batch in loader]
    data.close()
    return batches, loader


def plain(batches: Batches) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


# --- what there is ---


def test_every_file_is_tested_here() -> None:
    present = {group: {path.stem for path in (CONF / group).glob("*.yaml")} for group in GROUPS}
    assert present == GROUPS


@pytest.mark.parametrize(
    "path",
    [CONF / group / f"{name}.yaml" for group in GROUPS for name in sorted(GROUPS[group])],
    ids=lambda path: path.stem,
)
def test_every_option_has_a_comment(path: Path) -> None:
    """An option is a key that is given a value, and not one of Hydra's own."""
    body = path.read_text()
    assert body.startswith("# ")
    for line in body.splitlines():
        key, colon, value = line.strip().partition(":")
        if not colon or key.startswith(("#", "_", "-", "path")) or not value:
            continue
        if value.strip() == f"${{loader.{key}}}":
            continue  # explained in default.yaml
        assert " # " in value, line


# --- presets ---


@pytest.mark.parametrize("preset", PRESETS)
def test_preset_loads(application: Compose, preset: str) -> None:
    cfg = application(f"lit_loader/loader@loader={preset}", "loader.batch_size=5", "loader.seed=3")
    with warnings.catch_warnings():
        if not torch.accelerator.is_available():
            warnings.filterwarnings("ignore", "pin_memory=True has no effect")
        batches, loader = epochs(cfg)
    own = instantiate(cfg.loader)
    assert (loader.num_workers, loader.seeding) == (own.num_workers, own.seeding)
    # None of them changes which samples come together, or their order.
    assert plain(batches) == plain(epochs(application("loader.batch_size=5", "loader.seed=3"))[0])


def test_throughput(application: Compose) -> None:
    config = instantiate(application("lit_loader/loader@loader=throughput").loader)
    assert config == LoaderConfig(
        num_workers=4, persistent_workers=True, prefetch_factor=4, pin_memory=True
    )


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


def test_debug_raises_at_once(application: Compose) -> None:
    """In this process: the traceback is the dataset's own, to its last line."""
    cfg = application("lit_loader/loader@loader=debug", dataset("Broken", "val"))
    with pytest.raises(ValueError, match="^7 is broken$") as caught:
        epochs(cfg, split="val")
    assert caught.traceback[-1].path == Path(__file__)
    assert instantiate(cfg.loader) == LoaderConfig()


def test_fragile_data(application: Compose, caplog: pytest.LogCaptureFixture) -> None:
    cfg = application("lit_loader/loader@loader=fragile_data", dataset("Broken", "val"))
    read = [batch.item() for batch in epochs(cfg, split="val")[0]]
    assert read[:7] + read[8:] == [*range(7), *range(8, 12)]
    assert read[7] in {*range(7), *range(8, 12)}
    assert "ValueError: 7 is broken" in caplog.text


def test_one_split_has_a_preset_of_its_own(application: Compose) -> None:
    cfg = application(
        "lit_loader/loader@loader=workers",
        "lit_loader/loader@data.val=debug",
        "loader.batch_size=4",
    )
    configs = instantiate(cfg.data).configs
    assert (configs["train"].num_workers, configs["val"].num_workers) == (2, 0)
    # It is whole: nothing is taken from the common options any more.
    assert (configs["train"].batch_size, configs["val"].batch_size) == (4, 1)


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
    assert loader.sampler.counts(0) == {"0": 768, "1": 256}


def test_token_budget(application: Compose) -> None:
    cfg = application(
        "loader.batch_size=32",  # of the other splits
        "+lit_loader/sampler@data.train=token_budget",
        "+lit_loader/collate@data.train.collate_fn=pad",
        "data.train.batch_sampler.max_tokens=10",
        "data.train.collate_fn.pad_value=-1",
        dataset("Documents"),
    )
    batches, loader = epochs(cfg)
    assert type(loader.batch_sampler) is TokenBudgetBatchSampler
    assert type(loader.collate_fn) is PadCollate
    assert all(type(batch) is Padded and batch.values.numel() <= 10 for batch in batches)
    assert sorted(i for batch in batches for i in batch.values[:, 0].tolist()) == list(range(12))
    assert {i for batch in batches for i in batch.values[~batch.mask()].tolist()} <= {-1}
    assert len(epochs(cfg, split="val")[0]) == 1


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


def test_with_replacement(application: Compose) -> None:
    options = "+lit_loader/sampler@data.train=with_replacement", "loader.batch_size=10"
    cfg = application(*options, "data.train.sampler.num_samples=30", "loader.seed=1")
    batches, loader = epochs(cfg)
    assert type(loader.sampler) is RandomSampler
    assert [len(batch) for batch in batches] == [10, 10, 10]
    assert plain(epochs(cfg)[0]) == plain(batches)
    whole = application(*options)
    assert sum(map(len, epochs(whole)[0])) == 12


def test_a_sampler_beside_an_order_is_refused(application: Compose) -> None:
    cfg = application("+lit_loader/sampler@data.train=with_replacement", "data.train.shuffle=true")
    with pytest.raises(InstantiationException) as caught:
        instantiate(cfg.data)
    (line,) = [line for line in str(caught.value).splitlines() if "OptionError" in line]
    assert "sampler decides the order itself: leave shuffle at None" in line


# --- collators and callbacks ---


def test_pad_for_every_split(application: Compose) -> None:
    cfg = application(
        "+lit_loader/collate@loader.collate_fn=pad",
        "loader.collate_fn.pad_to_multiple_of=8",
        "loader.batch_size=4",
        dataset("Documents"),
        dataset("Documents", "val"),
    )
    for split in ("train", "val"):
        batches, _ = epochs(cfg, split=split)
        assert [batch.values.shape for batch in batches] == [(4, 8)] * 3


def test_pad_by_name(application: Compose) -> None:
    cfg = application(
        "+lit_loader/collate@data.val.collate_fn=pad",
        "data.val.collate_fn.pad_value={tokens: 0, labels: -100}",
        "data.val.num_workers=1",
        "data.val.batch_size=3",
        dataset("Named", "val"),
    )
    first, *_ = epochs(cfg, split="val")[0]
    assert first["tokens"].values.tolist() == [[0, 0, 0], [1, 1, 0], [2, 2, 2]]
    assert first["labels"].values.tolist() == [[0, -100, -100], [1, 1, -100], [2, 2, 2]]
    assert first["box"].shape == (3, 4)


def test_list(application: Compose) -> None:
    cfg = application(
        "+lit_loader/collate@loader.collate_fn=list",
        "loader.num_workers=1",
        "loader.batch_size=5",
        dataset("Documents", "val"),
    )
    batches, _ = epochs(cfg, split="val")
    assert [[len(sample) for sample in batch] for batch in batches] == [
        [1, 2, 3, 4, 5], [1, 2, 3, 4, 5], [1, 2],
    ]  # fmt: skip
    assert type(batches[0]) is list


def test_callbacks_in_the_order_of_the_list(tmp_path: Path) -> None:
    (tmp_path / "app.yaml").write_text(
        "defaults: [{lit_loader/callbacks@callbacks: [state, monitor]}]"
    )
    with initialize_config_dir(str(tmp_path), version_base="1.3"):
        cfg = compose("app", overrides=["callbacks.loader_monitor.keep=5"])
    made = [instantiate(callback) for callback in cfg.callbacks.values()]
    assert list(map(type, made)) == [LoaderStateCallback, LoaderMonitor]


# --- real command lines ---

PROGRAM = """
import json
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig


@hydra.main(version_base="1.3", config_path="configs", config_name="train")
def main(cfg):
    from hydra.utils import instantiate

    config = instantiate(cfg.loader)  # refuses options before torch is imported

    from lit_loader import DataLoader

    with DataLoader(instantiate(cfg.dataset), **config.as_kwargs()) as loader:
        seen = [batch.tolist() for batch in loader]
    told = {"batches": seen, "num_workers": config.num_workers}
    Path(HydraConfig.get().runtime.output_dir, "seen.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main()
"""

PROGRAM_CONFIG = """
defaults:
  - lit_loader/loader@loader: default
  - _self_
loader: {batch_size: 5, shuffle: true, seed: 3}
dataset: {_target_: numbers_data.Numbers, length: 12}
"""

DATA = """
import torch
from torch.utils.data import Dataset


class Numbers(Dataset):
    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return torch.tensor([float(index)])
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An application's script; nothing in it but in functions imports torch."""
    directory = tmp_path_factory.mktemp("program")
    (directory / "configs").mkdir()
    (directory / "configs" / "train.yaml").write_text(PROGRAM_CONFIG)
    (directory / "numbers_data.py").write_text(DATA)
    (directory / "app.py").write_text(PROGRAM)
    return directory / "app.py"


def call(
    *command: str | Path, cwd: Path, code: int = 0, python: str | Path = sys.executable, **env: str
) -> str:
    """Runs Python in another directory, checks its exit code and returns all it printed."""
    done = subprocess.run(
        [str(python), *map(str, command)],
        cwd=cwd, timeout=100, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env={**os.environ, **env}, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout
    return done.stdout


def jobs(directory: Path) -> dict[int, Any]:
    """What each job of a sweep has written, by its number."""
    return {
        int(path.parent.name): json.loads(path.read_text())
        for path in directory.glob("*/seen.json")
    }


def test_sweep_over_presets(program: Path, tmp_path: Path) -> None:
    call(
        program, "--multirun", f"lit_loader/loader@loader={','.join(PRESETS)}",
        f"hydra.sweep.dir={tmp_path}", cwd=tmp_path,
    )  # fmt: skip
    told = jobs(tmp_path)
    workers = {preset: told[number]["num_workers"] for number, preset in enumerate(PRESETS)}
    assert workers == {
        "debug": 0, "default": 0, "fragile_data": 2, "reproducible": 2, "throughput": 4,
        "workers": 2,
    }  # fmt: skip
    assert all(job["batches"] == told[0]["batches"] for job in told.values())
    assert [len(batch) for batch in told[0]["batches"]] == [5, 5, 2]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["+loader.nun_workers=4"], "unknown option 'nun_workers': did you mean 'num_workers'?"),
        (["loader.timeout=3"], "timeout needs worker processes: set num_workers to at least 1 or"),
        (["loader.num_workers=two"], "Value 'two' of type 'str' could not be converted to Integer"),
        (["lit_loader/loader@loader=fast"], "Could not find 'lit_loader/loader/fast'"),
    ],
    ids=["unknown", "exclusive", "type", "preset"],
)
def test_refused_on_the_command_line(
    program: Path, tmp_path: Path, overrides: list[str], message: str
) -> None:
    printed = call(program, *overrides, cwd=tmp_path, code=1)
    assert len([line for line in printed.splitlines() if message in line]) == 1, printed
    assert "Traceback" not in printed


def without_torch(program: Path, *arguments: str, cwd: Path, **env: str) -> str:
    """Runs the script with arguments that only ask for something: torch stays out."""
    code = f"""
import runpy, sys
sys.argv = {["app.py", *arguments]!r}
sys.path.insert(0, {str(program.parent)!r})
try:
    runpy.run_path({str(program)!r}, run_name="__main__")
finally:
    assert not {{"torch", "lightning", "numpy"}} & set(sys.modules)
"""
    return call("-c", code, cwd=cwd, **env)


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("loader.num_", "loader.num_replicas= loader.num_workers="),
        ("loader.on_sample_error=skip loader.max_s", "loader.max_sample_errors="),
        ("lit_loader/sa", "lit_loader/sampler="),
        ("lit_loader/sampler=w", "lit_loader/sampler=weighted lit_loader/sampler=with_replacement"),
        ("lit_loader/loader=t", "lit_loader/loader=throughput"),
    ],
    ids=["option", "second option", "group", "choices", "choice"],
)
def test_completion(program: Path, tmp_path: Path, typed: str, offered: str) -> None:
    line = f"python app.py {typed}"
    asked = {"COMP_LINE": line, "COMP_POINT": str(len(line))}
    printed = without_torch(program, "--shell-completion", "query=bash", cwd=tmp_path, **asked)
    assert printed.split() == offered.split()


def test_what_the_help_shows(program: Path, tmp_path: Path) -> None:
    shown = without_torch(program, "--help", cwd=tmp_path)
    for group, names in GROUPS.items():
        assert f"lit_loader/{group}: {', '.join(sorted(names))}" in shown
    info = without_torch(program, "--info", "defaults", cwd=tmp_path)
    assert re.search(r"\| lit_loader/loader/default +\| loader ", info)
    options = without_torch(program, "--cfg", "job", "--package", "loader", cwd=tmp_path)
    assert "# @package loader" in options
    assert set(LoaderConfig().as_kwargs()) <= {
        line.partition(":")[0] for line in options.split("\n")
    }


# --- launchers ---


def launch(program: Path, directory: Path, *arguments: str) -> None:
    """Sweeps over the number of workers; the data is that of one process, in each job."""
    call(
        program, "--multirun", *arguments, "loader.num_workers=1,2",
        # submitit's jobs import from the directory that they are launched in.
        f"hydra.sweep.dir={directory}", cwd=program.parent,
    )  # fmt: skip
    told = jobs(directory)
    assert [told[number]["num_workers"] for number in range(2)] == [1, 2]
    with DataLoader(Numbers(12), batch_size=5, shuffle=True, seed=3) as loader:
        expected = [[[float(index)] for index in batch.tolist()] for batch in loader]
    assert [told[number]["batches"] for number in range(2)] == [expected] * 2


def test_joblib_launcher(program: Path, tmp_path: Path) -> None:
    """Jobs at the same time; their default start method is loky's, not one of Python's."""
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    launch(program, tmp_path, "hydra/launcher=joblib", "hydra.launcher.n_jobs=2")


def test_submitit_launcher(program: Path, tmp_path: Path) -> None:
    """Jobs as submitit starts them on a cluster's nodes, here on this machine."""
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    launch(program, tmp_path, "hydra/launcher=submitit_local")


# --- a project of its own, in lightning-hydra-template's layout, with the wheel installed ---

PROJECT = {
    "src/__init__.py": "",
    "src/data/__init__.py": "",
    "src/data/numbers_data.py": DATA,
    "src/models/__init__.py": "",
    "src/models/line.py": """
import lightning
import torch


class Line(lightning.LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.lr, self.layer = lr, torch.nn.Linear(1, 1)
        self.sizes = {"train": [], "val": []}

    def training_step(self, batch):
        self.sizes["train"].append(len(batch))
        return (self.layer(batch) - 2 * batch).square().mean()

    def validation_step(self, batch):
        self.sizes["val"].append(len(batch))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), self.lr)
""",
    "src/train.py": """
import json
import sys
from pathlib import Path

import hydra

sys.path.insert(0, str(Path(__file__).parent.parent))


@hydra.main(version_base="1.3", config_path="../configs", config_name="train.yaml")
def main(cfg):
    import lightning as L

    import lit_loader

    L.seed_everything(cfg.seed)
    datamodule = hydra.utils.instantiate(cfg.data)
    model = hydra.utils.instantiate(cfg.model)
    callbacks = [hydra.utils.instantiate(each) for each in cfg.callbacks.values()]
    trainer = hydra.utils.instantiate(cfg.trainer, callbacks=callbacks, logger=False)
    trainer.fit(model=model, datamodule=datamodule)
    told = {
        "sizes": model.sizes,
        "package": lit_loader.__file__,
        "loader": type(trainer.train_dataloader).__module__,
        "num_workers": trainer.train_dataloader.num_workers,
    }
    Path(cfg.paths.output_dir, "told.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main()
""",
    "configs/train.yaml": """
defaults:
  - _self_
  - lit_loader/datamodule@data: default
  - data: numbers
  - model: line
  - callbacks: default
  - trainer: default
  - paths: default
  - experiment: null
  - override lit_loader/loader@loader: workers
seed: 1
""",
    "configs/data/numbers.yaml": """
datasets:
  train: {_target_: src.data.numbers_data.Numbers, length: 10, _partial_: true}
  val: {_target_: src.data.numbers_data.Numbers, length: 6, _partial_: true}
val:
  batch_size: 6
""",
    "configs/model/line.yaml": "_target_: src.models.line.Line\nlr: 0.001\n",
    "configs/callbacks/default.yaml": "defaults: [/lit_loader/callbacks@_here_: monitor]\n",
    "configs/trainer/default.yaml": """
_target_: lightning.pytorch.Trainer
default_root_dir: ${paths.output_dir}
accelerator: cpu
max_epochs: 1
num_sanity_val_steps: 0
log_every_n_steps: 1
enable_progress_bar: false
enable_model_summary: false
enable_checkpointing: false
""",
    "configs/paths/default.yaml": "output_dir: ${hydra:runtime.output_dir}\n",
    "configs/experiment/large.yaml": """# @package _global_
loader: {batch_size: 5, num_workers: 1}
""",
}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a fresh environment: the wheel, and besides it what this environment has."""
    pytest.importorskip("pip")
    directory = tmp_path_factory.mktemp("installed")
    build = "-m", "hatchling", "build", "-t", "wheel", "-d", directory
    call(*build, cwd=ROOT)
    (wheel,) = directory.glob("*.whl")
    call("-m", "venv", "--without-pip", directory / "venv", cwd=directory)
    python = directory / "venv" / "bin" / "python"
    call(
        "-m", "pip", "--python", python, "install", "-q", "--no-index", "--no-deps",
        "--disable-pip-version-check", wheel, cwd=directory,
    )  # fmt: skip
    # A mere directory: the .pth files in it, that of an editable lit_loader too, are not read.
    (site,) = (directory / "venv" / "lib").glob("python*/site-packages")
    shared = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (site / "shared.pth").write_text("".join(f"{path}\n" for path in sorted(shared)))
    return python


def test_two_lines_in_a_project_of_its_own(installed: Path, tmp_path: Path) -> None:
    for name, text in PROJECT.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    ours = [line for line in PROJECT["configs/train.yaml"].splitlines() if "lit_loader" in line]
    assert len(ours) == 2
    printed = call(
        "src/train.py", "experiment=large", "hydra.run.dir=run",
        cwd=tmp_path, python=installed, PYTHONPATH="",
    )  # fmt: skip
    told = json.loads((tmp_path / "run" / "told.json").read_text())
    assert told["sizes"] == {"train": [5, 5], "val": [6]}
    assert (told["loader"], told["num_workers"]) == ("lit_loader.loader", 1)
    assert Path(told["package"]).is_relative_to(installed.parent.parent)
    assert "the trainer waited" in printed
