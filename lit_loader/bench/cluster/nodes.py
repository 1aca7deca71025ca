"""A cluster of nodes on this machine, and what they have used."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil

__all__ = ["Node", "Store", "actors_of", "cluster", "lose", "processor_seconds", "store_of"]

_UP = 60.0
"""Seconds that nodes have to come up."""

_ACTORS = ("RemoteWorker", "MapWorker", "Making")
"""Names of actors that make batches; Ray Data has others besides."""


class Node:
    """One node: ``ray start --block``, with all below it.

    Args:
        options: Of ``ray start``.
    """

    def __init__(self, *options: str) -> None:
        command = [str(Path(sys.executable).with_name("ray")), "start", "--block"]
        self._process = subprocess.Popen(
            [*command, "--object-store-memory=1000000000", "--disable-usage-stats", *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.pid = self._process.pid

    def end(self) -> None:
        """End it, whatever has become of it, and all that it has started."""
        lose(self.pid, silent=False)
        self._process.wait()


def processes_of(pid: int) -> list[Any]:
    """A process and all below it."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return []


def actors_of(pid: int) -> int:
    """How many processes of a node make batches."""
    count = 0
    for each in processes_of(pid):
        with contextlib.suppress(psutil.Error):
            name = (each.cmdline() or [""])[0]
            count += name.startswith("ray::") and any(actor in name for actor in _ACTORS)
    return count


def lose(pid: int, silent: bool) -> None:
    """Kill all processes of a node at once; or only stop them, so that nothing answers."""
    found = processes_of(pid)
    # Stopped first: none of them is to see the others die, and say so.
    for number in (signal.SIGSTOP,) if silent else (signal.SIGSTOP, signal.SIGKILL):
        for each in found:
            with contextlib.suppress(psutil.Error):
                each.send_signal(number)


def processor_seconds() -> float:
    """Processor seconds of all processes of this machine since it began.

    Not of a node's alone: those that have ended are counted nowhere else, and Ray Data's actors end
    with each epoch.
    """
    times = psutil.cpu_times()
    return sum(getattr(times, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq"))


class Store(NamedTuple):
    """What object stores have taken in, in bytes, since their nodes began.

    Attributes:
        created: All objects.
        spilled: Those that were written to disk for want of room.
    """

    created: int
    spilled: int


def store_of(address: str) -> Store:
    """Ask all nodes of a cluster for what their object stores have taken in.

    By functions of Ray's own, those of ``ray memory``: there are no public ones that give numbers.
    """
    from ray._private.internal_api import node_stats

    created = spilled = 0
    for node in _alive(address):
        place = node["NodeManagerAddress"], node["NodeManagerPort"]
        stats = node_stats(*place, include_memory_info=False).store_stats
        created += stats.cumulative_created_bytes
        spilled += stats.spilled_bytes_total
    return Store(created, spilled)


def _alive(address: str) -> list[dict[str, Any]]:
    from ray._private.internal_api import get_state_from_address

    state = get_state_from_address(address)
    try:
        return [node for node in state.node_table() if node["Alive"]]
    finally:
        state.disconnect()


@contextlib.contextmanager
def cluster(folder: str, cpus: int, *others: int) -> Iterator[tuple[str, list[Node]]]:
    """Have a cluster: its address, and its nodes, the head first.

    Args:
        folder: Where Ray keeps its files; a short path.
        cpus: Processors of the head.
        others: Processors of each further node.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"127.0.0.1:{port}"
    head = ("--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={folder}")
    nodes = [Node(*head, "--node-ip-address=127.0.0.1", f"--num-cpus={cpus}")]
    try:
        _wait_for(address, 1)
        for each in others:  # one after the other: at once, two of them may choose the same names
            nodes.append(Node(f"--address={address}", f"--num-cpus={each}"))
            _wait_for(address, len(nodes))
        yield address, nodes
    finally:
        for node in reversed(nodes):
            node.end()


def _wait_for(address: str, count: int) -> None:
    """Wait until so many nodes are there."""
    host, _, port = address.rpartition(":")
    until = time.monotonic() + _UP
    while time.monotonic() < until:
        # Ray's own client of the head would wait for one that is not there.
        with contextlib.suppress(OSError):
            socket.create_connection((host, int(port)), 1).close()
            with contextlib.suppress(Exception):
                if len(_alive(address)) >= count:
                    return
        time.sleep(0.2)
    sys.exit(f"a cluster of {count} nodes did not come up in {_UP:.0f} s: try ray start --head")
