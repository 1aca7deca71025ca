"""What becomes of an epoch that is cut at its half: by the end of the program, or of a node.

Counted is what the training would have seen: which samples it never got (*lost*), which ones it got
again (*twice*), and whether they came in their order.
"""

from __future__ import annotations

import pickle
import time
from collections import Counter
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any, Final

from lit_loader.bench.cluster.loaders import CASES, ids, opened
from lit_loader.bench.cluster.nodes import actors_of, lose

__all__ = ["CASE", "begin", "go_on", "node_lost", "tally"]

CASE: Final = "numbered"


def tally(seen: Iterable[int], length: int) -> dict[str, Any]:
    """Say what is wrong with an epoch in order.

    Args:
        seen: Indices of the samples, as they came.
        length: How many there are.
    """
    listed = list(seen)
    count = Counter(listed)
    return {
        "lost": sum(index not in count for index in range(length)),
        "twice": len(listed) - len(count),
        "in order": "yes" if listed == sorted(listed) else "no",
    }


def begin(loader: str, workers: int, address: str, file: str) -> dict[str, Any]:
    """Have half of an epoch, and write down what is needed to go on."""
    _, _, length, size = CASES[CASE]
    half = length // size // 2
    used = opened(loader, CASE, workers, address)
    seen = [index for batch in islice(used.epoch(), half) for index in ids(batch)]
    Path(file).write_bytes(pickle.dumps((seen, used.state(half))))
    return {}


def go_on(loader: str, workers: int, address: str, file: str) -> dict[str, Any]:
    """Have the other half, in another process."""
    seen, state = pickle.loads(Path(file).read_bytes())
    began = time.perf_counter()
    used = opened(loader, CASE, workers, address)
    used.resume(state)
    batches = used.epoch()
    seen += ids(next(batches))
    first = time.perf_counter() - began
    for batch in batches:
        seen += ids(batch)
    return {"next batch, s": first, **tally(seen, CASES[CASE][2])}


def node_lost(
    loader: str, workers: int, address: str, nodes: list[int], silent: bool
) -> dict[str, Any]:
    """Lose a node with actors at the half of the second epoch.

    Args:
        loader: Which loader.
        workers: Its actors.
        address: The cluster.
        nodes: Process ids of the nodes that may be lost.
        silent: Whether the node only stops to answer, as without power.
    """
    _, _, length, size = CASES[CASE]
    used = opened(loader, CASE, workers, address, survives=True)
    before = max(_waits(used.epoch(), [])[1:])
    half, seen = length // size // 2, []
    batches = used.epoch()
    for batch in islice(batches, half):
        seen += ids(batch)
    victim = max(nodes, key=actors_of)
    had = actors_of(victim)
    lose(victim, silent)
    ended = ""
    try:
        stall = max(_waits(batches, seen))
    except Exception as error:
        stall, ended = float("nan"), type(error).__name__
    return {
        "actors on it": had,
        "longest wait before, s": before,
        "longest wait after, s": stall,
        **tally(seen, length),
        "ended by": ended or "-",
    }


def _waits(batches: Iterable[Any], seen: list[int]) -> list[float]:
    """Take batches; gives the seconds that each was waited for."""
    waits, since = [], time.perf_counter()
    for batch in batches:
        waits.append(time.perf_counter() - since)
        seen += ids(batch)
        since = time.perf_counter()
    return [*waits, time.perf_counter() - since]
