"""Programs that tests start, as users do: each from its first line to its last."""

import atexit
import functools
import logging
import multiprocessing.forkserver
import multiprocessing.util
import os
import runpy
import signal
import subprocess
import sys
import threading
import traceback
import warnings
import weakref
from pathlib import Path
from typing import Any, Final

import torch

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
    forked: bool = False,
    **settings: Any,
) -> subprocess.Popen[str]:
    """Start a program of a test, in a session of its own, with pipes as its output.

    ``options`` are Python's; further settings are ``Popen``'s. If ``forked``, the program runs in a
    fork of this process, which has imported already what takes seconds. A program about imports,
    signals, or how an interpreter ends needs one of its own.
    """
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    settings = {**pipes, "start_new_session": True, **settings}
    if forked:  # what is to be run before another program is executed ends the process
        environment = environment or default_environment()
        run = functools.partial(_run_forked, program, arguments, options, environment)
        settings = {"restore_signals": False, **settings}  # as Python ignores some
        return subprocess.Popen(["true"], text=True, preexec_fn=run, **settings)
    command = [sys.executable, *options, str(program), *map(str, arguments)]
    return subprocess.Popen(
        command, text=True, env=environment or default_environment(), **settings
    )


def _print_warning(message: Any, category: Any, filename: str, lineno: int, *_: Any) -> None:
    sys.stderr.write(warnings.formatwarning(message, category, filename, lineno))


def _run_forked(
    program: Path,
    arguments: tuple[object, ...],
    options: tuple[str, ...],
    environment: dict[str, str],
) -> None:
    """Run a program in the child that `subprocess` has forked, which never returns."""
    os.close(sys._getframe(1).f_locals["errpipe_write"])  # else `Popen` would wait for its end
    status = 1
    try:
        atexit._clear()  # what this process has registered is no affair of the program
        weakref.finalize._registry.clear()  # type: ignore[attr-defined]
        weakref.finalize._registered_with_atexit = False  # type: ignore[attr-defined]
        atexit.register(logging.shutdown)
        atexit.register(multiprocessing.util._exit_function)
        multiprocessing.forkserver._forkserver.__init__()  # type: ignore[attr-defined,misc]
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.stdin, sys.stdout, sys.stderr = (
            os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w", 1)
        )  # fmt: skip
        # What is counted on every rank, and begins at 0 in those that are started later.
        if module := sys.modules.get("lit_loader.streams.rank_store"):
            module._counted.clear()
        if module := sys.modules.get("lit_loader.lightning.rank_states"):
            module.RankStates.fits = 0
        os.environ.clear()
        os.environ.update(environment)
        torch.set_num_threads(1)
        sys.path.insert(0, str(program.parent))
        sys.argv = [str(program), *map(str, arguments)]
        warnings.showwarning = _print_warning  # pytest's keeps them
        warnings.resetwarnings()
        warnings.simplefilter("error" if "error" in options else "default")
        for unsaid in (DeprecationWarning, PendingDeprecationWarning, ResourceWarning):
            warnings.simplefilter("ignore", unsaid)
        if sys.version_info >= (3, 14):  # programs without a __main__ guard
            multiprocessing.set_start_method("fork", force=True)
        runpy.run_path(str(program), run_name="__main__")
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
            sys.stdout.flush(), sys.stderr.flush()
        finally:
            os._exit(status)


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
