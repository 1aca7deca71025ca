"""The programs of from_elsewhere.md: before and after they print the same, and it is what it is.

A block of differences is two programs; those whose library is not installed are skipped.
"""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

from tests.project.readmes import ROOT, fenced, sections
from tests.support.programs import run_python

PAGE = ROOT / "examples" / "migrate" / "from_elsewhere.md"
NEEDED = {
    "StatefulDataLoader": "torchdata",
    "WebDataset": "webdataset",
    "LitData": "litdata",
    "Grain": "grain",
    "accelerate": "accelerate",
    "Transformers' Trainer": "transformers",
}


def blocks(title: str) -> list[tuple[str, str]]:
    """Before and after, of each block of a section."""
    found = re.findall(r"```diff\n(.*?)```", sections(PAGE)[title], flags=re.DOTALL)
    lines = [block.splitlines() for block in found]
    return [
        tuple("".join(f"{line[1:]}\n" for line in block if line[:1] != gone) for gone in "+-")
        for block in lines
    ]  # type: ignore[misc]


def test_every_block_is_run() -> None:
    assert {*sections(PAGE)} == {*NEEDED, "A Hydra template"}
    assert [len(blocks(title)) for title in NEEDED] == [1] * len(NEEDED)
    assert len(fenced(PAGE, "diff")) == len(NEEDED) + 3


@pytest.mark.parametrize("title", NEEDED)
@pytest.mark.parametrize(
    "moved", [pytest.param(False, marks=pytest.mark.slow), True], ids=["before", "after"]
)
def test_nothing_is_lost(title: str, moved: bool, tmp_path: Path) -> None:
    if find_spec(NEEDED[title]) is None:
        pytest.skip(f"{NEEDED[title]} is not installed")
    ((before, after),) = blocks(title)
    program = tmp_path / "program.py"
    program.write_text(after if moved else before)
    said = run_python(tmp_path, program, tmp_path, PYTHONPATH=str(ROOT))
    assert said.splitlines()[-1] == "True", said
    assert ("lit_loader" in program.read_text()) is moved


def test_the_template_composes(tmp_path: Path) -> None:
    data, callbacks, train = (after for _, after in blocks("A Hydra template"))
    files = {
        "data/mnist.yaml": data,
        "callbacks/default.yaml": callbacks,
        "callbacks/model_checkpoint.yaml": "model_checkpoint: {dirpath: here}\n",
        "train.yaml": train + "paths: {data_dir: /data}\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(tmp_path), version_base="1.3"):
        config = compose("train", ["data.val.batch_size=512"])
    assert config.data._target_ == "lit_loader.LoaderDataModule"
    assert config.data.datasets.train.root == "/data"
    assert config.data.train.batch_size == config.loader.batch_size == 128
    assert config.data.val.batch_size == 512
    assert config.loader.num_workers > 0
    assert config.callbacks.loader_monitor._target_ == "lit_loader.LoaderMonitor"
    assert [*config.callbacks] == ["model_checkpoint", "loader_monitor"]
