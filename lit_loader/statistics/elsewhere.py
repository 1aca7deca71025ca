"""`Elsewhere`: which workers in a loader's records are on other machines, and what they have done.

::

    sums by worker ─▶ WorkerTimes, with a node ─▶ NodeTimes

A remote worker's number in records is behind those that workers of this machine may have.
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
        first: The number of the first one.
        nodes: The machine that each was on last, by its place among them.
    """

    first: int
    nodes: dict[int, str] = field(default_factory=dict)

    def node_of(self, worker: int) -> str:
        """The machine of a worker; "": this one."""
        return "" if worker < self.first else self.nodes.get(worker - self.first, _UNKNOWN)


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
    times = []
    for worker, mine in sorted(sums.items()):
        batches, samples, busy, nbytes, transit = mine.tolist()
        node = "" if elsewhere is None else elsewhere.node_of(worker)
        times.append(
            WorkerTimes(
                worker=worker,
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
