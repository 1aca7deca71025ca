"""examples/train.py and the notebook as a user runs them: in another process, from elsewhere."""

import json
from pathlib import Path

import pytest
import torch

from tests.support.programs import run_python
from tests.support.recipes import EXAMPLES, TRAIN, run

pytestmark = pytest.mark.pages


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


def test_overrides_reach_the_loaders(tmp_path: Path) -> None:
    printed = run(
        tmp_path, TRAIN, "trainer.max_epochs=1", "loader.num_workers=1", "data.val.batch_size=512",
        "loader.multiprocessing_context=spawn", f"hydra.run.dir={tmp_path}/run", "test=false",
    )  # fmt: skip
    assert "val: factory Digits, batch_size=512" in printed
    assert "test/acc" not in printed
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["steps"] == 17


def test_mistyped_options_are_refused(tmp_path: Path) -> None:
    printed = run(tmp_path, TRAIN, "+data.loader.nun_workers=4", code=1)
    assert "unknown option 'nun_workers': did you mean num_workers" in printed


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


NOTEBOOK = EXAMPLES / "five_minutes.ipynb"

RUN_NOTEBOOK = """
import sys
import nbformat
from nbclient import NotebookClient

notebook = nbformat.read(sys.argv[1], 4)
NotebookClient(notebook, timeout=100, kernel_name="python3").execute()
for cell in notebook.cells:
    for said in cell.get("outputs", []):
        print(said.get("text") or said["data"]["text/plain"])
"""


def test_the_notebook_runs(tmp_path: Path) -> None:
    for needed in ("nbclient", "ipykernel"):
        pytest.importorskip(needed)
    program = tmp_path / "run.py"
    program.write_text(RUN_NOTEBOOK)
    said = run_python(
        tmp_path, program, NOTEBOOK,
        PYTHONPATH=str(EXAMPLES.parent), IPYTHONDIR=str(tmp_path), JUPYTER_CONFIG_DIR=str(tmp_path),
        PYDEVD_DISABLE_FILE_VALIDATION="1",
    )  # fmt: skip
    assert "torch.Size([32, 64])" in said
    assert " batches (" in said and "Limit: " in said  # the statistics
    assert said.splitlines()[-1] == "(6, True)", said
