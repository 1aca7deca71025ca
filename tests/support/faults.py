"""Faults that strike in worker processes, each at one point of a worker's life and so many times.

`Faults` is given to a loader as its ``worker_init_fn``, which every start method carries. In the
worker it puts a :func:`visit` at each of `POINTS`; a visit that fits one of the `Strike` objects
claims a file of its own making in a folder (which succeeds once, in whichever process) and strikes.
Nothing waits, nothing is left to chance.

The datasets here draw from all three global generators, so that a batch which is made again with
other seeds is another batch; and they have tensors, arrays, strings and nested containers.
"""

import contextlib
import ctypes
import os
import random
import signal
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch.utils.data import IterableDataset

from lit_loader.core.batch.progress import Progress
from lit_loader.core.executors import main as worker
from lit_loader.core.transport import codec
from lit_loader.core.transport.messages import Reply, Resumed, Status, Task, position_of, unpack
from lit_loader.errors import WorkerRestartWarning
from tests.support.samples import Cursor, OfLength, hang, share

TESTS: Final = Path(__file__).parents[1]

POINTS: Final = {
    "starting": "in worker_init_fn, before the first task",
    "idle": "about to wait for the next task",
    "taking": "has read a task out of the pipe, and not looked at it",
    "announcing": "about to see whether the task is wanted, and to say so on the board",
    "fetching": "in the dataset, at the second sample of the batch",
    "collating": "has all samples",
    "encoding": "has written the tensors into the slot, and no descriptor",
    "granting": "has asked for a larger slot",
    "sending": "has the batch in the slot, and has not said so",
    "sent": "has said so, and the board says that it is still at it",
    "ending": "has said that its share of an iterable dataset has come to its end",
    "resuming": "has read that an epoch begins, and not acknowledged it",
    "resumed": "has acknowledged it, and not read that all have",
    "stopping": "has been told to end",
}


class Struck(Exception):
    """The fault "exception"."""


def _loop() -> None:
    while True:
        pass


def _all_signals() -> None:
    """All that terminals, schedulers and limits send to a whole job."""
    for name in (
        *("HUP", "INT", "QUIT", "USR1", "USR2", "ALRM", "VTALRM", "PROF", "TERM", "XCPU", "TSTP"),
        "CONT",
    ):
        os.kill(os.getpid(), getattr(signal, f"SIG{name}"))


_grown: list[bytes] = []


def _grow() -> None:
    """As a cache without a bound does."""
    _grown.append(b"x" * (100 << 20))


def _wait_for_lock() -> None:
    """As at a lock that a library's thread held when this process was forked."""
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def _raise() -> None:
    raise Struck("a fault of the test")


FAULTS: Final[dict[str, Callable[[], object]]] = {
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "signals": _all_signals,
    "growth": _grow,
    "lock": _wait_for_lock,
    "SIGSYS": lambda: os.kill(os.getpid(), signal.SIGSYS),
    "SIGABRT": lambda: os.kill(os.getpid(), signal.SIGABRT),
    "SIGSEGV": lambda: ctypes.string_at(0),
    "_exit": lambda: os._exit(7),
    "_exit 0": lambda: os._exit(0),
    "SIGSTOP": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "loop": _loop,
    "exception": _raise,
}
"""What may strike; besides: "parent", it is killed."""

HARMLESS: Final = ("signals", "growth")
"""Those after which a worker goes on."""


class Strike(NamedTuple):
    """One fault."""

    fault: str  # one of `FAULTS`, or "parent"
    point: str  # one of `POINTS`
    number: int | None = 3  # the batch; None: whichever; of no meaning where there is none
    epoch: int = 0  # its epoch; for "resuming" and "resumed" the one that begins
    times: int | None = 1  # how often it strikes; None: always


class Faults:
    """A ``worker_init_fn`` that lets faults strike; a folder notes what has struck."""

    def __init__(self, folder: Path, *strikes: Strike) -> None:
        self.folder = folder
        self.strikes = strikes
        self.parent = os.getpid()
        self._task: Any = None  # the one taken last
        self._samples = 0  # of it, begun

    def __call__(self, worker_id: int) -> None:
        global _armed
        _armed = self
        _install()
        visit("starting")

    @property
    def struck(self) -> int:
        """How many faults have struck."""
        return len(list(self.folder.iterdir()))

    def claim(self, point: str) -> str | None:
        """Return the fault that strikes now; None: no one does."""
        for place, strike in enumerate(self.strikes):
            if strike.point == point and self._fits(strike) and self._claimed(place, strike.times):
                return strike.fault
        return None

    def _fits(self, strike: Strike) -> bool:
        if strike.point in ("starting", "stopping"):
            return True
        if self._task is None:
            return False
        if strike.point in ("resuming", "resumed"):
            return bool(self._task.epoch == strike.epoch - 1)
        if strike.point == "fetching" and self._samples != 2:
            return False
        number = None if strike.point == "ending" else strike.number
        if number not in (None, position_of(self._task.number)):
            return False
        return bool(self._task.epoch == strike.epoch)

    def _claimed(self, place: int, times: int | None) -> bool:
        if times is None:
            return True
        for time in range(times):
            try:
                file = os.open(self.folder / f"{place}-{time}", os.O_CREAT | os.O_EXCL)
            except FileExistsError:
                continue
            os.close(file)
            return True
        return False

    def took(self, task: Task) -> None:
        """Note the task that this worker has taken."""
        self._task, self._samples = task, 0

    def sample(self) -> None:
        """Note that a sample is begun."""
        self._samples += 1

    def strike(self, fault: str) -> None:
        """Let a fault strike."""
        if fault == "parent":
            os.kill(self.parent, signal.SIGKILL)
        else:
            FAULTS[fault]()
        if fault in HARMLESS:
            return
        hang()  # signals may take their time


_armed: Faults | None = None
"""This process's, if it is a worker with faults."""


def visit(point: str) -> None:
    """Be at a point; if a fault is due here, it strikes."""
    if _armed is not None:
        if point == "fetching":
            _armed.sample()
        fault = _armed.claim(point)
        if fault is not None:
            _armed.strike(fault)


def _install() -> None:
    """Put visits into the worker that this process is."""
    cls: Any = worker._Worker
    receive, collating = cls._receive, Progress.collating
    await_space, send, run, begin = cls._await_space, cls._send, cls.run, Progress.begin

    def _receive(self: Any) -> Any:
        visit("idle")
        message = receive(self)
        if isinstance(message, Task) and _armed is not None:
            _armed.took(message)
            visit("taking")
        return message

    def _begin(self: Any, number: int, *place: int) -> bool:
        if number >= 0:
            visit("announcing")
        return begin(self, number, *place)

    def _collating(self: Any, samples: int) -> None:
        collating(self, samples)
        visit("collating")

    def _await_space(self: Any, task: Any) -> Any:
        visit("granting")
        return await_space(self, task)

    def _send(self: Any, data: bytes) -> None:
        message = unpack(data)
        before, after = {Reply: ("sending", "sent"), Resumed: ("resuming", "resumed")}.get(
            type(message), ("", "")
        )
        visit(before)
        send(self, data)
        visit(after)
        if isinstance(message, Reply) and message.status == Status.ENDED:
            visit("ending")

    def _run(self: Any) -> None:
        try:
            run(self)
        finally:
            visit("stopping")

    for function in (_receive, _await_space, _send):
        setattr(cls, function.__name__, function)
    cls.run = _run
    Progress.begin = _begin  # type: ignore[method-assign]
    Progress.collating = _collating  # type: ignore[method-assign]
    codec._LENGTH = _Half(codec._LENGTH)  # type: ignore[assignment]


class _Half:
    """The descriptor's first word: visits when all that stands before it is written."""

    def __init__(self, word: Any) -> None:
        self.size = word.size
        self._word = word

    def pack(self, value: int) -> Any:
        visit("encoding")
        return self._word.pack(value)


# Data ------------------------------------------------------------------------------------------


def sample(index: int, width: int = 5) -> dict[str, Any]:
    """Give a sample that depends on the index and on all global generators."""
    return {
        "index": index,
        "noise": torch.rand(width),
        "jitter": np.random.rand(2, 3),
        "word": f"{index} {random.random()}",
        "nested": {"pair": (torch.randint(0, 1_000, (2,)), random.random()), "odd": [index % 2]},
    }


class Noisy(OfLength):
    """`sample` by index."""

    def __init__(self, length: int = 24, width: int = 5) -> None:
        super().__init__(length)
        self.width = width

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not 0 <= index < self.length:
            raise IndexError(f"no sample {index}")
        visit("fetching")
        return sample(index, self.width)


class NoisyStream(IterableDataset):
    """`sample`, shared out among the readers, by a generator."""

    def __init__(self, length: int = 24, width: int = 5) -> None:
        self.length = length
        self.width = width

    def numbers(self) -> range:
        return share(range(self.length))

    def make(self, index: int) -> Any:
        visit("fetching")
        return sample(index, self.width)

    def __iter__(self) -> Iterator[Any]:
        return (self.make(index) for index in self.numbers())


class StatefulStream(NoisyStream):
    """The same, by an iterator that can say where it is."""

    def __iter__(self) -> Iterator[Any]:
        return Cursor(self.make, self.numbers())


def plain(value: Any) -> Any:
    """Write a batch down such that two are equal only if types, shapes and all bytes are."""
    name = type(value).__name__
    if isinstance(value, torch.Tensor):
        known = value.view(torch.int16) if value.dtype == torch.bfloat16 else value
        return name, str(value.dtype), tuple(value.shape), known.numpy().tobytes()
    if isinstance(value, np.ndarray):
        return name, str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, dict):
        return name, [(key, plain(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return name, [plain(item) for item in value]
    return name, repr(value)


@contextlib.contextmanager
def told(restarts: int | None = None) -> Iterator[list[str]]:
    """Gives the texts of all warnings: of restarts, so many, that point to who iterates."""
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield texts
    assert {warning.category for warning in caught} <= {WorkerRestartWarning}
    assert restarts in (None, len(caught))
    assert all(Path(warning.filename).is_relative_to(TESTS) for warning in caught)
    texts += [str(warning.message) for warning in caught]


def outcomes(iterator: Iterable[Any]) -> list[Any]:
    """All that an iterator gives, written down; for an exception its type."""
    iterator, found = iter(iterator), []
    while len(found) < 1_000:
        try:
            found.append(plain(next(iterator)))
        except StopIteration:
            return found
        except Exception as error:
            found.append(type(error))
    raise AssertionError("no end")
