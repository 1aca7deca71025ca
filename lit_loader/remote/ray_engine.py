"""`RayEngine`: remote workers as actors on a Ray cluster; the only module that imports Ray.

::

    join ─ ray.init, ray.put(dataset) ─▶ one object, that the actors of a node share
    hire ─ RemoteWorker as an actor (SPREAD, no restarts or retries of Ray's) ─▶ _RayHandle
    hello, make, ping, watch ─ methods ─▶ Future; a batch is one buffer in the object store

Nothing waits but :meth:`RayEngine.join`. Runs in the relay alone (`remote/relay.py`), `join` and
`leave` in a thread that must live from one to the other: the processes of a cluster that Ray starts
end with it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import socket
from concurrent.futures import Future
from threading import Event
from typing import Any, Final

import numpy as np

from lit_loader.core.batch.batch_spec import Changes
from lit_loader.remote.engine import Failure, Hello, Role, UnreachableError, versions
from lit_loader.remote.ray_workers import RayWorkers

_SMALL: Final = 64 << 10
"""Bytes of an answer that goes as it is, and not through object stores."""

_SIGNS: Final = "signs of life"
"""The concurrency group of an actor that answers while it makes a batch."""

_STAYS: Final = "stays"
"""The one in which it waits for its own end."""

_NODE_DIED: Final = "node has died"
"""What Ray says of an actor that has died with its machine."""

_KNOCK: Final = 10.0
"""Seconds that the head of a cluster has to accept a connection."""


class RemoteWorker:
    """A remote worker's process: what an actor is an instance of; see `remote/maker.py`.

    The relay, which only names it, need not have torch in its memory.
    """

    def __init__(self, payload: np.typing.NDArray[np.uint8], role: Role) -> None:
        from lit_loader.remote.maker import Maker

        self._maker = Maker(payload, role)

    def hello(self) -> Hello:
        """Say what it is."""
        return Hello(platform.node(), versions())

    def set_attributes(self, changes: Changes) -> None:
        """Set attributes of the dataset: `Maker.set_attributes`."""
        self._maker.set_attributes(changes)

    def ping(self) -> None:
        """Return a sign of life, in a thread of its own."""

    def stay(self) -> None:
        """Never return, in a thread of its own: who waits for it learns when the process ends."""
        Event().wait()

    def make(self, order: bytes) -> np.typing.NDArray[np.uint8] | bytes:
        """Make a batch: `Maker.make`. Plain bytes are what Ray carries with the least work."""
        answer = self._maker.make(order)
        return answer.tobytes() if answer.size <= _SMALL else answer


class _RayHandle:
    """A remote worker, which does one order after the other, as the relay has it."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._make = actor.make.remote

    def hello(self) -> Future[Hello]:
        return self._actor.hello.remote().future()  # type: ignore[no-any-return]

    def make(self, order: bytes) -> Future[Any]:
        return self._make(order).future()  # type: ignore[no-any-return]

    def set_attributes(self, changes: Changes) -> None:
        self._actor.set_attributes.remote(changes)  # an actor does its orders in turn

    def ping(self) -> Future[object]:
        ping = self._actor.ping.options(concurrency_group=_SIGNS)
        return ping.remote().future()  # type: ignore[no-any-return]

    def watch(self) -> Future[object]:
        stay = self._actor.stay.options(concurrency_group=_STAYS)
        return stay.remote().future()  # type: ignore[no-any-return]

    def end(self) -> None:
        import ray

        with contextlib.suppress(Exception):  # it has ended
            ray.kill(self._actor, no_restart=True)


class RayEngine:
    """Has remote workers on a Ray cluster."""

    def __init__(self, config: RayWorkers) -> None:
        self._config = config
        self._payload: object = None
        self._actor: Any = None

    def join(self, payload: memoryview) -> None:
        """Reach the cluster, and bring the dataset there, pickled; or UnreachableError."""
        try:
            import ray
        except ImportError as error:
            raise UnreachableError(
                f"the package ray cannot be imported ({error}): pip install ray"
            ) from error

        # Says that a signal handler of Ray's could not be set, which is as wanted.
        logging.getLogger("ray").setLevel(logging.ERROR)
        config = self._config
        if not ray.is_initialized():
            try:
                _knock(config.address)
                ray.init(
                    address=config.address,
                    runtime_env=None if config.runtime_env is None else dict(config.runtime_env),
                    configure_logging=False,
                    logging_level=logging.ERROR,
                )
            except Exception as error:
                raise UnreachableError(_not_joined(config, error)) from error
        try:
            self._payload = ray.put(np.frombuffer(payload, np.uint8))
        except Exception as error:
            raise UnreachableError(
                f"the dataset, {len(payload):,} bytes, cannot be put into Ray's object store "
                f"({type(error).__name__}: {error}): give it more memory, or let the dataset hold "
                "paths instead of content"
            ) from error
        self._actor = ray.remote(
            num_cpus=config.cpus_per_worker,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy="SPREAD",
            concurrency_groups={_SIGNS: 1, _STAYS: 1},
            resources=None if config.resources is None else dict(config.resources),
            label_selector=None if config.label_selector is None else dict(config.label_selector),
        )(RemoteWorker)

    def hire(self, role: Role) -> _RayHandle:
        """Ask for a worker, which comes up whenever there is room for it."""
        return _RayHandle(self._actor.remote(self._payload, role))

    def explain(self, error: BaseException) -> Failure:
        """Say what an exception of a future means."""
        from ray import exceptions

        gone = isinstance(error, (exceptions.RayActorError, exceptions.WorkerCrashedError))
        lost = (exceptions.ActorUnavailableError, exceptions.ObjectLostError)
        blamed = not isinstance(error, lost) and _NODE_DIED not in str(error)
        return Failure(f"{type(error).__name__}: {_said(error):.300}", gone, blamed)

    def leave(self) -> None:
        """Leave the cluster, which ends all workers: they belong to this job."""
        import ray

        self._payload = self._actor = None
        ray.shutdown()


def _not_joined(config: RayWorkers, error: Exception) -> str:
    cause = f"{type(error).__name__}: {' '.join(str(error).split()):.200}"
    environment = "" if config.runtime_env is None else ", see what remote.runtime_env asks for"
    return (
        f"no Ray cluster can be reached at remote.address={config.address!r} ({cause}). Start one "
        f"(ray start --head), make this machine a node of it{environment}, or leave remote at None "
        "[LL501]"
    )


def _said(error: BaseException) -> str:
    """What matters of what Ray says, which may be pages; in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if getattr(error, "actor_init_failed", False):
        return f"{lines[-1]}: is lit_loader there, in this version (remote.runtime_env)?"
    if any(line.startswith("Traceback") for line in lines):
        return lines[-1]
    return " ".join(lines).partition(" There are some potential")[0]


def _knock(address: str) -> None:
    """See that somebody listens there, or OSError: Ray itself may wait forever otherwise."""
    if address == "auto":  # else found by its processes, which run
        address = os.environ.get("RAY_ADDRESS", "")
    host, _, port = address.rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), _KNOCK).close()
