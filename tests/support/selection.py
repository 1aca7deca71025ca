"""What the default run leaves to ``-m slow``, besides what is marked where it stands.

The default run is to be over in twelve minutes on two idle cores, ``-m unit`` in one. So of tests
that start an interpreter or a Trainer for each cell it has one cell of a kind, and of the large
matrices some cells in turn; ``-m slow`` runs the others.
"""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Iterable
from typing import Final

import pytest

LONG: Final = (
    "cache/test_cached_dataset.py::test_workers_share_it[[]-spawn*",
    "exactness/test_cached.py::test_other_start_methods[[]spawn*",
    "batch/test_pad.py::test_through_a_worker[[]spawn*",
    "bench/test_bench_app.py::test_every_case_measures[[]decoding*",
    "bench/test_bench_app.py::test_every_case_measures[[]transport*",
    "exactness/test_exactness.py::test_batch_seeding_under_spawn_equals_one_process[[]batch*",
    "exactness/test_exactness.py::test_other_start_methods[[]spawn*",
    "node/test_shared_dataset.py::test_killed_at_any_instruction[[]*-while*",
    "examples/test_example.py::test_debug_configurations*",
    "faults/test_fault_matrix.py::test_a_program_is_killed[[]forkserver-encoding*",
    "faults/test_fault_matrix.py::test_by_start_method[[]spawn*",
    "worker/test_shared_lists.py::test_in_workers_only[[]spawn*",
    "worker/test_fork_safety.py::test_restarts_among_busy_threads[[]pinned*",
    "faults/test_lifecycle.py::test_exit_with_live_iterators[[]spawn*",
    "hydra/test_hydra_commands.py::test_submitit_launcher",
    "iteration/test_limits.py::test_a_disk_that_says_it_is_full[[]10 MB*",
    "iteration/test_limits.py::test_a_full_disk_behind_the_temporary_directory[[]10m*",
    "iteration/test_limits.py::test_a_small_address_space_and_large_batches[[]3000 MB*",
    "mixture/test_mixture.py::test_streams_resume_in_mid_epoch[[]*-2]",
    "worker/test_shared_buffers.py::test_one_copy*-alone*",
    "worker/test_shared_buffers.py::test_one_copy*[[]spawn*",
    "system/test_pickling.py::test_a_session_with*[[]-c*",
    "examples/test_recipes.py::test_a_killed_training_goes_on_exactly*",
    "examples/test_recipes.py::test_a_recipe_trains[[]huggingface*",
    "examples/test_recipes.py::test_a_recipe_trains[[]tabular*",
    "examples/test_recipes.py::test_a_sweep_ends_with_a_picture*",
    "examples/test_recipes_text.py::test_imbalanced*",
    "examples/test_recipes_text.py::test_mixture*",
    "examples/test_recipes_text.py::test_text",
    "examples/test_recipes_text.py::test_text_stream",
    "batch/test_sample_errors.py::test_resuming_gives_the_rest[[]2 workers-*",
    "parity/test_iterators.py::test_a_loader_in_a_child_process[[]*workers*-spawn*",
    "parity/test_iterators.py::test_a_loader_in_a_child_process[[]*persistent*-spawn*",
    "parity/test_start_methods.py::test_facts_about_a_worker[[]*-spawn*",
    "parity/test_start_methods.py::test_iterable_style_with_worker_init_fn[[]*-spawn*",
    "project/test_reaches.py::test_descriptors_travel_along[[]spawn*",
    "sampling/test_epochs.py::test_a_dataset_learns_the_epoch_in_each_worker[[]spawn*",
    "system/test_pickling.py::test_beside_what_only_a_processs_start_can_carry[[]spawn*",
    "system/test_pickling.py::test_the_other_options[[]spawn*",
    "transport/test_codec.py::TestProcesses::test_another_process_encodes[[]spawn*",
    "transport/test_transport.py::test_a_rich_batch[[]spawn*",
    "transport/test_transport.py::test_batches_larger_than_a_slot_by_start_method[[]spawn*",
    "memory/test_shared_sequence.py::test_in_workers[[]spawn*",
    "sampling/test_sharding.py::test_pad_drop_and_keep[[]7-*-2*",
    "faults/test_signals.py::test_an_iterator_goes_on_after_ctrl_c[[]*-group*",
    "faults/test_signals.py::test_an_iterator_goes_on_after_ctrl_c[[]spawn-*",
    "faults/test_signals.py::test_sigterm_to_the_group_leaves_the_epoch_to_the_parent[[]spawn*",
    "faults/test_signals.py::test_sigterm_to_the_group_leaves_the_epoch_to_the_parent[[]forkserver*",
    "faults/test_signals.py::test_sigterm_to_the_group_lets_lightning_save_and_resume[[]next*",
    "faults/test_signals.py::test_workers_never_run_the_parents_handlers[[]spawn*",
    "faults/test_signals.py::test_workers_never_run_the_parents_handlers[[]forkserver*",
    "lightning/test_strategies.py::test_a_killed_rank_leaves_nothing_behind[[]ddp_fork*",
    "lightning/test_strategies.py::test_strategies[[]ddp_fork forkserver*",
    "lightning/test_strategies.py::test_strategies[[]ddp_notebook*",
    "sampling/test_token_budget.py::test_resume_in_mid_epoch[[]2-*",
)
"""Patterns of what comes after ``tests/`` in a test's name."""

THINNED: Final = {
    "faults/test_fault_matrix.py::test_what_ends_or_stops_a_worker": 3,
    "exactness/test_exactness.py::test_out_of_order_loses_and_repeats_nothing": 2,
    "exactness/test_exactness.py::test_stopped_and_resumed_twice": 3,
    "faults/test_lifecycle.py::test_an_interrupt": 2,
    "iteration/test_next_epoch.py::test_epochs_are_what_they_are": 2,
    "iteration/test_iterable.py::test_resume_at_every_position": 3,
    "lightning/test_lightning_resume.py::test_chain_of_resumes": 4,
    "lightning/test_lightning_resume.py::test_iterable_datasets": 3,
    "seeding/test_generator_watch.py::test_batches_do_not_depend_on_who_made_what_before": 2,
    "lightning/test_lightning_resume.py::test_users_samplers": 3,
    "pool/test_recovery.py::test_a_reader_dies_anywhere": 2,
    "pool/test_recovery.py::test_a_batch_that_ends_two_workers": 2,
    "exactness/test_resume.py::test_every_kind_of_sampler_at_every_position": 3,
    "batch/test_sample_retries.py::test_batches_are_those_of_a_clean_run": 2,
    "sampling/test_sharding.py::test_pad_drop_and_keep": 2,
    "statistics/test_statistics.py::test_a_delay_is_found_in_its_stage": 2,
}
"""Test to how many cells one of them is of the default run."""


def leave_to_slow(items: Iterable[pytest.Item]) -> None:
    """Mark tests as slow, as the tables say."""
    seen: Counter[str] = Counter()
    for item in items:
        name = item.nodeid.removeprefix("tests/")
        function = name.partition("[")[0]
        if item.get_closest_marker("slow"):
            continue
        if function in THINNED:
            seen[function] += 1
            if seen[function] % THINNED[function] != 1:
                item.add_marker("slow")
        elif any(fnmatch.fnmatchcase(name, pattern) for pattern in LONG):
            item.add_marker("slow")
