"""How every loader is opened and used by the benchmark: `LoaderAdapter`, `Setup`, `OpenLoader`.

A case makes a dataset and a `Setup`; an adapter opens its loader with them; the open loader gives
epoch after epoch, in turns with the others, until it is closed.
"""

from __future__ import annotations

import gc
import importlib.metadata
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch.utils.data import default_collate, default_convert

import lit_loader
from lit_loader.bench.core.names import LOADERS
from lit_loader.bench.core.processes import wait_until_idle

__all__ = [
    "CannotRun",
    "LoaderAdapter",
    "OpenLoader",
    "Reiterable",
    "Setup",
    "check_sampler_memory",
]


class CannotRun(Exception):
    """A loader cannot do what a case asks for; the text says why."""


@dataclass(frozen=True)
class Setup:
    """How a loader is opened.

    Attributes:
        batch_size: Samples a batch; None: samples are passed on one by one.
        num_workers: Worker processes; 0: none.
        prefetch_factor: Batches in flight for each.
        shuffle: Whether each epoch has a new order.
        persistent: Whether the workers outlive an epoch.
        collate_fn: Makes a batch of a list of samples; None: torch's default.
        start_method: Of the workers; None: Python's default.
        options: Further options, by torch's names.
    """

    batch_size: int | None
    num_workers: int = 2
    prefetch_factor: int = 2
    shuffle: bool = False
    persistent: bool = True
    collate_fn: Callable[[list[Any]], Any] | None = None
    start_method: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ahead(self) -> int:
        """Batches in flight at most."""
        return self.num_workers * self.prefetch_factor

    def length(self, batches: int) -> int:
        """Samples of an epoch in whose midst so many batches can be clocked.

        See `seconds_per_batch` for why the first and last ones are not.
        """
        return (batches + 2 * self.ahead) * (self.batch_size or 1)

    def collate(self) -> Callable[[Any], Any]:
        """What makes a batch of a list of samples, or of the one sample."""
        return self.collate_fn or (default_convert if self.batch_size is None else default_collate)


class OpenLoader(Protocol):
    """A loader that is open."""

    def before_turn(self) -> None:
        """Called before each turn, unclocked: takes away what was made ahead of it."""

    def epoch(self) -> Iterator[Any]:
        """Begin an epoch; gives its batches. May be left before its end."""

    def after_turn(self) -> None:
        """Called after each turn, unclocked: waits until the workers are idle."""

    def close(self) -> None:
        """End all that was started."""


class LoaderAdapter(ABC):
    """Opens one kind of loader.

    Attributes:
        name: The loader's, as in the options and tables.
    """

    name: str

    @property
    def version(self) -> str:
        """The version of the distribution that it comes in; of this one, that of the code."""
        package = LOADERS[self.name][1]
        ours = package == lit_loader.__name__
        return lit_loader.__version__ if ours else importlib.metadata.version(package)

    @abstractmethod
    def open(self, dataset: Any, setup: Setup) -> OpenLoader:
        """Open it; may start workers, or leave that to the first epoch.

        Raises:
            CannotRun: The loader has no way to do this.
        """


class Reiterable:
    """An open loader that gives an epoch at each ``iter()``."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def before_turn(self) -> None:
        """See `OpenLoader`; what it has made ahead comes first in the next epoch, unclocked."""

    def after_turn(self) -> None:
        """See `OpenLoader`."""
        wait_until_idle()

    def epoch(self) -> Iterator[Any]:
        """See `OpenLoader`."""
        return iter(self.loader)

    def close(self) -> None:
        """See `OpenLoader`."""
        close = getattr(self.loader, "close", None)
        self.loader = None
        if close is not None:
            close()
        gc.collect()  # torch's workers end with the last reference


def check_sampler_memory(dataset: Any, setup: Setup) -> None:
    """Refuse a shuffle that would end in the kernel killing this process.

    torch's ``RandomSampler`` makes an int64 tensor of the whole order, and a list of it with a
    pointer of 8 bytes and an integer of 32 for each sample.
    """
    if not setup.shuffle or setup.options.get("sampler") is not None:
        return
    from lit_loader.system.cgroups import memory_limits

    needed, available = 48 * len(dataset), memory_limits().available
    if available is not None and needed > available // 2:
        raise CannotRun(
            f"RandomSampler would take {needed / 1e9:.0f} GB, {available / 1e9:.0f} are available"
        )
