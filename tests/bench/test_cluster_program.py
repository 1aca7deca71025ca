"""The program that compares loaders on a cluster; with Ray it is run, which is slow."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lit_loader.bench.cluster.halfway import tally

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("seen", "lost", "twice", "ordered"),
    [
        ([0, 1, 2, 3], 0, 0, "yes"),
        ([0, 2, 1, 3], 0, 0, "no"),
        ([0, 1, 1, 3], 1, 1, "yes"),
        ([0, 1, 0, 1, 2, 3], 0, 2, "no"),
        ([], 4, 0, "yes"),
    ],
)
def test_what_is_wrong_with_an_epoch(seen: list[int], lost: int, twice: int, ordered: str) -> None:
    assert tally(seen, 4) == {"lost": lost, "twice": twice, "in order": ordered}


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(280)
@pytest.mark.skipif(shutil.which("ray") is None, reason="needs Ray")
@pytest.mark.parametrize("part", ["speed", "resume", "killed"])
def test_a_part(part: str) -> None:
    command = [sys.executable, "-m", "lit_loader.bench.cluster", "--cases=small", f"--parts={part}"]
    done = subprocess.run(
        [*command, "--loaders=lit_loader"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert (done.returncode, done.stderr) == (0, "")
    _, head, _, row = done.stdout.splitlines()
    names, figures = (line.strip(" |").split(" | ") for line in (head, row))
    found = dict(zip(names, figures, strict=True))
    assert row.startswith("| lit_loader | ")
    if part != "speed":
        assert (found["lost"], found["twice"], found["in order"]) == ("0", "0", "yes")
