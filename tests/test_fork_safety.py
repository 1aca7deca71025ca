"""Workers are forked, and forked again in mid-epoch, while threads do what threads do.

A fork copies the locks that other threads hold, and nobody in the copy will ever release them. The
threads here hold as many, as long and as often as they can: those of logging, of buffered files, of
imports, of malloc and of torch, and a lock of their own around a log handler's output. None of the
workers may hang: the loader's own ``timeout`` would tell, with the worker's stack.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import logging
import os
import random
import select
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from parity.tools import PROMPT
from samples import Call, Rows, ints, worker_pids

from lit_loader import DataLoader, starting
from lit_loader import pin_memory as pinning
from lit_loader.errors import WorkerRestartWarning

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

STARTS, KILLS = 30, 25
ROUND = pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 9))]
)
log = logging.getLogger("lit_loader.tests.fork_safety")
log.propagate = False
log.setLevel(logging.INFO)


class Drained:
    """A pipe that is always read empty."""

    def __init__(self) -> None:
        self._reading, self.fd = os.pipe()
        self._thread = threading.Thread(target=self._drain)
        self._thread.start()

    def _drain(self) -> None:
        while os.read(self._reading, 4096):
            pass

    def close(self) -> None:
        os.close(self.fd)
        self._thread.join()
        os.close(self._reading)


class Direct(logging.Handler):
    """Writes while it holds logging's lock, which logging itself makes new in a forked process."""

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._fd = fd

    def emit(self, record: logging.LogRecord) -> None:
        os.write(self._fd, record.getMessage().encode())


class Locked(Direct):
    """Writes while it holds a lock of its own, which stays locked in a forked process."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self._own = threading.Lock()

    def emit(self, record: logging.LogRecord) -> None:
        if threading.current_thread() is not threading.main_thread():
            with self._own:
                super().emit(record)


class Work(torch.utils.data.Dataset[int]):
    """What datasets do, and what needs the locks that may have been copied."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        log.info("sample %d %s", index, "." * 2000)
        print("sample", index, flush=True)
        sys.modules.pop("colorsys", None)
        importlib.import_module("colorsys")
        assert json.loads(json.dumps({"index": [index] * 50}))["index"][0] == index
        assert bytearray(random.randrange(1 << 16)) is not None
        square = torch.full((64, 64), float(index))
        assert float((square @ torch.eye(64)).mean()) == index
        return index


@contextlib.contextmanager
def commotion(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Threads that never rest, each at something of its own, until the end."""
    monkeypatch.setattr(pinning, "find_accelerator", lambda device="": 0)
    monkeypatch.setattr(pinning, "pin_tensor", torch.Tensor.clone)
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda device: None)
    pipe, stop, broken = Drained(), threading.Event(), []
    output = open(os.dup(pipe.fd), "w", buffering=1 << 16)  # noqa: SIM115
    handlers = [Direct(pipe.fd), Locked(pipe.fd), logging.StreamHandler(output)]
    for handler in handlers:
        log.addHandler(handler)
    noise = log.getChild("noise")
    matrix = torch.rand(300, 300)
    other = DataLoader(Rows(64, 1000), num_workers=1, pin_memory=True, persistent_workers=True)
    next(iter(other))  # its worker is started before the commotion begins
    monkeypatch.setattr(sys, "stdout", output)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(interval / 20)  # many more moments at which a fork may find a thread

    def imports() -> None:
        sys.modules.pop("wave", None)
        importlib.import_module("wave")

    def from_another_loader() -> None:
        assert len(list(other)) == 64

    deeds: list[Callable[[], Any]] = [
        lambda: noise.info("x" * 5000),
        lambda: print("y" * 20_000, flush=True),
        imports,
        lambda: [bytearray(random.randrange(1 << 20)) for _ in range(20)],
        lambda: (matrix @ matrix).sort(),
        lambda: json.dumps([{"a": [1.5] * 50}] * 20),
        from_another_loader,
    ]

    def hammer(deed: Callable[[], Any]) -> None:
        try:
            while not stop.is_set():
                deed()
        except BaseException as error:
            broken.append(error)

    threads = [threading.Thread(target=hammer, args=(deed,)) for deed in deeds]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(interval)
        other.close()
        monkeypatch.undo()
        for handler in handlers:
            log.removeHandler(handler)
        with contextlib.suppress(io.UnsupportedOperation):
            output.close()
        pipe.close()
    assert not broken, broken


@pytest.mark.parametrize("launched", [True, False], ids=["launched", "direct"])
def test_a_log_that_is_being_written_at_the_fork(
    monkeypatch: pytest.MonkeyPatch, launched: bool
) -> None:
    """The copy of its file is locked; workers log there all the same."""
    monkeypatch.setattr(starting, "can_launch", lambda context: launched)
    reading, writing = os.pipe()
    with open(writing, "w") as stream:
        handler = logging.StreamHandler(stream)
        log.addHandler(handler)
        thread = threading.Thread(target=log.info, args=("x" * 300_000,))  # more than fits
        thread.start()
        select.select([reading], [], [])

        def sample(index: int) -> int:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())  # the pipe is full
            os.close(nowhere)
            log.info("sample %d", index)
            return index

        try:
            assert ints(
                DataLoader(
                    Call(sample, 2), num_workers=1, multiprocessing_context="fork",
                    timeout=PROMPT, max_worker_restarts=0,
                )
            ) == [0, 1]  # fmt: skip
        finally:
            log.removeHandler(handler)
            left = 300_001  # with the end of the line
            while left:
                left -= len(os.read(reading, left))
            thread.join()
    os.close(reading)


@ROUND
def test_starts_among_busy_threads(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    slowest = 0.0
    with commotion(monkeypatch):
        for _ in range(STARTS):
            begun = time.monotonic()
            with DataLoader(
                Work(4),
                num_workers=2,
                multiprocessing_context="fork",
                timeout=PROMPT,
                max_worker_restarts=0,
            ) as loader:
                assert ints(loader) == [0, 1, 2, 3]
            slowest = max(slowest, time.monotonic() - begun)
    assert slowest < PROMPT


@ROUND
@pytest.mark.parametrize("pin", [False, True], ids=["plain", "pinned"])
def test_restarts_among_busy_threads(monkeypatch: pytest.MonkeyPatch, seed: int, pin: bool) -> None:
    """Workers are killed in mid-epoch; each is replaced, none is lost to a copied lock."""
    chance = random.Random(seed)
    length = KILLS * 6
    found: list[int] = []
    killed: set[int] = set()
    with (
        commotion(monkeypatch),
        warnings.catch_warnings(record=True) as caught,
        DataLoader(
            Work(length),
            num_workers=2,
            multiprocessing_context="fork",
            pin_memory=pin,
            timeout=PROMPT,
            max_worker_restarts=10 * KILLS,
        ) as loader,
    ):
        warnings.simplefilter("always", WorkerRestartWarning)
        iterator = iter(loader)
        for batch in iterator:
            found.append(int(batch))
            pid = chance.choice(worker_pids(iterator))
            if len(found) % 6 == 0 and pid not in killed:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    killed.add(pid)
    assert found == list(range(length))
    restarts = [str(warning.message) for warning in caught]
    assert all("SIGKILL" in text for text in restarts), restarts
    assert KILLS / 2 < len(restarts) <= len(killed)
