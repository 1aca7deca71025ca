"""Options of a loader that rule one another out; used by `config/loader_config.py`."""

from __future__ import annotations

from typing import Any

from lit_loader.describe import short_repr
from lit_loader.errors import OptionError

__all__ = ["check_sharding", "check_workers"]


def check_workers(config: Any) -> None:
    """Refuse options of workers that do not fit together, or have no workers.

    Raises:
        OptionError: There are some.
    """
    if config.num_workers == "auto" and config.seeding == "worker":
        raise OptionError(
            "num_workers='auto' needs batches that do not depend on who makes them: set "
            "seeding to 'batch' or 'sample', or num_workers to a number, got seeding='worker'"
        )
    if config.remote_workers and config.seeding == "worker":
        raise OptionError(
            "remote_workers needs batches that do not depend on who makes them: set seeding to "
            f"'batch' or 'sample', got seeding='worker', remote_workers={config.remote_workers}"
        )
    if config.num_workers or config.remote_workers:
        return
    for name in ("persistent_workers", "prefetch_factor", "timeout", "multiprocessing_context"):
        value, default = getattr(config, name), getattr(type(config), name)
        if value != default:
            raise OptionError(
                f"{name} needs worker processes: set num_workers to at least 1 or leave "
                f"{name} at {default!r} (a preset may have set it: in Hydra, "
                f"lit_loader/loader@loader=debug is without workers), got "
                f"{name}={short_repr(value)} and num_workers=0"
            )


def check_sharding(config: Any) -> None:
    """Refuse options of ranks and readers that do not fit together.

    Raises:
        OptionError: There are some.
    """
    if (config.rank is None) != (config.num_replicas is None):
        raise OptionError(
            "rank and num_replicas are given together or not at all, "
            f"got rank={config.rank} and num_replicas={config.num_replicas}"
        )
    if config.rank is not None and config.rank >= (config.num_replicas or 0):
        raise OptionError(
            "rank must be less than num_replicas, "
            f"got rank={config.rank} and num_replicas={config.num_replicas}"
        )
    shards, replicas = config.num_shards, config.num_replicas or 1
    if shards is None:
        return
    if shards % replicas:
        fitting = [replicas * max(1, shards // replicas + more) for more in (0, 1)]
        raise OptionError(
            "num_shards must be a multiple of num_replicas, so that all ranks serve as many "
            f"readers: use {' or '.join(map(str, dict.fromkeys(fitting)))}, "
            f"got num_shards={shards} and num_replicas={replicas}"
        )
    if config.shard_tail == "drop":
        for name, needed in (("in_order", True), ("memory_budget", None)):
            if (value := getattr(config, name)) != needed:
                raise OptionError(
                    "shard_tail='drop' with num_shards holds each round back until it is whole: "
                    f"leave {name} at {needed!r}, or pass shard_tail='pad' or 'keep', got "
                    f"{name}={short_repr(value)} and num_shards={shards}"
                )
    if config.seeding == "worker":
        raise OptionError(
            "num_shards makes readers that do not depend on workers: set seeding to 'batch' or "
            f"'sample', got num_shards={shards} and seeding='worker'"
        )
