"""Programs that tests start, as users do: each from its first line to its last."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
"""The repository."""


def default_environment() -> dict[str, str]:
    """This process's, with the package importable, and one thread for a computation."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def start_program(
    program: Path,
    *arguments: object,
    options: tuple[str, ...] = (),
    environment: dict[str, str] | None = None,
    **settings: Any,
) -> subprocess.Popen[str]:
    """Start a program of a test, in a session of its own, with pipes as its output.

    ``options`` are Python's; further settings are ``Popen``'s.
    """
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    settings = {**pipes, "start_new_session": True, **settings}
    command = [sys.executable, *options, str(program), *map(str, arguments)]
    return subprocess.Popen(
        command, text=True, env=environment or default_environment(), **settings
    )


def run_program(
    program: Path, *arguments: object, code: int = 0, timeout: float = 200, **settings: Any
) -> str:
    """Run a program of a test to its end, check its exit code, and return what it printed."""
    with start_program(program, *arguments, **settings) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    assert process.returncode == code, f"{process.returncode}\n{out}\n{err}"
    return out


def run_with_lightning(directory: Path, program: Path, *arguments: object, code: int = 0) -> str:
    """Run a program with a Trainer in a directory; returns all it printed."""
    settings: dict[str, Any] = {
        "cwd": directory,
        "stderr": subprocess.STDOUT,
        "timeout": 280,  # a test has less, unless it is marked
    }
    wide = {**default_environment(), "COLUMNS": "160"}
    return run_program(program, *arguments, code=code, environment=wide, **settings)


def run_python(
    directory: Path,
    *command: str | Path,
    code: int = 0,
    python: str | Path = sys.executable,
    timeout: float = 200,
    **environment: str,
) -> str:
    """Run Python as a user does, check its exit code, and return all it printed."""
    done = subprocess.run(
        [str(python), *map(str, command)],
        cwd=directory, timeout=timeout, text=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env={**os.environ, "COLUMNS": "160", **environment}, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout
    return done.stdout
