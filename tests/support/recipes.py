"""The examples: how they are run, and how a test imports their modules."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from tests.support.programs import run_python, run_with_lightning
from tests.support.samples import keeping_generators

# What all of them need; the tests that import this are skipped without.
pytest.importorskip("matplotlib")
pytest.importorskip("PIL")
pytest.importorskip("sklearn")

EXAMPLES = Path(__file__).parents[2] / "examples"
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


@contextmanager
def importable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Examples can be imported; generators and environment are put back afterwards."""
    monkeypatch.syspath_prepend(EXAMPLES)
    threads = torch.get_num_threads()
    with keeping_generators(monkeypatch):
        yield
    torch.set_num_threads(threads)
