"""Any batch of any epoch looked up: which samples it holds, and a state that leads there.

Both follow from the plan alone, for orders that are computed: nothing is drawn or begun.
"""

from __future__ import annotations

import copy
from dataclasses import replace

from lit_loader.core.epoch.loader_checkpoint import state_of
from lit_loader.core.epoch.loader_core import LoaderCore
from lit_loader.core.options.checks import whole_number
from lit_loader.core.sampling.batch_plan import BatchPlan, ComputedBatches
from lit_loader.core.sampling.orders import epoch_number
from lit_loader.core.state.position import Position, Root
from lit_loader.core.transport.messages import listed
from lit_loader.errors import OptionError

__all__ = ["indices_of", "state_at"]


def indices_of(core: LoaderCore, epoch: int, batch: int, rank: int | None) -> object:
    """Return what `DataLoader.indices_of` returns."""
    plan, place = _computed(core, "indices_of"), _start(core, epoch, "indices_of")
    if rank is not None:
        rank = whole_number("rank", rank, low=0, below=plan.num_replicas)
        plan = copy.copy(plan)
        plan.shard = replace(plan.shard, rank=rank)
    number = whole_number("batch", batch, low=0)
    return listed(ComputedBatches(plan, place).at(number))


def state_at(core: LoaderCore, epoch: int, batch: int) -> dict[str, object]:
    """Return what `DataLoader.state_at` returns."""
    plan, place = _computed(core, "state_at"), _start(core, epoch, "state_at")
    most = -(-len(plan.source) // plan.global_size)
    number = whole_number("batch", batch, low=0, below=most + 1)
    return state_of(core, place._replace(batches=number))


def _start(core: LoaderCore, epoch: int, what: str) -> Position:
    """Return the start of an epoch's first pass; an OptionError without a seed to know it by."""
    number = epoch_number(whole_number("epoch", epoch, low=0))
    base, plan = core.seeds.seed, core.plan
    if base is None and plan is not None and plan.is_shuffled and plan.distributed is None:
        raise OptionError(
            f"{what} needs a loader with seed=. Without it, each pass draws its seed when it begins"
        )
    distributed = None if plan is None else plan.distributed
    return Position(number, Root(base or 0, "base"), distributed=distributed)


def _computed(core: LoaderCore, what: str) -> BatchPlan:
    core.follow_samplers()
    plan = core.plan
    if plan is None:
        why = f"{type(core.loader.dataset).__name__} is an IterableDataset, whose samples come as "
        why += "it gives them"
    elif not plan.is_computed:
        why = f"{type(plan.source).__name__} is iterated, so that a batch is known once it is drawn"
    else:
        return plan
    raise TypeError(
        f"lit_loader: {what} is of orders that are computed (shuffle, DistributedSampler, and "
        f"lit_loader's own samplers), but {why}. Keep the indices with the samples, or a "
        "state_dict() of each place"
    )
