"""The picture of small programs is drawn from figures that were measured before."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WHERE = {
    "date": "2026-12-01T09:30",
    "cpu": "Some CPU",
    "cores": 2,
    "python": "3.11.7",
    "versions": {"torch": "2.13.0", "lit_loader": "0.5.0"},
}


def pair(ratio: float) -> dict[str, object]:
    """Figures of a pair of runs, of which lit_loader's took ``ratio`` times torch's."""
    figures = ("clock", "cpu", "whole_clock", "whole_cpu")
    return {
        "torch": dict.fromkeys(figures, 2.0),
        "lit_loader": dict.fromkeys(figures, 2 * ratio),
        "load_of_others": 0.1,
    }


def test_a_picture_is_drawn_from_a_result_file(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    programs = {"faster": {"pairs": [pair(0.5)]}, "slower": {"pairs": [pair(1.25)]}}
    results = {"where": WHERE, "programs": programs, "failed": []}
    (tmp_path / "small.json").write_text(json.dumps(results))
    script = ROOT / "examples" / "benchmark" / "small" / "run.py"
    command = [sys.executable, script, "--read", "small.json", "--plot", "small.png"]
    shown = subprocess.run(command, cwd=tmp_path, text=True, capture_output=True, check=True).stdout
    assert "above 1.05 in 1 of 2 programs" in shown
    assert (tmp_path / "small.png").stat().st_size > 10_000
