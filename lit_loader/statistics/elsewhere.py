"""`Elsewhere`: which workers in a loader's records are on other machines, and what they have done.

::

    sums by lane ─▶ remote workers ─▶ WorkerTimes with a node ─▶ NodeTimes

A remote worker stands in records by the numbers of its *lanes*, one for each batch that it may have
at hand (`remote/`), which are all behind the numbers of the workers of this machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lit_loader.statistics.records import NodeTimes, WorkerTimes

__all__ = ["Elsewhere", "node_times", "worker_times"]

_UNKNOWN: Final = "unknown"


@dataclass
class Elsewhere:
    """What is known of a loader's remote workers.

    Attributes:
        first: The number of the first lane.
        in_flight: Lanes that each remote worker has.
        nodes: The machine that each was on last, by its place among them.
    """

    first: int
    in_flight: int
    nodes: dict[int, str] = field(default_factory=dict)

    def place_of(self, worker: int) -> int:
        """The place among remote workers of the one with this lane; negative: it is none."""
        return (worker - self.first) // self.in_flight

    def node_of(self, worker: int) -> str:
        """The machine of the remote worker with this lane; "": it is of this machine."""
        place = self.place_of(worker)
        return "" if place < 0 else self.nodes.get(place, _UNKNOWN)


def worker_times(
    sums: Mapping[int, NDArray[np.int64]], elsewhere: Elsewhere | None, seconds: float
) -> tuple[WorkerTimes, ...]:
    """Sum up what each worker did.

    Args:
        sums: By number: batches, samples, nanoseconds busy, bytes, nanoseconds in transit; int64 of
            shape (5,).
        elsewhere: The remote workers, if there are some.
        seconds: All of the time.
    """
    merged: dict[int, NDArray[np.int64]] = {}
    for number, mine in sums.items():
        worker = number
        if elsewhere is not None and number >= elsewhere.first:
            worker = elsewhere.first + elsewhere.place_of(number) * elsewhere.in_flight
        merged[worker] = merged.get(worker, np.zeros(5, np.int64)) + mine
    times = []
    for worker, mine in sorted(merged.items()):
        batches, samples, busy, nbytes, transit = mine.tolist()
        node, number = "", worker
        if elsewhere is not None and worker >= elsewhere.first:
            node, number = elsewhere.node_of(worker), elsewhere.first + elsewhere.place_of(worker)
        times.append(
            WorkerTimes(
                worker=number,
                batches=batches,
                samples=samples,
                busy=busy / 1e9,
                busy_fraction=min(1.0, busy / 1e9 / seconds),
                node=node,
                nbytes=nbytes,
                transit=transit / 1e9 if node else 0.0,
            )
        )
    return tuple(times)


def node_times(workers: Iterable[WorkerTimes]) -> tuple[NodeTimes, ...]:
    """Sum up what the remote workers of each machine did; by the machine's name."""
    by_node: dict[str, list[WorkerTimes]] = {}
    for worker in workers:
        if worker.node:
            by_node.setdefault(worker.node, []).append(worker)
    return tuple(
        NodeTimes(
            node=node,
            workers=len(mine),
            batches=sum(each.batches for each in mine),
            samples=sum(each.samples for each in mine),
            nbytes=sum(each.nbytes for each in mine),
            busy=sum(each.busy for each in mine),
            transit=sum(each.transit for each in mine),
        )
        for node, mine in sorted(by_node.items())
    )
