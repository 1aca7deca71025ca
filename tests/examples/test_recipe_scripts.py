"""The scripts of examples/ without Hydra, run in this process, which has imported all they need."""

from __future__ import annotations

import difflib
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.support.recipes import EXAMPLES, importable


@pytest.fixture
def examples(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with importable(monkeypatch):
        yield


def script(monkeypatch: pytest.MonkeyPatch, name: str, *arguments: str) -> None:
    """Runs a script in this process, which has imported torch and Lightning already."""
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


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
