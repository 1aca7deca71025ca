"""What is said of an iterable dataset whose samples are not what its length or its readers promise.

Texts of warnings that `iteration/host.py` gives.
"""

from __future__ import annotations

from typing import Any

__all__ = ["broken_promise", "ignored_share"]


def broken_promise(dataset: Any, promised: int, samples: int, num_workers: int) -> str:
    """Say that a dataset gives more samples than its length says."""
    cause = (
        "; with several workers, its __iter__ must give each of them a share of its own "
        "(lit_loader.get_shard)"
        if num_workers
        else "; let its __len__ give as many as its __iter__"
    )
    return (
        f"{type(dataset).__name__} promised {promised} samples by its __len__ (which len(loader) "
        f"asked), but {samples} samples have been fetched{cause}"
    )


def ignored_share(dataset: Any, readers: int, sharded: bool) -> str:
    """Say that a dataset gives all of its readers the same.

    Args:
        dataset: The dataset.
        readers: How many readers there are, of all ranks.
        sharded: Whether their number was chosen by ``num_shards``.
    """
    kind = "num_shards" if sharded else "workers x ranks"
    more = (
        ""
        if sharded
        else ", and pass num_shards, with which the data does not depend on the number of workers "
        "and ranks"
    )
    return (
        f"{type(dataset).__name__} is iterated by {readers} readers ({kind}) "
        f"and has not asked which of them it serves, so that every sample comes {readers} times: "
        "unless that is "
        "meant, let __iter__ (of a mixture: that of each source) use "
        f"lit_loader.get_shard(){more}"
    )
