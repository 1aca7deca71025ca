"""What is said of data that is read twice, by several processes or readers, or is not all there.

Texts of warnings that a loader gives.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch.distributed

from lit_loader.context import WORKERS
from lit_loader.core.sampling.batch_plan import distributed_sampler_of
from lit_loader.core.state.position import Shards
from lit_loader.errors import OptionError
from lit_loader.streams.other_streams import (
    advice_if_it_sleeps,
    advice_if_unseeded,
    splitter_by_ranks,
)

__all__ = [
    *("advice_before_epoch", "check_split_once"),
    *("advice_if_idle", "advice_if_split_twice", "advice_if_unsharded"),
    *("broken_promise", "dropped_batches", "ignored_share"),
]

# reach: datasets: known by what they hold, as others (LitData, Mosaic) are
_OWN_SHARE: Final = (
    *("num_replicas", "world_size", "_world_size", "num_processes", "process_index"),
    *("rank", "_rank", "_distributed", "distributed_env", "_rank_world"),
)
"""Attributes of samplers and datasets that take the share of their rank by themselves."""


def advice_before_epoch(core: Any) -> Iterator[str]:
    """Give what is to be told of data that a loader divides, or that nobody does."""
    loader = core.loader
    if core.given_replica is None:
        shown = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
        found = [advice_if_unsharded(core.dataset, shown, core.iterable, core.shards)]
    else:
        found = [core.shards and advice_if_split_twice(core.dataset, core.shards)]
    if core.iterable:
        found += [advice_if_unseeded(core.dataset), advice_if_it_sleeps(core.dataset)]
    yield from filter(None, found)


def advice_if_unsharded(
    dataset: Any, sampler: Any, iterable: bool, shards: Shards | None = None
) -> str | None:
    """Say what to pass, if several processes would read the same; None: there is one, or it shards.

    "It shards" if a dataset or sampler looks as if it took its rank's share by itself.
    """
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return None
    world = distributed.get_world_size()
    if world < 2 or distributed_sampler_of(sampler) is not None:
        return None
    if any(_own_share(each) for each in (dataset, sampler, getattr(sampler, "sampler", None))):
        return None
    if shards is not None:
        # Not the words below: a dataset that splits by get_shard() does take a share by itself.
        return (
            f"each of the {world} processes of this job reads all {shards.count} shards of "
            f"{type(dataset).__name__}: pass num_replicas=torch.distributed.get_world_size(), "
            "rank=torch.distributed.get_rank(), or num_replicas=1, rank=0 if they are to, for the "
            f"dataset splits by ranks besides; {_IN_LIGHTNING} [LL215]"
        )
    who = type(dataset if iterable else getattr(sampler, "sampler", sampler)).__name__
    share = ", and let __iter__ take its share by lit_loader.get_shard()" if iterable else ""
    # No error: the ranks of a tensor-parallel group are right to read everything, so are the one
    # that evaluates, and those that draw at random with a seed each.
    return (
        f"each of the {world} processes of this job reads all of the data, so a sample comes "
        f"{world} times an epoch: pass num_replicas=torch.distributed.get_world_size() and "
        f"rank=torch.distributed.get_rank(){share}; if it is meant (one rank evaluates, ranks hold "
        f"parts of one model, {who} takes a share by itself), pass num_replicas=1, rank=0; "
        f"{_IN_LIGHTNING} [LL220]"
    )


_IN_LIGHTNING: Final = (
    "in Lightning, where the ranks are not known before the Trainer has started them, "
    "LoaderDataModule passes them, unless the Trainer has use_distributed_sampler=False"
)


def advice_if_split_twice(dataset: Any, shards: Shards) -> str | None:
    """Say so if readers of several ranks read what seems to be divided among the ranks already."""
    name = _own_share(dataset)
    if shards.replicas == 1 or name is None:
        return None
    return (
        f"{type(dataset).__name__} has an attribute {name!r}: if it takes the share of its rank by "
        f"itself, samples are lost, for num_shards={shards.count} readers are divided among the "
        f"{shards.replicas} ranks besides; let it take its share by lit_loader.get_shard() alone "
        "[LL214]"
    )


def check_split_once(dataset: Any, config: Any) -> None:
    """Refuse a stream of another library that splits by ranks what the readers split, too.

    A dataset that is split twice gives most of its samples to no one, and nothing shows it.
    """
    several = config.num_shards and (config.num_replicas or 1) > 1
    if several and (splitter := splitter_by_ranks(dataset)) is not None:
        raise OptionError(
            f"{type(dataset).__name__} is split by ranks already, by {splitter}, and num_shards="
            f"{config.num_shards} readers of {config.num_replicas} ranks would split it once more, "
            "so that most samples come to no rank: leave the one or the other out [LL213]"
        )


def advice_if_idle(shards: Shards | None, num_workers: int, num_remote_workers: int) -> str | None:
    """Say so if there are more workers on this rank than readers, or any elsewhere."""
    if num_remote_workers:
        return (
            f"num_remote_workers={num_remote_workers} make no batches of an IterableDataset: its "
            "readers stay on this machine [LL509]"
        )
    if shards is None or num_workers <= (readers := len(shards.mine)):
        return None
    each = f"{readers} reader" + ("s" if readers > 1 else "")
    where = f" on each of the {shards.replicas} ranks" if shards.replicas > 1 else ""
    return (
        f"num_shards={shards.count} are {each}{where}, and {num_workers - readers} of the "
        f"{num_workers} workers stay idle: pass num_shards={shards.replicas * num_workers} or a "
        f"multiple of it, or num_workers={readers} [LL030]"
    )


def _own_share(thing: Any) -> str | None:
    """Name what looks as if it took its rank's share by itself; None: nothing does."""
    return next((name for name in _OWN_SHARE if getattr(thing, name, None) is not None), None)


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
        f"asked), but {samples} samples have been fetched{cause} [LL204]"
    )


def dropped_batches(loader: Any, promised: int, batches: int, readers: int) -> str | None:
    """Say that workers have dropped more of a stream than one partial batch; None: they have not.

    ``promised`` are the samples that its length says, and ``batches`` those of the whole epoch.
    """
    size = loader.batch_size
    if not (loader.drop_last and size and readers > 1):
        return None
    length = promised // size
    if not length - readers < batches < length:  # fewer for another reason, or none
        return None
    return (
        f"len(loader) is {length}, and the epoch has ended after {batches}: with drop_last=True "
        f"each of the {readers} workers drops its last, partial batch of "
        f"{type(loader.dataset).__name__}. A loop that counts batches takes the epoch for "
        "unfinished (Lightning does not validate then): "
        f"pass num_shards={readers}, with which the loader has no length and its end counts "
        "[LL205]"
    )


def ignored_share(
    dataset: Any, divided: int, readers: int, ranks: int, sharded: bool
) -> str | None:
    """Say that a dataset gives several of its readers the same; None: as far as is known, not.

    It has ``divided`` itself among nobody, or the workers of a rank (see `context`).
    """
    if not sharded and (_own_share(dataset) or splitter_by_ranks(dataset)):
        ranks = 1  # it is divided among them
    readers = ranks if divided == WORKERS else readers * ranks
    if readers == 1:
        return None
    if divided == WORKERS:
        return (
            f"{type(dataset).__name__} is iterated on {ranks} ranks and has asked "
            "get_worker_info() which worker it serves, which says nothing of ranks, so that every "
            f"sample comes {ranks} times: unless it takes the share of its rank by itself, let "
            "__iter__ use lit_loader.get_shard(), or pass num_shards, with which get_worker_info() "
            "counts the readers of all ranks [LL202]"
        )
    kind, more = "num_shards", ""
    if not sharded:
        kind = "workers x ranks"
        more = ", and pass num_shards, with which the data does not depend on the number of workers"
        more += " and ranks"
    return (
        f"{type(dataset).__name__} is iterated by {readers} readers ({kind}) and has not asked "
        f"which of them it serves: unless its samples are drawn at random, each comes {readers} "
        "times; let __iter__ (of a mixture: that of each source) use lit_loader.get_shard()"
        f"{more} [LL201]"
    )
