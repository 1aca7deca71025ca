"""`Executor`: makes batches, and knows no epoch. Who writes another one reads this file.

::

    LoaderIterator ── room, submit(task) ─▶ executor ─▶ receive() ── Outcome: a batch, an error
                                               │
             here: `Inline` · worker processes: `PoolExecutor` · threads: `ThreadExecutor`

Where a loader has another executor than these comes by the seam `executor`
(`core/epoch/seams.py`). `tests/core/executors/test_toy_executor.py` has a small one, whole;
`lit_loader.testing.ExecutorContract` is what each must pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from lit_loader.core.executors.outcome import Outcome
from lit_loader.core.seeding.seeds import PassSeeds
from lit_loader.core.transport.viewer_page import ViewerPage

if TYPE_CHECKING:  # a loader without workers imports nothing of theirs
    from lit_loader.core.executors.worker_process import WorkerProcess

MOST_WORKERS: Final = 1024
"""Workers that a pool may grow to, if it was not begun with more: rows of its status board."""


class PoolClosed(Exception):
    """The pipes are closed: by a signal handler, or by the end of the program."""


class Task(NamedTuple):
    """A batch to be made: a pure function of what is here and of what the executor reads."""

    number: int  # of epoch and batch, see `task_number`; no two of an iterator have the same
    # The samples' indices; or a `ReadPoint`, where its reader is to begin; None: it continues.
    indices: Any
    epoch: int
    seeds: PassSeeds
    own: bool = False  # whether the indices are of the loader's own order: an int64 array
    whose: Any = None  # for messages: the reader, where these have numbers of their own


class Workers(Protocol):
    """Those who make an executor's batches, for whoever looks at them from outside."""

    @property
    def num_workers(self) -> int:
        """How many there are to be."""

    @property
    def settled(self) -> bool:
        """Whether there are that many, and all of them are up."""

    @property
    def processes(self) -> list[WorkerProcess]:
        """Their processes; none if they are threads, or were closed."""

    @property
    def unread(self) -> int:
        """Outcomes that are there and were not received yet, about."""

    @property
    def memory(self) -> tuple[int, int]:
        """Bytes of shared memory that batches take, and the dataset."""


class Executor:
    """Makes the batches of tasks, each once, in any order; for one iterator at a time.

    The iterator submits a task if nothing is outstanding, and more as far as there is `room`. It
    receives until it has each outcome.

    - Tasks of one reader of a stream (``number % readers``) are done one after another, in order.
    - An exception of the user's code is an `Outcome`. What a method itself raises is the
      executor's end, and so is an exception that comes out of a signal handler meanwhile: the
      iterator closes the executor, and sends all that is outstanding to another one.
    - A lost map-style task (a worker died) is sent again by the executor, unseen. The task of a
      reader whose place is lost comes back as an outcome that is ``lost``: it is submitted again,
      then with a place. A place that a reader has anyway is to be ignored.
    - One thread submits while another one may receive. `resize` and `wake` come from any thread.
    - In a forked copy of the process `close` leaves alone what belongs to the parent.

    Attributes:
        workers: Who makes the batches; None: there is nobody to be looked at.
        page: Where viewers in other processes look; None: nowhere.
    """

    workers: Workers | None = None
    page: ViewerPage | None = None

    def submit(self, task: Task) -> None:
        """Accept a task. Returns at once; what cannot begin yet waits in the executor."""
        raise NotImplementedError

    def receive(self, timeout: float | None = None) -> Outcome | None:
        """Wait for the next outcome; None: the time is up, or `wake` was called.

        Raises:
            PoolClosed: It was closed meanwhile.
        """
        raise NotImplementedError

    def room(self, outstanding: int) -> int:
        """Return how many more tasks may be submitted ahead of what is waited for.

        ``outstanding`` were submitted and not received. Here none: batches are made when they are
        asked for.
        """
        return 0

    def resize(self, num_workers: int, depth: int) -> None:
        """Change the number of workers, and of tasks that may be outstanding."""

    def wake(self) -> None:
        """End a `receive` in another thread, and all that come after it."""

    def close(self, keep_workers: bool = False) -> None:
        """End it; a second call does nothing.

        With ``keep_workers`` those that are persistent live on, and drop its tasks.
        """
