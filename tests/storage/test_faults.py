"""Faults in reads and around them: the bytes are those of a run to which nothing happens."""

import asyncio
import functools
import itertools
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import lit_loader
from lit_loader import DataLoader
from lit_loader.errors import WorkerTimeoutError
from tests.support.faults import FAULTS, Noisy, NoisyStream, Struck, outcomes, sample

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
        keys = [*self.numbers()]
        random.shuffle(keys)
        for index, data in lit_loader.read_stream(keys, self.read):
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


def options(kind: str) -> dict[str, Any]:
    of_kind = {"num_shards": 3} if "stream" in kind else {"shuffle": True}
    return {"batch_size": 3, "seed": 5} | of_kind


@functools.cache
def clean(kind: str) -> list[list[Any]]:
    loader = DataLoader(KINDS[kind](), concurrent_reads=0, **options(kind))
    return [outcomes(loader) for _ in range(2)]


def cells() -> Iterator[Any]:
    for kind, fault in itertools.product(KINDS, ("SIGKILL", "SIGSEGV", "_exit", *HANGS)):
        few = fault in ("SIGKILL", "SIGSTOP") or kind == "plain"
        yield pytest.param(kind, fault, marks=() if few else pytest.mark.slow)


@pytest.mark.filterwarnings("ignore::lit_loader.WorkerRestartWarning")
@pytest.mark.parametrize("resized", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("kind", "fault"), [*cells()])
def test_bytes_are_those_of_a_clean_run(
    kind: str, fault: str, resized: bool, tmp_path: Path
) -> None:
    """A fault strikes in a read; elsewhere in a worker it does in test_fault_matrix.py."""
    made = {"timeout": 2 if fault in HANGS else 0, "max_worker_restarts": 20, **options(kind)}
    dataset = KINDS[kind](Claim(tmp_path, fault))
    with DataLoader(
        dataset, num_workers=2, persistent_workers=True, concurrent_reads=3, **made
    ) as loader:
        for batches in clean(kind):
            found = []
            for batch, size in zip(loader, itertools.cycle((3, 1, 2)), strict=False):
                found += outcomes([batch])
                if resized:
                    loader.resize(size)
            assert found == batches
    assert len([*tmp_path.iterdir()]) == 1


@pytest.mark.filterwarnings("ignore::lit_loader.WorkerRestartWarning")
@pytest.mark.parametrize("kind", ["plain", pytest.param("async", marks=pytest.mark.slow)])
def test_a_spawned_worker_is_killed_in_a_read(kind: str, tmp_path: Path) -> None:
    with DataLoader(
        KINDS[kind](Claim(tmp_path, "SIGKILL")), num_workers=1, persistent_workers=True,
        multiprocessing_context="spawn", **options(kind),
    ) as loader:  # fmt: skip
        assert [outcomes(loader) for _ in range(2)] == clean(kind)
        assert loader.statistics().worker_restarts == 1


@pytest.mark.parametrize("kind", [Plain, Awaited])
def test_a_read_that_hangs_is_named(kind: Any, tmp_path: Path) -> None:
    made = {"timeout": 2, "max_worker_restarts": 0, "batch_size": 3, "num_workers": 1}
    with (
        DataLoader(kind(Claim(tmp_path, "hang")), **made) as loader,
        pytest.raises(WorkerTimeoutError) as raised,
    ):
        list(loader)
    text = "".join(map(str, [raised.value, *getattr(raised.value, "__notes__", [])]))
    assert f"it was waiting for the read of index {AT} (sample 1 of" in text
    if kind is Plain:  # a coroutine that waits is in no thread's stack
        assert "test_faults.py" in text and "in read" in text


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_read_that_fails_is_tried_again(kind: str, workers: int, tmp_path: Path) -> None:
    dataset = KINDS[kind](Claim(tmp_path, "exception"))
    retries: Any = {"sample_retries": 1, "retry_backoff": 0, "transient_errors": [Struck]}
    with DataLoader(dataset, num_workers=workers, **retries, **options(kind)) as loader:
        assert outcomes(loader) == clean(kind)[0]
        # Of two workers the other one may make the batch whose read has failed ahead.
        assert loader._core.log.counts["sample_retries"] in ([0, 1] if workers == 2 else [1])


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
        capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "[0, 1, 2, 3]\n", "")
