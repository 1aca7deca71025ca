"""The recipes of examples/, shortened, as a user runs them."""

import inspect
import json
import pkgutil
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from omegaconf import OmegaConf

from tests.support.recipes import EXAMPLES, TRAIN, run

pytestmark = pytest.mark.pages


class Recipe(NamedTuple):
    """What it needs, how it is shortened, what its figures are, and the pictures that it leaves."""

    library: str
    options: list[str]
    holds: Callable[[dict[str, Any]], bool]
    pictures: list[str]


SHORT = ["trainer.max_epochs=1", "trainer.limit_val_batches=2", "trainer.limit_test_batches=2",
         "model.width=32", "model.layers=1"]  # fmt: skip
BRIEF = [*SHORT, "trainer.limit_train_batches=40", "callbacks.writes.count=30"]
CHECKED = [*SHORT, "callbacks.resume_check.batches=30"]


def trained(library: str, steps: int, *pictures: str) -> Recipe:
    pages = ["training.png", *pictures]
    return Recipe(library, ["trainer.max_epochs=1"], lambda it: it["steps"] == steps, pages)


def text_is_learnt(it: dict[str, Any]) -> bool:
    """At the beginning a byte costs 8 bits."""
    zlib, unigram = it["baseline/zlib_bits"], it["baseline/unigram_bits"]
    return it["steps"] == 40 and it["test/bits"] < 6 and 1 < zlib < unigram < 6


def little_is_padded(it: dict[str, Any]) -> bool:
    small = it["padding_of_an_epoch"] < 0.1 and it["largest_batch_tokens"] <= 2048
    return small and it["padding"] < 0.1 < min(it["padding_otherwise"].values())


def nothing_is_wasted(it: dict[str, Any]) -> bool:
    return it["padding"] == 0 and it["ranks_wait"] == 0


def nobody_waits(it: dict[str, Any]) -> bool:
    return it["ranks_wait"] < 0.03 and it["padding"] < 0.5


def weights_hold(it: dict[str, Any]) -> bool:
    resumed = it["resumed_batches_equal"] == it["resumed_batches"] == 30
    return resumed and all(abs(it["shares"][n] - w) < 0.03 for n, w in it["weights"].items())


def classes_are_balanced(it: dict[str, Any]) -> bool:
    """The frequencies are pooled over both processes."""
    deviation = (0.1 * 0.9 / it["samples"]) ** 0.5
    balanced = (np.abs(np.array(it["frequencies"]) - 0.1) < 4 * deviation).all()
    skewed = max(it["frequencies_in_data"]) > 10 * min(it["frequencies_in_data"])
    whole = (it["processes"], it["samples"], it["steps"]) == (2, 3 * 1280, 3 * 1280 // 64)
    return bool(balanced and skewed and whole)


RECIPES = {
    "images": trained("PIL", 17, "predictions.png"),
    "tabular": trained("pyarrow", 12),
    "webdataset": trained("webdataset", 20, "predictions.png"),
    "huggingface": trained("datasets", 17),
    "huggingface_stream": trained("datasets", 20),
    "nodes": trained("torchdata.nodes", 20, "predictions.png"),
    "objects": trained("fsspec", 17),
    "text": Recipe("numpy", BRIEF, text_is_learnt, ["training.png"]),
    "text_buckets": Recipe("numpy", BRIEF, little_is_padded, ["padding.png"]),
    "text_packed": Recipe("numpy", BRIEF, nothing_is_wasted, ["training.png"]),
    "text_balanced": Recipe("numpy", BRIEF, nobody_waits, ["training.png"]),
    "mixture": Recipe("numpy", CHECKED, weights_hold, ["mixture.png"]),
    "text_stream": Recipe("numpy", CHECKED, weights_hold, ["mixture.png"]),
    "imbalanced": Recipe(
        "numpy", ["trainer.max_epochs=3"], classes_are_balanced, ["frequencies.png"]
    ),
}


def test_what_the_recipes_call_has_what_they_pass() -> None:
    nodes = [
        OmegaConf.to_container(OmegaConf.load(at)) for at in (EXAMPLES / "conf").rglob("*.yaml")
    ]
    for node in nodes:  # which grows
        inner = node.values() if isinstance(node, dict) else node
        nodes += inner if isinstance(node, (dict, list)) else []
        target = str(node.get("_target_")) if isinstance(node, dict) else ""
        if target.startswith("lit_loader."):
            known = inspect.signature(pkgutil.resolve_name(target)).parameters
            assert "options" in known or {name for name in node if name[0] != "_"} <= {*known}, node


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the recipes run, one after the other: the corpus is written once."""
    return tmp_path_factory.mktemp("elsewhere")


def test_images_are_read_by_threads(elsewhere: Path) -> None:
    pytest.importorskip("PIL")
    directory = elsewhere / "by threads"
    options = [*RECIPES["images"].options, "data.augment_with=pillow", f"hydra.run.dir={directory}"]
    printed = run(elsewhere, TRAIN, "experiment=images", "loader.worker_method=thread", *options)
    assert "test/" in printed
    assert RECIPES["images"].holds(json.loads((directory / "metrics.json").read_text()))


# What is their own is tested below.
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n != "images" else []) for n in RECIPES]
)
def test_a_recipe_trains(name: str, elsewhere: Path) -> None:
    recipe, directory = RECIPES[name], elsewhere / name
    pytest.importorskip(recipe.library)
    before = set(EXAMPLES.rglob("*"))
    options = [f"experiment={name}", *recipe.options, f"hydra.run.dir={directory}"]
    printed = run(elsewhere, TRAIN, *options)
    assert "Epoch " in printed and "test/" in printed and "Traceback" not in printed
    assert printed.count(f"written to {directory}:") == 1
    figures = json.loads((directory / "metrics.json").read_text())
    assert recipe.holds(figures), figures
    for file in recipe.pictures:
        assert (directory / file).read_bytes().startswith(b"\x89PNG")
    new = {path for path in set(EXAMPLES.rglob("*")) - before if "__pycache__" not in path.parts}
    assert not {path for path in new if path.suffix in (".jpg", ".tar", ".parquet", ".png")}


@pytest.mark.parametrize(
    ("hidden", "argument", "said"),
    [
        pytest.param(
            "pyarrow", "experiment=tabular", "'tabular' needs pyarrow", marks=pytest.mark.slow
        ),
        (
            "hydra_plugins.hydra_optuna_sweeper",
            "+hparams_search=optuna",
            "'hparams_search=optuna' needs hydra-optuna-sweeper",
        ),
    ],
)
def test_what_is_missing_is_named_on_one_line(
    hidden: str, argument: str, said: str, tmp_path: Path
) -> None:
    # Python runs this file first.
    (tmp_path / "sitecustomize.py").write_text(f"import sys; sys.modules[{hidden!r}] = None")
    printed = run(tmp_path, TRAIN, argument, code=1, PYTHONPATH=str(tmp_path))
    missing = said.rpartition(" ")[2]
    assert printed == f"the recipe {said}, which is not installed: pip install {missing}\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "options", "steps"),
    [
        ("", ["--resume-with", "loader.num_workers=1"], 34),
        ("tabular", [], 24),
        ("huggingface_stream", ["--resume-with", "loader.num_workers=3"], 40),
        ("huggingface", [], 34),
        ("images", [], 34),
    ],
)
def test_a_killed_training_goes_on_exactly(
    recipe: str, options: list[str], steps: int, tmp_path: Path
) -> None:
    if recipe:
        pytest.importorskip(RECIPES[recipe].library)
        options = [f"experiment={recipe}", *options]
    script = EXAMPLES / "resume.py"
    printed = run(tmp_path, script, "--kill-at", "23", *options, "trainer.max_epochs=2")
    assert (
        f"identical over {steps} steps: killed after step 23, resumed at step 21; final weights "
        "identical\n"
    ) in printed
    assert (tmp_path / "outputs/resume/resume.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.timeout(300)
def test_two_nodes_on_one_machine(tmp_path: Path) -> None:
    script = EXAMPLES / "multinode.py"
    printed = run(tmp_path, script, "trainer.max_epochs=1", "test=false", "hydra.run.dir=run")
    for rank in (0, 1):
        assert re.search(rf"rank {rank} \(process \d+ of node {rank}\): 539 images", printed)
    assert printed.count("written to") == 1
    steps = json.loads((tmp_path / "run" / "metrics.json").read_text())["steps"]
    assert steps == -(-539 // 32)
