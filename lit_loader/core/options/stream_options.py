"""Options that rule one another out because of `num_shards`, or of an iterable dataset.

Asked by `LoaderConfig` and by the loader; imports neither torch nor Hydra, as they.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

__all__ = ["check_kind", "conflicts"]


def conflicts(config: Any) -> Iterator[tuple[str, ...]]:
    """Say what does not go together with a number of shards, for `LoaderConfig.refuse`."""
    shards, replicas = config.num_shards, config.replica[1] if config.replica else 1
    if shards % replicas:
        fitting = [replicas * max(1, shards // replicas + more) for more in (0, 1)]
        yield (
            "num_shards must be a multiple of num_replicas, so that all ranks read the same number "
            f"of shards: use {' or '.join(map(str, dict.fromkeys(fitting)))}",
            *("num_shards", "num_replicas"),
        )
    if config.uneven_ranks == "drop":
        yield (
            "uneven_ranks='drop' is for map-style datasets, because nobody knows in advance which "
            "shard of a stream ends first: use 'pad', which repeats batches, or 'keep'",
            *("num_shards", "uneven_ranks"),
        )


def check_kind(config: Any, iterable: bool) -> None:
    """Refuse what an iterable dataset rules out, or num_shards one that is not: an OptionError."""
    config.refuse(_conflicts_with(config, iterable))


def _conflicts_with(config: Any, iterable: bool) -> Iterator[tuple[str, ...]]:
    if not iterable:
        if config.num_shards is not None:
            yield "num_shards is for an IterableDataset: leave it at None", "num_shards"
        return
    refused = {
        "shuffle": "which decides its own order: leave it at None",
        "sampler": "which decides its own order: leave it at None",
        "batch_sampler": "which decides its own order: leave it at None",
    }
    if config.remote_workers:
        refused["remote"] = "whose shards stay on this machine: leave it at None"
    for name, why in refused.items():
        if getattr(config, name):
            yield f"{name} does not apply to an IterableDataset, {why}", name
    if config.read_threads > 1:
        yield (
            "read_threads reads samples by their indices, and an IterableDataset has none: leave "
            "read_threads at 0, and use threads in its __iter__",
            "read_threads",
        )
    if config.on_sample_error == "replace":
        yield (
            "on_sample_error='replace' does not apply to an IterableDataset, which has no "
            "indices to choose from: use 'skip' or 'raise'",
            "on_sample_error",
        )
    if config.num_workers == "auto" and config.num_shards is None:
        yield (
            "num_workers='auto' does not apply to an IterableDataset without num_shards, whose "
            "data depends on the number of workers: pass num_shards",
            "num_workers",
        )
