"""The examples: how they are run."""

from pathlib import Path

import pytest

from tests.support.programs import ROOT, run_python, run_with_lightning

# What all of them need; the tests that import this are skipped without.
pytest.importorskip("matplotlib")
pytest.importorskip("PIL")
pytest.importorskip("sklearn")

EXAMPLES = ROOT / "examples"
TRAIN = EXAMPLES / "train.py"


def run(directory: Path, script: Path, *arguments: str, code: int = 0, **environment: str) -> str:
    """Runs a script in `directory`; returns all it printed, in which no warning may be."""
    if environment:
        environment = {"OMP_NUM_THREADS": "1", **environment}
        printed = run_python(directory, script, *arguments, code=code, **environment)
    else:
        printed = run_with_lightning(directory, script, *arguments, code=code)
    assert "Warning" not in printed
    return printed
