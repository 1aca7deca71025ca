"""The program that compares readers of chunked formats; without these it has files alone."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from lit_loader.bench import chunked_formats

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("seen", "lost", "twice"),
    [([2, 0, 1], 0, 0), ([0, 1], 1, 0), ([0, 1, 1, 2, 2, 2], 0, 3), ([1, 1], 2, 1), ([], 3, 0)],
)
def test_what_is_wrong_with_an_epoch(seen: list[int], lost: int, twice: int) -> None:
    assert chunked_formats.tally(seen, 3) == (lost, twice)


def run(tmp_path: Path) -> tuple[dict[str, dict[str, list[str]]], list[str]]:
    """Give the cells by row and column, and the lines below the table."""
    command = [sys.executable, "-m", "lit_loader.bench.chunked_formats", "--quick"]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=570,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert not list(tmp_path.glob("formats*")), "the folder is removed"
    lines = [line.strip(" |").split(" | ") for line in done.stdout.splitlines() if line[:1] == "|"]
    found: dict[str, dict[str, list[str]]] = {}
    for row in lines[2:]:
        found[row[0]] = {}
        for name, cell in zip(lines[0][1:], row[1:], strict=True):
            found[row[0]].setdefault(name, []).append(cell)
    return found, [line for line in done.stdout.splitlines() if "left out" in line]


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(600)
def test_files_are_read_and_resumed() -> None:
    # A short name: sockets of the libraries lie below it.
    with tempfile.TemporaryDirectory() as folder:
        found, left_out = run(Path(folder))
    ours, torchs = found["lit_loader, files"], found["torch, files"]
    for row in (ours, torchs):
        assert row["each sample once"] == ["yes"]
        assert float(row["µs a batch"][0].replace(",", "")) > 0
    assert (ours["epoch 1, resumed: lost"], ours["twice"]) == (["0"], ["0", "0"])
    assert ours["epoch 2, resumed: lost"] == ["0"]
    assert torchs["next batch, s"] == ["—"]
    assert len(found) + len(left_out) == len(chunked_formats.READERS)


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(600)
def test_chunks_are_read_and_resumed() -> None:
    pytest.importorskip("litdata")
    pytest.importorskip("streaming")
    with tempfile.TemporaryDirectory() as folder:
        found, _ = run(Path(folder))
    for reader in ("LitData", "Mosaic"):
        assert found[reader]["each sample once"] == ["yes"]
        assert float(found[reader]["next batch, s"][0]) > 0
