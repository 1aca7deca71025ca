"""Programs run as a user runs them: in another process, from some other directory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def run_python(
    directory: Path,
    *command: str | Path,
    code: int = 0,
    python: str | Path = sys.executable,
    timeout: float = 110,
    **environment: str,
) -> str:
    """Runs Python in `directory`, checks its exit code and returns all it printed."""
    done = subprocess.run(
        [str(python), *map(str, command)],
        cwd=directory, timeout=timeout, text=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env={**os.environ, "COLUMNS": "160", **environment}, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout
    return done.stdout
