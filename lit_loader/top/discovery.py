"""Which processes are trainings, which of them belong together, and which one a number means.

::

    /proc/*/fd ─▶ loaders' files, and who has them open ─▶ boards ─▶ owners: training processes
                                                                       ╰─ groups: trainings

A loader's file is open in the training process and in all of its workers; the page in it says which
one is the owner. Processes are one training if one of them has started the other, or a launcher has
started both and has given them a place to meet.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from lit_loader.top import processes
from lit_loader.top.board import BoardView, OtherFormat, read_board

__all__ = ["WHICH", "Board", "NotFound", "find_boards", "grouped", "resolve"]

_MEETING = (
    ("TORCHELASTIC_RUN_ID", "MASTER_PORT"),
    ("MASTER_ADDR", "MASTER_PORT"),
    ("SLURM_JOB_ID", "SLURM_STEP_ID"),
    ("OMPI_COMM_WORLD_SIZE", "PMIX_NAMESPACE"),
)
"""Variables by which launchers let ranks find each other."""

WHICH = (
    "lit_loader DataLoader with workers at this moment (one is seen from its first batch on; where "
    "the training process makes the batches itself, py-spy dump --pid shows what it is at)"
)


class NotFound(Exception):
    """There is nothing to be shown; says why."""


class Board(NamedTuple):
    """A loader's file; its owner is the training process. What was read, or why nothing was."""

    key: tuple[int, int]  # device and inode
    path: str
    owner: int
    pids: dict[int, int]  # who has it open: the number that the board knows, to that of here
    view: BoardView | None = None
    problem: str | None = None

    @contextlib.contextmanager
    def opened(self) -> Iterator[int]:
        """Give its descriptor; OSError: it is closed by now, and another file may be there."""
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            status = os.fstat(fd)
            if (status.st_dev, status.st_ino) != self.key:
                raise OSError(f"another file is at {self.path} by now")
            yield fd
        finally:
            os.close(fd)


def find_boards() -> list[Board]:
    """Find the loaders whose files processes of this user have open."""
    holders: dict[tuple[int, int], dict[int, str]] = {}
    for pid in processes.own_pids():
        with contextlib.suppress(OSError):
            for key, path in processes.files_of(pid).items():
                holders.setdefault(key, {})[pid] = path
    boards = [board for key, paths in holders.items() for board in _read(key, paths)]
    # A file that cannot be read is told of only where nothing else is: it may just be made.
    told = {board.owner: board for board in boards if board.view is None}
    told.update({board.owner: board for board in boards if board.view is not None})
    return [board for board in boards if board.view is not None or told[board.owner] is board]


def _read(key: tuple[int, int], paths: dict[int, str]) -> Iterator[Board]:
    inner, started = {}, {}
    for pid in paths:
        with contextlib.suppress(OSError):
            inner[processes.inner_pid(pid)] = pid
            started[pid] = processes.read_process(pid).started
    # The oldest first: it has started the others, whose numbers may be lower.
    for pid in sorted(started, key=lambda pid: (started[pid], pid)):
        board = Board(key, paths[pid], pid, inner)
        try:
            with board.opened() as fd:
                view = read_board(fd)
        except OtherFormat as other:
            yield board._replace(problem=_explained(pid, other.format))
            return
        except OSError:
            continue
        if view.page["pid"] in inner:  # else it has ended, and its workers are about to
            yield board._replace(view=view, owner=inner[view.page["pid"]])
        return


def _explained(pid: int, found: int | None) -> str:
    if found is None:
        return (
            "this loader has given no batch yet, or is of a lit_loader from before lit-loader-top"
        )
    python = "its python"
    with contextlib.suppress(OSError):
        python = os.readlink(f"/proc/{pid}/exe")
    return (
        f"this loader is of another version of lit_loader (board format {found}): look at it by "
        f"that version's own viewer, {python} -m lit_loader.top {pid}"
    )


def grouped(pids: Iterable[int]) -> list[list[int]]:
    """Put training processes together that are ranks of one training."""
    groups: list[list[int]] = []
    links = {pid: _links(pid) for pid in sorted(pids)}

    def linked(one: int, other: int) -> bool:
        (above, meeting), (above_other, meeting_other) = links[one], links[other]
        return one in above_other or other in above or bool(meeting & meeting_other)

    for pid in links:
        near = [group for group in groups if any(linked(pid, other) for other in group)]
        groups = [group for group in groups if group not in near]
        groups.append(sorted([pid, *(other for group in near for other in group)]))
    return groups


def _links(pid: int) -> tuple[set[int], set[tuple[object, ...]]]:
    """The ancestors of a process, and where it was told to meet others."""
    above: set[int] = set()
    meeting: set[tuple[object, ...]] = set()
    with contextlib.suppress(OSError):
        process = processes.read_process(pid)
        command, parent = processes.command_of(pid), process.parent
        environment = processes.environment_of(pid)
        for names in _MEETING:
            values = tuple(environment.get(name) for name in names)
            if all(values):
                meeting.add((names, *values))
        # Ranks that Python has started, one beside the other: spawned, or forked and the same.
        if "multiprocessing" in command or command == processes.command_of(parent):
            meeting.add(("started by", parent))
        while process.parent > 1:
            process = processes.read_process(process.parent)
            above.add(process.pid)
    return above, meeting


def resolve(pid: int, boards: Iterable[Board]) -> int:
    """Find the training process that a number means: a worker's, or a launcher's above it.

    NotFound: there is no such process, it may not be looked at, or is no training.
    """
    try:
        name = processes.read_process(pid).name
        os.listdir(f"/proc/{pid}/fd")
    except PermissionError:
        user = processes.user_of(pid)
        raise NotFound(
            f"process {pid} belongs to {user}, and nobody else but root may look at it: "
            f"sudo -u {user} lit-loader-top {pid}"
        ) from None
    except OSError:
        raise NotFound(f"there is no process {pid}: lit-loader-top alone lists trainings") from None
    owners = {board.owner for board in boards}
    if pid in owners:
        return pid
    for board in boards:
        if pid in board.pids.values():
            return board.owner
    trainings = grouped(owners.intersection(processes.descendants(pid)))
    if len(trainings) > 1:
        pids = ", ".join(str(group[0]) for group in trainings)
        raise NotFound(f"process {pid} ({name}) has started several trainings: name one, of {pids}")
    if not trainings:
        raise NotFound(f"process {pid} ({name}) has no {WHICH}")
    return trainings[0][0]
