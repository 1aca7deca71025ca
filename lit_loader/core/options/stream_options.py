"""Options that rule one another out because of `num_shards`, or of an iterable dataset.

Asked by `LoaderConfig` and by the loader; imports neither torch nor Hydra, as they.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def conflicts(config: Any) -> Iterator[tuple[str, ...]]:
    """Say what does not go together with a number of shards, for `LoaderConfig.refuse`."""
    shards, replicas = config.num_shards, config.replica[1] if config.replica else 1
    if shards % replicas:
        text = "num_shards must be a multiple of num_replicas, so that ranks read equally many"
        yield text, "num_shards", "num_replicas"
    if config.uneven_ranks == "drop":
        yield (
            "uneven_ranks='drop' is for map-style datasets, because nobody knows in advance which "
            "shard of a stream ends first: use 'pad', which repeats batches, or 'keep'",
            *("num_shards", "uneven_ranks"),
        )


def check_kind(config: Any, iterable: bool) -> None:
    """Refuse what an iterable dataset rules out, or num_shards one that is not: an OptionError."""
    if iterable:
        config.refuse(_conflicts_of_streams(config))
    elif config.num_shards is not None:
        config.refuse(iter([("num_shards is for an IterableDataset: leave it at", "num_shards")]))


def _conflicts_of_streams(config: Any) -> Iterator[tuple[str, ...]]:
    order, no_indices = "which decides its own order", "which has no indices"
    refused = {
        **{name: order for name in ("shuffle", "sampler", "batch_sampler")},
        "remote": "whose shards stay on this machine",
    }
    if config.read_threads > 1:
        refused["read_threads"] = f"{no_indices} (use threads in its __iter__)"
    for name, why in refused.items():
        if getattr(config, name):
            yield f"{name} does not apply to an IterableDataset, {why}: leave it at", name
    if config.on_sample_error == "replace":
        text = f"'replace' does not apply to an IterableDataset, {no_indices}: use 'skip'"
        yield f"on_sample_error={text}", "on_sample_error"
    if config.num_workers == "auto" and config.num_shards is None:
        yield (
            "num_workers='auto' does not apply to an IterableDataset without num_shards, whose "
            "data depends on the number of workers: pass num_shards",
            "num_workers",
        )
