"""`RayWorkers`: where remote workers come from, and what each is given; checked, imports no Ray."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from collections.abc import Mapping
from functools import partial
from typing import Final

from lit_loader.core.options import checks
from lit_loader.core.options.checks import checked, or_none
from lit_loader.describe import public
from lit_loader.errors import OptionError

__all__ = ["RayWorkers"]

_HOST_AND_PORT: Final = re.compile(r".+:\d+")


def _mapping(name: str, value: object) -> dict[str, object]:
    if not isinstance(value, Mapping):
        checks.refuse(name, "a mapping", value)
    return dict(value)


@public
@partial(checks.checks_options, prefix="remote.")
@dataclasses.dataclass(frozen=True)
class RayWorkers:
    """Remote workers of a loader: actors on the nodes of a Ray cluster.

    Needs the packages ray and cloudpickle, and lit_loader, on this machine and on the nodes.

    Attributes:
        num_workers: Remote workers of each loader and process, in addition to the loader's own.
        address: The cluster. "auto" (default) is the one of which this machine is a node, "local"
            starts one on this machine for a trial, else ``host:port``.
        cpus_per_worker: CPU cores for each remote worker, 1 by default; may be a fraction. Lower
            it if workers wait for storage.
        resources: Other resources that each worker needs, as Ray names them:
            ``{"loader_node": 0.01}``. None needs no other.
        label_selector: Labels of the nodes to use: ``{"market-type": "spot"}``. None uses all.
        runtime_env: Ray's runtime environment: packages, variables and code that the nodes do not
            have. None uses what they have.
        in_flight: Batches in flight for each worker, 2 by default. Raise it if the network is slow.
        patience: Seconds without a sign of life after which a worker is replaced, 10 by default.
            Other workers build its batches. A slow worker gives signs of life. Raise it if the
            network pauses for longer.

    Raises:
        OptionError: An option is refused.

    Examples:
        >>> from lit_loader import LoaderConfig, RayWorkers
        >>> remote = RayWorkers(num_workers=32, address="auto")
        >>> config = LoaderConfig(batch_size=64, num_workers=8, remote=remote)

        ``DataLoader`` takes the same options: 8 workers here, and 32 on the cluster.
    """

    num_workers: int = checked(1, checks.count)
    address: str = checked("auto", checks.text)
    cpus_per_worker: float = checked(1, checks.number)
    resources: Mapping[str, float] | None = checked(None, or_none(_mapping))
    label_selector: Mapping[str, str] | None = checked(None, or_none(_mapping))
    runtime_env: Mapping[str, object] | None = checked(None, or_none(_mapping))
    in_flight: int = checked(2, checks.positive)
    patience: float = checked(10.0, checks.seconds)

    def __post_init__(self) -> None:
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

    @classmethod
    def taken(cls, name: str, value: object) -> object:
        """Check the option ``remote``: one of this class, a mapping of its options, or the like.

        Raises:
            OptionError: It is neither, or an option is refused.
        """
        if isinstance(value, Mapping):
            return cls(**value)
        if isinstance(value, type) or not callable(getattr(value, "check_installed", None)):
            checks.refuse(name, "a lit_loader.RayWorkers, or a mapping of its options", value)
        return value

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
                f"remote workers need {' and '.join(missing)}. Run pip install "
                f"{' '.join(missing)}, or leave remote at None"
            )
