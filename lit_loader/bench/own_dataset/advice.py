"""Says in words which settings to use for a dataset and what bounds them, from measured figures.

Used by `bench/own_dataset/grid.py`. The setting: the fewest workers, then the fewest batches ahead,
that come within 5 % of the fastest, which is named too; where the training step's time is known,
that keep up with it. No workers only if any are slower.

What bounds it, the first that applies::

    no workers                         ─▶ making a batch is cheaper than handing it over
    copying takes half of the time     ─▶ memory
    workers busy, processors too       ─▶ cores; the stage that takes longest
    … but with other programs          ─▶ these: measure again when they are done
    workers busy, processors not       ─▶ waiting for files or network in that stage
    the parent decodes half the time   ─▶ rebuilding batches
    none of these is busy              ─▶ handing over: larger batches
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from lit_loader.statistics.records import LoaderStatistics

__all__ = ["Facts", "advise", "choose"]

_NEAR: Final = 1.05
"""Times the fastest setting's time that is as good."""

_BUSY: Final = 0.7
"""Part of the time from which on a worker or processor counts as busy."""

_MOST: Final = 0.5
"""Part of the time that makes one thing its cause."""

_HIDDEN: Final = 0.02
"""Part of a step that loading without workers may add to it."""

_STAGES: Final = {
    "fetch": ("in __getitem__", "make __getitem__ cheaper"),
    "collate": ("in collate_fn", "make collate_fn cheaper"),
    "encode": (
        "writing batches into shared memory",
        "return tensors or arrays, which are copied, instead of objects, which are pickled",
    ),
}


@dataclass(frozen=True)
class Facts:
    """A setting, as measured.

    Attributes:
        num_workers: Workers.
        prefetch_factor: Batches in flight for each; without workers 0.
        seconds: A batch.
        torch_seconds: torch's loader, in this setting; None: not measured.
        statistics: Of our loader.
        cpu: Processors that were busy with it, all its processes together.
        others: Processors that were busy with other programs meanwhile.
    """

    num_workers: int
    prefetch_factor: int
    seconds: float
    torch_seconds: float | None
    statistics: LoaderStatistics
    cpu: float
    others: float

    @property
    def text(self) -> str:
        """The options that make this setting."""
        if not self.num_workers:
            return "num_workers=0"
        return f"num_workers={self.num_workers} prefetch_factor={self.prefetch_factor}"

    @property
    def costs(self) -> dict[str, float]:
        """Seconds a batch of each stage, in whatever process does it."""
        return {name: getattr(self.statistics, name).mean for name in _STAGES}


def choose(facts: Sequence[Facts], step_ms: float | None = None) -> Facts | None:
    """Choose a setting; None: there is none.

    Args:
        facts: The settings.
        step_ms: What a training step takes, in milliseconds; None: not known.
    """
    if not facts:
        return None
    fastest = min(fact.seconds for fact in facts)
    enough = [fact for fact in facts if fact.num_workers and fact.seconds <= _NEAR * fastest]
    if step_ms is not None:
        step = step_ms / 1e3
        alone = [f for f in facts if not f.num_workers and f.seconds <= _HIDDEN * step]
        keep_up = [f for f in facts if f.num_workers and f.seconds <= step]
        enough = alone or keep_up or enough
    if not enough:  # without workers it is fastest
        return min(facts, key=lambda fact: fact.seconds)
    return min(enough, key=lambda fact: (fact.num_workers, fact.prefetch_factor))


def advise(
    facts: Sequence[Facts],
    *,
    step_ms: float | None,
    samples: float,
    nbytes: int,
    copy: float,
    cores: float,
) -> list[str]:
    """Say which setting to use, what bounds it, and what that is concluded from.

    Args:
        facts: The settings.
        step_ms: What a training step takes, in milliseconds; None: not known.
        samples: Samples a batch.
        nbytes: Bytes of a batch.
        copy: Seconds that copying them takes.
        cores: Processors that can be used.

    Returns:
        Lines.
    """
    chosen = choose(facts, step_ms)
    if chosen is None:
        return ["nothing was measured, so there is nothing to advise"]
    most = max(fact.num_workers for fact in facts)
    return [
        f"use {chosen.text}: {_use(chosen, facts, samples)}{_step(chosen, step_ms)}",
        f"bound by {_bound(chosen, copy, cores, most)}",
        f"measured: {_measured(chosen, nbytes, copy)}",
    ]


def _use(chosen: Facts, facts: Sequence[Facts], samples: float) -> str:
    parts = [f"{_time(chosen.seconds)} a batch ({samples / chosen.seconds:,.0f} samples/s)"]
    alone = next((fact for fact in facts if not fact.num_workers), None)
    if alone is not None and chosen.num_workers:
        parts.append(f"{alone.seconds / chosen.seconds:.1f} times as fast as without workers")
    fastest = min(facts, key=lambda fact: fact.seconds)
    if fastest.seconds < chosen.seconds:
        slower = chosen.seconds / fastest.seconds - 1
        cost = "takes more processes or memory" if fastest.num_workers else "adds to each step"
        parts.append(f"{_percent(slower)} slower than {fastest.text}, which {cost}")
    if chosen.torch_seconds is not None:
        times = chosen.torch_seconds / chosen.seconds
        parts.append(f"{times:.1f} times as fast as torch's loader with it")
    return ", ".join(parts)


def _step(chosen: Facts, step_ms: float | None) -> str:
    if step_ms is None:
        return ""
    if chosen.num_workers and chosen.seconds * 1e3 <= step_ms:
        return f"; it keeps up with steps of {step_ms:g} ms"
    if not chosen.num_workers and chosen.seconds * 1e3 <= _HIDDEN * step_ms:
        return f"; beside steps of {step_ms:g} ms that hardly shows"
    return f"; no setting keeps up with steps of {step_ms:g} ms"


def _bound(chosen: Facts, copy: float, cores: float, most: int) -> str:
    stage, share = _longest(chosen)
    where, _ = _STAGES[stage]
    if not chosen.num_workers:
        return (
            "this process itself: making a batch costs less than handing it over does, "
            f"{_percent(share)} of it {where}: larger batches make workers worth while"
        )
    if copy >= _MOST * chosen.seconds:
        return (
            f"memory: copying a batch once takes {_time(copy)}: "
            "smaller types (uint8, bfloat16) until the data is on the accelerator help"
        )
    busy = _busy(chosen)
    if busy >= _BUSY:
        return _bound_by_workers(chosen, busy, cores, most, f"{_percent(share)} of it {where}")
    if chosen.statistics.decode.mean >= _MOST * chosen.seconds:
        return (
            "rebuilding batches in this process: return tensors or arrays, or fewer of them, "
            "instead of objects that take long to unpickle"
        )
    return (
        f"handing batches over: workers were only {_percent(busy)} busy; larger batches cost less "
        "for each sample"
    )


def _bound_by_workers(chosen: Facts, busy: float, cores: float, most: int, spent: str) -> str:
    stage, _ = _longest(chosen)
    cheaper = _STAGES[stage][1]
    computing = _computing(chosen)
    idle = cores - chosen.cpu - chosen.others
    if computing < _BUSY and idle < (1 - _BUSY) * cores and chosen.others > chosen.cpu:
        return (
            f"other programs, which kept {chosen.others:.1f} of {cores:g} processors busy: workers "
            f"were {_percent(busy)} busy, {spent}, and had a processor for {_percent(computing)} "
            "of that; measure again on a quiet machine"
        )
    if computing < _BUSY and chosen.cpu < _BUSY * cores:
        more = f"; try grid.num_workers=[{2 * most}]" if chosen.num_workers == most else ""
        return (
            f"waiting, {spent}: workers were {_percent(busy)} busy and computed for "
            f"{_percent(computing)} of that, so more of them than there are processors help{more}"
        )
    if most < cores:
        advice = (
            f"there are {cores:g} processors: try grid.num_workers=[{int(cores)}], or {cheaper}"
        )
    else:
        advice = f"more workers do not help: {cheaper}"
    return f"processors: workers were {_percent(busy)} busy, {spent}; {advice}"


def _measured(chosen: Facts, nbytes: int, copy: float) -> str:
    costs = ", ".join(f"{name} {_time(seconds)}" for name, seconds in chosen.costs.items())
    text = f"a batch of {nbytes / 1e6:.3g} MB: {costs}"
    if not chosen.num_workers:
        return text
    return (
        f"{text} in a worker, decode {_time(chosen.statistics.decode.mean)} here; one copy "
        f"{_time(copy)}; workers {_percent(_busy(chosen))} busy; {chosen.cpu:.1f} processors used"
    )


def _longest(fact: Facts) -> tuple[str, float]:
    """The stage that takes longest, and its part of all."""
    costs = fact.costs
    stage = max(costs, key=costs.__getitem__)
    return stage, costs[stage] / max(sum(costs.values()), 1e-12)


def _busy(fact: Facts) -> float:
    """How busy the workers were once they ran: what they did for a batch over what it took."""
    return min(1.0, sum(fact.costs.values()) / (fact.seconds * max(1, fact.num_workers)))


def _computing(fact: Facts) -> float:
    """Part of the workers' busy time in which they had a processor."""
    return min(1.0, fact.cpu / max(_busy(fact) * fact.num_workers, 1e-12))


def _percent(part: float) -> str:
    return f"{100 * part:.0f} %"


def _time(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"
