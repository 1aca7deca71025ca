"""After every test nothing may be left: no process, thread, file descriptor or shared memory."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

_HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")


def _children() -> set[int]:
    """Child processes, without multiprocessing's own helpers, which live until the end."""
    found = set()
    for child in psutil.Process().children(recursive=True):
        try:
            command = " ".join(child.cmdline())
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
        if not any(helper in command for helper in _HELPERS):
            found.add(child.pid)
    return found


def _descriptors() -> dict[str, str]:
    """Open descriptors of the kinds that the loader makes: pipes, memfds, temporary files."""
    found = {}
    for entry in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{entry}")
        except OSError:
            continue
        if target.startswith(("pipe:", "/memfd:lit_loader", "anon_inode:[pidfd]")):
            found[entry] = target
    return found


def _shared_memory() -> set[str]:
    """What this process has put into /dev/shm; the loader itself never puts anything there."""
    names = os.listdir("/dev/shm") if Path("/dev/shm").is_dir() else []
    return {name for name in names if f"_{os.getpid()}_" in name}


def _threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if "lit_loader" in thread.name}


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Compare what is there before and after each test."""
    children, shared = _children(), _shared_memory()
    descriptors = set(_descriptors().values())
    yield
    gc.collect()
    assert not _threads(), "threads left behind"
    assert _children() <= children, "processes left behind"
    assert _shared_memory() <= shared, "shared memory left behind"
    extra = [t for t in _descriptors().values() if t not in descriptors and "lit_loader" in t]
    assert not extra, "arenas left open"
