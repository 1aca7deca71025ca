"""What the tests leave behind for one another."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils.data import DataLoader as TorchLoader

from lit_loader import DataLoader


class HookError(Exception):
    pass


@pytest.mark.parametrize("turn", [0, 1])
def test_a_hook_that_raised_leaves_the_classes_as_they_were(turn: int) -> None:
    """Lightning wraps the constructors of loaders, and does not unwrap them after an error."""
    data = pytest.importorskip("lightning.fabric.utilities.data")
    for kind in (TorchLoader, DataLoader):
        assert "__old__init__" not in vars(kind)
    with pytest.raises(HookError), data._replace_dunder_methods(TorchLoader, "dataset"):
        raise HookError


def test_ctrl_c_reaches_tests_that_were_started_in_the_background(tmp_path: Path) -> None:
    test = tmp_path / "test_ignored.py"
    test.write_text(
        "import os, signal, pytest\n"
        "def test() -> None:\n"
        "    with pytest.raises(KeyboardInterrupt):\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
    )
    folder = Path(__file__).parents[1]
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "tests.conftest"),
        *("--confcutdir", str(tmp_path), "-c", str(folder.parent / "pyproject.toml"), str(test)),
    ]
    done = subprocess.run(
        command,
        cwd=folder.parent,
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "PYTHONPATH": str(folder.parent)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    assert done.returncode == 0, done.stdout
