"""The notebook of examples/, run from its first cell to its last by a kernel of Jupyter's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.project.readmes import ROOT
from tests.support.commands import run_python

NOTEBOOK = ROOT / "examples" / "five_minutes.ipynb"

RUN = """
import sys
import nbformat
from nbclient import NotebookClient

notebook = nbformat.read(sys.argv[1], 4)
NotebookClient(notebook, timeout=100, kernel_name="python3").execute()
for cell in notebook.cells:
    for said in cell.get("outputs", []):
        print(said.get("text") or said["data"]["text/plain"])
"""


def test_the_notebook_runs(tmp_path: Path) -> None:
    for needed in ("nbclient", "ipykernel"):
        pytest.importorskip(needed)
    program = tmp_path / "run.py"
    program.write_text(RUN)
    said = run_python(
        tmp_path, program, NOTEBOOK,
        PYTHONPATH=str(ROOT), IPYTHONDIR=str(tmp_path), JUPYTER_CONFIG_DIR=str(tmp_path),
        PYDEVD_DISABLE_FILE_VALIDATION="1",
    )  # fmt: skip
    assert "torch.Size([32, 64])" in said
    assert " batches (" in said and "waited " in said  # the statistics
    assert said.splitlines()[-1] == "(6, True)", said
