"""What people have reported of loaders that hang after a fork, as their programs were written.

Each ends right, or in a message that names cause and cure: none is silent. A file opened before the
fork: `tests/diagnostics/test_fork_dangers.py`; signals to a job: `test_signals.py`; limits:
`tests/core/epoch/test_limits.py`.
"""

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.programs import run_program, run_python

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="looks into /proc"),
]

BUSY = """
import contextlib, logging, os, signal, sys, threading, warnings
import torch
from lit_loader import DataLoader, WorkerRestartWarning
from lit_loader.accelerator import pin_memory

pin_memory.find_accelerator = lambda device="": 0
pin_memory.pin_tensor = torch.clone
torch.accelerator.set_device_index = lambda index: None

logging.basicConfig(filename=os.devnull, level=logging.INFO)
matrix, done = torch.rand(300, 300), threading.Event()
torch.set_num_threads(2)

def train():
    while not done.is_set():
        (matrix @ matrix).sum()
        torch.rand(1000)

def log():
    while not done.is_set():
        logging.info("at work %s", "." * 500)

class Rows:
    def __len__(self):
        return 40

    def __getitem__(self, index):
        logging.info("sample %d", index)
        return (torch.rand(64, 64) @ matrix[:64, :64]).sum() * 0 + index

threads = [threading.Thread(target=each) for each in (train, log)]
for thread in threads:
    thread.start()
warnings.simplefilter("ignore", WorkerRestartWarning)
options = {"num_workers": 2, "pin_memory": True, "multiprocessing_context": "fork"}
try:
    for turn in range(5):
        iterator = iter(DataLoader(Rows(), max_worker_restarts=9, **options))
        found = [int(next(iterator))]
        for _ in range(3):  # others are forked in the thread that pins
            with contextlib.suppress(ProcessLookupError):  # the last one is not replaced yet
                os.kill(iterator.workers.workers.pids[0], signal.SIGKILL)
            found += [int(next(iterator)) for _ in range(5)]
        found += map(int, iterator)
        assert found == list(range(40))
    print("well")
finally:
    done.set()
"""


def test_beside_threads_that_log_compute_and_pin(tmp_path: Path) -> None:
    """OpenMP is in use, and workers are replaced in the midst of it."""
    (tmp_path / "program.py").write_text(BUSY)
    assert run_python(tmp_path, "program.py") == "well\n"


LOCKED = """
import sys, threading, time, warnings
from lit_loader import DataLoader, StallWarning

lock = threading.Lock()  # as a library has that logs, or caches, or decodes
held = threading.Event()

class Rows:
    def __len__(self):
        return 16

    def __getitem__(self, index):
        with lock:
            return index

def upload():
    with lock:
        held.set()
        time.sleep(2)

threading.Thread(target=upload, name="uploader").start()
held.wait()
options = {"num_workers": 2, "multiprocessing_context": "fork"}
if sys.argv[1] == "timeout":
    print(sum(len(batch) for batch in DataLoader(Rows(), 4, timeout=3, **options)))
else:
    warnings.simplefilter("error", StallWarning)
    try:
        list(DataLoader(Rows(), 4, stall_warning=5, **options))
    except StallWarning as stall:
        print(stall)
"""


@pytest.mark.parametrize("how", ["timeout", "no timeout"])
def test_a_thread_has_a_lock_while_workers_are_forked(tmp_path: Path, how: str) -> None:
    """torch's loader hangs forever, though the lock was held for two seconds."""
    (program := tmp_path / "program.py").write_text(LOCKED)
    out = run_program(program, how, forked=True, stderr=subprocess.STDOUT)
    if how == "timeout":
        assert "[LL011]" in out
        assert out.endswith("16\n")
    else:
        assert "in __getitem__" in out
        assert "(uploader)" in out  # which has ended since
        assert "LL008" in out
