"""The scripts of examples/ without Hydra, run in this process, which has imported all they need."""

import difflib
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.support.recipes import EXAMPLES

pytestmark = pytest.mark.pages


@pytest.fixture
def script(
    examples: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> Callable[..., str]:
    """Runs a script in this process, which has imported all it needs; gives what it printed."""

    def run(name: str, *arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    monkeypatch.chdir(tmp_path)
    return run


def test_without_hydra(script: Callable[..., str]) -> None:
    printed = script("without_hydra.py", "--epochs", 1, "--workers", 1)
    assert "train loader: " in printed and "the loop waited" in printed
    assert "test/acc" in printed


@pytest.mark.filterwarnings("ignore::DeprecationWarning:lightning")
def test_lightning_cli(script: Callable[..., str], tmp_path: Path) -> None:
    pytest.importorskip("jsonargparse")
    printed = script(
        "lightning_cli.py", "fit", "--data.loader.num_workers=1", "--trainer.max_epochs=1",
        "--model.width=8", "--data.val={batch_size: 512}",
    )  # fmt: skip
    assert "'val/acc': 0." in printed
    (config,) = tmp_path.rglob("config.yaml")
    assert "batch_size: 512" in config.read_text()


def test_a_loss_that_jumps(script: Callable[..., str]) -> None:
    printed = script("loss_jump.py").splitlines()
    assert printed[0].endswith("at step 16")
    assert printed[1] == "its sample 1234 has the target 234,000"
    assert printed[2].startswith("gone back to step 10, and on from 17: the loss ends at 0.0")


def test_plain_loop_goes_on(script: Callable[..., str], tmp_path: Path) -> None:
    def last(*arguments: object) -> str:
        printed = script("plain_loop.py", "--workers", 1, *arguments)
        return printed.splitlines()[-1].split(", waited")[0]

    checkpoint = tmp_path / "run.ckpt"
    whole = last("--epochs", 3)
    assert whole.startswith("51 steps, test accuracy 0.")
    assert last("--epochs", 2, "--checkpoint", checkpoint).startswith("34 steps")
    assert torch.load(checkpoint, weights_only=True)["steps"] == 30
    assert last("--epochs", 3, "--checkpoint", checkpoint) == whole


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


STEPS = 17  # an epoch of 1,077 images in batches of 64


@pytest.fixture
def fabric(script: Callable[..., str]) -> Callable[..., list[str]]:
    """Runs the script; gives its lines."""
    torch.set_num_threads(1)  # more only wait for each other where other work is going on
    return lambda *arguments: script("fabric.py", *arguments).splitlines()


def test_fabric_learns(fabric: Callable[..., list[str]]) -> None:
    lines = fabric("--epochs", 3, "--workers", 1)
    assert len(lines) == 3 * STEPS
    losses = [float(line.split()[-1]) for line in lines]
    assert sum(losses[-5:]) < 0.6 * sum(losses[:5])


@pytest.mark.parametrize("stop", [13, STEPS + 5])
def test_fabric_goes_on_exactly(
    stop: int, fabric: Callable[..., list[str]], tmp_path: Path
) -> None:
    checkpoint = tmp_path / "run.ckpt"
    whole = fabric("--epochs", 2, "--workers", 0)
    begun = fabric("--workers", 2, "--checkpoint", checkpoint, "--stop-after", stop)
    assert begun == whole[:stop]
    saved = stop // 10 * 10
    loaded = torch.load(checkpoint, weights_only=True)
    assert (loaded["step"], loaded["loader"]["epoch"]) == (saved, saved // STEPS)
    assert fabric("--epochs", 2, "--workers", 1, "--checkpoint", checkpoint) == whole[saved:]
