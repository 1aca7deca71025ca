"""Programs that tests start: forked of a process that has imported torch, which is half their time.

Of a program of a test, most of the time goes into importing torch. So a process that has done it is
kept for the whole run, and forks itself for each (``tests/support/program_server.py``). What is
tested is the program from its first line to its last, as before. ``pytest --cold-programs`` starts
an interpreter for each, as do platforms other than Linux.
"""

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
"""The repository."""

_SERVER: Final = Path(__file__).with_name("program_server.py")

WITH_LIGHTNING: Final = ("torch", "lightning.pytorch")
"""What programs with a Trainer import in any case."""


class _Server:
    """The process that has imported some modules."""

    def __init__(
        self, options: tuple[str, ...], modules: tuple[str, ...], environment: dict[str, str]
    ) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, *options, str(_SERVER), *modules],
                stdin=theirs, stdout=subprocess.DEVNULL, start_new_session=True, env=environment,
            )  # fmt: skip
        self._lock = threading.Lock()
        self._owner = os.getpid()

    def ask(self, request: dict[str, Any], files: list[int]) -> int:
        """Send a request, and wait for its answer."""
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(request).encode()], files)
            answer = self._socket.recv(64)
            if not answer:
                raise ConnectionError("the process that programs are forked of has ended")
            return int(answer)

    def close(self) -> None:
        """Let it end."""
        self._socket.close()
        if self._owner == os.getpid():  # and not in a fork, which only has a copy
            self.process.wait()


_servers: dict[tuple[Any, ...], _Server] = {}


def server_pids() -> set[int]:
    """Processes that are kept until the end."""
    return {server.process.pid for server in _servers.values()}


@atexit.register
def _close() -> None:
    for server in _servers.values():
        server.close()


class WarmProgram(subprocess.Popen[str]):
    """A program that was forked, to be used as any that was started; ``modules`` are imported."""

    def __init__(
        self,
        program: list[str],
        *,
        options: tuple[str, ...] = (),
        modules: tuple[str, ...] = ("torch",),
        environment: dict[str, str],
        **settings: Any,
    ) -> None:
        self._environment = environment
        read_early = [environment.get(name) for name in ("PYTHONPATH", "OMP_NUM_THREADS")]
        key = (options, modules, *read_early)
        if key not in _servers or _servers[key].process.poll() is not None:
            _servers[key] = _Server(options, modules, environment)
        self._server = _servers[key]
        super().__init__(program, text=True, **settings)

    def _execute_child(self, args: Any, *given: Any) -> None:
        """Have it forked; called by ``Popen``'s constructor, which has made the pipes."""
        cwd, pipes, session = given[4], given[9:15], given[20]
        stdin, _, _, stdout, _, stderr = pipes
        ends = [end if end >= 0 else own for own, end in enumerate((stdin, stdout, stderr))]
        request = {
            "argv": list(args),
            "cwd": str(cwd or Path.cwd()),
            "env": self._environment,
            "session": bool(session),
        }
        self.pid = self._server.ask(request, ends)
        self._child_created = True
        self._close_pipe_fds(*pipes)

    def _ended(self, timeout: float | None) -> bool:
        pidfd = os.pidfd_open(self.pid)
        try:
            return bool(select.select([pidfd], [], [], timeout)[0])
        finally:
            os.close(pidfd)

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        """As ``Popen``'s, for a process that is no child of this one."""
        if not self._ended(0 if wait_flags & os.WNOHANG else None):
            return 0, 0
        return self.pid, self._server.ask({"reap": self.pid}, [])

    def poll(self) -> int | None:
        """As ``Popen``'s, by the waiting above."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode


cold = not sys.platform.startswith("linux") or not hasattr(os, "pidfd_open")
"""Whether each program gets an interpreter of its own."""


def default_environment() -> dict[str, str]:
    """This process's, with the package importable, and one thread for a computation."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def start_program(
    program: Path,
    *arguments: object,
    options: tuple[str, ...] = (),
    modules: tuple[str, ...] = ("torch",),
    environment: dict[str, str] | None = None,
    own_interpreter: bool = False,
    **settings: Any,
) -> subprocess.Popen[str]:
    """Start a program of a test, in a session of its own, with pipes as its output.

    ``options`` are Python's, ``modules`` what it imports in any case. With ``own_interpreter`` it
    is not forked: what Python makes of a script's start matters. Further settings are ``Popen``'s.
    """
    command = [str(program), *map(str, arguments)]
    environment = environment or default_environment()
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    settings = {**pipes, "start_new_session": True, **settings}
    if cold or own_interpreter:
        return subprocess.Popen(
            [sys.executable, *options, *command], text=True, env=environment, **settings
        )
    return WarmProgram(
        command, options=options, modules=modules, environment=environment, **settings
    )


def run_program(
    program: Path, *arguments: object, code: int = 0, timeout: float = 110, **settings: Any
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
        "modules": WITH_LIGHTNING,
        "timeout": 280,  # a test has less, unless it is marked
    }
    wide = {**default_environment(), "COLUMNS": "160"}
    return run_program(program, *arguments, code=code, environment=wide, **settings)


def run_python(
    directory: Path,
    *command: str | Path,
    code: int = 0,
    python: str | Path = sys.executable,
    timeout: float = 110,
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
