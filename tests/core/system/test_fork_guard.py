"""A batch that is held when user code forks stays what it is in the child."""

import os
from typing import Any

import pytest
import torch

import lit_loader
from lit_loader.core.transport.arena import HELD_SLOTS
from tests.support.samples import Call

FILLED = Call(lambda index: torch.full((2048,), float(index)), 4000)


def fork_with(batch: torch.Tensor, go_on: int) -> int:
    """Fork a child that holds ``batch``, and in which it is looked at when the parent says so."""
    expected = batch.clone()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.read(go_on, 1)
            code = 0 if torch.equal(batch, expected) else 2
        finally:
            os._exit(code)
    return pid


@pytest.mark.parametrize("what", ["goes on", "is closed"])
def test_a_childs_batch_does_not_change(what: str) -> None:
    """Whatever becomes of the slots in the parent, which has let go of its batches."""
    read_end, write_end = os.pipe()
    loader = lit_loader.DataLoader(FILLED, 2, num_workers=2, persistent_workers=True)
    with loader:
        iterator = iter(loader)
        pids = []
        for _ in range(5 if what == "goes on" else 1):
            batch = next(iterator)
            pids.append(fork_with(batch, read_end))
            if what == "goes on":
                del batch
                for _ in range(200):  # every slot of the arena is written anew, but those
                    next(iterator)
    batch = None
    os.write(write_end, b"x" * len(pids))
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    os.close(read_end)
    os.close(write_end)
    assert codes == [0] * len(pids)


def test_forks_without_end() -> None:
    """No descriptor is left behind; and where too many slots are out, batches are copied."""
    with lit_loader.DataLoader(FILLED, 2, num_workers=2, persistent_workers=True) as loader:
        iterator = iter(loader)
        batch = next(iterator)
        before = len(os.listdir("/proc/self/fd"))
        for number in range(1, HELD_SLOTS + 32):
            if (pid := os.fork()) == 0:
                os._exit(0)
            os.waitpid(pid, 0)
            batch = next(iterator)
            assert batch[0, 0] == 2 * number
        assert len(os.listdir("/proc/self/fd")) <= before + 1
        pool: Any = loader._core.pool
        assert len(pool.arena._leased) <= HELD_SLOTS + 8
