"""`Progress`: the batch that is being built: its stage, and whether it is still wanted.

::

    begin ─▶ fetching ─▶ collating ─▶ encoding ─▶ idle      each is written into the worker's row
                 ╰── each sample, unless they are too quick for that ──╯   of the status board

What makes batches is given one, in a worker, in the parent and on a remote machine; only a worker's
lies on the board, where the parent and viewers see it.

`Timings`: what a batch has cost; `BatchLog`: what a loader keeps of them, and of what happened.

::

    worker    fetch ▶ collate ▶ encode ─▶╮          (clocked there; travels in the Reply)
    parent           wait ▶ decode ▶ pin ─▶ step    (clocked where it happens)
                                          ╰─▶ BatchLog ─▶ sums, and the latest batches

All clocks are ``time.monotonic_ns()``, which is the same in all processes.

`WorkerWaits` sees whether workers sleep at a lock that they share. By its timings a worker that
waits is busy. Whether it waits for storage or for such a lock, only the kernel knows:
``/proc/PID/syscall`` says in which call a process sleeps. The training process looks in the middle
of a wait: when a batch arrives, a lock has just changed hands.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import platform
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from lit_loader.core.system import linux
from lit_loader.core.transport import status_board as board
from lit_loader.core.transport.status_board import ROW_WORDS, Stage

QUICK: Final = 20_000
"""Nanoseconds per sample below which samples are not announced one by one: that takes almost a
microsecond."""

_MANY: Final = 16
"""Samples of a batch in which that is felt."""

_clock = time.monotonic_ns


class Cancelled(Exception):
    """The batch that is being made is no longer wanted."""


class Progress:
    """What makes a batch notes here where it is, and learns whether the batch is still wanted.

    ``words`` is the board, None for a process that has none, and ``row`` the first word of the
    worker's. What is read of it is in ``time.monotonic_ns()``: when the batch ``began``, was
    ``fetched`` and ``collated`` (0: it is not yet), its ``slowest`` sample (0: not timed), which is
    that at ``slowest_at``, and how long taking the ``state`` of a stream took. ``tokens`` are those
    that samples have noted. ``samples`` is the list that samples are added to which are not
    announced; None: each is.
    """

    def __init__(self, words: memoryview | None = None, row: int = ROW_WORDS) -> None:
        self._has_board = words is not None
        if words is None:
            words = memoryview(bytearray(16 * ROW_WORDS)).cast("q")
        self._words, self._row = words, words[row : row + ROW_WORDS]
        self.each = True  # announce samples however quick they are: somebody looks at the time
        # Returns slot memory for what the default collate stacks; None: there is none.
        self.empty: Callable[..., Any] | None = None
        # Whether samples need not be announced one by one: nobody sees it, or those of the batch
        # before were quick. A message about a dead worker then names the batch, and who makes it
        # again announces each.
        self.is_quick = not self._has_board
        self.samples: list[object] | None
        self._last = 0  # when the sample that is being read was begun
        self.token = 0  # that of the epoch whose batch is being made
        self.begin(-1)

    def begin(
        self, number: int, token: int = 0, sequence: int = 0, offset: int = 0, nbytes: int = 0
    ) -> bool:
        """Begin a task's batch, if it is wanted still; returns whether it is.

        Without a ``token`` it is. Its indices are ``nbytes`` bytes at ``offset`` of the arena,
        until the batch takes their place.
        """
        self.began = now = _clock()
        if self._has_board:
            row = self._row
            if token:
                is_void = row[board.VOID] >> sequence % board.VOIDABLE & 1
                if self._words[board.TOKEN] != token or is_void:
                    return False
            row[board.STAGE] = Stage.FETCHING
            row[board.NUMBER] = number
            row[board.POSITION] = -1
            row[board.SINCE] = now
            if nbytes:
                row[board.OFFSET], row[board.NBYTES] = offset, nbytes
                row[board.INDICES] = number
        self.fetched = self.collated = self.slowest = self.slowest_at = 0
        self.state = self.tokens = 0
        self._place, self.samples = -1, None
        return True

    def collating(self, samples: int) -> None:
        """Note that all samples have been read, and how many they are."""
        now = self.fetched = _clock()
        if self._place >= 0 and now - self._last > self.slowest:
            self.slowest, self.slowest_at = now - self._last, self._place
        if self._has_board:
            row = self._row
            row[board.STAGE] = Stage.COLLATING
            row[board.SINCE] = now
            is_quick = samples >= _MANY and now - self.began < QUICK * samples
            self.is_quick = is_quick and not self.each
        self._place, self.samples = -1, None

    def encoding(self) -> None:
        """Note that the batch is collated."""
        row = self._row
        row[board.STAGE] = Stage.ENCODING
        row[board.SINCE] = self.collated = _clock()

    def idle(self, made: bool = False) -> int:
        """Note that nothing is to be done, and count a task that is done; returns "now"."""
        row = self._row
        row[board.STAGE] = Stage.IDLE
        row[board.NUMBER] = -1
        row[board.SINCE] = now = _clock()
        row[board.NUM_DONE] += made
        return now

    def stages(self, samples: int, now: int, cpu_time: int = 0, queued: int = 0) -> tuple[int, ...]:
        """Return what building the batch has taken, in the order of the last fields of a `Reply`.

        One that failed, or was omitted, has not been through all stages.
        """
        collated = self.collated or now
        fetched = self.fetched or collated
        return (
            samples,
            self.began,
            fetched - self.began,
            collated - fetched,
            now - collated,
            self.slowest,
            self.slowest_at,
            cpu_time,
            queued,
            self.state,
            self.tokens,
        )

    def step(self, place: int) -> None:
        """Note that the sample at ``place`` of the batch comes next; -1: those that are left.

        Raises:
            Cancelled: The board shows another token.
        """
        row, now = self._row, _clock()
        row[board.POSITION] = place
        row[board.SINCE] = now
        if self._words[board.TOKEN] != self.token:
            raise Cancelled
        if self._place >= 0 and now - self._last > self.slowest:
            self.slowest, self.slowest_at = now - self._last, self._place
        self._place, self._last = place, now

    @property
    def place(self) -> int:
        """The place in the batch of the sample that is being read; -1: none, or all at once."""
        return self._place if self.samples is None else len(self.samples)

    @place.setter
    def place(self, place: int) -> None:
        self._place, self.samples = place, None

    def was_read(self, times: list[int]) -> None:
        """Note when each sample was there that was not announced; the first time is before them.

        Of a batch that took more than ``QUICK`` a sample: of others none is of interest.
        """
        took = [after - before for before, after in itertools.pairwise([*times, times[-1]])]
        self.slowest = max(took)
        self.slowest_at = took.index(self.slowest)

    def beat(self) -> None:
        """Note that the loader's own work makes progress, before a sample or after it."""
        self._row[board.SINCE] = _clock()


PAUSE: Final = 30_000_000
"""Nanoseconds between two looks, on the mean, each of which costs some 20 microseconds a worker."""

_CALLS: Final = {"x86_64": ("202", "73", "72"), "aarch64": ("98", "32", "25")}
"""By machine: the numbers of futex, flock and fcntl."""

_PRIVATE: Final = 128  # FUTEX_PRIVATE_FLAG: a lock within the process
_WAITING_LOCKS: Final = (7, 38)  # F_SETLKW, F_OFD_SETLKW


class WorkerWaits:
    """Keeps the last looks at workers.

    Attributes:
        looks: Whether the worker waited for a lock that processes, or the threads, share.
        hangs: The moments at which workers were ended because they hung.
    """

    def __init__(self) -> None:
        self.looks: deque[bool] = deque(maxlen=256)
        self.hangs: deque[int] = deque(maxlen=64)
        self._due = self._pauses = 0

    def left(self) -> float:
        """Seconds until the next look, if the consumer waits for so long."""
        now = time.monotonic_ns()
        if now >= self._due:
            self._pauses += 1
            # Unevenly, so that no loop's batches keep in time with it.
            self._due = now + int(PAUSE * (0.5 + self._pauses * 0.618 % 1))
        return (self._due - now) / 1e9

    def look(self, pids: Collection[int], *, threads: bool = False) -> None:
        """Look at processes, or at ``threads`` by native ids."""
        self.looks.extend(_is_locked(pid, threads) for pid in pids)


def _is_locked(pid: int, thread: bool) -> bool:
    """Return whether a process's main thread waits for a lock that is not its process's own.

    Of a thread any lock counts, but for the GIL, which is waited for with a time limit.
    """
    call: list[str] = []
    with contextlib.suppress(OSError):  # it has ended, or may not be looked at
        call = Path(linux.PROC, str(pid), "syscall").read_text().split()
    number = call[0] if call else "running"
    futex, flock, fcntl = _CALLS.get(platform.machine(), ("", "", ""))
    if number == futex:
        return not int(call[4], 16) if thread else not int(call[2], 16) & _PRIVATE
    return number == flock or (number == fcntl and int(call[2], 16) in _WAITING_LOCKS)


WINDOW: Final = 64
"""Batches whose timings are kept until they are summed up."""

JUDGED: Final = 256
"""The latest batches, by which the verdict judges."""

_SUMMED: Final = (
    *("samples", "tokens", "waited", "step", "fetch", "collate", "encode", "decode", "pin"),
)

EVENTS: Final = 7
"""Restarts, and bad samples, that are remembered: the latest ones."""

_TEXT: Final = 450

MEASURED: Final = 6
"""The place in a `Reply` from which on it is what was measured."""


class Timings:
    """What one batch has cost: filled on its way, and read by all that shows figures.

    Durations in nanoseconds, moments by ``time.monotonic_ns()``. ``measured`` is what
    `Progress.stages` has returned where the batch was made; the other attributes are measured where
    it comes in, and is given out.

    Attributes:
        worker: That made it; -1: the consumer's own process.
        nbytes: Of shared memory that it takes; 0 in the consumer's own process.
        samples: That it has.
        began: When the worker took it up.
        fetch: Reading its samples.
        collate: Collating them.
        encode: Writing what is not there yet into shared memory.
        slowest: Reading its slowest sample; 0: not known.
        slowest_at: That sample's place in the batch.
        cpu_time: Time of the worker's process, all threads, for it; 0: not measured.
        queued: How long the worker waited for a CPU core meanwhile; 0: not measured.
        state: How much of ``fetch`` the state of a stream was taken.
        tokens: That its samples have noted.
    """

    number = 0  # of its task, see `task_number`
    arrived = 0  # when its result came in at the parent
    asked = 0  # when the consumer asked for a batch
    wait = 0  # how long the consumer waited for the workers then
    decode = 0  # rebuilding it in the parent
    pin = 0  # copying it into pinned memory
    step = 0  # how long the consumer was busy since the batch before; 0 for the first
    slowest_index: object = None  # the slowest sample's index; None: not known

    def __init__(
        self, worker: int = -1, nbytes: int = 0, measured: Sequence[int] = (0,) * 11
    ) -> None:
        self.worker, self.nbytes = worker, nbytes
        (
            self.samples, self.began, self.fetch, self.collate, self.encode, self.slowest,
            self.slowest_at, self.cpu_time, self.queued, self.state, self.tokens,
        ) = measured  # fmt: skip

    @property
    def waited(self) -> int:
        """How long the consumer was kept from its own work, in nanoseconds."""
        if self.pin:  # a pin-memory thread has decoded it meanwhile: that is in the wait
            return self.wait + (self.pin if self.worker < 0 else 0)
        return self.wait + self.decode

    @property
    def given(self) -> int:
        """The moment at which the batch was given out."""
        return self.asked + self.waited

    @property
    def made(self) -> int:
        """How long making it took, in nanoseconds."""
        return self.fetch + self.collate + self.encode


class BatchLog:
    """Collects the timings of a loader's batches; for one thread at a time.

    Attributes:
        records: Of the batches given out last, which are not summed up.
        latest: Those before them, as far as they are judged by.
        sums: Over all batches that were summed up.
        counts: What add-ons count, by their names.
        events: Of restarts and bad samples: moment, kind and text.
        first_remote: The number of the first worker elsewhere.
        waits: What workers slept at while the consumer waited for them.
        resized: When the number of workers was changed last, by ``time.monotonic_ns()``.
    """

    def __init__(self) -> None:
        self.worker_restarts = self.resized = 0
        self.counts: defaultdict[str, int] = defaultdict(int)
        self.records: list[Timings] = []
        self.latest: deque[Timings] = deque(maxlen=JUDGED)
        self.sums: Counter[str] = Counter()
        self.events: deque[tuple[float, str, str]] = deque(maxlen=EVENTS)
        self.first_remote = math.inf
        self.waits = WorkerWaits()

    def sum_up(self) -> None:
        """Add the records to the sums."""
        records, self.records = self.records, []
        self.latest.extend(records)
        sums = self.sums
        sums["batches"] += len(records)
        for name in _SUMMED:
            sums[name] += sum(map(attrgetter(name), records))
        sums["busy"] += sum(record.made for record in records if record.worker >= 0)
        sums["remote"] += sum(record.worker >= self.first_remote for record in records)

    def note(self, kind: str, text: str) -> None:
        """Remember, for viewers, what has happened."""
        self.events.append((time.time(), kind, text[:_TEXT]))
