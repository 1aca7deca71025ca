"""What ranks of a job that share the data have in common: its store, and the first rank's draw.

By the store by which the ranks of a ``torch.distributed`` job have found each other: a table in the
first rank's process. A loader asks it for its seeds once (`core/seeding/bases.py`), by no
collective operation: whatever the program's process groups do meanwhile does not matter, nor when
each rank comes to its first pass.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Sequence
from multiprocessing import util
from typing import Any, Final

import torch.distributed
from torch.distributed import distributed_c10d

from lit_loader.errors import LoaderError

__all__ = ["Name", "store"]

_LONGEST_PAUSE: Final = 0.01
"""Seconds until the store is asked again."""

_FAREWELL: Final = 5.0
"""Seconds that the first rank stays at its exit for those that have not asked yet."""

_connections: dict[Any, Any] = {}
_unread: list[str] = []  # keys of the first rank's numbers
_counted: Counter[str] = Counter()  # loaders of each kind


def store() -> Any:
    """Give this process's own connection to the store by which the job's ranks found each other."""
    # reach: torch: no public way leads to the store of the default group
    common = distributed_c10d._get_default_store()
    if common not in _connections:
        # Its own: another thread may wait for something, and hold the job's meanwhile.
        _connections.clear()
        _connections[common] = common.clone() if hasattr(common, "clone") else common
    return _connections[common]


class Name:
    """A loader's name, the same on all ranks that make their loaders of one kind in one order.

    A copy in another process keeps it.
    """

    def __init__(self, kind: str) -> None:
        self._kind, self._number = kind, _counted[kind]
        _counted[kind] += 1

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        _counted[self._kind] = max(_counted[self._kind], self._number + 1)

    @property
    def is_in_job(self) -> bool:
        """Whether this process is one of several of a job."""
        distributed = torch.distributed
        if not (distributed.is_available() and distributed.is_initialized()):
            return False
        return bool(distributed.get_world_size() > 1)

    def first_ranks(self, numbers: Sequence[int]) -> list[int]:
        """Give the first rank's numbers on every rank; waits for them.

        Raises:
            LoaderError: The first rank has not given them within the job's timeout.
        """
        table, key = store(), f"lit_loader/bases/{self._kind}/{self._number}"
        try:
            if torch.distributed.get_rank() == 0:
                table.set(key, " ".join(map(str, numbers)))
                if not _unread:  # also at the end of a process of multiprocessing's
                    ranks = torch.distributed.get_world_size()
                    util.Finalize(None, _stay, (table, ranks), exitpriority=0)
                _unread.append(key)
                return list(numbers)
            asked, pause = time.monotonic(), 0.0
            while not table.check([key]):
                if time.monotonic() - asked > table.timeout.total_seconds():
                    raise LoaderError(
                        f"rank 0 has not begun its loader {self._number} of {self._kind} within "
                        "the job's timeout, and all ranks take their seed from it: have every rank "
                        "make and iterate the same loaders, or pass seed= [LL218]"
                    )
                time.sleep(pause)
                pause = min(2 * pause + 0.0001, _LONGEST_PAUSE)
            found = [*map(int, bytes(table.get(key)).decode().split())]
            table.add(f"{key}/read", 1)
            return found
        except RuntimeError as error:
            if isinstance(error, LoaderError):
                raise
            raise LoaderError(
                f"the job's store, in the first rank's process, is lost ({error}): the first rank "
                "has ended; its own messages say why [LL219]"
            ) from error


def _stay(table: Any, ranks: int) -> None:
    """Keep the store, at the first rank's exit, until the others have read what it has said."""
    until = time.monotonic() + _FAREWELL
    with contextlib.suppress(RuntimeError):
        for key in _unread:
            while table.add(f"{key}/read", 0) < ranks - 1 and time.monotonic() < until:
                time.sleep(_LONGEST_PAUSE)
