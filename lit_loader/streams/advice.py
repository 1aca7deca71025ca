"""What is said of data that is read twice, by several processes or shards, or is not all there.

Texts of warnings that a loader gives. They say what was seen: a dataset may divide itself in ways
that no loader sees.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from torch.utils.data import Subset

from lit_loader.context import WORKERS
from lit_loader.core.sampling.batch_plan import distributed_sampler_of
from lit_loader.core.sampling.orders import ComputedOrder
from lit_loader.core.state.position import Shards
from lit_loader.errors import OptionError
from lit_loader.streams.digest import digest_of
from lit_loader.streams.other_streams import advice_if_unseeded, splitter_by_ranks
from lit_loader.streams.rank_store import Name, is_read_twice, processes

if TYPE_CHECKING:
    from lit_loader.core.epoch.loader_core import LoaderCore
    from lit_loader.core.options.loader_config import LoaderConfig

# reach: datasets: known by what they hold, as others (LitData, Mosaic) are
_OWN_SHARE: Final = (
    *("num_replicas", "world_size", "_world_size", "num_processes", "process_index"),
    *("rank", "_rank", "_distributed", "distributed_env", "_rank_world"),
)
"""Attributes of samplers and datasets that take the share of their rank by themselves."""


# --- data and ranks ---


def advice_before_epoch(core: LoaderCore) -> Iterator[str]:
    """Yield what is to be said of data that every process reads, or that shuffles by chance."""
    dataset, world, reads_all = core.dataset, processes(), False
    if world > 1 and core.given_replica is None and not _has_own_share(dataset):
        if core.iterable:
            reads_all = core.shards is not None
        else:
            reads_all = _reads_all(core.loader, world) and _is_the_next_ranks(core)
    if reads_all:
        name = type(dataset).__name__
        yield read_twice(f"each of the {world} processes of this job reads all of {name}")
    if core.iterable and (advice := advice_if_unseeded(dataset)) is not None:
        yield advice


def _reads_all(loader: Any, world: int) -> bool:
    """Whether a map-style dataset is seen to be read as a whole, which is no rank's share."""
    dataset, batches = loader.dataset, loader.batch_sampler
    if isinstance(batches, ComputedOrder):  # by lengths: it takes no share
        return True
    sampler: Any = loader.sampler if batches is None else getattr(batches, "sampler", None)
    is_shared = distributed_sampler_of(sampler) is not None
    if is_shared or _has_own_share(sampler) or _has_own_share(batches):
        return False
    try:
        whole: Any = dataset.dataset if isinstance(dataset, Subset) else None
        is_part = whole is not None and len(dataset) * world <= len(whole) + world
        return not is_part and len(sampler) >= len(dataset)
    except (TypeError, NotImplementedError):  # nobody knows how much is read
        return False


def _is_the_next_ranks(core: LoaderCore) -> bool:
    """Whether the next rank's dataset looks like this one; False: that is not known yet.

    A program may have made a list, or a dataset of a library, of its rank's part alone.
    """
    key, kind = "datasets compared", f"dataset {type(core.dataset).__name__}"
    name, asked, found = core.of_process.get(key) or (Name(kind), 0, None)
    if found is None:
        found = is_read_twice(name, asked + 1, digest_of([core.dataset]))
    core.of_process[key] = name, asked + 1, found
    return bool(found)


def read_twice(what: str = "two processes of this job have read the same first batch") -> str:
    """Say what to pass where several processes read the same.

    This is no error: the ranks of a tensor-parallel group are right to read everything, and so are
    the one that evaluates, and those that draw at random with a seed each.
    """
    return (
        f"{what}, so each epoch has every sample several times. Pass num_replicas='auto', "
        "and let a stream take its share by lit_loader.get_shard(); if that is intended, pass "
        "num_replicas=1, rank=0. In Lightning, LoaderDataModule passes them, unless the Trainer "
        "has use_distributed_sampler=False [LL220]"
    )


def check_split_once(dataset: object, config: LoaderConfig) -> None:
    """Refuse a stream of another library that splits by ranks what the shards split, too.

    A dataset that is split twice gives most of its samples to no one, and nothing shows it.
    """
    several = config.num_shards and config.replica is not None and config.replica[1] > 1
    if several and (splitter := splitter_by_ranks(dataset)) is not None:
        raise OptionError(
            f"{type(dataset).__name__} is split by ranks already, by {splitter}, and num_shards="
            f"{config.num_shards} shards of {config.num_replicas} ranks would split it again, so "
            "that most samples come to no rank. Leave the one or the other out"
        )


def _has_own_share(thing: object) -> bool:
    """Whether this looks as if it took its rank's share by itself."""
    return any(getattr(thing, name, None) is not None for name in _OWN_SHARE)


# --- shards and workers ---


def advice_if_idle(shards: Shards, num_workers: int) -> str | None:
    """Say so if there are more workers on this rank than shards."""
    if num_workers <= (mine := len(shards.mine)):
        return None
    where = f" on each of the {shards.replicas} ranks" if shards.replicas > 1 else ""
    return (
        f"num_shards={shards.count} keeps {mine} of the {num_workers} workers busy{where}, and the "
        f"others stay idle. Pass num_shards={shards.replicas * num_workers} or a multiple of it, "
        f"or num_workers={mine}"
    )


def ignored_share(core: LoaderCore, divided: int) -> str | None:
    """Say that a dataset gives several shards the same; None: as far as is known, not.

    It has ``divided`` itself among nobody, or the workers of a rank (see `context`).
    """
    dataset, workers, ranks = core.dataset, core.readers, core.replica[1]
    sharded = core.shards is not None
    if not sharded and (_has_own_share(dataset) or splitter_by_ranks(dataset) or processes() > 1):
        ranks = 1  # it is divided among them; or their first batches are compared
    shards = ranks if divided == WORKERS else workers * ranks
    if shards == 1:
        return None
    kind = "num_shards" if sharded else "ranks" if divided == WORKERS else "workers x ranks"
    return (
        f"{type(dataset).__name__} is read by {shards} readers ({kind}) and has not asked which of "
        f"them it serves, so each sample comes {shards} times, unless samples are drawn at random. "
        "Use lit_loader.get_shard() in __iter__ (of a mixture: of each source) [LL201]"
    )


# --- lengths ---


def broken_promise(dataset: object, promised: int, samples: int, num_workers: int) -> str:
    """Say that a dataset gives more samples than its length says."""
    cure = "Let its __len__ return what its __iter__ yields"
    if num_workers:
        cure = "With several workers its __iter__ must divide itself, by lit_loader.get_shard()"
    return (
        f"{type(dataset).__name__} promised {promised} samples by its __len__ (which len(loader) "
        f"asked), but {samples} samples have been fetched. {cure} [LL204]"
    )


def short_epoch(core: LoaderCore, promised: int | None, batches: int) -> str | None:
    """Say that an epoch of a stream had no batch, or fewer than its length says; else None.

    ``promised`` are the samples that its length says, and ``batches`` those of the whole epoch.
    """
    loader, name, readers = core.loader, type(core.dataset).__name__, core.readers
    if not batches:
        return (
            f"{name} yielded no batch in this epoch: it is empty, or has fewer files than there "
            f"are shards{', or drop_last drops the only batch' * bool(loader.drop_last)}"
        )
    if promised is None:
        return None
    size = loader.batch_size or 1
    length = promised // size if loader.drop_last else -(-promised // size)
    if batches >= length:
        return None
    cause = f"{name} yields fewer samples than its __len__ returns"
    cure = "Let __len__ return the number of samples of this rank, or remove it"
    if loader.drop_last and readers > 1 and batches > length - readers:
        cause = f"with drop_last=True each of the {readers} workers drops its last batch"
        cure = f"Pass num_shards={readers}, with which the loader has no length"
    return (
        f"len(loader) is {length}, but the epoch ended after {batches} batches, because {cause}. A "
        "loop that counts batches takes the epoch for unfinished, and Lightning does not validate. "
        f"{cure}"
    )
