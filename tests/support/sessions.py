"""Programs that lead a session of their own: a test can signal all of it, and see its end."""

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from tests.support.programs import start_program
from tests.support.tools import PROMPT, finish_script

launched: list[subprocess.Popen[str]] = []
"""What `end_all` ends: a test that fails leaves its program running."""


def launch(
    source: str, folder: Path, *arguments: object, forked: bool = False
) -> subprocess.Popen[str]:
    """Run a program with a folder and further arguments."""
    program = folder / "program.py"
    program.write_text(source)
    process = start_program(program, folder, *arguments, stdin=subprocess.PIPE, forked=forked)
    launched.append(process)
    return process


def end_all() -> None:
    while launched:
        process = launched.pop()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def members(session: int) -> Iterator[int]:
    """Processes of a session that run."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                # After the name, which is in parentheses and may hold anything.
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == session and fields[0] not in "ZX":
                    yield int(entry)


def wait_until_empty(session: int) -> None:
    begun = time.monotonic()
    while left := list(members(session)):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                pidfd = os.pidfd_open(pid)
                ended, _, _ = select.select([pidfd], [], [], begun + PROMPT - time.monotonic())
                os.close(pidfd)
                if not ended:
                    for other in members(session):
                        os.kill(other, signal.SIGKILL)
                    raise AssertionError(f"processes {left} are still running")


def send(process: subprocess.Popen[str], number: int, whom: str) -> None:
    """Send a signal to the "parent" or to the "group"."""
    (os.killpg if whom == "group" else os.kill)(process.pid, number)


def expect(process: subprocess.Popen[str], *lines: str) -> None:
    """Read lines that come in any order."""
    assert process.stdout is not None
    found = {process.stdout.readline().strip() for _ in lines}
    assert found == set(lines), (found, process.poll() is not None and process.communicate())


def tell(process: subprocess.Popen[str], word: object) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{word}\n")
    process.stdin.flush()


def finish(process: subprocess.Popen[str]) -> tuple[str, str, int]:
    """Let a program end; none of its processes may be left."""
    done = finish_script(process)
    wait_until_empty(process.pid)
    return done
