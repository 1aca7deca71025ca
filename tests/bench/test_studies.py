"""The scripts of examples/benchmark, at their smallest: each prints its tables."""

import json
import shutil
import tempfile
from pathlib import Path

import pytest
import torch

from tests.support.benchmark_scripts import SCRIPTS, table
from tests.support.programs import run_python

ON_A_GPU = SCRIPTS / "on_a_gpu.py"


@pytest.mark.slow
@pytest.mark.parametrize("script", ["edge", "in_memory", "memory", "caches", "growth"])
def test_a_study(script: str, tmp_path: Path) -> None:
    """Memory of processes that share little is about the same; times are not compared."""
    if script == "caches":
        pytest.importorskip("PIL")
    if script == "growth":
        pytest.importorskip("matplotlib")
    printed = run_python(tmp_path, SCRIPTS / f"{script}.py", "--quick")
    cells = [cell for row in table(printed).values() for each in row.values() for cell in each]
    assert cells and all(float(cell.replace(",", "")) > 0 for cell in cells), printed
    if script == "growth":
        assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_exactness(tmp_path: Path) -> None:
    found = table(run_python(tmp_path, SCRIPTS / "exactness.py", "--quick"))
    assert int(found["checkpoint state, pickled, bytes"]["figure"][0]) < 1000
    assert float(found["memory for it, kB"]["figure"][0].replace(",", "")) < 1000


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_chunked_formats() -> None:
    pytest.importorskip("PIL")
    # A short name: sockets of the libraries lie below it.
    with tempfile.TemporaryDirectory() as folder:
        printed = run_python(
            Path(folder), SCRIPTS / "chunked_formats.py", "--quick", TMPDIR=folder, timeout=570
        )
        assert not list(Path(folder).glob("formats*")), "the folder is removed"
    found, left_out = table(printed), printed.count("left out")
    ours = found["lit_loader, files"]
    assert ours["each sample once"] == ["yes"]
    assert (ours["epoch 1, resumed: lost"], ours["twice"]) == (["0"], ["0", "0"])
    assert found["torch, files"]["next batch, s"] == ["—"]
    assert len(found) + left_out == 6


@pytest.mark.slow
@pytest.mark.timeout(280)
@pytest.mark.skipif(shutil.which("ray") is None, reason="needs Ray")
@pytest.mark.parametrize("part", ["speed", "resume", "killed"])
def test_a_cluster(part: str, tmp_path: Path) -> None:
    given = ("--cases=small", f"--parts={part}", "--loaders=lit_loader")
    printed = run_python(tmp_path, SCRIPTS / "cluster.py", *given, timeout=250)
    (row,) = table(printed).values()
    if part != "speed":
        assert (row["lost"], row["twice"], row["in order"]) == (["0"], ["0"], ["yes"])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_ways_onto_a_device(tmp_path: Path) -> None:
    given = ("--megabytes", "4", "--batches", "20", "--rounds", "1")
    assert run_python(tmp_path, SCRIPTS / "device_copy.py", *given).count("(") == 5


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_what_needs_a_gpu_is_prepared(tmp_path: Path) -> None:
    printed = run_python(tmp_path, ON_A_GPU, "--dry-run", timeout=380, OMP_NUM_THREADS="1")
    figures = json.loads(printed.splitlines()[-1])
    assert len(figures["checks"]) == 5 and all(figures["checks"].values()), printed
    assert all(rate > 0 for each in figures["training"].values() for rate, _ in each)
    assert set(table(printed)) == set(figures["training"])
