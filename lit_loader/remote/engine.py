"""`Engine`, `Handle`: what provides remote workers, and one of them, as the relay has them.

`RayEngine` (`remote/ray_engine.py`) is one; tests have one of threads.
"""

from __future__ import annotations

import importlib.metadata
import platform
from concurrent.futures import Future
from typing import Any, Final, NamedTuple, Protocol

from lit_loader import __version__
from lit_loader.core.batch.batch_spec import Changes

_PACKAGES: Final = ("torch", "numpy", "pillow")


class UnreachableError(Exception):
    """There is no cluster; the text says what to do."""


class Role(NamedTuple):
    """Which worker a remote worker is: its number, behind those of the workers here; its seed."""

    worker: int
    num_workers: int
    seed: int


class Hello(NamedTuple):
    """What a remote worker says when it has come up: its machine, and what batches depend on."""

    node: str
    versions: dict[str, str]


class Failure(NamedTuple):
    """What an exception of a future means."""

    reason: str  # in words
    gone: bool  # whether the worker is gone
    blamed: bool  # whether the job may have been the reason; not where a machine or object was lost


class Handle(Protocol):
    """A remote worker, which does one order after the other."""

    def hello(self) -> Future[Hello]:
        """Ask what it is, once it is up."""

    def make(self, order: bytes) -> Future[Any]:
        """Request a batch (`Maker.make`), after those requested before."""

    def set_attributes(self, changes: Changes) -> None:
        """Set attributes of its dataset, after the orders before and ahead of those that follow."""

    def ping(self) -> Future[object]:
        """Ask for a sign of life, whatever it does."""

    def watch(self) -> Future[object]:
        """Wait for its end, which is an exception, while it is idle, too."""

    def end(self) -> None:
        """End its process."""


class Engine(Protocol):
    """Where remote workers come from. Nothing waits but `join`."""

    def join(self, payload: memoryview) -> None:
        """Reach the cluster, and bring the dataset there, pickled; or UnreachableError."""

    def hire(self, role: Role) -> Handle:
        """Ask for a worker; it comes up when there is room for it."""

    def explain(self, error: BaseException) -> Failure:
        """Say what an exception of a future means."""

    def leave(self) -> None:
        """End all workers, and let go of the cluster."""


class RemoteConfig(Protocol):
    """Where remote workers come from: a `RayWorkers`, or an object with an ``engine()``."""

    num_workers: int
    in_flight: int
    patience: float


def versions() -> dict[str, str]:
    """What a batch may depend on besides seed and indices, by name; imports no package for it."""
    # Of this package the code that runs counts, whatever an editable installation says of it.
    found = {"python": platform.python_version(), "lit_loader": __version__}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "none"
    return found
