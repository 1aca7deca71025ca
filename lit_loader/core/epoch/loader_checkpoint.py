"""A loader's state, taken and loaded: what ``state_dict`` and ``load_state_dict`` do.

::

    Epochs.now() ─▶ Position ─ with the loader's fingerprint ─▶ LoaderState ─▶ dict
    dict ─▶ LoaderState ─ compared, translated to this loader's batches ─▶ Position ─▶ Epochs.load()
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from torch.utils.data import DistributedSampler

from lit_loader.core.epoch.loader_core import LoaderCore
from lit_loader.core.sampling.batch_plan import distributed_sampler_of
from lit_loader.core.sampling.orders import ORDER, ShuffledSampler
from lit_loader.core.sampling.sampler_view import SHUFFLED, order_name
from lit_loader.core.state.fingerprint import Fingerprint, fingerprint_of, has_methods
from lit_loader.core.state.loader_state import LoaderState
from lit_loader.core.state.position import COUNT, Position
from lit_loader.core.state.state_validation import brief


def take_state(core: LoaderCore) -> dict[str, Any]:
    """Give the state of a loader as a new dict of primitives."""
    plan = core.plan
    if plan is not None and has_methods(core.dataset):
        core.warn_once(
            f"{type(core.dataset).__name__} has state_dict and load_state_dict, which are not "
            "called: a map-style dataset is read by whichever worker is free, so that each sample "
            "must follow from its index, get_epoch() and the random generators alone [LL310]"
        )
    position = core.epochs.now()
    if plan is not None and plan.sampler.wanders:
        core.warn_once(
            f"the order of {type(plan.source).__name__} changes from epoch to epoch and is not "
            "part of the state: resumed in a later epoch, the sampler may give another order; give "
            "it state_dict and load_state_dict, or make its order a function of set_epoch's epoch "
            "[LL318]"
        )
    return state_of(core, position)


def state_of(core: LoaderCore, position: Position) -> dict[str, Any]:
    """Give the state of a loader that is at a position."""
    plan = core.plan
    if plan is not None and plan.is_computed:
        own = plan.source.order_state()
        position = replace(position, sampler=None if own is None else {ORDER: own})
    batches = position.batches
    samples = batches if plan is None else plan.samples_after(batches)
    fingerprint = _fingerprint(core, position.bases.order)
    shards = core.shards
    numbers = shards.mine if shards is not None and position.readers else None
    state = LoaderState(position, samples, fingerprint, numbers)
    return core.seams.reader_states().to_dict(state) if position.readers else state.to_dict()


def load_state(core: LoaderCore, state: Mapping[str, Any]) -> None:
    """Let a loader's next iterator begin where a state was taken, of this loader or of another.

    A StateError if it does not fit; then nothing has changed.
    """
    core.follow_samplers()
    loaded = LoaderState.from_dict(state, core.seams.reader_states)
    before = loaded.fingerprint
    core.reads_again = False
    seeds, plan = core.seeds, core.plan
    # Where no seed was chosen, the state's is taken over: the data goes on as it would have.
    adopted = loaded.bases
    seed = seeds() if seeds.chosen or adopted is None else adopted.order
    fingerprint = _fingerprint(core, seed)
    # So is the kind of shuffled order: where there are ranks it is DistributedSampler's.
    order = loaded.fingerprint.get("order")
    if {order, fingerprint["order"]} <= SHUFFLED:
        fingerprint["order"] = order
    changed = _changed(core, loaded, fingerprint)
    loaded = replace(loaded, fingerprint={**loaded.fingerprint, **changed})
    reads_again = False
    if plan is None:
        streams, loader = core.seams.reader_states(), core.loader
        if changed:
            loaded = streams.adapted(loaded, loader.dataset, loader.batch_size or 1)
        position = streams.to_position(loaded, fingerprint, loader.num_workers > 0, core.shards)
        reads_again = streams.reads_again(loaded)
    else:
        position = loaded.to_position(fingerprint, plan)
    if changed:  # before anything has, for warnings may be errors
        core.warn_once(
            f"the state was taken with {_written(before, changed)}, and this loader has "
            f"{_written(fingerprint, changed)}: what was drawn stays, and from here on this "
            "loader's count [LL314]"
        )
    core.epochs.load(position)  # may refuse it, too
    had, has = (each.get("dataset_length") for each in (loaded.fingerprint, fingerprint))
    if had != has:
        core.warn_once(
            f"the state is of an epoch's end, where the dataset had {had} samples; it has {has} "
            "now, and the next epoch has those [LL329]"
        )
    if plan is not None and plan.is_computed:
        plan.source.go_on(loaded.order, loaded.position.epoch, loaded.samples)
    core.reads_again = reads_again
    if adopted is not None:
        seeds.adopt(adopted)
        batches = core.loader.batch_sampler
        given = distributed_sampler_of(core.loader.sampler if batches is None else batches)
        # Another class's seed is its own business; 0 is most likely torch's default.
        own = given.seed if given is not None and given.shuffle else 0
        if type(given) is DistributedSampler and own not in (0, adopted.order):
            core.warn_once(
                f"the state was taken with seed={adopted.order}, and the order goes on with that: "
                f"the sampler's own seed={own} has no effect; make the sampler with the "
                "state's seed, or begin without the state to have another order [LL330]"
            )
    if plan is not None and isinstance(plan.source, ShuffledSampler):
        plan.source.as_distributed = order == DistributedSampler.__name__


def _changed(core: LoaderCore, loaded: LoaderState, fingerprint: Fingerprint) -> Fingerprint:
    """Find the fields in which a state may differ from this loader and does; as they are here."""
    plan, dataset = core.plan, core.loader.dataset
    elastic: set[str] = set()
    if plan is None and hasattr(dataset, "adapt_state"):
        points = loaded.position.readers
        if all(point.state is not None for point in points if point.batches and not point.ended):
            elastic = {f"dataset.{name}" for name in dataset.elastic()}
    elif plan is not None and plan.is_computed:
        elastic = {*plan.source.elastic(loaded.order)}
    return {
        name: fingerprint.get(name)
        for name in sorted(elastic)
        if loaded.fingerprint.get(name) != fingerprint.get(name)
    }


def _written(fingerprint: Fingerprint, names: Iterable[str]) -> str:
    return ", ".join(f"{name}={brief(fingerprint.get(name))}" for name in names)


def _fingerprint(core: LoaderCore, seed: int) -> Fingerprint:
    """What a position in the data depends on."""
    loader = core.loader
    try:
        length: int | None = len(core.dataset)
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
    return common | own | fingerprint_of("dataset", core.dataset)
