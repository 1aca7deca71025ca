"""The programs of from_elsewhere.md: before and after they print the same, and it is what it is.

The page shows the lines that change; ``moves`` has the programs, as differences between two. Those
whose library is not installed are skipped.
"""

import re
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.utils import instantiate
from lightning import LightningDataModule
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset

from lit_loader import DataLoader
from tests.project.readmes import ROOT, fenced, sections
from tests.support.programs import run_python

PAGE = ROOT / "examples" / "migrate" / "from_elsewhere.md"
MOVES = Path(__file__).with_name("moves")
NEEDED = {  # by section: the program, and the library that it needs
    "StatefulDataLoader": ("stateful_dataloader", "torchdata"),
    "WebDataset": ("webdataset", "webdataset"),
    "LitData": ("litdata", "litdata"),
    "Grain": ("grain", "grain"),
    "accelerate": ("accelerate", "accelerate"),
    "Transformers' Trainer": ("transformers", "transformers"),
}


def blocks(title: str) -> list[str]:
    """The blocks of differences of a section."""
    return re.findall(r"```diff\n(.*?)```", sections(PAGE)[title], flags=re.DOTALL)


def both(block: str) -> tuple[str, str]:
    """Before and after, of a block of differences."""
    before, after = (
        "".join(f"{line[1:]}\n" for line in block.splitlines() if line[:1] != gone) for gone in "+-"
    )
    return before, after


def test_the_page_shows_lines_of_the_programs() -> None:
    assert {*sections(PAGE)} == {*NEEDED, "A Hydra template"}
    assert len(fenced(PAGE, "diff")) == len(NEEDED) + 3  # and those of the template
    for title, (name, _) in NEEDED.items():
        (block,) = blocks(title)
        shown = {line for line in block.splitlines() if line[0] in "+-"}
        assert shown <= {*(MOVES / f"{name}.diff").read_text().splitlines()}, title


@pytest.mark.pages
@pytest.mark.parametrize("title", NEEDED)
@pytest.mark.parametrize("moved", [False, True], ids=["before", "after"])
def test_nothing_is_lost(title: str, moved: bool, tmp_path: Path) -> None:
    name, library = NEEDED[title]
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    before, after = both((MOVES / f"{name}.diff").read_text())
    program = tmp_path / "program.py"
    program.write_text(after if moved else before)
    said = run_python(tmp_path, program, tmp_path, PYTHONPATH=str(ROOT))
    assert said.splitlines()[-1] == "True", said
    assert ("lit_loader" in program.read_text()) is moved


# What the template has in these files, as far as it is of the data.
TEMPLATE = {
    "train.yaml": """
defaults:
  - _self_
  - data: mnist
  - callbacks: default
  - experiment: null
  - hparams_search: null
  - debug: null
paths: {data_dir: /data}
""",
    "eval.yaml": """
defaults:
  - _self_
  - data: mnist
paths: {data_dir: /data}
""",
    "data/other.yaml": "_target_: builtins.dict\nbatch_size: 3\n",
    "callbacks/model_checkpoint.yaml": "model_checkpoint: {dirpath: here}\n",
    "debug/default.yaml": """# @package _global_
data: {num_workers: 0, pin_memory: False}
""",
    "experiment/example.yaml": """# @package _global_
defaults:
  - override /data: mnist
data: {batch_size: 64}
""",
    "experiment/faster.yaml": """# @package _global_
defaults:
  - override /lit_loader/loader@loader: throughput
""",
    "hparams_search/optuna.yaml": """# @package _global_
hydra: {sweeper: {params: {data.batch_size: "choice(32, 64)"}}}
""",
}


class Digits(Dataset[int]):
    """The template's own data, and what it is read by."""

    def __init__(self, root: str = "/data") -> None:
        assert root == "/data"

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> int:
        return range(256)[index]


class MNISTDataModule(LightningDataModule):
    def __init__(self, data_dir: str) -> None:
        super().__init__()
        self.data_dir = data_dir

    def train_dataloader(self) -> Any:
        return TorchLoader(Digits(self.data_dir), 16, shuffle=True)

    def val_dataloader(self) -> Any:
        return [TorchLoader(Digits(self.data_dir), 16)] * 2


@pytest.fixture
def template(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Composes the template's configuration with the data group of one of the page's two ways."""
    wrapped, ours, callbacks = (both(block)[1] for block in blocks("A Hydra template"))
    GlobalHydra.instance().clear()
    files = {**TEMPLATE, "callbacks/default.yaml": callbacks}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)

    def composed(way: str, *overrides: str, config: str = "train") -> Any:
        text = {"wrapped": wrapped, "ours": ours}[way]
        for place in ("src.data.mnist_datamodule.MNISTDataModule", "src.data.Digits"):
            text = text.replace(place, f"{__name__}.{place.rpartition('.')[2]}")
        (tmp_path / "data" / "mnist.yaml").write_text(text)
        return compose(config, [*overrides])

    with initialize_config_dir(str(tmp_path), version_base="1.3"):
        yield composed


def loaders(cfg: Any) -> list[tuple[int, int]]:
    """Batch size and workers of the loaders that a fit would have: train, and each of val."""
    data = instantiate(cfg.data)
    data.setup("fit")
    val = data.val_dataloader()
    val = val if isinstance(val, (dict, list)) else [val]
    found = [data.train_dataloader(), *(val.values() if isinstance(val, dict) else val)]
    assert all(type(loader) is DataLoader for loader in found)
    return [(loader.batch_size, loader.num_workers) for loader in found]


WAYS = {
    "": ([128, 128, 128], 0, [128, 128], 2),
    "debug=default": ([128, 128, 128], 0, [128, 128], 0),
    "experiment=example": ([64, 64, 64], 0, [64, 64], 2),
    "hparams_search=optuna data.batch_size=32": ([32, 32, 32], 0, [32, 32], 2),
    "data.num_workers=3": ([128, 128, 128], 3, [128, 128], 3),
    "data.num_workers=0": ([128, 128, 128], 0, [128, 128], 0),
}


@pytest.mark.pages
@pytest.mark.parametrize("overrides", WAYS)
def test_the_template(template: Callable[..., Any], overrides: str) -> None:
    """Its other files stay as they are, and mean what they meant."""
    sizes, workers, our_sizes, our_workers = WAYS[overrides]
    given = overrides.split()
    assert loaders(template("wrapped", *given)) == [(size, workers) for size in sizes]
    assert loaders(template("ours", *given)) == [(size, our_workers) for size in our_sizes]
