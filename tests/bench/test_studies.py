"""The scripts of examples/benchmark, at their smallest: each prints its tables."""

import json
import shutil
import tempfile
from pathlib import Path

import pytest
import torch

from tests.support.programs import ROOT, run_python

SCRIPTS = ROOT / "examples" / "benchmark"

pytestmark = pytest.mark.timeout(600)


def table(printed: str) -> dict[str, dict[str, list[str]]]:
    """The cells of its last table, by row and column; columns may have the same name."""
    lines = [line.strip(" |").split(" | ") for line in printed.splitlines() if line[:1] == "|"]
    last = max(number for number, row in enumerate(lines) if row[0] == "---")
    found: dict[str, dict[str, list[str]]] = {}
    for row in lines[last + 1 :]:
        found[row[0]] = {}
        for name, cell in zip(lines[last - 1][1:], row[1:], strict=True):
            found[row[0]].setdefault(name, []).append(cell)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("script", ["edge", "in_memory", "memory", "caches", "growth"])
def test_a_study(script: str, tmp_path: Path) -> None:
    """Memory of processes that share little is about the same; times are not compared."""
    if script in ("caches", "growth"):
        pytest.importorskip({"caches": "PIL", "growth": "matplotlib"}[script])
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
def test_chunked_formats() -> None:
    pytest.importorskip("PIL")
    # A short name: sockets of the libraries lie below it.
    with tempfile.TemporaryDirectory() as folder:
        script = SCRIPTS / "chunked_formats.py"
        printed = run_python(Path(folder), script, "--quick", TMPDIR=folder, timeout=570)
        assert not list(Path(folder).glob("formats*")), "the folder is removed"
    found, left_out = table(printed), printed.count("left out")
    ours = found["lit_loader, files"]
    assert ours["each sample once"] == ["yes"]
    assert (ours["epoch 1, resumed: lost"], ours["twice"]) == (["0"], ["0", "0"])
    assert found["torch, files"]["next batch, s"] == ["—"]
    assert len(found) + left_out == 6


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("ray") is None, reason="needs Ray")
@pytest.mark.parametrize("part", ["speed", "resume", "killed"])
def test_a_cluster(part: str, tmp_path: Path) -> None:
    given = ("--cases=small", f"--parts={part}", "--loaders=lit_loader")
    (row,) = table(run_python(tmp_path, SCRIPTS / "cluster.py", *given, timeout=250)).values()
    if part != "speed":
        assert (row["lost"], row["twice"], row["in order"]) == (["0"], ["0"], ["yes"])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_ways_onto_a_device(tmp_path: Path) -> None:
    given = ("--megabytes", "4", "--batches", "20", "--rounds", "1")
    assert run_python(tmp_path, SCRIPTS / "device_copy.py", *given).count("(") == 5


@pytest.mark.slow
def test_what_needs_a_gpu_is_prepared(tmp_path: Path) -> None:
    script = SCRIPTS / "on_a_gpu.py"
    printed = run_python(tmp_path, script, "--dry-run", timeout=380, OMP_NUM_THREADS="1")
    figures = json.loads(printed.splitlines()[-1])
    assert len(figures["checks"]) == 5 and all(figures["checks"].values()), printed
    assert all(rate > 0 for each in figures["training"].values() for rate, _ in each)
    assert set(table(printed)) == set(figures["training"])


JOBS = (
    "columns", "detection", "volumes", "molecules", "graphs", "robot_uint8", "robot_float32",
    "short_epochs", "latents", "transitions", "time_series", "tokens", "jpeg", "faces", "objects",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("job", JOBS)
def test_a_job(job: str) -> None:
    """Each writes figures and pictures; batches of both loaders are equal."""
    for library in ("psutil", "matplotlib", *(["PIL"] if job in ("jpeg", "faces") else [])):
        pytest.importorskip(library)
    # A short name: sockets lie below it.
    with tempfile.TemporaryDirectory() as folder:
        given = ("quick=true", "auto=false", f"jobs=[{job}]", "job.short_epochs.dataset.paths=99")
        script = SCRIPTS / "jobs" / "run.py"
        printed = run_python(Path(folder), script, *given, "out=found", TMPDIR=folder, timeout=250)
        assert {path.name for path in Path(folder).iterdir()} == {"found"}, "all else is removed"
        files = {path.name for path in Path(folder, "found").iterdir()}
        assert files == {"jobs.json", "jobs.png", "rounds.jsonl"}
    ((name, row),) = table(printed).items()
    assert name == job, "and not: BATCHES DIFFER"
    figures = row["samples/s"][0].replace(",", "").split(" → ")
    assert len(figures) == 2 and all(float(figure) > 0 for figure in figures)
    assert float(row["ratio"][0].split()[0]) > 0


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "options", [["--quick", "--only", "noise", "--plot", "small.png"], ["--pairs", "1"]]
)
def test_small_programs(options: list[str], tmp_path: Path) -> None:
    for library in ("matplotlib", "sklearn", "PIL", "datasets"):
        pytest.importorskip(library)
    given = ("--json", "small.json", *options)
    script = SCRIPTS / "small" / "run.py"
    printed = run_python(tmp_path, script, *given, PYTHONPATH=str(ROOT), timeout=1150)
    found = json.loads((tmp_path / "small.json").read_text())
    assert found["failed"] == [] and found["where"]["versions"]["torch"]
    assert all(f"\n| {name} | " in printed for name in found["programs"])
    if "--quick" not in options:
        assert len(found["programs"]) >= 22
        return
    pairs = found["programs"]["noise"]["pairs"]
    assert len(pairs) == 2 and all(pair["load_of_others"] >= 0 for pair in pairs)
    for figures in (pair[loader] for pair in pairs for loader in ("torch", "lit_loader")):
        assert 0 < figures["clock"] < figures["whole_clock"]
        assert 0 < figures["cpu"] < figures["whole_cpu"]
    assert (tmp_path / "small.png").read_bytes().startswith(b"\x89PNG")
