"""Nodes of a Ray cluster on this host, for tests: each is a ``ray start --block`` of its own."""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

import lit_loader

ROOT = Path(__file__).parents[2]

NEEDS_RAY = [
    pytest.mark.skipif(shutil.which("ray") is None, reason="needs Ray"),
    pytest.mark.timeout(280),
]


class Node:
    """One node, with all below it: ``ray start`` with these options, by the command ``under``."""

    def __init__(self, address: str, *options: str, under: Sequence[str] = ()) -> None:
        self.address = address
        self._how = options, under
        command = [*under, shutil.which("ray") or "ray", "start", "--block"]
        self.process = subprocess.Popen(
            [*command, "--disable-usage-stats", *options],
            env={**os.environ, "PYTHONPATH": str(ROOT), "RAY_AUTH_MODE": "disabled"},
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def again(self) -> "Node":
        options, under = self._how
        return Node(self.address, *options, under=under)

    def accepts(self) -> bool:
        """Whether its head can be reached: until then a loader without workers here gives up."""
        host, _, port = self.address.rpartition(":")
        with contextlib.suppress(OSError), socket.create_connection((host, int(port))):
            return True
        assert self.process.poll() is None
        os.sched_yield()
        return False

    def processes(self, name: str) -> list[Any]:
        found = []
        for process in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if name in process.name() or name in " ".join(process.cmdline()[:1]):
                    found.append(process)
        return found

    def kill(self) -> None:
        for process in self.processes(""):
            with contextlib.suppress(psutil.Error):
                process.kill()

    def close(self) -> None:
        mine = []
        with contextlib.suppress(psutil.Error):
            mine = psutil.Process(self.process.pid).children(recursive=True)
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for process in mine:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(mine, timeout=10)


def sized(cpus: int) -> list[str]:
    """Options of a small node."""
    return [f"--num-cpus={cpus}", "--object-store-memory=100000000"]


@contextlib.contextmanager
def cluster(cpus: int, host: str = "127.0.0.1") -> Iterator[list[Node]]:
    """Have a cluster of one node, the head, reached at ``host``; others may be added."""
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        port = free_port()
        head = ["--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={folder}"]
        head += [f"--node-ip-address={host}", *sized(cpus)]
        nodes = [Node(f"{host}:{port}", *head)]
        try:
            while not nodes[0].accepts():
                pass
            yield nodes
        finally:
            for node in reversed(nodes):
                node.close()


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def joining(nodes: list[Node], cpus: int, *options: str, under: Sequence[str] = ()) -> Node:
    address = nodes[0].address
    nodes.append(Node(address, f"--address={address}", *sized(cpus), *options, under=under))
    return nodes[-1]


def at(nodes: list[Node], **options: Any) -> lit_loader.RayWorkers:
    """Remote workers on this cluster, which find the package."""
    environment = {"env_vars": {"PYTHONPATH": str(ROOT)}}
    options = {"runtime_env": environment, **options}
    return lit_loader.RayWorkers(address=nodes[0].address, **options)


def joined(loader: Any) -> bool:
    """Whether remote workers have made batches."""
    return bool(loader.statistics().evidence.remote_batches)
