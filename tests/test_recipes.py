"""The recipes of examples/, shortened, as a user runs them; and what their datasets promise."""

from __future__ import annotations

import difflib
import json
import os
import random
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset

from lit_loader import DataLoader

EXAMPLES = Path(__file__).parent.parent / "examples"
TRAIN = EXAMPLES / "train.py"

pytest.importorskip("matplotlib")
pytest.importorskip("PIL")
pytest.importorskip("sklearn")


def run(directory: Path, script: Path, *arguments: str, code: int = 0, **environment: str) -> str:
    """Runs a script in `directory`, checks its exit code and returns all it printed."""
    done = subprocess.run(
        [sys.executable, str(script), *arguments],
        cwd=directory, timeout=110, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env={**os.environ, "COLUMNS": "160", "OMP_NUM_THREADS": "1", **environment}, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout
    assert "Warning" not in done.stdout
    return done.stdout


@pytest.fixture
def examples(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Examples can be imported; generators and environment are put back afterwards."""
    monkeypatch.syspath_prepend(EXAMPLES)
    for name in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS"):
        monkeypatch.setenv(name, "0")
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    threads = torch.get_num_threads()
    yield
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])
    torch.set_num_threads(threads)


# --- experiments ---

RECIPES = {
    "images": ("PIL", 17, ["predictions.png"]),
    "tabular": ("pyarrow", 12, []),
    "webdataset": ("webdataset", 18, ["predictions.png"]),
    "huggingface": ("datasets", 17, []),
}


@pytest.mark.parametrize(
    "recipe",
    # What is its own in "webdataset" is tested further below, in this process.
    [pytest.param(n, marks=[pytest.mark.slow] if n == "webdataset" else []) for n in RECIPES],
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


@pytest.mark.parametrize(
    ("package", "module", "line"),
    [
        ("images", "PIL", "'images' needs pillow, which is not installed: pip install pillow"),
        ("webshards", "webdataset", "'webdataset' needs webdataset, which is not installed: pip"),
        ("hf", "datasets", "'huggingface' needs datasets, which is not installed: pip install"),
    ],
)
def test_each_library_is_asked_for(
    package: str, module: str, line: str, examples: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SystemExit, match=f"the recipe {line}"):
        runpy.run_path(str(EXAMPLES / package / "__init__.py"))


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
        pytest.param(23, ["experiment=huggingface"], id="huggingface", marks=pytest.mark.slow),
        pytest.param(23, ["experiment=images"], id="images", marks=pytest.mark.slow),
    ],
)
def test_a_killed_training_goes_on_exactly(kill: int, arguments: list[str], tmp_path: Path) -> None:
    for library in ("pyarrow", "datasets") if len(arguments) == 1 else ():
        pytest.importorskip(library)
    printed = run(
        tmp_path, EXAMPLES / "resume.py", "--kill-at", str(kill), *arguments, "trainer.max_epochs=2"
    )
    steps = 24 if "tabular" in arguments[0] else 34
    assert (
        f"identical over {steps} steps: killed after step {kill}, resumed at step "
        f"{kill // 10 * 10 + 1}; final weights identical\n"
    ) in printed
    assert (tmp_path / "outputs/resume/resume.png").read_bytes().startswith(b"\x89PNG")


def test_different_curves_are_told(examples: None, tmp_path: Path) -> None:
    from interruption import compare

    whole = {step: 1 / step for step in range(1, 7)}
    killed, resumed = {s: whole[s] for s in (1, 2, 3)}, {s: whole[s] for s in (3, 4, 5, 6)}
    assert compare.verdict(whole, killed, resumed)[0]
    resumed[5] += 1e-16
    assert compare.verdict(whole, killed, resumed) == (
        False, "different at 1 steps, first at step 5"
    )  # fmt: skip
    del resumed[5]
    assert compare.verdict(whole, killed, resumed) == (False, "1 steps are missing, first step 5")


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


# --- scripts ---


def script(monkeypatch: pytest.MonkeyPatch, name: str, *arguments: str) -> None:
    """Runs a script in this process, which has imported torch and Lightning already."""
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def test_scripts_are_short() -> None:
    names = ("without_hydra", "lightning_cli", "fabric", "plain_loop", "migrate/after")
    lengths = {name: len((EXAMPLES / f"{name}.py").read_text().splitlines()) for name in names}
    assert max(lengths.values()) < 60, lengths


def test_without_hydra(
    examples: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script(monkeypatch, "without_hydra.py", "--epochs", "1", "--workers", "1")
    printed = capsys.readouterr().out
    assert "train loader: the trainer waited" in printed
    assert "test/acc" in printed


@pytest.mark.filterwarnings("ignore::DeprecationWarning:lightning")
def test_lightning_cli(
    examples: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    pytest.importorskip("jsonargparse")
    monkeypatch.chdir(tmp_path)
    script(
        monkeypatch, "lightning_cli.py", "fit", "--data.loader.num_workers=1",
        "--trainer.max_epochs=1", "--model.width=8", "--data.val={batch_size: 512}",
    )  # fmt: skip
    printed = capsys.readouterr().out
    assert "'val/acc': 0." in printed
    (config,) = tmp_path.rglob("config.yaml")
    assert "batch_size: 512" in config.read_text()


def test_plain_loop_goes_on(
    examples: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    def last(*arguments: str) -> str:
        script(monkeypatch, "plain_loop.py", "--workers", "1", *arguments)
        return capsys.readouterr().out.splitlines()[-1].split(", waited")[0]

    checkpoint = str(tmp_path / "run.ckpt")
    whole = last("--epochs", "3")
    assert whole.startswith("51 steps, test accuracy 0.")
    assert last("--epochs", "2", "--checkpoint", checkpoint).startswith("34 steps")
    assert torch.load(checkpoint, weights_only=True)["steps"] == 30
    assert last("--epochs", "3", "--checkpoint", checkpoint) == whole


def test_migration_is_one_import() -> None:
    before, after = (
        [line for line in (EXAMPLES / "migrate" / name).read_text().splitlines() if line]
        for name in ("before.py", "after.py")
    )
    changes = [line for line in difflib.ndiff(before, after) if line[0] in "+-"]
    assert sorted(changes) == [
        "+ from lit_loader import DataLoader",
        "- from torch.utils.data import DataLoader",
    ]


def test_migration_trains_the_same(examples: None) -> None:
    before, after = (
        runpy.run_path(str(EXAMPLES / "migrate" / name))["main"]()
        for name in ("before.py", "after.py")
    )
    assert len(before) == 5 * 28
    assert before == after


# --- what their datasets promise ---


def stream(make: Callable[[], IterableDataset[Any]], ranks: int, workers: int) -> list[Any]:
    """Every batch of two epochs, of all ranks, as nested lists."""
    found = []
    for rank in range(ranks):
        with DataLoader(
            make(), batch_size=16, num_workers=workers, seed=3, num_replicas=ranks, rank=rank
        ) as loader:
            found.append([[part.tolist() for part in b] for _ in range(2) for b in loader])
    return found


@pytest.fixture
def parquet(examples: None, tmp_path: Path) -> Callable[[], IterableDataset[Any]]:
    pytest.importorskip("pyarrow")
    from tabular.files import TARGET, write
    from tabular.row_groups import RowGroups

    write(tmp_path)
    return lambda: RowGroups(tmp_path / "train.parquet", TARGET, shuffle=True, seed=5)


@pytest.mark.parametrize(("ranks", "workers"), [(1, 0), (1, 3), (2, 2)])
def test_each_row_comes_once(
    ranks: int, workers: int, parquet: Callable[[], IterableDataset[Any]]
) -> None:
    of_ranks = stream(parquet, ranks, workers)
    assert len({len(batches) for batches in of_ranks}) == 1
    half = len(of_ranks[0]) // 2
    epochs = []
    for epoch in (slice(half), slice(half, None)):
        rows = [tuple(row) for batches in of_ranks for x, _ in batches[epoch] for row in x]
        assert len(rows) == len(set(rows)) == 384
        epochs.append(rows)
    assert sorted(epochs[0]) == sorted(epochs[1])
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize("stop", [1, 7, 13])
def test_rows_go_on_exactly(stop: int, parquet: Callable[[], IterableDataset[Any]]) -> None:
    options: dict[str, Any] = {"batch_size": 24, "num_workers": 2, "seed": 3}
    with DataLoader(parquet(), **options) as loader:
        whole = [rows.tolist() for rows, _ in loader]
        loader.set_epoch(0)
        for number, _ in enumerate(loader, start=1):
            if number == stop:
                state = loader.state_dict()
                break
    with DataLoader(parquet(), **options) as resumed:
        resumed.load_state_dict(state)
        assert [rows.tolist() for rows, _ in resumed] == whole[stop:]


@pytest.fixture
def tars(examples: None, tmp_path: Path) -> Callable[[], IterableDataset[Any]]:
    pytest.importorskip("webdataset")
    from webshards.shards import pipeline, write

    write(tmp_path)
    return lambda: pipeline(tmp_path, "train", 5, "pillow")


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # webdataset leaves them so
@pytest.mark.parametrize(("ranks", "workers"), [(1, 0), (2, 2)])
def test_each_sample_of_the_shards_comes_once(
    ranks: int, workers: int, tars: Callable[[], IterableDataset[Any]]
) -> None:
    from images.files import rendered

    of_ranks = stream(tars, ranks, workers)
    labels = [label for batches in of_ranks for _, y in batches for label in y]
    # Augmented images are all different; the classes are as often as they should be.
    expected = 2 * np.bincount([label for _, label in rendered("train")])
    assert np.bincount(labels).tolist() == expected.tolist()
    assert stream(tars, ranks, workers) == of_ranks


def test_a_hugging_face_dataset_is_asked_for_whole_batches(
    examples: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("datasets")
    from digits.dataset import Digits
    from hf.data import HuggingFaceData

    data = HuggingFaceData(
        str(tmp_path / "digits"), loader={"batch_size": 100}, test={"batch_size": 50}
    )
    data.prepare_data()
    data.setup("test")
    dataset = data.dataset("test")
    asked: list[int] = []
    many = type(dataset).__getitems__
    monkeypatch.setattr(
        type(dataset),
        "__getitems__",
        lambda self, keys: asked.append(len(keys)) or many(self, keys),
    )
    images = torch.cat([batch["image"] for batch in data.test_dataloader()])
    assert torch.equal(images, Digits("test").images)
    assert asked == [50] * 7 + [10]
    data.close()


@pytest.mark.parametrize("library", ["pillow", "torchvision"])
def test_augmentation_follows_torch_s_seed(examples: None, library: str) -> None:
    if library == "torchvision":
        pytest.importorskip("torchvision")
    import io

    from images.augment import augmentation
    from images.files import rendered
    from PIL import Image

    image = Image.open(io.BytesIO(next(rendered("val"))[0]))
    augment = augmentation(library)

    def augmented(seed: int) -> bytes:
        torch.manual_seed(seed)
        result = augment(image)
        assert result.size == image.size
        return result.tobytes()

    assert augmented(1) == augmented(1) != augmented(2)


# --- data sets that are written once ---


def test_data_are_written_once_and_as_a_whole(examples: None, tmp_path: Path) -> None:
    from digits.once import write_once

    place = tmp_path / "below" / "data"

    def fail(scratch: Path) -> None:
        (scratch / "half").write_text("")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_once(place, fail)
    assert list(place.parent.iterdir()) == []

    def write(scratch: Path) -> None:
        (scratch / "file").write_text("first")
        # Another node is quicker, at this very moment.
        if not place.exists():
            write_once(place, lambda other: (other / "file").write_text("other"))  # type: ignore[func-returns-value]

    write_once(place, write)
    assert (place / "file").read_text() == "other"
    write_once(place, fail)
    assert [path.name for path in place.parent.iterdir()] == ["data"]


def test_every_recipe_is_in_the_table() -> None:
    table = (EXAMPLES / "README.md").read_text()
    for experiment in (EXAMPLES / "conf" / "experiment").glob("*.yaml"):
        assert f"experiment={experiment.stem}" in table, experiment
    for path in [*EXAMPLES.glob("*.py"), *(EXAMPLES / "migrate").glob("*.py")]:
        assert path.relative_to(EXAMPLES).as_posix() in table, path
