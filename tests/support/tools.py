"""What tests of all packages do: flatten batches, match refusals, wait, run programs."""

import os
import select
import signal
import subprocess
import textwrap
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import torch.utils.data

from lit_loader import OptionError
from tests.support.programs import start_program

ROOT = Path(__file__).resolve().parents[2]

# Upper bound, in seconds, for anything that must happen "at once": generous for a busy machine,
# and far below the time a hang would take.
PROMPT = 40.0


class Gate:
    """Something to wait at, which opens once and for all, also for children made by fork.

    A pipe and not a ``multiprocessing.Event``: setting one of those waits for every process that
    waits at it, so it hangs once such a process was killed.
    """

    def __init__(self) -> None:
        self._waiting, self._opening = os.pipe()

    def wait(self, seconds: float = 30.0) -> bool:
        """Wait until the gate is open; returns whether it is."""
        return bool(select.select([self._waiting], [], [], seconds)[0])

    def open(self) -> None:
        """Let everyone pass, from now on."""
        os.write(self._opening, b"!")

    def close(self) -> None:
        """Close the file descriptors of this process."""
        os.close(self._waiting)
        os.close(self._opening)


def is_oracle(loader_class: type) -> bool:
    return loader_class is torch.utils.data.DataLoader


def flat(batches: Iterable[Any]) -> list[Any]:
    """All samples of all batches (tensors or lists) as one list of Python values."""
    samples: list[Any] = []
    for batch in batches:
        if isinstance(batch, torch.Tensor):
            values = batch.tolist()
            samples.extend(values if isinstance(values, list) else [values])
        else:
            samples.extend(batch if isinstance(batch, (list, tuple)) else [batch])
    return samples


def lists(batches: Iterable[torch.Tensor]) -> list[Any]:
    return [batch.tolist() for batch in batches]


@contextmanager
def raises(error: Any, **options: Any) -> Iterator[pytest.ExceptionInfo[Any]]:
    """``pytest.raises`` that lets go of the iterator the exception came through.

    Torch's exceptions sit in a reference cycle with their traceback, and its iterators need ten
    seconds to end their workers when the garbage collector finds them there.
    """
    with pytest.raises(error, **options) as caught:
        yield caught
    traceback.clear_frames(caught.value.__traceback__)


def refused(attempt: Callable[[], object], kind: type[Exception] = OptionError) -> str:
    """Return the message, on one line, with which something is refused: by an OptionError."""
    with pytest.raises(kind) as caught:
        attempt()
    message = str(caught.value)
    assert "\n" not in message
    return message


def whole_text(error: BaseException) -> str:
    """The exception as Python prints it: type, message, causes, notes and tracebacks."""
    return "".join(traceback.format_exception(type(error), error, error.__traceback__))


def children() -> set[int]:
    """The processes below this one that are running."""
    found = psutil.Process().children(recursive=True)
    return {each.pid for each in found if each.status() != psutil.STATUS_ZOMBIE}


def wait_gone(pids: Iterable[int], timeout: float = PROMPT) -> None:
    """Wait until the processes have ended; they need not be children of this one.

    Raises:
        AssertionError: One of them is still running after ``timeout`` seconds.
    """
    if not hasattr(os, "pidfd_open"):
        pytest.skip("waiting for a process that is no child needs pidfd_open (Linux)")
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            ended, _, _ = select.select([descriptor], [], [], timeout)
        finally:
            os.close(descriptor)
        if not ended:
            os.kill(pid, signal.SIGKILL)
            raise AssertionError(f"process {pid} is still running after {timeout} s")


def start_script(source: str, folder: Path) -> subprocess.Popen[str]:
    """Run ``source`` as a program of its own, with ``DataLoader`` imported.

    The program leads its own process group, so that a signal can be sent to it and its workers
    together, as a terminal does.
    """
    program = folder / "program.py"
    program.write_text("from lit_loader import DataLoader\n" + textwrap.dedent(source))
    return start_program(program, options=("-W", "error"))


def finish_script(process: subprocess.Popen[str], timeout: float = 150.0) -> tuple[str, str, int]:
    """Wait for the program; return what it wrote to stdout and stderr, and its exit status."""
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        pytest.fail(f"the program did not end within {timeout} s\n{out}\n{err}")
    return out, err, process.returncode
