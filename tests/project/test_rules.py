"""The tests keep the rules that `tests/README.md` gives; and they do not grow."""

import re
from pathlib import Path

from tests.support.sources import imports

TESTS = Path(__file__).parents[1]
FILES = {path.relative_to(TESTS).as_posix(): path.read_text() for path in TESTS.rglob("*.py")}
MODULES = {file: text for file, text in FILES.items() if Path(file).name.startswith("test_")}

INTERNAL = {
    "core/epoch/test_false_ends.py", "core/epoch/test_resizing.py",
    "core/executors/test_pool_model.py", "core/executors/test_start.py",
    "core/executors/test_toy_executor.py", "core/transport/test_transport.py",
    "faults/test_fault_matrix.py", "project/test_layers.py",
    "accelerator/test_pin_memory.py", "core/state/test_hostile_states.py",
}  # fmt: skip
"""Tests that hold an internal of the core to its own invariant, or stop it at a certain point."""

PURE = {"batch", "options", "sampling", "seeding", "system", "transport"}
"""Packages of the core whose modules have no state, or which carry what tests look at."""

SPAWNING = {
    "core/epoch/test_limits.py", "core/executors/test_shared_buffers.py",
    "core/transport/test_carrier.py", "core/transport/test_pickling.py",
    "data/test_cached_dataset.py", "data/test_collation.py", "diagnostics/test_stall.py",
    "exactness/test_map_style.py", "faults/test_fault_matrix.py", "parity/test_arguments.py",
    "parity/test_iterators.py", "profiling/test_auto_workers.py",
    "streams/test_get_shard.py", "threads/test_threads.py",
}  # fmt: skip
"""Tests of a kind of start; all others use fork or forkserver, which take no seconds."""

MOST_LINES = 31_750
"""Lines of all tests: if there are more, others are to go."""


def test_no_test_module_imports_another() -> None:
    for file, text in FILES.items():
        found = [name for name in imports(text) if re.search(r"^tests\..*\btest_", name)]
        assert not found, f"{file} imports {found}: what tests share belongs into tests/support"


def test_of_the_core_tests_import_pure_modules_and_transport_alone() -> None:
    for file, text in MODULES.items():
        core = {n.split(".")[2] for n in imports(text) if n.startswith("lit_loader.core.")}
        if core - PURE:
            assert file in INTERNAL, f"{file} imports {core - PURE}: test what a user can see"


def test_datasets_are_shared_and_few() -> None:
    assert len(FILES["support/datasets.py"].splitlines()) <= 500


def test_interpreters_are_started_by_tests_of_starting_alone() -> None:
    spawning = {file for file, text in MODULES.items() if '"spawn"' in text} - {Path(__file__).name}
    assert spawning <= SPAWNING | {"project/test_rules.py"}


def test_there_are_not_more_and_more() -> None:
    assert sum(text.count("\n") for text in FILES.values()) <= MOST_LINES
