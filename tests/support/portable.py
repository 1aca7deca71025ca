"""Tests of what Linux alone has: left out under ``LIT_LOADER_PORTABLE=1``, each with its reason."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pytest

from lit_loader.system import linux

_GIVEN_BACK: Final = "memory is given back by holes in a memfd"
_LAUNCHER: Final = "workers come from a launcher"
_FOUND: Final = "files in memory are found by their label"
_SPARSE: Final = "a file takes its room on the disk beforehand"
_LEFT_OUT: Final = {
    "iteration/test_limits.py::test_a_disk_that_says_it_is_full": _SPARSE,
    "iteration/test_limits.py::test_a_full_disk_behind_the_temporary_directory": _SPARSE,
    "iteration/test_limits.py::test_too_few_open_files_for_the_workers": (
        "multiprocessing leaves a pipe open if there is no room for its second one"
    ),
    "memory/test_arena_memory.py": _GIVEN_BACK,
    "memory/test_held_tensors.py": _GIVEN_BACK,
    "node/": _FOUND,
    "pool/test_recovery.py::test_one_warning_says_it_all[SIGKILL": "a launcher knows peaks",
    "pool/test_recovery.py::test_the_launcher_is_killed": _LAUNCHER,
    "top/": "/proc says what there is to be seen",
    "worker/test_fork_safety.py": _LAUNCHER,
    "worker/test_launcher.py": _LAUNCHER,
}


def leave_out_linux(items: Iterable[pytest.Item]) -> None:
    """Skip them where the package does without."""
    if linux.HERE:
        return
    for item in items:
        name = item.nodeid.removeprefix("tests/")
        for begin, reason in _LEFT_OUT.items():
            if name.startswith(begin):
                item.add_marker(pytest.mark.skip(reason=f"on Linux alone: {reason}"))
