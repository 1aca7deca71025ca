"""A loader's state, taken and loaded: what ``state_dict`` and ``load_state_dict`` do.

::

    Epochs.now() ─▶ Position ─ with the loader's fingerprint ─▶ LoaderState ─▶ dict
    dict ─▶ LoaderState ─ compared, translated to this loader's batches ─▶ Position ─▶ Epochs.load()
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.utils.data import DistributedSampler

from lit_loader.checkpoint.fingerprint import Fingerprint, fingerprint_of
from lit_loader.checkpoint.loader_state import LoaderState
from lit_loader.checkpoint.other_streams import has_methods
from lit_loader.checkpoint.reader_states import COUNT
from lit_loader.iteration.core import LoaderCore
from lit_loader.sampling.orders import ShuffledSampler
from lit_loader.sampling.shown_samplers import SHUFFLED, order_name

__all__ = ["load_state", "take_state"]


def take_state(loader: Any, core: LoaderCore) -> dict[str, Any]:
    """Give the state of a loader as a new dict of primitives.

    Args:
        loader: The loader.
        core: Its own.
    """
    plan = core.plan
    if plan is not None and has_methods(loader.dataset):
        core.warn_once(
            f"{type(loader.dataset).__name__} has state_dict and load_state_dict, which are not "
            "called: a map-style dataset is read by whichever worker is free, so that each sample "
            "must follow from its index, get_epoch() and the random generators alone"
        )
    position = core.epochs.now()
    if plan is not None and plan.sampler.wanders:
        core.warn_once(
            f"the order of {type(plan.source).__name__} changes from epoch to epoch and is not "
            "part of the state: resumed in a later epoch, the sampler may give another order; give "
            "it state_dict and load_state_dict, or make its order a function of set_epoch's epoch"
        )
    batches = position.batches
    samples = batches if plan is None else plan.samples_after(batches)
    fingerprint = _fingerprint(loader, core, position.seed)
    return LoaderState.at(position, samples, fingerprint, core.shards).to_dict()


def load_state(loader: Any, core: LoaderCore, state: Mapping[str, Any]) -> None:
    """Let a loader's next iterator begin where a state was taken; refused, it changes nothing.

    Args:
        loader: The loader.
        core: Its own.
        state: What `take_state` gave, of this loader or of another one.

    Raises:
        StateError: The state does not fit.
    """
    core.follow_samplers()
    loaded = LoaderState.from_dict(state)
    core.reads_again = False
    base_seed, plan = core.base_seed, core.plan
    # Where no seed was chosen, the state's is taken over: the data goes on as it would have.
    adopted = None if base_seed.chosen else loaded.seed
    seed = base_seed.given() if adopted is None else adopted
    fingerprint = _fingerprint(loader, core, seed)
    # So is the kind of shuffled order: where there are ranks it is DistributedSampler's.
    order = loaded.fingerprint.get("order")
    if {order, fingerprint["order"]} <= SHUFFLED:
        fingerprint["order"] = order
    with_workers = loader.num_workers > 0
    position = loaded.to_position(fingerprint, plan, with_workers, core.shards)
    core.epochs.load(position)  # may refuse it, too
    core.reads_again = loaded.reads_again
    if adopted is not None:
        base_seed.resumed = adopted
        if base_seed.sampler not in (None, 0, adopted):  # 0: most likely torch's default
            core.warn_once(
                f"the state was taken with seed={adopted}, and the order goes on with that: the "
                f"sampler's own seed={base_seed.sampler} has no effect; make the sampler with the "
                "state's seed, or begin without the state to have another order"
            )
    if plan is not None and isinstance(plan.source, ShuffledSampler):
        plan.source.as_distributed = order == DistributedSampler.__name__


def _fingerprint(loader: Any, core: LoaderCore, seed: int) -> Fingerprint:
    """What a position in the data depends on."""
    try:
        length: int | None = len(loader.dataset)
    except (TypeError, NotImplementedError):
        length = None
    plan = core.plan
    common: Fingerprint = {"dataset_length": length, "seed": seed, "seeding": loader.seeding}
    if plan is None:
        rank, replicas = core.given_replica or (None, 1)
        own: Fingerprint = {
            "order": order_name(loader.sampler),
            "batch_size": loader.batch_size,
            "num_replicas": replicas,
            "rank": rank if replicas != 1 else None,
            "num_workers": max(1, loader.num_workers),
        }
        if core.shards is not None:
            own |= {"rank": None, "num_workers": None, COUNT: core.shards.count}
    else:
        own = {
            "order": order_name(plan.source),
            "batch_size": loader.batch_size if plan.single else plan.size,
            "num_replicas": plan.num_replicas,
            "rank": None,
            "num_workers": None,
            **plan.sampler.fingerprint(),
        }
    return common | own | fingerprint_of("dataset", loader.dataset)
