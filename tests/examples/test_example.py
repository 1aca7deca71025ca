"""examples/train.py as a user runs it: another process, from some other directory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.support.commands import run_python
from tests.support.programs import run_with_lightning
from tests.support.recipes import TRAIN


def run(directory: Path, *arguments: str, code: int = 0) -> str:
    """Runs train.py in `directory`, checks its exit code and returns all it printed."""
    return run_with_lightning(directory, TRAIN, *arguments, code=code)


def test_the_main_job(tmp_path: Path) -> None:
    """As the README names it: it learns, writes what it says, and prints nothing stray."""
    printed = run_python(tmp_path, TRAIN)
    (directory,) = (tmp_path / "outputs" / "train" / "runs").iterdir()
    metrics = json.loads((directory / "metrics.json").read_text())
    assert metrics["test/acc"] >= 0.95
    assert f"test/acc {metrics['test/acc']:.4f}" in printed and "Epoch 19/19" in printed
    assert (metrics["epochs"], metrics["steps"]) == (20, 340)
    assert f"written to {directory}:" in printed
    named = printed.split("written to")[1].splitlines()[1:]
    files = {line.split()[0] for line in named}
    assert files == {
        "training.png", "metrics.json", "csv/metrics.csv", "checkpoints", "train.log",
        ".hydra/config.yaml",
    }  # fmt: skip
    assert all((directory / file).exists() for file in files)
    assert (directory / "training.png").read_bytes().startswith(b"\x89PNG")
    checkpoint = torch.load(directory / "checkpoints" / "best.ckpt", weights_only=True)
    assert checkpoint["datamodule_hyper_parameters"]["train"]["num_workers"] == 2
    for word in ("Warning", "warning", "INFO", "Traceback", "litlogger"):
        assert word not in printed


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_overrides_reach_the_loaders(tmp_path: Path, method: str) -> None:
    printed = run(
        tmp_path, "trainer.max_epochs=1", "loader.num_workers=1", "data.val.batch_size=512",
        f"loader.multiprocessing_context={method}", f"hydra.run.dir={tmp_path}/run", "test=false",
    )  # fmt: skip
    assert "val: factory Digits, batch_size=512" in printed
    assert "test/acc" not in printed
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["steps"] == 17


@pytest.mark.slow
@pytest.mark.parametrize("override", ["debug=fdr", "debug=overfit"])
def test_debug_configurations(tmp_path: Path, override: str) -> None:
    printed = run(tmp_path, override, "trainer.max_epochs=2")
    assert "Warning" not in printed
    (directory,) = (tmp_path / "outputs" / "debug" / "runs").iterdir()
    assert f"written to {directory}:" in printed


@pytest.mark.slow
def test_two_processes_share_each_epoch(tmp_path: Path) -> None:
    printed = run(tmp_path, "trainer=ddp", "trainer.max_epochs=2", f"hydra.run.dir={tmp_path}/run")
    assert "Warning" not in printed
    assert printed.count("written to") == 1
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["steps"] == 2 * 9


def test_mistyped_options_are_refused(tmp_path: Path) -> None:
    printed = run(tmp_path, "+loader.nun_workers=4", code=1)
    assert "unknown option 'nun_workers': did you mean 'num_workers'?" in printed


def test_showing_the_configuration_imports_no_torch(tmp_path: Path) -> None:
    code = f"""
import runpy, sys
sys.argv = ["train.py", "--cfg", "job", "--package", "loader"]
sys.path.insert(0, {str(TRAIN.parent)!r})
runpy.run_path({str(TRAIN)!r}, run_name="__main__")
assert not {{"torch", "lightning"}} & set(sys.modules)
"""
    printed = run_python(tmp_path, "-c", code)
    assert "# @package loader" in printed
    assert "num_workers: 2" in printed
