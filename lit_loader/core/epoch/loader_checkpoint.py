"""A loader's state, taken and loaded: what ``state_dict`` and ``load_state_dict`` do.

::

    Passes.now() ─▶ Position ─ with the loader's fingerprint ─▶ LoaderState ─▶ dict
    dict ─▶ LoaderState ─ compared, translated to this loader's batches ─▶ Position ─▶ Passes.load()
"""

from __future__ import annotations

from collections.abc import Mapping

from lit_loader.core.epoch.loader_core import LoaderCore
from lit_loader.core.sampling.batch_plan import order_name
from lit_loader.core.sampling.orders import ORDER
from lit_loader.core.state.loader_state import LoaderState
from lit_loader.core.state.position import COUNT, Position
from lit_loader.core.state.state_validation import Fingerprint, fingerprint_of, has_methods

__all__ = ["load_state", "state_of", "take_state"]


def take_state(core: LoaderCore) -> dict[str, object]:
    """Return the state of a loader as a new dict of primitives."""
    if core.plan is not None and has_methods(core.dataset):
        core.warn_once(
            f"{type(core.dataset).__name__} has state_dict and load_state_dict, which are not "
            "called, because any free worker reads a sample of a map-style dataset. Make each "
            "sample follow from its index, get_epoch() and the random generators alone [LL310]"
        )
    return state_of(core, core.passes.now())


def state_of(core: LoaderCore, position: Position) -> dict[str, object]:
    """Return the state of a loader that is at a position."""
    plan = core.plan
    if plan is not None and plan.is_computed:
        parts = {ORDER: plan.source.order_state(), "distributed": position.distributed}
        sampler = {name: part for name, part in parts.items() if part is not None}
        position = position._replace(sampler=sampler or None)
    shards = core.shards
    numbers = shards.mine if shards is not None and position.readers else None
    state = LoaderState(position, _fingerprint(core), numbers, _generator_of(core))
    return core.seams.reader_states().to_dict(state) if position.readers else state.to_dict()


def load_state(core: LoaderCore, state: Mapping[str, object]) -> None:
    """Make a loader's next iterator begin where a state was taken, of this loader or of another.

    A StateError if it does not fit; then nothing has changed.
    """
    core.follow_samplers()
    loaded = LoaderState.from_dict(state, core.seams.reader_states)
    fingerprint, plan = _fingerprint(core), core.plan
    if plan is None:
        streams = core.seams.reader_states()
        position = streams.to_position(loaded, fingerprint, core.shards)
        core.warn_once(streams.advice(loaded, core.loader.dataset))
    else:
        position = loaded.to_position(fingerprint, plan)
    had, has = (each.get("dataset_length") for each in (loaded.fingerprint, fingerprint))
    if had != has:
        core.warn_once(
            f"the state is of an epoch's end, where the dataset had {had} samples; it has {has} "
            "now, and the next epoch has those"
        )
    generator = loaded.generator
    if isinstance(generator, bytes):
        generator = _restored(core, generator)
    core.forget_start()
    core.passes.load(position, generator)
    if position.told:
        core.tell_dataset(position.epoch)


def _generator_of(core: LoaderCore) -> int | bytes:
    """Return the state of the loader's own generator; or a digest of where torch's is."""
    seeds = core.seeds
    if seeds.seed is not None or seeds.generator is None:
        return seeds.place()
    from lit_loader.core.state.sampler_state import pack_generator

    return pack_generator(seeds.generator) or 0


def _restored(core: LoaderCore, packed: bytes) -> int:
    """Bring the loader's own generator to its place in a state, if it has one; digest that."""
    seeds = core.seeds
    if seeds.seed is not None or seeds.generator is None:
        return 0
    from lit_loader.core.state.sampler_state import unpack_generator

    unpack_generator(packed, seeds.generator)
    return seeds.place()


def _fingerprint(core: LoaderCore) -> Fingerprint:
    """Return what a position in the data depends on."""
    loader, plan = core.loader, core.plan
    try:
        length: int | None = len(core.dataset)
    except (TypeError, NotImplementedError):
        length = None
    rank, replicas = core.replica
    found: Fingerprint = {
        "dataset_length": length,
        "seed": core.seeds.seed,
        "seeding": loader.seeding,
        "num_replicas": replicas,
        "order": order_name(loader.sampler if plan is None else plan.source),
        "batch_size": loader.batch_size if plan is None or plan.single else plan.size,
    }
    if plan is not None:
        found |= plan.fingerprint()
    elif core.shards is not None:
        found[COUNT] = core.shards.count
    else:
        found["num_workers"] = max(1, loader.num_workers)
        found["rank"] = rank if replicas != 1 else None
    return found | fingerprint_of("dataset", core.dataset)
