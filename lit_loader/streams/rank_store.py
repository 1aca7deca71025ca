"""What ranks of a job that share the data have in common: its store, and the first rank's draw.

The store is the one by which the ranks of a ``torch.distributed`` job have found each other: a
table in the first rank's process. A loader asks it for its seed once
(`core/seeding/loader_seeds.py`). This is no collective operation: whatever the program's process
groups do meanwhile does not matter, nor when each rank comes to its first pass.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing import util
from typing import Any, Final

import torch.distributed
from torch.distributed import distributed_c10d

from lit_loader.errors import LoaderError

_LONGEST_PAUSE: Final = 0.01
"""Seconds between requests to the store."""

_FAREWELL: Final = 5.0
"""Seconds that the first rank stays at its exit for those that have not read what it wrote."""

_connections: dict[Any, Any] = {}
_unread: dict[str, Callable[[], bool]] = {}  # whether all have read what the first rank wrote
_counted: Counter[str] = Counter()  # loaders of each kind


def processes() -> int:
    """Return the number of processes of this job; 0: this is no job."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_world_size())
    return 0


def store() -> Any:
    """Return this process's own connection to the store of the job."""
    # reach: torch: no public way leads to the store of the default group
    common = distributed_c10d._get_default_store()
    if common not in _connections:
        # Its own: another thread may wait for something, and hold the job's meanwhile.
        _connections.clear()
        _connections[common] = common.clone() if hasattr(common, "clone") else common
    return _connections[common]


@contextlib.contextmanager
def watching(where: str = "") -> Iterator[None]:
    """Raise a LoaderError if the store is lost."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, LoaderError):
            raise
        reason = " ".join(str(error).split())[:120]
        raise LoaderError(
            f"the store of the torch.distributed job is lost{where} ({reason}). Rank 0, which "
            "holds it, has ended: see its log [LL206]"
        ) from error


def waits() -> Iterator[float]:
    """Yield the seconds for which something was waited for; sleep in between."""
    began, pause = time.monotonic(), 0.0
    while True:
        yield time.monotonic() - began
        time.sleep(pause)
        pause = min(2 * pause + 0.0001, _LONGEST_PAUSE)


def linger(what: str, is_read: Callable[[], bool]) -> None:
    """Keep the first rank's process, which has the store, until all have read what it wrote."""
    if torch.distributed.get_rank() == 0:
        if not _unread:  # also at the end of a process of multiprocessing's, where atexit is not
            util.Finalize(None, _stay, exitpriority=0)
        _unread[what] = is_read


def _stay() -> None:
    with contextlib.suppress(RuntimeError):
        for waited in waits():
            if waited > _FAREWELL or all(is_read() for is_read in _unread.values()):
                return


class Name:
    """A loader's name, the same on all ranks that make their loaders of one kind in one order.

    A copy in another process keeps it.
    """

    def __init__(self, kind: str) -> None:
        self.kind, self.number = kind, _counted[kind]
        _counted[kind] += 1

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        _counted[self.kind] = max(_counted[self.kind], self.number + 1)

    def __str__(self) -> str:
        return f"{self.kind}/{self.number}"

    @property
    def is_in_job(self) -> bool:
        """Whether this process is one of several of a job."""
        return processes() > 1

    def first_rank(self, numbers: list[int]) -> list[int]:
        """Return the first rank's numbers on every rank; waits for them.

        Raises:
            LoaderError: The first rank has not written it within the job's timeout.
        """
        table, key, ranks = store(), f"lit_loader/bases/{self}", processes()
        with watching():
            if torch.distributed.get_rank() == 0:
                table.set(key, " ".join(map(str, numbers)))
                linger(key, lambda: table.add(f"{key}/read", 0) >= ranks - 1)
                return numbers
            for waited in waits():
                if table.check([key]):
                    break
                if waited > table.timeout.total_seconds():
                    raise LoaderError(
                        f"rank 0 has not begun its loader {self.number} of {self.kind} within the "
                        "job's timeout, and all ranks take their seed from it. Let every rank make "
                        "and iterate the same loaders, or pass seed= [LL218]"
                    )
            found = [int(number) for number in bytes(table.get(key)).split()]
            table.add(f"{key}/read", 1)
            return found


def is_read_twice(name: Name, batches: int, digest: int) -> bool | None:
    """Whether the next rank's first batch has the digest of this rank's; None: not known yet.

    Nobody waits: each rank writes its own digest, and looks for the other one after 1, 2, 4, 8, …
    batches.
    """
    rank, table = torch.distributed.get_rank(), store()
    keys = [f"lit_loader/first/{name}/{each}" for each in (rank, (rank + 1) % processes())]
    with watching():
        if batches == 1:
            table.set(keys[0], str(digest))
        if batches & (batches - 1) or not table.check(keys):
            return None
        return bool(table.get(keys[0]) == table.get(keys[1]))
