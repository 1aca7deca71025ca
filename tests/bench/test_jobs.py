"""The jobs of examples/benchmark/jobs, at their smallest: their columns, and the same bytes."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.bench.test_studies import SCRIPTS, table
from tests.support.commands import run_python

SLOW = (
    "detection", "volumes", "molecules", "graphs", "robot_uint8", "robot_float32", "short_epochs",
    "latents", "transitions", "time_series", "tokens", "jpeg", "faces",
)  # fmt: skip


@pytest.mark.process
@pytest.mark.timeout(280)
@pytest.mark.parametrize(
    "job", ["columns", *[pytest.param(job, marks=pytest.mark.slow) for job in SLOW]]
)
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
        assert {path.name for path in Path(folder, "found").iterdir()} == {"jobs.json", "jobs.png"}
    ((name, row),) = table(printed).items()
    assert name == job
    assert row["same bytes"] == ["yes"]
    for column in ("samples/s", "memory, MB", "first batch, ms", "descriptors"):
        figures = row[column][0].replace(",", "").split(" → ")
        assert len(figures) == 2 and all(float(figure) > 0 for figure in figures), column
    assert float(row["times as fast"][0].split()[0]) > 0
