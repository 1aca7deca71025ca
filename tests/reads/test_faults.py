"""Faults in reads and around them: the bytes are those of a run in which nothing happens or is read.

A cell is a kind of dataset, a fault, where it strikes, what is done to the loader meanwhile, and
options; `chosen` takes as few of them as have every pair. The matrix of what a worker does besides
is `tests/faults/test_fault_matrix.py`.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import lit_loader
from lit_loader import DataLoader
from lit_loader.errors import WorkerRestartWarning, WorkerTimeoutError
from tests.support.exact import through_file
from tests.support.faults import FAULTS, Faults, Noisy, NoisyStream, Strike, outcomes, sample, visit

pytestmark = pytest.mark.timeout(120)

AT = 7
"""The index whose read a fault strikes."""


class Claim:
    """Lets a fault strike in the read of one index, once, in whichever process."""

    def __init__(self, folder: Path | None = None, fault: str = "") -> None:
        self.folder, self.fault = folder, fault

    def first(self) -> bool:
        """Whether nobody has asked before."""
        if self.folder is None:
            return False
        try:
            (self.folder / "read").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def __call__(self, index: int) -> None:
        if index != AT or not self.first():
            return
        if self.fault == "hang":
            threading.Event().wait()
        FAULTS[self.fault]()


def data_of(index: int) -> Tensor:
    return torch.tensor([index, 7.0 * index])


class Plain(Noisy):
    """Its read is a function."""

    def __init__(self, claim: Claim | None = None) -> None:
        super().__init__()
        self.claim = claim or Claim()

    @lit_loader.reads_ahead
    def read(self, index: int) -> Tensor:
        self.claim(index)
        return data_of(index)

    def __getitem__(self, index: int) -> dict[str, Any]:
        visit("fetching")
        return {**sample(index), "read": self.read(index)}


class Awaited(Plain):
    """Its read is a coroutine."""

    @lit_loader.reads_ahead
    async def read(self, index: int) -> Tensor:
        await asyncio.sleep(0)
        if self.claim.fault == "hang" and index == AT:
            if self.claim.first():
                await asyncio.Event().wait()
        else:
            self.claim(index)
        return data_of(index)


class Stream(NoisyStream):
    """A stream of keys."""

    def __init__(self, claim: Claim | None = None) -> None:
        super().__init__()
        self.claim = claim or Claim()

    def read(self, index: int) -> Any:
        self.claim(index)
        return data_of(index)

    def __iter__(self) -> Iterator[Any]:
        reader, readers = lit_loader.get_shard()
        keys = [*range(reader, self.length, readers)]
        random.shuffle(keys)
        for index, data in lit_loader.read_stream(keys, self.read):
            visit("fetching")
            yield {**sample(index), "read": data}


class AwaitedStream(Stream):
    async def read(self, index: int) -> Any:
        await asyncio.sleep(0)
        self.claim(index)
        return data_of(index)


KINDS: dict[str, Any] = {
    "plain": Plain,
    "async": Awaited,
    "stream": Stream,
    "async stream": AwaitedStream,
}
HANGS = ("SIGSTOP", "hang", "loop")
STRIKES = [
    ("", ""),
    *itertools.product(("SIGKILL", "SIGSEGV", "_exit", *HANGS), ("read",)),
    *itertools.product(
        ("SIGKILL",),
        ("starting", "taking", "fetching", "collating", "encoding", "sending", "resuming"),
    ),
]
ACTS = ("twice", "resize", "break", "resume at 1", "resume at 4", "resume at 8")
CHOICES: list[list[Any]] = [
    [*KINDS],
    STRIKES,
    [*ACTS],
    [1, 3, 16],  # reads
    [False, True],  # persistent workers
    ["fork", "spawn"],
]


def chosen() -> list[tuple[Any, ...]]:
    """Few cells in which every pair of choices comes: each is the one with most that are new."""

    def pairs(cell: tuple[Any, ...]) -> set[Any]:
        return set(itertools.combinations(enumerate(cell), 2))

    left = set().union(*map(pairs, itertools.product(*CHOICES)))
    rng, cells = random.Random(1), []
    while left:
        (one, first), (other, second) = min(left, key=repr)
        tries = []
        for _ in range(30):
            cell = [rng.choice(choices) for choices in CHOICES]
            cell[one], cell[other] = first, second
            tries.append(tuple(cell))
        best = max(tries, key=lambda cell: len(pairs(cell) & left))
        left -= pairs(best)
        cells.append(best)
    return cells


def options(kind: str) -> dict[str, Any]:
    of_kind = {"num_shards": 3} if "stream" in kind else {"shuffle": True}
    return {"batch_size": 3, "seed": 5} | of_kind


@functools.cache
def clean(kind: str) -> list[list[Any]]:
    loader = DataLoader(KINDS[kind](), reads=0, **options(kind))
    return [outcomes(loader) for _ in range(2)]


def cell_id(cell: tuple[Any, ...]) -> str:
    kind, (fault, point), act, reads, persistent, method = cell
    parts = (kind, fault, point, act, f"{reads}", "persistent" * persistent, method)
    return "-".join(filter(None, parts)).replace(" ", "_")


def cells() -> Iterator[Any]:
    for number, cell in enumerate(chosen()):
        few = number % 3 == 0 and cell[-1] == "fork" and cell[1][0] not in HANGS[1:]
        yield pytest.param(cell, id=cell_id(cell), marks=() if few else pytest.mark.slow)


@pytest.mark.filterwarnings("ignore:.*has no state_dict and load_state_dict:UserWarning")
@pytest.mark.parametrize("cell", [*cells()])
def test_bytes_are_those_of_a_clean_run(cell: tuple[Any, ...], tmp_path: Path) -> None:
    kind, (fault, point), act, reads, persistent, method = cell
    expected = clean(kind)
    claim = Claim(tmp_path, fault) if point == "read" else Claim()
    strikes = [Strike(fault, point, 3, int(point == "resuming"))]
    made = {
        "worker_init_fn": Faults(tmp_path, *(strikes if point not in ("", "read") else [])),
        "persistent_workers": persistent,
        "multiprocessing_context": method,
        "timeout": 2 if fault in HANGS else 0,
        "max_worker_restarts": 20,
        **options(kind),
    }
    dataset = KINDS[kind](claim)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", WorkerRestartWarning)
        with DataLoader(dataset, num_workers=2, reads=reads, **made) as loader:
            if act == "twice":
                assert [outcomes(loader) for _ in range(2)] == expected
            elif act == "resize":
                for batches in expected:
                    found = []
                    for batch, size in zip(loader, itertools.cycle((3, 1, 2)), strict=False):
                        found += outcomes([batch])
                        loader.resize(size)
                    assert found == batches
            elif act == "break":
                assert outcomes(itertools.islice(loader, 2)) == expected[0][:2]
                assert outcomes(loader) == expected[1]
            else:
                at = int(act.rpartition(" ")[2])
                iterator = iter(loader)
                assert outcomes(itertools.islice(iterator, at)) == expected[0][:at]
                state = through_file(loader.state_dict())
                del iterator
        if act.startswith("resume"):
            with DataLoader(dataset, num_workers=1, reads=5, **made) as loader:
                loader.load_state_dict(state)
                assert outcomes(loader) == expected[0][at:]
                assert outcomes(loader) == expected[1]
    assert {warning.category for warning in told} <= {WorkerRestartWarning, UserWarning}
    struck = len([*tmp_path.iterdir()])
    if not fault or act == "twice" and point != "resuming":
        assert struck == bool(fault)


@pytest.mark.parametrize("kind", [Plain, Awaited])
def test_a_read_that_hangs_is_named_with_its_stack(kind: Any, tmp_path: Path) -> None:
    made = {"timeout": 2, "max_worker_restarts": 0, "batch_size": 3, "num_workers": 1}
    with (
        DataLoader(kind(Claim(tmp_path, "hang")), **made) as loader,
        pytest.raises(WorkerTimeoutError) as raised,
    ):
        list(loader)
    text = "".join(map(str, [raised.value, *getattr(raised.value, "__notes__", [])]))
    assert f"it was waiting for the read of index {AT} (sample 1 of" in text
    assert "test_faults.py" in text and "in read" in text


class Interrupts(Plain):
    """The training process is interrupted while it waits for a read."""

    interrupted = False

    @lit_loader.reads_ahead
    def read(self, index: int) -> Tensor:
        if index == AT and not self.interrupted:
            self.interrupted = True
            os.kill(os.getpid(), signal.SIGINT)
        return data_of(index)


def test_an_interrupt_while_reads_are_under_way() -> None:
    found, interrupts = [], 0
    iterator = iter(DataLoader(Interrupts(), **options("plain")))
    while True:
        try:
            found.append(next(iterator))
        except KeyboardInterrupt:
            interrupts += 1
        except StopIteration:
            break
    assert interrupts == 1
    assert outcomes(found) == clean("plain")[0]


PROGRAM = """
import asyncio, sys, threading
import torch, lit_loader

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    @lit_loader.reads_ahead
    def read(self, index):
        if index > 8:
            threading.Event().wait()

    @lit_loader.reads_ahead
    async def awaited(self, index):
        if index > 8:
            await asyncio.Event().wait()

    def __getitem__(self, index):
        self.read(index), self.awaited(index)
        return index

iterator = iter(lit_loader.DataLoader(Slow(), 4, num_workers=int(sys.argv[1])))
print(next(iterator).tolist(), flush=True)
"""


@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_program_ends_while_reads_hang(workers: str) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", PROGRAM, workers],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "[0, 1, 2, 3]\n", "")
