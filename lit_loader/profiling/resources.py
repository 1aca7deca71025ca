"""What this process has of the machine: its memory; its CPU cores next to other ranks."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from lit_loader.core.system import linux
from lit_loader.core.system.linux import usable_cores

__all__ = ["own_memory", "cores_of_this_rank"]

_RANKS_HERE: Final = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
"""Variables in which launchers say how many processes of a job there are on this machine."""

ranks_here: int | None = None
"""Processes of the job on this machine, if a framework knows; None: as the launcher's variables
say."""


def cores_of_this_rank() -> float:
    """CPU cores for this process and its children, next to other ranks of a job.

    They are divided equally among the ranks on this machine, unless the launcher has done so: by an
    affinity that is no more than a rank's part of the machine.
    """
    said = (os.environ.get(name, "") for name in _RANKS_HERE)
    ranks = ranks_here or next((int(text) for text in said if text.isdecimal()), 1) or 1
    machine, affinity, usable = float(os.cpu_count() or 1), linux.affinity(), usable_cores()
    divided = affinity <= machine / ranks
    # A quota, of a container say, is for all of them.
    return min(affinity, usable / ranks if usable < affinity or not divided else usable)


def own_memory(pid: int | str = "self") -> int | None:
    """Bytes of a process that are not a file's; None where the kernel does not say.

    Pages that forked processes have in common are divided among them, so that the sum over all is
    what the machine has given. The kernel looks through the page tables for it: some milliseconds
    for each gigabyte.
    """
    with contextlib.suppress(OSError, ValueError):
        for line in Path(linux.PROC, str(pid), "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss_Anon:"):
                return int(line.split()[1]) << 10
    return None
