"""The fault matrix: whatever strikes a worker, wherever, the bytes are those of a clean run.

Every cell is one fault at one point of a worker's life, under fork or forkserver, with and without
the pin-memory thread, with persistent workers and without, and one kind of dataset. What it gives
is compared, byte by byte, with a run to which nothing happened; tests/conftest.py then looks for
whatever is left behind. `missing` says in words which cells there are not. What the messages say
and how often workers are replaced is in test_recovery.py.
"""

import functools
import itertools
import os
import re
import select
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from lit_loader import DataLoader
from lit_loader.core.executors.worker_pool import WorkerPool
from lit_loader.core.transport import arena as arena_module
from tests.support.faults import (
    HARMLESS,
    POINTS,
    Faults,
    Noisy,
    NoisyStream,
    StatefulStream,
    Strike,
    Struck,
    outcomes,
    told,
)
from tests.support.samples import named_memory
from tests.support.tools import PROMPT

pytestmark = pytest.mark.timeout(60)

BATCHES = 8
WIDE = 8_000  # numbers a sample: a batch of three is more than a slot of 64 KiB
TIMEOUT = 0.3

DEATHS = ("SIGKILL", "SIGSEGV", "_exit")
HANGS = ("SIGSTOP", "loop", "lock")
KINDS: dict[str, type] = {
    "map": Noisy,
    "unordered": Noisy,
    "ahead": Noisy,  # as "map", and the next epoch's first batches are made in the one before
    "stream": NoisyStream,
    "stateful": StatefulStream,
    "shards": StatefulStream,  # by more readers than there are workers
}
STREAMS = ("stream", "stateful", "shards")
EPOCH_EDGES = ("resuming", "resumed")
STARTS = ("fork", "forkserver")


class Cell(NamedTuple):
    fault: str
    point: str
    kind: str
    persistent: bool
    pin: bool
    method: str

    def __str__(self) -> str:
        parts = (self.fault, self.point, self.kind, self.method)
        flags = ("persistent" * self.persistent, "pin" * self.pin)
        return "-".join(filter(None, (*parts, *flags))).replace(" ", "_")


def missing(cell: Cell) -> str | None:
    """Why there is no such cell; None: there is."""
    iterable = cell.kind in STREAMS
    if cell.point in EPOCH_EDGES and not cell.persistent:
        return "there is a handshake between two epochs of the same workers only"
    if cell.kind == "ahead" and (cell.point in EPOCH_EDGES or not cell.persistent):
        return "the next epoch is begun by the same workers, without a handshake"
    if cell.kind == "ahead" and cell.point == "granting":
        return "slots have become as large as they need to be in the epoch before"
    if cell.point == "ending" and not iterable:
        return "a worker of a map-style dataset knows of no end"
    if cell.point == "edge" and iterable:
        return "the last that a reader sends is that it has come to its end"
    if cell.fault == "lock" and cell.point not in ("starting", "fetching", "collating"):
        return "a library's lock is taken in the user's code"
    if cell.pin and (cell.method != "fork" or cell.kind not in ("map", "stream")):
        return "the pin-memory thread meets neither how a worker was started, nor what it reads"
    if cell.method != "fork" and cell.kind not in ("map", "stateful"):
        return "nor does how a worker was started meet what it reads"
    if cell.fault in HARMLESS and cell.kind != "map":
        return "the worker goes on, whatever it reads"
    return None


def by_default(cell: Cell) -> bool:
    """Whether a cell is run without ``-m slow``: what takes no time, and some of each that does."""
    if cell.method != "fork":  # others: test_by_start_method
        return (cell.fault, cell.kind, cell.persistent) == ("SIGKILL", "map", True)
    if cell.kind == "ahead":
        return cell.fault == "SIGKILL" and not cell.pin
    if cell.fault in HANGS:  # each costs the timeout twice
        few = ("fetching", "announcing", "resuming", "starting")
        shape = (cell.kind, cell.persistent, cell.pin)
        if cell.fault == "loop":
            return shape == ("map", True, False) and cell.point != "stopping"
        return cell.point in few and shape == ("map", True, True)
    if cell.fault in HARMLESS:
        return cell.kind == "map" and cell.persistent
    if cell.fault in DEATHS[1:]:
        return cell.kind == ("stream" if cell.persistent else "map") and cell.pin
    return cell.kind in ("map", "stream") or cell.persistent


def cells() -> Iterator[Any]:
    found = itertools.product(
        DEATHS + HANGS + HARMLESS, [*POINTS, "edge"], KINDS, (False, True), (False, True), STARTS
    )
    for values in found:
        cell = Cell(*values)
        if missing(cell) is None:
            marks = () if by_default(cell) else pytest.mark.slow
            yield pytest.param(cell, id=str(cell), marks=marks)


@functools.cache
def clean(kind: str, width: int = 5) -> list[list[Any]]:
    """What two epochs give if nothing happens."""
    # Without num_shards the share of a reader depends on how many workers there are.
    num_workers = 2 if kind in ("stream", "stateful") else 0
    loader = DataLoader(KINDS[kind](width=width), num_workers=num_workers, **options(kind))
    return [epoch_of(loader, epoch) for epoch in range(2)]


def epoch_of(loader: Iterable[Any], epoch: int) -> list[Any]:
    """What an epoch gives. With ``seed=`` its number says it, else the program's generator."""
    torch.manual_seed(epoch)
    return outcomes(loader)


def options(kind: str) -> dict[str, Any]:
    if kind in STREAMS:
        return {"batch_size": 3, "seed": 5} | ({"num_shards": 3} if kind == "shards" else {})
    # Only with a seed the next epoch can be begun before the program asks for it.
    return {"batch_size": 3, "shuffle": True, "seed": 5 if kind == "ahead" else None}


def strike_of(cell: Cell) -> Strike:
    if cell.point == "edge":
        return Strike(cell.fault, "sent", BATCHES - 1)
    in_second = cell.point in EPOCH_EDGES or cell.kind == "ahead"
    # The batch made first needs a larger slot; later ones may get that one. Which it is, is not
    # known: the worker that batch 0 was sent to may be the last to come up.
    number = None if cell.point == "granting" else 3
    if cell.fault == "lock":  # a copied one is met in a worker's first batch
        number = None
    return Strike(cell.fault.split()[0], cell.point, number, epoch=int(in_second))


def loader_of(cell: Cell, faults: Faults, width: int = 5, **more: Any) -> DataLoader[Any]:
    hangs = cell.fault in HANGS  # on a busy machine one may seem to hang that does not
    settings: dict[str, Any] = {
        "num_workers": 2,
        "worker_init_fn": faults,
        "in_order": cell.kind != "unordered",
        "persistent_workers": cell.persistent,
        "pin_memory": cell.pin,
        "multiprocessing_context": cell.method,
        "timeout": TIMEOUT if hangs else 0,
        "max_worker_restarts": 20 if hangs else 1,
    }
    return DataLoader(KINDS[cell.kind](width=width), **settings, **{**options(cell.kind), **more})


def same(kind: str, found: list[Any], expected: list[Any]) -> bool:
    if kind != "unordered":
        return found == expected
    return sorted(map(repr, found)) == sorted(map(repr, expected))


@pytest.mark.parametrize("cell", [*cells()])
def test_what_ends_or_stops_a_worker(
    cell: Cell, pinned: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    width = 5
    if cell.point == "granting":
        monkeypatch.setattr(arena_module, "_LARGEST_SLOT", 64 << 10)
        monkeypatch.setattr(arena_module, "_DISK_SLOT", 64 << 10)
        width = WIDE
    expected = clean(cell.kind, width)[: 1 + cell.persistent]
    faults = Faults(tmp_path, strike_of(cell))
    made_twice, call_off = [], WorkerPool._call_off

    def noting(pool: WorkerPool, copy: Any) -> None:
        made_twice.append(copy)
        call_off(pool, copy)

    monkeypatch.setattr(WorkerPool, "_call_off", noting)
    with told() as texts, loader_of(cell, faults, width) as loader:
        for epoch, batches in enumerate(expected):
            assert same(cell.kind, epoch_of(loader, epoch), batches)
        begun = time.monotonic()
    assert time.monotonic() - begun < PROMPT
    assert faults.struck == 1
    lowest, highest = restarts(cell)
    # Of a batch that another worker made as well, nobody may miss the copy of the one that died.
    assert lowest * (not made_twice) <= len(texts) <= highest
    # Persistent workers that begin the second epoch ahead have made batches in the first one.
    is_first = not (cell.persistent and cell.kind == "ahead")
    if cell.fault == "lock" and cell.method == "fork" and texts and is_first:
        assert any("LL011" in text for text in texts)
    if (cell.kind, cell.point) == ("shards", "fetching") and highest:
        assert any(re.search(r"the next samples of shard \d of 3", text) for text in texts)


def restarts(cell: Cell) -> tuple[int, int]:
    """How many workers are replaced: at least, and at most."""
    if cell.point == "stopping" or cell.fault in HARMLESS:
        return 0, 0
    highest = 20 if cell.fault in HANGS else 1
    # A worker that owes nothing is not missed before something is wanted of it.
    owes_nothing = cell.point in ("starting", "idle", "sent", "ending", "edge")
    handshake = cell.persistent and cell.kind != "ahead"
    unnoticed = cell.point == "resumed" or (owes_nothing and not handshake)
    return int(not unnoticed), highest


SCRIPT = [
    Strike("SIGKILL", "starting"),
    Strike("SIGKILL", "fetching", 3, epoch=1),
    Strike("loop", "announcing", 3, epoch=2),
    Strike("exception", "collating", 3, epoch=3),
]


@pytest.mark.timeout(300)
def test_spawn(tmp_path: Path) -> None:
    """One persistent pool, an epoch a fault: starting an interpreter takes seconds."""
    single = DataLoader(Noisy(), **options("map"))
    faults = Faults(tmp_path, *SCRIPT)
    with (
        told() as texts,
        DataLoader(
            Noisy(), num_workers=2, worker_init_fn=faults, persistent_workers=True,
            multiprocessing_context="spawn", timeout=2, **options("map"),
        ) as loader,
    ):  # fmt: skip
        for epoch in range(len(SCRIPT)):
            expected = epoch_of(single, epoch)
            if epoch == 3:
                expected[3] = Struck
            assert epoch_of(loader, epoch) == expected
    assert faults.struck == len(SCRIPT)
    assert len(texts) >= 3


# The parent ------------------------------------------------------------------------------------

PARENT_CELLS = [
    cell
    for point, persistent in itertools.product(POINTS, (False, True))
    if point not in ("granting", "stopping")  # its parent's death is a worker's end anyway
    and not missing(
        cell := Cell(
            "parent", point, "stream" if point == "ending" else "map", persistent, False, "fork"
        )
    )
]


@pytest.mark.parametrize("cell", PARENT_CELLS, ids=str)
def test_the_parent_is_killed(cell: Cell, tmp_path: Path) -> None:
    """Its workers end at once. The worker at that point kills its parent, and then hangs."""
    named = named_memory()
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        _load_until_killed(cell, tmp_path)
    os.close(writing)
    begun = time.monotonic()
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
    assert select.select([reading], [], [], PROMPT)[0]
    assert time.monotonic() - begun < PROMPT
    os.close(reading)
    assert named_memory() <= named


def _load_until_killed(cell: Cell, folder: Path) -> None:
    """In the forked child, which does not return."""
    try:
        loader = loader_of(cell, Faults(folder, strike_of(cell)))
        for _ in range(2):
            list(loader)
    finally:
        os._exit(1)
