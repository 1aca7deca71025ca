"""Large batches of worker threads: little memory, and never that of a batch which is still held."""

import gc
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from lit_loader import DataLoader
from lit_loader.threads.batch_memory import BatchMemory
from tests.support.programs import run_program

PROGRAM = """
import sys
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset

from lit_loader import DataLoader


class Images(Dataset):
    '''Of different heights, cropped.'''

    def __len__(self):
        return 400

    def __getitem__(self, index):
        image = np.full((256 + index % 9, 224, 3), index, np.float32)[:224] * 2
        return torch.from_numpy(image.copy())


def memory():
    # Not Pss_File: that of libraries changes as others who use them come and go.
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(s.split()[1]) for s in lines if s.startswith(("Pss_Anon:", "Pss_Shmem:"))) / 1024


torch.set_num_threads(1)
torch.stack([Images()[0]] * 8)
before, added = memory(), []
for number, batch in enumerate(DataLoader(Images(), 8, num_workers=2, worker_method="thread")):
    assert batch[0, 0, 0, 0] == 16 * number
    if number % 5 == 4:
        added.append(memory() - before)
print(max(added))
"""


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="Linux says what is used")
def test_two_threads_hold_no_more_than_the_batches_that_are_made(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    added = float(run_program(tmp_path / "program.py"))
    assert added < 60  # MB: at most five batches of 4.8, and two that are put together


class Images(Dataset[Any]):
    """Each half a MB, all of its number; of every third batch a few rows are missing."""

    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> Any:
        rows = 100 if index // 8 % 3 else 128
        image = np.full((rows, 1024), index, np.float32)
        return {"image": image, "mask": torch.full((rows, 512), index, dtype=torch.bool)}


def is_right(number: int, batch: Any) -> bool:
    """By NumPy: a forked child has not the threads that torch computes with."""
    indices = np.arange(8 * number, 8 * number + 8)[:, None, None]
    image, mask = batch["image"].numpy(), batch["mask"].numpy()
    return bool((image == indices).all() and (mask == (indices > 0)).all())


def test_what_the_program_holds_of_a_batch_stays() -> None:
    held: dict[int, Any] = {}
    for number, batch in enumerate(DataLoader(Images(), 8, num_workers=3, worker_method="thread")):
        assert is_right(number, batch)
        if number % 2:  # a view of a view, by NumPy
            held[number] = batch["image"][3].numpy()[1:, ::2]
        batch["image"].numpy()[:] += 1  # it is the program's own
    gc.collect()
    for number, rows in held.items():
        assert (rows == 8 * number + 4).all()


def test_a_forked_child_and_its_parent_have_memory_of_their_own() -> None:
    batches = iter(DataLoader(Images(), 8, num_workers=2, worker_method="thread"))
    first = next(batches)
    pid = os.fork()
    if pid == 0:
        first["image"].numpy()[:] = 0
        rest = all(is_right(number, each) for number, each in enumerate(batches, 1))
        os._exit(not rest)
    assert all(is_right(number, each) for number, each in enumerate(batches, 1))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert is_right(0, first)


def test_memory_is_used_again_and_little_lies_idle() -> None:
    memory = BatchMemory()

    def taken() -> torch.Tensor:
        found = memory.empty((4, 2**16), torch.bfloat16)
        assert found is not None and (found.shape, found.dtype) == ((4, 2**16), torch.bfloat16)
        return found

    assert memory.empty((4, 16), torch.float32) is None
    held, place = taken(), (each := taken()).data_ptr()
    view = each[2:]
    del each
    assert taken().data_ptr() != place
    del view
    again = taken()
    assert again.data_ptr() == place
    many = [taken() for _ in range(20)]
    del many
    assert len(memory._idle) <= 2
    del again, held
    assert not memory._idle and not memory._lent
