"""Options that were called otherwise, or are gone: what an error says to write instead."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

__all__ = ["instead_of"]

_INSTEAD: Final = {
    "check_determinism": ("batch_size", "lit_loader.check_determinism(loader)"),
    "check_exactness": ("batch_size", "lit_loader.check_determinism(loader)"),
    "concurrent_reads": ("read_threads", "read_threads"),
    "costs": ("lengths", "lengths"),
    "costs_in": ("lengths_from", "lengths_from"),
    "exhausted": ("stopping_strategy", "stopping_strategy"),
    "pad_value": ("padding_value", "padding_value"),
    "prefetch_next_epoch": ("persistent_workers", "persistent_workers=True with seed="),
    "reads": ("read_threads", "read_threads"),
    "memory_budget": ("prefetch_factor", "a smaller prefetch_factor, or fewer workers"),
    "num_remote_workers": ("remote", "remote=RayWorkers(num_workers=…)"),
    "remote_workers": ("remote", "remote=RayWorkers(num_workers=…)"),
    "retry_backoff": ("sample_retries", "sample_retries=Retry(3, backoff=0.1)"),
    "shard_tail": ("uneven_ranks", "uneven_ranks"),
    "share": ("batch_size", "dataset.files = SharedSequence(dataset.files)"),
    "share_lists": ("batch_size", "dataset.files = SharedSequence(dataset.files)"),
    "source": ("lengths", "lengths"),
    "transient_errors": ("sample_retries", "sample_retries=Retry(3, on=[OSError])"),
}
"""By the former name: an option of what had it, and what to write."""


def instead_of(name: str, known: Collection[str]) -> str | None:
    """Return what to write for a former option; None if there was none of this name here."""
    option, text = _INSTEAD.get(name, ("", ""))
    return text if option in known else None
