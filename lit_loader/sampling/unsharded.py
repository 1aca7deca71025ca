"""Advice for a distributed job in which every process reads all of the data, perhaps by mistake."""

from __future__ import annotations

from typing import Any, Final

import torch.distributed

from lit_loader.sampling.sharded_sampler import distributed_sampler_of

__all__ = ["advice_if_unsharded"]

_OWN_SHARE: Final = (
    *("num_replicas", "world_size", "_world_size", "num_processes", "process_index"),
    *("rank", "_rank", "_distributed"),
)
"""Attributes of samplers and datasets that take the share of their rank by themselves."""


def advice_if_unsharded(
    dataset: Any, sampler: Any, iterable: bool, num_shards: int = 0
) -> str | None:
    """Say what to pass, if several processes would read the same.

    Args:
        dataset: The loader's.
        sampler: What its indices, or batches of indices, come from.
        iterable: Whether the dataset is iterated.
        num_shards: Its readers, where their number is given; 0: each worker is one.

    Returns:
        A line for a warning; None: there is one process, or something looks as if it sharded.
    """
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return None
    world = distributed.get_world_size()
    if world < 2 or distributed_sampler_of(sampler) is not None:
        return None
    if any(_shards_itself(each) for each in (dataset, sampler, getattr(sampler, "sampler", None))):
        return None
    if num_shards:
        # Not the words below: a dataset that splits by get_shard() does take a share by itself.
        return (
            f"each of the {world} processes of this job reads all {num_shards} shards of "
            f"{type(dataset).__name__}: pass num_replicas=torch.distributed.get_world_size(), "
            "rank=torch.distributed.get_rank(), or num_replicas=1, rank=0 if they are to, for the "
            "dataset splits by ranks besides"
        )
    who = type(dataset if iterable else getattr(sampler, "sampler", sampler)).__name__
    share = ", and let __iter__ take its share by lit_loader.get_shard()" if iterable else ""
    return (
        f"each of the {world} processes of this job reads all of the data, unless {who} takes a "
        "share of it by itself: then pass num_replicas=1, rank=0; else pass "
        "num_replicas=torch.distributed.get_world_size() and rank=torch.distributed.get_rank()"
        f"{share}"
    )


def _shards_itself(thing: Any) -> bool:
    return any(getattr(thing, name, None) is not None for name in _OWN_SHARE)
