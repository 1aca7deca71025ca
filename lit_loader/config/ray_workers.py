"""`RayWorkers`: where remote workers come from, and what each is given; checked, imports no Ray."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from lit_loader.config import checks
from lit_loader.describe import public
from lit_loader.errors import OptionError

__all__ = ["RayWorkers", "check_use", "remote_from"]


@public
@dataclasses.dataclass(frozen=True)
class RayWorkers:
    """Remote workers of a loader: actors on the nodes of a Ray cluster.

    Needs ``pip install 'lit_loader[ray]'``, here and on the nodes.

    Attributes:
        address: The cluster: ``"auto"`` is the one that this machine is a node of, ``"local"``
            starts one of this machine alone, for trying out; else ``host:port``.
        cpus_per_worker: Processors that each remote worker is given; may be a fraction.
        resources: Other resources that each needs, as Ray names them: ``{"loader_node": 0.01}``.
        label_selector: Labels of the nodes that may be used: ``{"market-type": "spot"}``.
        runtime_env: Ray's runtime environment: packages, variables, code that nodes do not have.
        in_flight: Batches that each is at, or has waiting, so that it need not wait for the next.
        patience: Seconds without a sign of life, after which a worker's batches are made elsewhere.
            One that is only slow answers, and is waited for.
        verify: The share of the batches that this machine makes again, and compares: 0.001 is one
            in a thousand. Of each node one batch is compared in any case. Of streams only batches
            count that a reader begins with when it has come from another worker.

    Raises:
        OptionError: An option is refused.
    """

    address: str = "auto"
    cpus_per_worker: float = 1
    resources: Mapping[str, float] | None = None
    label_selector: Mapping[str, str] | None = None
    runtime_env: Mapping[str, Any] | None = None
    in_flight: int = 2
    patience: float = 5.0
    verify: float = 0.0

    def __post_init__(self) -> None:
        for name, check in _CHECKS.items():
            object.__setattr__(self, name, check(f"remote.{name}", getattr(self, name)))
        if self.address.startswith("ray://"):
            raise OptionError(
                "remote.address must be that of a cluster which this machine is a node of ('auto', "
                "host:port): Ray's client, ray://, carries 0.15 GB/s, too little for batches; got "
                f"remote.address={self.address!r}"
            )
        for name, least in (("patience", 0), ("cpus_per_worker", 0)):
            if getattr(self, name) <= least:
                checks.refuse(f"remote.{name}", "more than 0", getattr(self, name))
        if self.address not in ("auto", "local") and not _HOST_AND_PORT.fullmatch(self.address):
            checks.refuse("remote.address", "'auto', 'local' or host:port", self.address)
        if self.verify > 1:
            checks.refuse("remote.verify", "a share of the batches, from 0 to 1", self.verify)

    def check_installed(self) -> None:
        """Ask for Ray before anything is started; imports nothing.

        Raises:
            OptionError: It is not installed.
        """
        missing = [
            name for name in ("ray", "cloudpickle") if importlib.util.find_spec(name) is None
        ]
        if missing:
            raise OptionError(
                f"remote_workers needs {' and '.join(missing)}: pip install 'lit_loader[ray]', or "
                "set remote_workers=0"
            )


def check_use(config: Any) -> None:
    """Refuse remote workers for an iterable dataset, where its readers are the workers.

    Raises:
        OptionError: They are, or there is no worker here.
    """
    if config.num_shards is None:
        raise OptionError(
            "remote_workers does not apply to an IterableDataset without num_shards, whose shares "
            f"belong to the workers here: pass num_shards, got remote_workers="
            f"{config.remote_workers}"
        )
    if config.num_workers == 0:
        raise OptionError(
            "remote_workers make no batches of an IterableDataset, whose readers stay on this "
            "machine: set num_workers to at least 1, got num_workers=0 and "
            f"remote_workers={config.remote_workers}"
        )


def remote_from(name: str, value: Any) -> Any:
    """Check the option ``remote``: a `RayWorkers`, a mapping of its options, or the like of it."""
    if isinstance(value, Mapping):
        known = [field.name for field in dataclasses.fields(RayWorkers)]
        checks.known_options(value, known, place="remote.")
        return RayWorkers(**value)
    if isinstance(value, type) or not callable(getattr(value, "check_installed", None)):
        checks.refuse(name, "a lit_loader.RayWorkers, or a mapping of its options", value)
    return value


def _mapping(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        checks.refuse(name, "a mapping", value)
    return dict(value)


_HOST_AND_PORT: Final = re.compile(r".+:\d+")


_CHECKS: Final[dict[str, Callable[[str, Any], Any]]] = {
    "address": checks.text,
    "cpus_per_worker": checks.number,
    "resources": checks.or_none(_mapping),
    "label_selector": checks.or_none(_mapping),
    "runtime_env": checks.or_none(_mapping),
    "in_flight": partial(checks.whole_number, low=1),
    "patience": checks.seconds,
    "verify": checks.number,
}
