"""The small programs of examples/benchmark/small: each runs with both loaders."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.programs import ROOT, run_python

SCRIPT = ROOT / "examples" / "benchmark" / "small" / "run.py"


def measured(folder: Path, *options: str, timeout: float = 200) -> dict[str, Any]:
    given = ("--json", "small.json", *options)
    printed = run_python(folder, SCRIPT, *given, PYTHONPATH=str(ROOT), timeout=timeout)
    found = json.loads((folder / "small.json").read_text())
    assert found["failed"] == [] and found["where"]["versions"]["torch"]
    assert all(f"\n| {name} | " in printed for name in found["programs"])
    return {name: each["pairs"] for name, each in found["programs"].items()}


@pytest.mark.slow
def test_figures_and_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = measured(tmp_path, "--quick", "--only", "noise", "--plot", "small.png")
    assert list(found) == ["noise"] and len(found["noise"]) == 2
    for pair in found["noise"]:
        assert pair["load_of_others"] >= 0
        for loader in ("torch", "lit_loader"):
            figures = pair[loader]
            assert 0 < figures["clock"] < figures["whole_clock"]
            assert 0 < figures["cpu"] < figures["whole_cpu"]
    assert (tmp_path / "small.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_program(tmp_path: Path) -> None:
    for library in ("sklearn", "PIL", "datasets"):
        pytest.importorskip(library)
    assert len(measured(tmp_path, "--pairs", "1", timeout=1150)) >= 22
