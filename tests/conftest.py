"""After every test nothing may be left: no process, thread, file descriptor or shared memory."""

import fcntl
import gc
import multiprocessing
import os
import random
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from hypothesis import HealthCheck, settings

from lit_loader.core.system import linux
from tests.support.huge_pages import collapse
from tests.support.samples import reads_ended
from tests.support.selection import leave_to_slow

# Programs inherit what follows from whatever has started pytest, and are not to depend on it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As after ``nohup pytest &``: tests of Ctrl-C would wait for ever.
    signal.signal(signal.SIGINT, signal.default_int_handler)
signal.pthread_sigmask(signal.SIG_SETMASK, ())
os.umask(0o022)
for name in ("PYTHONWARNINGS", "HYDRA_FULL_ERROR"):  # they print more than tests compare with
    os.environ.pop(name, None)
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # each program would compile the package anew

# Nothing depends on the machine's speed.
settings.register_profile("any", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any")

_HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")


def _descendants(pid: int) -> Iterator[int]:
    """Processes below ``pid``, read off the kernel's lists: psutil would look at all there are."""
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = task.read_text().split()
        except OSError:
            continue
        for child in map(int, children):
            yield child
            yield from _descendants(child)


def _children() -> set[int]:
    """Child processes, without multiprocessing's own helpers, which live until the end."""
    found = set()
    for pid in _descendants(os.getpid()):
        try:
            command = " ".join(psutil.Process(pid).cmdline())
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
        if not any(helper in command for helper in _HELPERS):
            found.add(pid)
    return found


def _arenas() -> set[str]:
    """Descriptors of arenas that are open, and inodes of what is mapped of them."""
    links = set()
    if os.path.exists("/proc/self/maps"):
        with open("/proc/self/maps") as maps:
            links = {line.split(maxsplit=4)[4].strip() for line in maps if "(deleted)" in line}
    for entry in os.listdir("/proc/self/fd"):
        try:
            links.add(f"{entry} {os.readlink(f'/proc/self/fd/{entry}')}")
        except OSError:
            continue
    return {link for link in links if "lit_loader" in link}


def _shared_memory() -> set[str]:
    """What this process has put into /dev/shm; the loader itself never puts anything there."""
    names = os.listdir("/dev/shm") if Path("/dev/shm").is_dir() else []
    return {name for name in names if f"_{os.getpid()}_" in name}


@pytest.fixture(autouse=True)
def said_again() -> None:
    """What is told once in a process is told once in each test."""
    pinning = sys.modules.get("lit_loader.accelerator.pin_memory")
    if pinning is not None:
        pinning._TOLD.clear()


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    children, shared, arenas = _children(), _shared_memory(), _arenas()
    yield

    def left() -> dict[str, object]:
        return {
            "threads": {t.name for t in threading.enumerate() if "lit_loader" in t.name},
            "processes": _children() - children,
            "shared memory": _shared_memory() - shared,
            "arenas": _arenas() - arenas,
        }

    if any(left().values()):
        for wait in (gc.collect, reads_ended, gc.collect):  # what waits to be collected is not left
            wait()
    assert not any(left().values()), left()


@pytest.fixture
def by_fork() -> Iterator[None]:
    """Fork where no start method is chosen, for tests of what is only there then."""
    before = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method("fork", force=True)
    yield
    multiprocessing.set_start_method(before, force=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--start-method", help="which processes have where none is chosen (default: Python's own)"
    )


def pytest_configure(config: pytest.Config) -> None:
    method = config.getoption("--start-method")
    if method:
        multiprocessing.set_start_method(method)
    if method == "forkserver" or sys.version_info >= (3, 14):
        # What the files of tests import, which each of their workers would import anew.
        multiprocessing.set_forkserver_preload(
            [
                "__main__",
                "lit_loader.core.executors.main",
                "lightning.pytorch",
                "hypothesis",
                "pytest",
            ]
        )


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before the clocks of the timeouts are started
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Where several processes run tests, let one that measures time run alone."""
    if not hasattr(item.config, "workerinput"):
        return (yield)
    folder = Path(item.config.option.basetemp).parent  # the same in every process
    alone = item.get_closest_marker("time") is not None
    with open(folder / "gate", "w") as gate, open(folder / "running", "w") as running:
        # Through the gate one by one: whoever waits to be alone is not passed by others.
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(running, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(gate, fcntl.LOCK_UN)
        try:
            return (yield)
        finally:  # said, not left to closing: forked workers have the file open, too
            fcntl.flock(running, fcntl.LOCK_UN)


@pytest.hookimpl(tryfirst=True)  # before pytest's own, which looks at the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave a part of the long matrices to ``-m slow``."""
    leave_to_slow(items)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Leave what the imports made out of later collections, which then take no time."""
    gc.collect()
    gc.freeze()
    if Path("/proc/self/maps").exists():
        collapse()


@pytest.fixture(autouse=True)
def processors_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loaders of a few workers are advised of nothing, however few processors there are."""
    advise = linux.advice_if_too_many
    monkeypatch.setattr(
        "lit_loader.loader.advice_if_too_many",
        lambda num_workers: advise(num_workers) if num_workers > 64 else None,
    )


@pytest.fixture
def gate() -> Iterator[Any]:
    """A closed `Gate`; it is opened in the end, so that nobody is left waiting."""
    from tests.support.tools import Gate

    made = Gate()
    yield made
    made.open()
    made.close()


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A Ray cluster with one node of two CPU cores; a test may add others."""
    from tests.support.ray_nodes import cluster

    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with cluster(2) as started:
        yield started


@pytest.fixture
def forked_relays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the process for remote workers, which has an interpreter of its own else: seconds."""
    from lit_loader.remote import starter

    class Forking:
        Pipe = staticmethod(multiprocessing.Pipe)

        @staticmethod
        def get_context(method: str) -> Any:
            return multiprocessing.get_context("fork")

    monkeypatch.setattr(starter, "multiprocessing", Forking)


@pytest.fixture
def generators_kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put back the global generators, and what Lightning's seed_everything sets besides."""
    import torch

    for name in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS"):
        monkeypatch.setenv(name, "0")
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    yield
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])


@pytest.fixture
def pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that there is an accelerator; a copy stands for pinning."""
    import torch

    from lit_loader.accelerator import pin_memory

    monkeypatch.setattr(pin_memory, "find_accelerator", lambda device="": 0)
    monkeypatch.setattr(pin_memory, "pin_tensor", torch.Tensor.clone)
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda device: None)


@pytest.fixture(autouse=True)
def classes_as_they_were() -> Iterator[None]:
    """Undo what Lightning does to the classes of loaders while a hook runs, if that has raised.

    It wraps some of their methods, and after a second hook takes its own wrappers for theirs.
    """
    yield
    torch_data = sys.modules.get("torch.utils.data")
    lightning = sys.modules.get("lightning.fabric.utilities.data")
    if torch_data is None or lightning is None:
        return
    for base in (torch_data.DataLoader, torch_data.BatchSampler):
        for kind in _subclasses(base):
            for name in ("__init__", "__setattr__", "__delattr__"):
                if f"__old{name}" in vars(kind):
                    delattr(kind, f"__old{name}")
                method = vars(kind).get(name)
                code = getattr(method, "__code__", None)
                while code is not None and code.co_filename == lightning.__file__:
                    method = method.__wrapped__
                    code = getattr(method, "__code__", None)
                    setattr(kind, name, method)


def _subclasses(base: type) -> Iterator[type]:
    yield base
    for kind in base.__subclasses__():
        yield from _subclasses(kind)
