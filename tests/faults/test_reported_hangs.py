"""What people have reported of loaders that hang after a fork, as their programs were written.

Each ends right, or in a message that names cause and cure: none is silent. The libraries are real;
a test is skipped where one is missing. What else was reported: a file opened before the fork
(`tests/diagnostics/test_fork_dangers.py`), signals to a job (`test_signals.py`), limits
(`tests/core/epoch/test_limits.py`).
"""

import importlib.util
import os
from pathlib import Path

import pytest

from tests.support.programs import run_python

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="looks into /proc"),
]


def needs(library: str) -> pytest.MarkDecorator:
    """Skip without a library; it is not imported here, where its threads would stay."""
    there = importlib.util.find_spec(library) is not None
    return pytest.mark.skipif(not there, reason=f"{library} is not installed")


OPENCV = """
import threading
import cv2, numpy as np
from lit_loader import DataLoader

ok, jpeg = cv2.imencode(".jpg", np.random.randint(0, 255, (300, 400, 3), np.uint8))

class Images:
    def __len__(self):
        return 16

    def __getitem__(self, index):
        return cv2.resize(cv2.imdecode(jpeg, cv2.IMREAD_COLOR), (64, 64))

done = threading.Event()

def preview():
    while not done.is_set():
        cv2.GaussianBlur(cv2.imdecode(jpeg, cv2.IMREAD_COLOR), (31, 31), 0)

threads = [threading.Thread(target=preview) for _ in range(2)]
for thread in threads:
    thread.start()
try:
    loader = DataLoader(
        Images(), 4, num_workers=2, multiprocessing_context="fork", timeout=30, seed=1
    )
    print(sum(len(batch) for batch in loader))
finally:
    done.set()
"""


@needs("cv2")
def test_images_are_decoded_beside_a_thread_that_decodes(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(OPENCV)
    assert run_python(tmp_path, "program.py").endswith("16\n")


POLARS = """
import sys, warnings
import polars
from lit_loader import DataLoader, StallWarning

class Rows:
    def __init__(self):
        self.frame = polars.DataFrame({"a": range(1000), "b": [n % 7 for n in range(1000)]})
        self.frame.group_by("b").agg(polars.col("a").sum())  # in the library's threads

    def __len__(self):
        return 8

    def __getitem__(self, index):
        of_index = self.frame.lazy().filter(polars.col("b") == index % 7)
        return int(of_index.select(polars.col("a").sum()).collect().item())

if __name__ == "__main__":
    warnings.simplefilter("error", StallWarning)
    method, options = sys.argv[1], {}
    if method == "fork":
        options["stall_warning"] = 5
    loader = DataLoader(Rows(), 4, num_workers=1, multiprocessing_context=method, **options)
    try:
        print([*map(len, loader)])
    except StallWarning as stall:
        print("STALL", stall)
    loader.close()
"""


@needs("polars")
@pytest.mark.parametrize("method", ["fork", pytest.param("forkserver", marks=pytest.mark.slow)])
def test_frames_of_a_library_whose_threads_run(tmp_path: Path, method: str) -> None:
    """torch's loader hangs in silence. Here a warning says where it hangs, and what to do."""
    (tmp_path / "program.py").write_text(POLARS)
    out = run_python(tmp_path, "program.py", method)
    if method != "fork":
        assert out == "[4, 4]\n"  # as the messages say
        return
    _, _, stall = out.partition("STALL")
    if stall:  # versions to come may survive a fork
        assert "LL008" in stall
        assert "sleeps at a lock (futex), got 0.0 s" in stall
        assert "in __getitem__" in stall
        assert "workers were forked next to other threads (" in stall
        assert "set multiprocessing_context='forkserver' or 'spawn'" in stall


ZARR = """
import numpy, zarr
from lit_loader import DataLoader

class Rows:
    def __init__(self, folder):
        self.array = zarr.create_array(folder, shape=(16, 100), chunks=(1, 100), dtype="f4")
        self.array[:] = 1  # in the library's event loop

    def __len__(self):
        return 16

    def __getitem__(self, index):
        return numpy.asarray(self.array[index])

loader = DataLoader(
    Rows("a.zarr"), 4, num_workers=2, multiprocessing_context="fork", stall_warning=20
)
print(int(sum(batch.sum() for batch in loader)))
"""


@needs("zarr")
def test_arrays_of_a_library_with_an_event_loop(tmp_path: Path) -> None:
    """It begins again after a fork, since zarr 3."""
    (tmp_path / "program.py").write_text(ZARR)
    assert run_python(tmp_path, "program.py") == "1600\n"


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
if sys.argv[1] == "timeout":
    print(sum(len(batch) for batch in DataLoader(Rows(), 4, num_workers=2, timeout=3)))
else:
    warnings.simplefilter("error", StallWarning)
    try:
        list(DataLoader(Rows(), 4, num_workers=2, multiprocessing_context="fork", stall_warning=5))
    except StallWarning as stall:
        print(stall)
"""


@pytest.mark.usefixtures("by_fork")
@pytest.mark.parametrize("how", ["timeout", "no timeout"])
def test_a_thread_has_a_lock_while_workers_are_forked(tmp_path: Path, how: str) -> None:
    """torch's loader hangs for ever, though the lock was held for two seconds."""
    (tmp_path / "program.py").write_text(LOCKED)
    out = run_python(tmp_path, "program.py", how)
    if how == "timeout":
        assert "it may wait for a lock that another thread held when it was forked" in out
        assert out.endswith("16\n")
    else:
        assert "sleeps at a lock (futex), got 0.0 s" in out
        assert "in __getitem__" in out
        assert "workers were forked next to other threads (uploader)" in out  # it has ended since
        assert "With timeout=… (seconds) lit_loader replaces such a worker" in out
