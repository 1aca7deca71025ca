"""Where Python has neither memfd nor pidfd, as in some of conda's builds: ordinary programs run."""

import json
from pathlib import Path

import pytest

from tests.support.programs import run_program

PROGRAM = """
import os
del os.memfd_create, os.pidfd_open

import json, multiprocessing, signal, sys, warnings
import numpy as np
import torch
from lit_loader import CachedDataset, DataLoader

class Rows:
    def __init__(self, kill=""):
        self.kill, self.table = kill, np.arange(50_000.)
    def __len__(self):
        return 30
    def __getitem__(self, index):
        if index == 7 and self.kill and not os.path.exists(self.kill):
            open(self.kill, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        grown = 1 + (index >= 12) * 40_000  # more than a slot on a disk has room for
        return torch.full((grown,), self.table[index] + torch.rand(()).item())

def sums(batches):
    return [[float(row.sum()) for row in batch] for batch in batches]

def loader(dataset, num_workers, **options):
    return DataLoader(dataset, 4, num_workers=num_workers, seed=3, collate_fn=list, **options)

def main():
    multiprocessing.set_start_method(sys.argv[1])
    here = loader(Rows(), 0, shuffle=True)
    expected = [sums(here) for _ in range(2)]
    killed = loader(Rows(sys.argv[2]), 2, shuffle=True, persistent_workers=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kept = list(killed)  # all of them are held at once
        said = {"epochs": [sums(kept), sums(killed)] == expected}
    said["replaced"] = [each.category.__name__ for each in caught]
    said["alive"] = any(each.is_alive() for each in iter(killed)._workers)
    killed.close()
    cached = DataLoader(CachedDataset(range(30), "1 MB", key="cached"), 4, num_workers=2)
    said["cached"] = [int(sum(batch.sum() for batch in cached)) for _ in range(2)]
    print(json.dumps(said))

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_ordinary_programs(method: str, tmp_path: Path) -> None:
    (program := tmp_path / "program.py").write_text(PROGRAM)
    out = run_program(program, method, tmp_path / "killed")
    said = {"epochs": True, "replaced": ["WorkerRestartWarning"], "alive": True}
    assert json.loads(out) == {**said, "cached": [435, 435]}
