"""Every reach into what torch, NumPy, Lightning or Python do not document, with its reason.

If an upgrade moves one, tests of the code that is named fail; those here hold what would fail
silently: generators that nobody seeds.
"""

from __future__ import annotations

import random
import re
from multiprocessing import forkserver
from pathlib import Path

import numpy as np
import torch

from lit_loader.seeding import find_generators

PACKAGE = Path(__file__).parents[2] / "lit_loader"

REACHES = {
    # The iterators of a fit, and whether it takes batches ahead
    "lightning/state_callback.py": {"fit_loop._data_fetcher"},
    # The store that the processes of a job have already
    "streams/job_store.py": {"distributed_c10d._get_default_store"},
    # A lock that a forked worker may find taken
    "system/forked_locks.py": {"accelerator._initialization_lock"},
    # Popen.returncode, of a child that somebody else has waited for
    "system/child_processes.py": {"process._popen"},
    # torch's table of rules for collating, which users extend
    "batch/collate.py": {"torch.utils.data._utils"},
    # The object behind numpy.random's functions, which is no generator of the dataset's
    "seeding/find_generators.py": {"mtrand._rand"},
    # The same as in system/child_processes.py: wait4 gives peak memory
    "worker/launcher.py": {"process._popen"},
    # What the fork server imports, and whether it lives
    "worker/process_start.py": {"forkserver._forkserver"},
    # The parts of tensors of each kind, and tensors made of them
    "transport/reductions.py": {
        "tensor._indices", "tensor._values", "obj._untyped_storage", "torch._C",
        "torch._make_per_tensor_quantized_tensor", "torch._make_per_channel_quantized_tensor",
    },
    # Whether a Trainer is resumed, and its counts of batches and steps
    "lightning/trainer_progress.py": {
        "fit_loop._restarting", "loop._batches_that_stepped", "fit_loop._combined_loader",
        "combined._iterator",
    },
    # The variable behind torch.utils.data.get_worker_info()
    "batch/worker_info.py": {"torch.utils.data._utils", "torch_worker._worker_info"},
}  # fmt: skip

OWN = re.compile(
    r"\b(self|cls|short|payload|state|module|watch)\._\w+"
    r"|\bloader\._core\b|\w+\._(asdict|fields|make|replace)\b"
)
PRIVATE = re.compile(r"(?:\btorch\.utils\.data\._utils|\b\w+\._[a-zA-Z]\w*)")


def test_the_list_is_complete() -> None:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        code = re.sub(r'(?s:""".*?""")|#.*', "", path.read_text())
        names = set(PRIVATE.findall(OWN.sub("", code))) - {"os._exit"}
        if names:
            found[path.relative_to(PACKAGE).as_posix()] = names
    assert found == REACHES


def uses_torch() -> object:
    return torch.utils.data


def test_instructions_that_load_a_global() -> None:
    """seeding/find_generators.py: the names that `dis` has for them."""
    assert find_generators._loads(uses_torch.__code__, "torch")
    assert not find_generators._loads(uses_torch.__code__, "default_collate")


def test_what_the_fork_server_imports() -> None:
    """worker/process_start.py: ForkServer._preload_modules, and what it is if nobody has set it."""
    server = forkserver.ForkServer()
    assert server._preload_modules == ["__main__"]
    server.set_forkserver_preload(["a"])
    assert server._preload_modules == ["a"]
    assert isinstance(forkserver._forkserver, forkserver.ForkServer)
    assert server._forkserver_pid is None  # until it runs


def test_numpys_global_generator() -> None:
    """seeding/find_generators.py: the object behind numpy.random's functions."""
    assert np.random.rand.__self__ is np.random.mtrand._rand is find_generators._GLOBALS[1]


def test_pythons_global_generator() -> None:
    """seeding/find_generators.py: random.seed is a method of the generator behind the functions."""
    assert isinstance(random.seed.__self__, random.Random)
    assert random.random.__self__ is random.seed.__self__ is find_generators._GLOBALS[0]
