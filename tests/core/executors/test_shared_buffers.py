"""Workers that begin with a new interpreter map the dataset's arrays, one copy for all."""

import contextlib
import mmap
import multiprocessing
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from lit_loader import DataLoader, WorkerRestartWarning, get_worker_info
from lit_loader.core.transport import dataset_pickle as carrier
from lit_loader.errors import LoaderError
from tests.support.samples import uncollated

BYTES = 1 << 24

SHARED = 2 * BYTES + BYTES // 2
"""Bytes of the file with two arrays of that size, and a part of one."""

NAME = "memfd:lit_loader arrays"


class Mapped(NamedTuple):
    """What a process has mapped of the file: its number, and bytes of it, also of its own."""

    inode: int
    resident: int
    private: int


def mapped() -> Mapped:
    """Ask the kernel about this process."""
    figures = {"Rss": 0, "Anonymous": 0}
    inode, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        key, _, rest = line.partition(":")
        if "-" in key.split()[0]:  # the line that a mapping begins with
            inside = NAME in line
            inode = int(line.split()[4]) if inside else inode
        elif inside and key in figures:
            figures[key] += int(rest.split()[0]) * 1024
    return Mapped(inode, figures["Rss"], figures["Anonymous"])


class Seen(NamedTuple):
    """What one sample has found."""

    worker: int
    pid: int
    total: int
    first: int
    mapped: Mapped
    after: Mapped


class Bulk:
    """An array, a part and a tensor of it; another one, read-only; bytes. The first is written to.

    With a start method, sample 5 ends its process, once. The first two samples wait until two
    processes are there, the last two until a third one is: so all of them take part. What a sample
    gives depends on ``number``, too.
    """

    number = 0
    arrived = False

    def __init__(self, method: str | None = None) -> None:
        self.array = np.arange(BYTES // 8)
        self.view = self.array[: BYTES // 16]
        self.tensor = torch.from_numpy(self.array)
        self.fixed = np.arange(BYTES // 8)
        self.fixed.flags.writeable = False
        self.blob = bytes(range(256)) * (BYTES // 256)
        self.counts = self.meeting = None
        if method is not None:
            # Samples of each worker; processes that have begun one; whether one has ended.
            self.counts = torch.zeros(4, dtype=torch.int64).share_memory_()
            self.meeting = multiprocessing.get_context(method).Condition()

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Seen:
        worker = get_worker_info().id
        if self.counts is not None and self.meeting is not None:
            with self.meeting:
                self.counts[2] += not self.arrived
                self.arrived = True
                self.meeting.notify_all()
                wanted = {0: 2, 1: 2, 10: 3, 11: 3}.get(index, 0)
                assert self.meeting.wait_for(lambda: int(self.counts[2]) >= wanted, 100)
            if index == 5 and not self.counts[-1]:
                self.counts[-1] = 1
                os._exit(7)
            self.counts[worker] += 1
        total = int(self.array[1:].sum() + self.fixed.sum()) + self.blob.count(b"\0") + self.number
        first, before = int(self.array[0]), mapped()
        self.array[0] = self.tensor[0] = os.getpid()
        assert self.tensor[0] == os.getpid()
        assert not self.fixed.flags.writeable
        return Seen(worker, os.getpid(), total, first, before, mapped())


def loader_of(data: Bulk, method: str, **options: Any) -> DataLoader[Any]:
    options = {"num_workers": 2, "collate_fn": uncollated, **options}
    return DataLoader(data, multiprocessing_context=method, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("alone", [False, True], ids=["with what is shared", "alone"])
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_one_copy_for_all_workers_and_those_that_replace_them(method: str, alone: bool) -> None:
    """They get the dataset as it was at first; the next workers get it as it is then."""
    data = Bulk(None if alone else method)
    loader = loader_of(data, method)
    batches = iter(loader)
    with contextlib.ExitStack() as stack:
        if not alone:
            stack.enter_context(pytest.warns(WorkerRestartWarning, match="by itself with code 7"))
        seen = next(batches)
        data.array[1] += 5
        data.number = 1
        seen += [sample for batch in batches for sample in batch]
    pids = {sample.pid for sample in seen}
    assert alone or len(pids) == 3
    n = BYTES // 8
    assert {sample.total for sample in seen} == {n * (n - 1) + BYTES // 256}
    # All map the same file, and have of their own the page that they have written to.
    assert len({sample.mapped.inode for sample in seen}) == 1
    assert all(2 * BYTES <= sample.mapped.resident < SHARED for sample in seen)
    assert {sample.after.private for sample in seen} == {mmap.PAGESIZE}
    for pid in pids:  # what was written is nobody else's
        mine = [sample for sample in seen if sample.pid == pid]
        assert [sample.first for sample in mine] == [0] + [pid] * (len(mine) - 1)
        assert mine[0].mapped.private == 0
    assert data.array[0] == 0
    assert not data.tensor.is_shared()
    if data.counts is not None:  # what is shared on purpose stays so
        assert data.counts[:2].sum() >= len(data)  # after a death some are made again
    later = {sample.total for batch in loader for sample in batch}
    assert later == {n * (n - 1) + BYTES // 256 + 6}


def full(fd: int, data: Any) -> int:
    raise OSError(28, "No space left on device")


def test_without_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carrier, "write_all", full)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(LoaderError, match="not enough memory for the dataset's arrays .*'fork'"):
        list(loader_of(Bulk(), "forkserver"))
    assert os.listdir("/proc/self/fd") == before
