"""Says what came from other machines, and whether the way from there is what limits.

Used by `statistics/verdict.py`. It is, where remote workers are not busy though the trainer waits:
then their batches are long on the way, or wait to be taken in.
"""

from __future__ import annotations

from typing import Final

from lit_loader.statistics.records import LoaderStatistics
from lit_loader.statistics.sentences import duration

__all__ = ["came_from", "network_limits", "remote_busy"]

BUSY: Final = 0.7
"""Part of the time from which on remote workers count as busy."""

SHARE: Final = 0.1
"""Part of the batches that remote workers must have made for their way to be judged."""

TEN_GBE: Final = 1.15e9
"""Bytes a second that such a network carries of batches."""

WIDE: Final = 0.08e9
"""Bytes a second up to which it is the number of small batches that takes the time, not bytes."""

SMALL: Final = 1e6
"""Bytes of a batch up to which it is small: a slow network, 100 Mbit, carries a dozen a second."""


def remote_busy(statistics: LoaderStatistics) -> float:
    """Which part of the time remote workers made batches; mean over those that made some."""
    remote = [worker.busy_fraction for worker in statistics.workers if worker.node]
    return sum(remote) / max(1, len(remote))


def network_limits(statistics: LoaderStatistics) -> str:
    """Advice where the way from other machines limits; else ""."""
    made = sum(node.busy for node in statistics.nodes)
    busy = remote_busy(statistics)
    few = statistics.remote_batches < SHARE * statistics.batches or not statistics.remote_batches
    if few or busy >= BUSY or statistics.transit < made:
        return ""
    each = statistics.remote_nbytes / statistics.remote_batches
    rate = statistics.remote_nbytes / max(statistics.seconds, 1e-9)
    way = statistics.transit / statistics.remote_batches
    text = f"remote workers were only {100 * busy:.0f} % busy: "
    if rate < WIDE and each < SMALL:
        return text + (
            f"a batch of {_size(each)} is {duration(way)} on its way or waiting for it: raise "
            "remote.in_flight, or make larger batches"
        )
    return text + (
        f"the network, or the process that takes batches in, is the limit ({_size(each)} a batch, "
        f"{_number(rate / each)} a second; 10 GbE carries {_number(TEN_GBE / each)}): send less, "
        "images as uint8, say, and convert and normalise them in the model"
    )


def came_from(statistics: LoaderStatistics) -> list[str]:
    """What remote workers have made, if there were some."""
    if not statistics.remote_batches:
        return []
    share = statistics.remote_batches / statistics.batches
    workers = sum(node.workers for node in statistics.nodes)
    way = statistics.transit / statistics.remote_batches
    named = sorted(statistics.nodes, key=lambda node: -node.batches)
    listed = ", ".join(f"{node.node} {node.batches}" for node in named[:4])
    return [
        f"{100 * share:.0f} % of the batches ({_size(statistics.remote_nbytes)}) came from "
        f"{workers} remote worker{'' if workers == 1 else 's'} ({listed}"
        f"{', …' if len(named) > 4 else ''}), each {duration(way)} in transit"
    ]


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def _size(nbytes: float) -> str:
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.3g} {name}"
    return f"{nbytes:.0f} bytes"
