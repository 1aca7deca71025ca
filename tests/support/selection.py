"""What the default run leaves to ``-m slow``.

The default run takes nine minutes on two idle cores. So of tests that start an interpreter or a
Trainer for each cell it has one cell of a kind, and of large matrices some; `-m slow` has the rest.
"""

import fnmatch
from collections import Counter
from typing import Final

import pytest

LONG: Final = (
    "data/test_collation.py::test_through_a_worker[[]spawn*",
    "hydra/test_hydra_commands.py::test_launchers[[]submitit*",
    "core/epoch/test_limits.py::test_a_full_disk_behind_the_temporary_directory[[]10m*",
    "core/epoch/test_limits.py::test_a_small_address_space_and_large_batches[[]3000 MB*",
    "lightning/test_strategies.py::test_strategies[[]ddp_fork forkserver*",
    "lightning/test_strategies.py::test_strategies[[]ddp_notebook*",
    "node/test_shared_dataset.py::test_killed_at_any_instruction[[]*-while*",
    "parity/test_iterators.py::test_a_loader_in_a_child_process[[]*persistent*-spawn*",
    "parity/test_iterators.py::test_a_loader_in_a_child_process[[]*workers*-spawn*",
    "parity/test_workers.py::test_facts_by_start_method[[]*-spawn*",
    "core/executors/test_shared_buffers.py::test_one_copy*-alone*",
)
"""Patterns of what comes after ``tests/`` in a test's name."""

THINNED: Final = {
    "faults/test_fault_matrix.py::test_the_parent_is_killed": 2,
    "lightning/test_flags.py::test_flags": 3,
    "lightning/test_flags.py::test_prediction_writers_get_the_indices": 5,
    "lightning/test_flags.py::test_memory_validated_in_is_trained_in": 3,
    "lightning/test_resume.py::test_combined_and_resumed_after_each_step": 3,
    "parity/test_exceptions.py::test_an_iterator_survives_bad_samples": 3,
    "faults/test_fault_matrix.py::test_what_ends_or_stops_a_worker": 4,
    "lightning/test_resume.py::test_chain_of_resumes": 5,
    "lightning/test_resume.py::test_loaders_that_are_reloaded_go_on": 3,
    "core/seeding/test_get_rng.py::test_draws_are_the_same": 3,
    "parity/test_batches.py::test_map_style": 3,
    "hydra/test_hydra.py::test_a_sweep_reaches_no_workers": 4,
    "remote/test_remote_loader.py::test_an_epoch_that_is_left_leaves_nothing_to_the_next_one": 2,
    "remote/test_remote_loader.py::test_the_workers_here_are_resized_beside_remote_ones": 2,
    "core/executors/test_recovery.py::test_a_batch_that_ends_two_workers": 2,
    "data/test_bad_samples.py::test_batches_are_those_of_a_clean_run": 2,
    "profiling/test_statistics.py::test_a_delay_is_found_in_its_stage": 2,
}
"""Test to how many cells one of them is of the default run."""


def leave_to_slow(items: list[pytest.Item]) -> None:
    """Mark tests as slow, as the tables say; of spawn and forkserver one stands for both."""
    seen: Counter[str] = Counter()
    names = [item.nodeid.removeprefix("tests/").partition("[") for item in items]
    by_fork_server = {function for function, _, cell in names if "forkserver" in cell}
    for item, (function, bracket, cell) in zip(items, names, strict=True):
        if item.get_closest_marker("slow"):
            continue
        seen[function] += 1
        spawned = "spawn" in cell and function in by_fork_server and "parity/" not in function
        every = THINNED.get(function, 1)
        thinned = every > 1 and seen[function] % every != 1
        name = function + bracket + cell
        if spawned or thinned or any(fnmatch.fnmatchcase(name, pattern) for pattern in LONG):
            item.add_marker("slow")
