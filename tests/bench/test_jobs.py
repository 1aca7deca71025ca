"""The jobs of examples/benchmark/jobs, at their smallest: columns, the same bytes and losses."""

import re
import shutil
import tempfile
from pathlib import Path

import pytest

from tests.support.benchmark_scripts import SCRIPTS, table
from tests.support.programs import run_python

JOBS = (
    "columns", "detection", "volumes", "molecules", "graphs", "robot_uint8", "robot_float32",
    "short_epochs", "latents", "transitions", "time_series", "tokens", "jpeg", "faces", "objects",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(280)
@pytest.mark.parametrize("job", JOBS)
def test_a_job(job: str) -> None:
    pytest.importorskip("psutil")
    pytest.importorskip("matplotlib")
    if job in ("jpeg", "faces"):
        pytest.importorskip("PIL")
    # A short name: sockets lie below it.
    with tempfile.TemporaryDirectory() as folder:
        given = ("quick=true", "auto=false", f"jobs=[{job}]", "job.short_epochs.dataset.paths=99")
        script = SCRIPTS / "jobs" / "run.py"
        printed = run_python(Path(folder), script, *given, "out=found", TMPDIR=folder, timeout=250)
        left = {path.name for path in Path(folder).iterdir()}
        assert left == {"found"}, "nothing else is left behind"
        files = {path.name for path in Path(folder, "found").iterdir()}
        assert files == {"jobs.json", "jobs.png", "rounds.jsonl"}
    ((name, row),) = table(printed).items()
    assert name == job
    figures = row["samples/s"][0].replace(",", "").split(" → ")
    assert len(figures) == 2 and all(float(figure) > 0 for figure in figures)
    assert float(row["ratio"][0].split()[0]) > 0


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_a_run_goes_on_and_writes_the_page(tmp_path: Path) -> None:
    pytest.importorskip("psutil")
    pytest.importorskip("matplotlib")
    page = tmp_path / "examples" / "benchmark" / "jobs" / "README.md"
    page.parent.mkdir(parents=True)
    shutil.copy(SCRIPTS / "jobs" / "README.md", page)
    before = page.read_text()
    given = ("quick=true", "auto=false", "out=found", "pages=.")
    script = SCRIPTS / "jobs" / "run.py"
    first = run_python(tmp_path, script, *given, "jobs=[molecules]", timeout=130)
    again = run_python(tmp_path, script, *given, "jobs=[molecules,columns]", timeout=130)
    assert "  molecules, round 1" in first and "  molecules, round 1" not in again
    assert "  columns, round 1" in again
    row, other = table(again).items()
    assert (row[0], other[0]) == ("molecules", "columns"), "and not: BATCHES DIFFER"
    assert table(first) == dict([row])
    after = page.read_text()
    around = re.compile(r"(?<=<!-- measured: )(\w+).*?(?=<!-- end)", re.DOTALL)
    assert around.split(before) == around.split(after), "what stands around the tables stays"
    assert "\n| detection |" not in after
    assert [other[0]] == re.findall("^\\| (columns) \\| 1 → 1", after, re.M)
    assert page.with_name("settings.csv").read_text().startswith("job,loader,workers,samples/s,")
    assert page.with_name("jobs.png").read_bytes().startswith(b"\x89PNG")
