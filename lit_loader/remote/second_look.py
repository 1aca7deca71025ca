"""`SecondLook`: makes some batches of remote workers again on this machine, and compares.

::

    first batch of a node, and a share of all ─▶ queue ─▶ thread: Maker ─▶ difference? ─▶ warning

Used by the relay, in a thread of its own: nothing waits for it, and a batch that comes while it is
behind is passed over. What may explain a difference, the versions of packages, is compared when a
node's first worker comes up.
"""

from __future__ import annotations

import importlib.metadata
import platform
import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from lit_loader import __version__
from lit_loader.core.transport.messages import SIZE, Status, position_of, unpack
from lit_loader.remote.crew import Hello, Role

if TYPE_CHECKING:
    from lit_loader.remote.maker import Maker

__all__ = ["SecondLook", "versions"]

_BEHIND: Final = 4
"""Batches that may wait to be compared."""

_PACKAGES: Final = ("torch", "numpy", "pillow")


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


class SecondLook:
    """Compares versions, the first batch of each node, and a ``share`` of all.

    ``tell`` is called with a warning's text, in whatever thread.
    """

    def __init__(
        self, payload: NDArray[np.uint8], share: float, tell: Callable[[str], None]
    ) -> None:
        self._payload = payload
        self._share = share
        self._tell = tell
        self._owed = 0.0
        self._nodes: set[str] = set()
        self._compared: set[str] = set()
        self._queue: queue.Queue[tuple[str, bytes, NDArray[np.uint8]]] = queue.Queue(_BEHIND)
        self._thread: threading.Thread | None = None

    def meet(self, hello: Hello) -> None:
        """See a worker of a node, and compare the versions there with those here."""
        if hello.node in self._nodes:
            return
        self._nodes.add(hello.node)
        other = [
            f"{name} {hello.versions.get(name, 'none')} there, {version} here"
            for name, version in versions().items()
            if hello.versions.get(name, "none") != version
        ]
        if other:
            self._tell(
                f"node {hello.node} has other versions than this machine: {'; '.join(other)}. Its "
                "batches may differ in their bytes: install the same (remote.runtime_env) [LL410]"
            )

    def note(self, node: str, order: bytes, answer: NDArray[np.uint8]) -> None:
        """See a batch, which is compared if it is its turn."""
        if _reply(answer).status != Status.DONE:
            return
        self._owed += self._share
        if node in self._compared and self._owed < 1:
            return
        try:
            self._queue.put_nowait((node, order, answer.copy()))  # what it lies in is let go of
        except queue.Full:
            return
        self._owed = max(0.0, self._owed - 1)
        self._compared.add(node)
        if self._thread is None:
            self._thread = threading.Thread(target=self._compare_all, daemon=True)
            self._thread.start()

    def _compare_all(self) -> None:
        from lit_loader.remote.maker import Maker

        maker = Maker(self._payload, Role(0, 1, 0))
        while True:
            node, order, answer = self._queue.get()
            found = _compared(maker, order, answer)
            if found is not None:
                task: Any = unpack(order)
                self._tell(
                    f"batch {position_of(task.number)} of epoch {task.epoch}, made on node {node}, "
                    f"came out otherwise when it was made again here: {found}. Something in it is "
                    "not a function of seed and index, or depends on the machine (versions, "
                    "processor) [LL409]"
                )


def _compared(maker: Maker, order: bytes, answer: NDArray[np.uint8]) -> str | None:
    """Say where a batch differs that is made again; None: nowhere."""
    from lit_loader.core.batch.digest import difference, digest

    again = maker.make(order)
    if _reply(again).status != Status.DONE:
        return "it failed"
    return difference(digest(_batch(answer)), digest(_batch(again)))


def _reply(answer: NDArray[np.uint8]) -> Any:
    return unpack(answer[:SIZE].tobytes())


def _batch(answer: NDArray[np.uint8]) -> Any:
    from lit_loader.core.batch.batch_spec import BatchWithReport
    from lit_loader.core.transport.codec import decode

    reply = _reply(answer)
    batch = decode(answer[SIZE:].copy(), reply.at, reply.nbytes)
    return batch.batch if isinstance(batch, BatchWithReport) else batch
