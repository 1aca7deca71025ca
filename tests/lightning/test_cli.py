"""LightningCLI: data modules of ours from a YAML file and the command line."""

import sys
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.cli import LightningCLI

from lit_loader import DataLoader, LoaderDataModule, OptionError
from tests.support.lightning_runs import Noting

pytest.importorskip("jsonargparse")

# Lightning 2.6 uses what jsonargparse 4.53 deprecates.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:lightning")

CONFIG = """
trainer:
  accelerator: cpu
  max_epochs: 2
  logger: false
  enable_checkpointing: false
  enable_progress_bar: false
  enable_model_summary: false
  num_sanity_val_steps: 0
data:
  datasets:
    train: {class_path: tests.support.lightning_runs.Points, init_args: {length: 9}}
    val: {class_path: tests.support.lightning_runs.Points, init_args: {length: 4}}
  loader: {batch_size: 4, num_workers: 1, seed: 3}
  train: {shuffle: true}
"""


@pytest.fixture(autouse=True)
def no_command_line_of_pytests(monkeypatch: pytest.MonkeyPatch, generators_kept: None) -> None:
    monkeypatch.setattr(sys, "argv", ["program"])


def fit(root: Path, *arguments: str, kind: Any = LoaderDataModule, config: str = CONFIG) -> Any:
    (root / "config.yaml").write_text(config)
    return LightningCLI(
        Noting,
        kind,
        args=["fit", "--config", str(root / "config.yaml"), *arguments],
        seed_everything_default=1,
        save_config_callback=None,
    )


def test_a_file_describes_the_data(tmp_path: Path) -> None:
    cli = fit(tmp_path)
    model, loader = cli.model, cli.trainer.train_dataloader
    assert type(loader) is DataLoader
    assert (loader.num_workers, loader.seed, len(loader)) == (1, 3, 3)
    assert sorted(index for batch in model.seen("train")[:3] for index in batch) == list(range(9))
    assert model.seen("train")[:3] != model.seen("train")[3:]
    assert model.seen("val") == [[0, 1, 2, 3]] * 2


def test_the_command_line_goes_before_the_file(tmp_path: Path) -> None:
    cli = fit(
        tmp_path,
        "--data.loader.batch_size=3",
        "--data.train.shuffle=false",
        "--data.val={batch_size: 2}",
        "--data.datasets.train.init_args.length=7",
    )
    assert cli.model.seen("train") == [[0, 1, 2], [3, 4, 5], [6]] * 2
    assert cli.model.seen("val") == [[0, 1], [2, 3]] * 2
    assert cli.trainer.train_dataloader.num_workers == 1


def test_a_mistyped_option(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="num_workers"):
        fit(tmp_path, "--data.loader.num_worker=3")
