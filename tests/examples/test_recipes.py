"""The recipes of examples/, shortened, as a user runs them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.recipes import EXAMPLES, TRAIN, importable, run

RECIPES = {
    "images": ("PIL", 17, ["predictions.png"]),
    "tabular": ("pyarrow", 12, []),
    "webdataset": ("webdataset", 20, ["predictions.png"]),
    "huggingface": ("datasets", 17, []),
    "huggingface_stream": ("datasets", 20, []),
    "nodes": ("torchdata.nodes", 20, ["predictions.png"]),
}


@pytest.fixture
def examples(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with importable(monkeypatch):
        yield


@pytest.mark.parametrize(
    "recipe",
    # What is their own is tested in test_recipe_datasets.py and test_streams.py, in this process.
    [
        pytest.param(n, marks=[pytest.mark.slow] if n in ("webdataset", "nodes") else [])
        for n in RECIPES
    ],
)
def test_a_recipe_trains(recipe: str, tmp_path: Path) -> None:
    library, steps, files = RECIPES[recipe]
    pytest.importorskip(library)
    before = set(EXAMPLES.rglob("*"))
    printed = run(
        tmp_path, TRAIN, f"experiment={recipe}", "trainer.max_epochs=1", "hydra.run.dir=run"
    )
    assert "Epoch 0/0" in printed
    assert "test/acc" in printed
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["steps"] == steps
    for file in ["training.png", *files]:
        assert (tmp_path / "run" / file).read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "outputs" / "data" / recipe).is_dir()
    new = {path for path in set(EXAMPLES.rglob("*")) - before if "__pycache__" not in path.parts}
    assert not {path for path in new if path.suffix in (".jpg", ".tar", ".parquet", ".png")}


def test_a_missing_library_is_named_on_one_line(tmp_path: Path) -> None:
    # Python runs this file first.
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['pyarrow'] = None")
    printed = run(tmp_path, TRAIN, "experiment=tabular", code=1, PYTHONPATH=str(tmp_path))
    assert printed == (
        "the recipe 'tabular' needs pyarrow, which is not installed: pip install pyarrow\n"
    )


def test_a_missing_sweeper_is_named_before_hydra_looks_for_it(tmp_path: Path) -> None:
    hidden = "hydra_plugins.hydra_optuna_sweeper"
    (tmp_path / "sitecustomize.py").write_text(f"import sys; sys.modules[{hidden!r}] = None")
    printed = run(tmp_path, TRAIN, "+hparams_search=optuna", code=1, PYTHONPATH=str(tmp_path))
    assert printed == (
        "the recipe 'hparams_search=optuna' needs hydra-optuna-sweeper, which is not installed: "
        "pip install hydra-optuna-sweeper\n"
    )


def test_a_sweep_ends_with_a_picture(tmp_path: Path) -> None:
    printed = run(
        tmp_path, TRAIN, "experiment=sweep", "loader.num_workers=1,2", "loader.prefetch_factor=2",
        "trainer.max_epochs=1", "hydra.sweep.dir=sweep",
    )  # fmt: skip
    table = printed[printed.index("num_workers  prefetch_factor  batches/s  waited") :].splitlines()
    assert [line.split()[:2] for line in table[1:3]] == [["1", "2"], ["2", "2"]]
    assert re.fullmatch(r"fastest: loader.num_workers=[12] loader.prefetch_factor=2", table[3])
    assert (tmp_path / "sweep" / "sweep.png").read_bytes().startswith(b"\x89PNG")
    metrics = json.loads((tmp_path / "sweep" / "1" / "metrics.json").read_text())
    assert metrics["batches_per_second"] > 0
    assert 0 <= metrics["wait_fraction"] <= 1


@pytest.mark.parametrize(
    ("kill", "arguments"),
    [
        pytest.param(23, ["--resume-with", "loader.num_workers=1"], id="digits"),
        pytest.param(23, ["experiment=tabular"], id="tabular", marks=pytest.mark.slow),
        pytest.param(
            23,
            ["experiment=huggingface_stream", "--resume-with", "loader.num_workers=3"],
            id="huggingface_stream",
            marks=pytest.mark.slow,
        ),
        pytest.param(23, ["experiment=huggingface"], id="huggingface", marks=pytest.mark.slow),
        pytest.param(23, ["experiment=images"], id="images", marks=pytest.mark.slow),
    ],
)
def test_a_killed_training_goes_on_exactly(kill: int, arguments: list[str], tmp_path: Path) -> None:
    for library in ("pyarrow", "datasets") if "experiment=" in arguments[0] else ():
        pytest.importorskip(library)
    printed = run(
        tmp_path, EXAMPLES / "resume.py", "--kill-at", str(kill), *arguments, "trainer.max_epochs=2"
    )
    steps = 24 if "tabular" in arguments[0] else 40 if "stream" in arguments[0] else 34
    assert (
        f"identical over {steps} steps: killed after step {kill}, resumed at step "
        f"{kill // 10 * 10 + 1}; final weights identical\n"
    ) in printed
    assert (tmp_path / "outputs/resume/resume.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_two_processes_have_one_process_s_curve(tmp_path: Path) -> None:
    short = ["experiment=ddp", "trainer.max_epochs=2", "test=false"]
    printed = run(tmp_path, TRAIN, *short, "hydra.run.dir=two")
    for rank in (0, 1):
        assert re.search(rf"rank {rank} \(process \d+ of node 0\): 539 images an epoch", printed)
    assert (tmp_path / "two" / "ranks.png").read_bytes().startswith(b"\x89PNG")
    alone = ["trainer.strategy=auto", "trainer.devices=1", "loader.batch_size=64"]
    run(tmp_path, TRAIN, *short, *alone, "hydra.run.dir=one")
    two, one = (json.loads((tmp_path / n / "metrics.json").read_text()) for n in ("two", "one"))
    assert two["images_of_ranks"] == [[539, 539], [539, 539]]
    assert one["images_of_ranks"] == [[1078, 1078]]
    assert two["train/loss"] == pytest.approx(one["train/loss"], rel=5e-3)


@pytest.mark.slow
def test_two_nodes_on_one_machine(tmp_path: Path) -> None:
    script = EXAMPLES / "multinode.py"
    printed = run(tmp_path, script, "trainer.max_epochs=1", "test=false", "hydra.run.dir=run")
    for rank in (0, 1):
        assert re.search(rf"rank {rank} \(process \d+ of node {rank}\): 539 images", printed)
    assert printed.count("written to") == 1


@pytest.mark.slow
def test_a_failing_node_ends_the_other(tmp_path: Path) -> None:
    # Which of the two is first to fail does not matter: the other would wait for it.
    printed = run(tmp_path, EXAMPLES / "multinode.py", "model.width=-1", code=1)
    assert "Error executing job with overrides" in printed
    assert "written to" not in printed
