"""Behaviours that are broken on purpose, one at a time: the default tests must notice each.

Each has a fault, which is one replacement of text in a copy of the package. The tests that are
named for it run there, and one must fail; ``pytest -m slow -n 0 -s`` of this file prints which.
Where a text is not found any more, the code has changed: write a fault that breaks the same
behaviour into the new code.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

import pytest

ROOT: Final = Path(__file__).parents[2]


class Mutation(NamedTuple):
    """A behaviour, and a fault that breaks it.

    Attributes:
        behaviour: What a user can rely on.
        file: Where the fault is, below ``lit_loader``.
        old: The text that is replaced; it occurs once in the file.
        new: What takes its place.
        tests: Who is to notice: files below ``tests``, or functions in them.
    """

    behaviour: str
    file: str
    old: str
    new: str
    tests: str


MAP: Final = "exactness/test_map_style.py::"
PASSES: Final = "exactness/test_passes.py::"
STREAMS: Final = "exactness/test_streams.py::"
ATTRIBUTES: Final = "exactness/test_dataset_attributes.py::"

MUTATIONS: Final = (
    # --- orders, ranks, mixtures, packs ---
    Mutation(
        "each sample of a large dataset comes once in a pass",
        "core/sampling/batch_plan.py",
        "self._next_size * self._size, self._share)",
        "self._next_size * self._size, self._share - self._size)",
        "parity/test_batches.py::test_map_style",
    ),
    Mutation(
        "the last, partial batch comes unless drop_last=True",
        "core/sampling/batch_plan.py",
        "        if plan.drop_last:\n            self._share",
        "        if True:\n            self._share",
        "parity/test_batches.py::test_map_style",
    ),
    Mutation(
        "ranks read different samples",
        "core/sampling/batch_plan.py",
        "        positions += self.rank\n",
        "",
        PASSES + "test_a_rank_that_peeks_alone_costs_no_samples",
    ),
    Mutation(
        "ranks have equally many samples",
        "core/sampling/batch_plan.py",
        'left + (self.num_replicas if self.remainder == "pad" else 0)',
        'left + (left if self.remainder == "pad" else 0)',
        "core/sampling/test_sharding.py",
    ),
    Mutation(
        "num_replicas='auto' takes number and rank from torch.distributed",
        "core/options/loader_config.py",
        "return dataclasses.replace(self, num_replicas=number, rank=rank)",
        "return dataclasses.replace(self, num_replicas=None)",
        "core/seeding/test_ranks.py::test_ranks_have_one_order_and_draw_each_their_own",
    ),
    Mutation(
        "datasets of different lengths have unlike orders",
        "core/sampling/orders.py",
        "return _permutation(length, extend(seed, length)).at",
        "return _permutation(length, seed).at",
        "core/sampling/test_seed_of_a_loader.py::test_datasets_that_differ_in_length_have_unlike_orders",
    ),
    Mutation(
        "ranks have equally much to do in each step",
        "data/balance.py",
        "    if size > fixed:\n",
        "    if False:\n",
        "data/test_by_length.py",
    ),
    Mutation(
        "accumulated batches are part of a balanced step",
        "data/balance.py",
        "self.group = ranks * accumulated",
        "self.group = ranks",
        "data/test_by_length.py",
    ),
    Mutation(
        "a pack holds no more tokens than it may",
        "data/packing.py",
        "left = np.full((windows, int(1.1 * least) + 2), room, np.int32)",
        "left = np.full((windows, int(1.1 * least) + 2), room + 1, np.int32)",
        "data/test_by_length.py",
    ),
    Mutation(
        "positions in a pack begin again with each sample",
        "data/packing.py",
        "position_ids=torch.arange(len(firsts)) - firsts",
        "position_ids=torch.arange(len(firsts))",
        "data/test_collation.py",
    ),
    Mutation(
        "a packed stream is resumed within a document",
        "data/packed_stream.py",
        "documents, offset = self._pieces[0].before, self._pieces[0].start",
        "documents, offset = self._pieces[0].before, 0",
        "data/test_collation.py",
    ),
    Mutation(
        "a source of a mixture has another order each time",
        "data/mixture.py",
        "seed = derive(self.seed, _WITHIN, source, number)",
        "seed = derive(self.seed, _WITHIN, source)",
        "data/test_mixture.py",
    ),
    Mutation(
        "a mixture's weights of past draws are kept",
        "data/weights.py",
        "if theirs != [entry for entry in self.to_state() if entry[0] < draw]:",
        "if False:",
        "data/test_mixture.py",
    ),
    # --- a pass's seed ---
    Mutation(
        "the seed of a pass is drawn in iter(loader)",
        "core/epoch/loader_core.py",
        "if drawn is None and not self.passes.resumes:",
        "if False:",
        PASSES + "test_generators_that_are_put_back_between_iter_and_next",
    ),
    Mutation(
        "the program draws afterwards what it draws after torch's loader",
        "core/epoch/loader_core.py",
        "+ int(shuffles))",
        ")",
        PASSES + "test_what_the_program_draws_afterwards_is_as_with_torchs_loader",
    ),
    Mutation(
        "a loader with a seed draws nothing from torch's generator",
        "core/seeding/loader_seeds.py",
        "if self.seed is not None or not numbers:",
        "if not numbers:",
        PASSES + "test_a_loader_with_a_seed_draws_nothing",
    ),
    Mutation(
        "two loaders of a program draw unlike numbers",
        "core/seeding/loader_seeds.py",
        "drawn = [int(number.random_(generator=generator)) for _ in range(numbers)]",
        "drawn = [generator.initial_seed()]",
        "exactness/test_programs.py::test_it_varies_and_is_independent",
    ),
    Mutation(
        "torch.manual_seed before a pass decides the pass",
        "core/seeding/loader_seeds.py",
        "        return drawn[0]\n",
        "        return int.from_bytes(os.urandom(8))\n",
        "exactness/test_programs.py::test_what_the_program_seeds_is_fixed",
    ),
    Mutation(
        "a second pass of an epoch has another order",
        "core/epoch/passes.py",
        "            0 if self.shares_data else repeat,\n",
        "            0,\n",
        PASSES + "test_epochs_that_are_set_again_have_other_orders",
    ),
    Mutation(
        "a second pass of an epoch has other augmentations",
        "core/state/position.py",
        "return derive(seed, self.epoch, self.repeat) if is_base else seed",
        "return derive(seed, self.epoch) if is_base else seed",
        PASSES + "test_a_second_pass_of_an_epoch_augments_anew",
    ),
    Mutation(
        "ranks have one order in all passes of an epoch",
        "core/epoch/passes.py",
        "            0 if self.shares_data else repeat,\n",
        "            repeat,\n",
        PASSES + "test_a_rank_that_peeks_alone_costs_no_samples",
    ),
    Mutation(
        "ranks of a job have one seed without asking",
        "core/seeding/loader_seeds.py",
        "number: int = self._name.first_rank(self.draw(1) if drawn is None else drawn)",
        "number: int = drawn or 0",
        "core/seeding/test_ranks.py::test_ranks_have_one_order_and_draw_each_their_own",
    ),
    Mutation(
        "after a resume, a program that seeds at its start repeats no epoch",
        "core/epoch/passes.py",
        "                seed = derive(self._mixed, seed)\n",
        "                pass\n",
        PASSES + "test_a_resumed_program_that_seeds_at_its_start_repeats_no_epoch_from_its_end",
    ),
    Mutation(
        "after a resume, passes are exact if torch's generator is restored",
        "core/epoch/passes.py",
        "if self._mixed is not None and self._expected and self.seeds.place() == self._expected:",
        "if False:",
        PASSES + "test_later_passes_are_exact_if_the_generator_is_restored_and_else_new",
    ),
    # --- epochs and positions ---
    Mutation(
        "set_epoch chooses the epoch",
        "core/epoch/loader_core.py",
        "        self.passes.set_epoch(epoch, informed)\n",
        "",
        PASSES + "test_the_epoch_is_that_of_the_last_set_epoch",
    ),
    Mutation(
        "set_epoch chooses a stream's epoch",
        "core/epoch/passes.py",
        "self._set, self._unset_sharded = epoch, 0",
        "self._unset_sharded = 0",
        STREAMS + "test_each_file_is_read_once",
    ),
    Mutation(
        "an epoch that is set stays until the next one is set",
        "core/epoch/passes.py",
        "        if self._set is None:\n            self._next = start.epoch + 1",
        "        self._set, self._next = None, start.epoch + 1\n        if True:\n            pass",
        PASSES + "test_the_epoch_is_that_of_the_last_set_epoch",
    ),
    Mutation(
        "without set_epoch the epoch counts up",
        "core/epoch/passes.py",
        "self._next = start.epoch + 1",
        "self._next = start.epoch",
        PASSES + "test_a_state_is_that_of_the_iterator_that_yielded_last",
    ),
    Mutation(
        "set_epoch of the dataset is called in workers",
        "core/batch/batch_builder.py",
        "            set_epoch(seeds.dataset_epoch)\n",
        "",
        PASSES + "test_the_dataset_is_told_the_epoch_that_it_was_told",
    ),
    Mutation(
        "a peek does not move the position",
        "core/epoch/passes.py",
        "if current is None or one.given > 1 or",
        "if True or",
        PASSES + "test_a_state_is_that_of_the_iterator_that_yielded_last",
    ),
    Mutation(
        "a sampler's exception comes out of the loop",
        "core/epoch/pass_tasks.py",
        "self.error, self.is_drawn = error, True",
        "self.is_drawn = True",
        "parity/test_exceptions.py::test_batches_before_a_samplers_exception_are_delivered",
    ),
    Mutation(
        "batches made ahead are dropped if another epoch is set",
        "core/epoch/pass_tasks.py",
        "if self._foreseen is None or made.position.start.delivered:\n            return False",
        "if self._foreseen is None or made.position.start.delivered:\n            return False\n"
        "        return True",
        "core/epoch/test_next_epoch.py::test_what_does_not_come_next_is_dropped",
    ),
    Mutation(
        "with a seed, persistent workers begin the next epoch early",
        "core/epoch/loader_core.py",
        "foreseen = self.passes.foresee(made)",
        "pass",
        "core/epoch/test_next_epoch.py::test_they_are_made_before_anybody_asks",
    ),
    Mutation(
        "batches made ahead are not built twice",
        "core/epoch/passes.py",
        "        ordinal = self._ordinal(epoch)\n",
        "        ordinal = one.seeds.ordinal\n",
        PASSES + "test_what_persistent_workers_begin_early_is_not_read_twice",
    ),
    Mutation(
        "a resumed stream continues from its state, and is not replayed from its start",
        "streams/stream_tasks.py",
        "if point.batches or point.before  # it has ended where it is now",
        "if point.before",
        "streams/test_moved_readers.py::test_a_resume_reads_no_more_late_than_early",
    ),
    Mutation(
        "after a signal handler's exception, next() returns the batch that was due",
        "core/epoch/pass_tasks.py",
        "        self.place.take_back()\n        self.given = None",
        "        pass",
        "faults/test_interruptions.py",
    ),
    Mutation(
        "a stream's batch that an exception took back comes again",
        "core/state/position.py",
        '        """Forget what was given out last: it has not come to the consumer."""\n'
        "        self.latest = None",
        '        """Forget what was given out last: it has not come to the consumer."""',
        "faults/test_interruptions.py",
    ),
    Mutation(
        "batches come in order, however the workers finish",
        "core/epoch/iterator.py",
        "self._lines = 1 if loader.in_order or here is not None else core.readers",
        "self._lines = 1 if here is not None else core.readers",
        "parity/test_iterators.py::test_batches_keep_their_order_however_the_workers_finish",
    ),
    # --- states ---
    Mutation(
        "a resume begins at the batch that comes next",
        "core/sampling/batch_plan.py",
        "plan, start = self._plan, number * self._size",
        "plan, start = self._plan, (number + (number > 0 == len(self._chunk[1]))) * self._size",
        PASSES + "test_a_resume_is_exact_and_seeded_passes_after_it_are",
    ),
    Mutation(
        "a state has the pass's seed",
        "core/state/loader_state.py",
        'state["base" if is_base else "seed" if position.has_begun else "after"] = seed',
        'state["base" if is_base else "seed" if position.has_begun else "after"] = 0',
        PASSES + "test_later_passes_are_exact_if_the_generator_is_restored_and_else_new",
    ),
    Mutation(
        "a state has the sampler's own state",
        "core/state/position.py",
        "            sampler=self._samplers.get(batches),\n",
        "            sampler=None,\n",
        PASSES + "test_a_sampler_with_a_state_is_not_drawn_again",
    ),
    Mutation(
        "a sampler that gives other indices after a resume is reported",
        "core/sampling/sampler_batches.py",
        "            self._compare(number)\n",
        "            pass\n",
        PASSES + "test_a_sampler_that_gives_other_indices_is_reported_once",
    ),
    Mutation(
        "batches that were not committed do not count as used",
        "core/epoch/passes.py",
        "            if committed is None or committed.delivered < position.delivered:\n",
        "            if False:\n",
        "exactness/test_resume.py::test_commit_holds_the_position_back",
    ),
    Mutation(
        "commit(ahead=True) leaves out a stream's last batch",
        "streams/stream_position.py",
        "        readers[last.reader] = last.before\n",
        "",
        "exactness/test_resume.py::test_commit_ahead_leaves_out_the_last_batch",
    ),
    Mutation(
        "a stream with state_dict continues from its own state",
        "streams/reader.py",
        "self._iterate(unpickled(point.state), earlier == 0, progress)",
        "self._iterate(None, earlier == 0, progress)",
        STREAMS + "test_stopped_after_each_batch_and_resumed_twice",
    ),
    Mutation(
        "batches since a stream's state are replayed with the seeds that they had",
        "streams/reader.py",
        "                    self._begin_batch(earlier, progress)\n",
        "                    self._begin_batch(batch, progress)\n",
        STREAMS + "test_stopped_after_each_batch_and_resumed_twice",
    ),
    Mutation(
        "a stream's resume that is not exact is reported (LL321)",
        "streams/reader.py",
        "if digest and differs is None and expected.get(earlier, 0) not in (0, digest):",
        "if False:",
        STREAMS + "test_no_resume_is_silently_other",
    ),
    Mutation(
        "a stream that ends before the resumed position is reported",
        "streams/reader.py",
        "                    if earlier < point.batches:\n",
        "                    if False:\n",
        "streams",
    ),
    # --- what is random ---
    Mutation(
        "a batch draws the same, whichever worker makes it",
        "core/batch/batch_builder.py",
        "number = number * spec.num_replicas + spec.rank\n",
        "number = number * spec.num_replicas + spec.rank + self._share[0]\n",
        PASSES + "test_the_programs_generators_go_on_as_if_no_loader_were_there"
        f" {MAP}test_epochs_are_equal_for_any_number_of_workers",
    ),
    Mutation(
        "ranks draw different augmentations",
        "core/batch/batch_builder.py",
        "number = number * spec.num_replicas + spec.rank\n",
        "number = number * spec.num_replicas\n",
        "core/seeding/test_ranks.py::test_ranks_have_one_order_and_draw_each_their_own",
    ),
    Mutation(
        "a sample's draws do not depend on the batch size",
        "core/seeding/seeds.py",
        "(step * size + place) * self.replicas + self.rank",
        "(step * (size + 1) + place) * self.replicas + self.rank",
        MAP + "test_what_a_sample_draws_follows_from_its_position_alone",
    ),
    Mutation(
        "get_rng() draws follow from the sample's position, and not from its batch",
        "core/seeding/seeds.py",
        "        place = -1 if self.step is None else self.step.place\n",
        "        place = -1\n",
        "core/seeding/test_get_rng.py",
    ),
    Mutation(
        "generators that the dataset holds are reseeded before each batch",
        "core/batch/batch_builder.py",
        "            self.held.reseed(*parts)\n",
        "            pass\n",
        MAP + "test_epochs_are_equal_for_any_number_of_workers",
    ),
    Mutation(
        "generators that the dataset holds draw other numbers in each pass",
        "core/seeding/held_generators.py",
        "start = derive(base.number, seeds.ordinal - base.since)",
        "start = derive(base.number)",
        PASSES + "test_a_held_generator_gives_what_its_own_seed_gives_and_more_in_each_pass",
    ),
    Mutation(
        "with seed=, generators that the dataset holds follow from it",
        "core/seeding/held_generators.py",
        "start = extend(seeds.seed, base.number)",
        "start = derive(base.number, seeds.ordinal)",
        MAP + "test_epochs_are_equal_for_any_number_of_workers core/seeding",
    ),
    Mutation(
        "torch's generator is given back after a batch",
        "core/seeding/borrowed_rng.py",
        "            _torch.set_state(self._torch)\n",
        "            pass\n",
        PASSES + "test_the_programs_generators_go_on_as_if_no_loader_were_there",
    ),
    Mutation(
        "NumPy's generator is given back after a batch",
        "core/seeding/borrowed_rng.py",
        "            _numpy.set_bit_generator(self._bits)\n",
        "            pass\n",
        PASSES + "test_the_programs_generators_go_on_as_if_no_loader_were_there",
    ),
    Mutation(
        "Python's generator is given back after a batch",
        "core/seeding/borrowed_rng.py",
        "            random.setstate(self._python)\n",
        "            pass\n",
        PASSES + "test_the_programs_generators_go_on_as_if_no_loader_were_there",
    ),
    Mutation(
        "a dataset that begins to draw late is seeded from then on, and reported",
        "core/seeding/borrowed_rng.py",
        "return number <= WATCHED or not number & (number - 1)",
        "return number <= WATCHED",
        PASSES + "test_a_dataset_that_begins_to_draw_late_is_reported_once",
    ),
    # --- workers ---
    Mutation(
        "plain attributes that the program sets reach living workers",
        "core/epoch/worker_keeper.py",
        "return pool.send_attributes()",
        "return False",
        ATTRIBUTES + "test_a_changed_attribute_counts_from_the_next_pass_on",
    ),
    Mutation(
        "batches made ahead are rebuilt if a plain attribute was set",
        "core/epoch/worker_keeper.py",
        "if known and begun is not None and not changed and begun.fits(made):",
        "if known and begun is not None and begun.fits(made):",
        ATTRIBUTES + "test_batches_made_ahead_are_made_again",
    ),
    Mutation(
        "other attributes that the program sets are reported (LL337)",
        "core/epoch/worker_keeper.py",
        "        if replaced:\n",
        "        if False:\n",
        ATTRIBUTES + "test_another_kind_of_change_is_reported_once",
    ),
    Mutation(
        "a replaced worker has the dataset as the pass began with it",
        "core/executors/payload.py",
        "            self.attributes.restore()\n",
        "            pass\n",
        "core/executors/test_start.py::test_the_program_changes_the_dataset_and_a_worker_is_killed",
    ),
    Mutation(
        "a forked worker is free of locks that other threads held",
        "core/executors/process_start.py",
        "            _renew_locks()\n",
        "            pass\n",
        "core/executors/test_start.py::test_a_lock_that_workers_have_anew",
    ),
    Mutation(
        "a batch that is kept never changes",
        "core/executors/worker_pool.py",
        "memory = self.arena.lease(slot, end)",
        "memory = self.arena.lease(slot, end)\n                    self.arena.release(slot)",
        "core/transport/test_transport.py::test_a_kept_batch_never_changes",
    ),
    Mutation(
        "the memory of a batch is used again",
        "core/transport/arena.py",
        "        self._leased.discard(slot)\n        self._warm.append(slot)",
        "        self._leased.discard(slot)",
        "core/transport/test_transport.py memory/test_held_tensors.py",
    ),
    Mutation(
        "a dead worker's batch is rebuilt",
        "core/executors/worker_pool.py",
        "                lost.append(copy.task)\n",
        "                pass\n",
        MAP
        + "test_workers_are_killed faults/test_fault_matrix.py::test_what_ends_or_stops_a_worker",
    ),
    Mutation(
        "with timeout, a worker that hangs is replaced",
        "core/executors/healer.py",
        "            if awaited.get(worker) == row:\n",
        "            if False:\n",
        "core/executors/test_recovery.py::test_hanging_in_user_code",
    ),
    Mutation(
        "workers that hang at one copied lock count once",
        "core/executors/healer.py",
        "        self._charged -= together and self._hung_at_first\n",
        "",
        "core/executors/test_start.py::test_a_lock_that_is_free_by_the_time_workers_are_replaced",
    ),
    Mutation(
        "a forked worker that does not come up is replaced",
        "core/executors/worker_pool.py",
        "if workers.forks and workers.starting and self._stall.seconds >= _STUCK:",
        "if False:",
        "core/executors/test_start.py::test_a_worker_that_does_not_come_up",
    ),
    Mutation(
        "workers are replaced max_worker_restarts times",
        "core/executors/healer.py",
        "if self._charged > self._max_restarts:",
        "if False:",
        "core/executors/test_recovery.py::test_when_the_budget_is_used_up",
    ),
    Mutation(
        "a batch that two workers have made comes once",
        "core/executors/worker_pool.py",
        "                del self._tasks[task.number]\n                end",
        "                self._tasks[task.number] = task\n                end",
        "core/executors/test_pool_model.py",
    ),
    Mutation(
        "a worker that a resize ends finishes what it has",
        "core/executors/worker_pool.py",
        "                        hand.leaving = True\n",
        "                        hand.leaving = True\n"
        "                        for copy in hand.queue:\n"
        "                            self._tasks.pop(copy.task.number, None)\n",
        "core/epoch/test_resizing.py::test_who_leaves_finishes_what_it_has",
    ),
    Mutation(
        "nothing of a pass that was left comes in the next one",
        "core/executors/worker_pool.py",
        "            self._ready.clear()\n            self._read_all()",
        "            self._read_all()",
        "faults/test_lifecycle.py::test_nothing_of_a_pass_that_was_left_is_delivered_in_the_next_of_its_epoch"
        " core/executors/test_pool_model.py",
    ),
    Mutation(
        "a shard that moves to another worker continues from its state",
        "core/executors/reader_assignment.py",
        "        self._homes[reader] = worker\n        self._next[reader] = _UNKNOWN",
        "        self._homes[reader] = worker",
        "streams/test_moved_readers.py::test_a_reader_with_a_state_moves_for_a_few_batches",
    ),
    Mutation(
        "persistent workers live across epochs",
        "core/epoch/worker_keeper.py",
        "            had.closed\n            or had.num_workers",
        "            True\n            or had.num_workers",
        "parity/test_workers.py::test_persistent_workers_live_across_epochs",
    ),
    Mutation(
        "worker_init_fn is called",
        "core/executors/worker_setup.py",
        "spec.worker_init_fn(worker)",
        "pass",
        "parity/test_workers.py::test_worker_init_fn_comes_once_and_before_the_first_fetch",
    ),
    # --- threads ---
    Mutation(
        "read_threads keep the order of the samples",
        "core/batch/read_pool.py",
        "return [answers[number].value for number in range(len(samples))]",
        "return [answer.value for answer in answers.values()]",
        "threads/test_exact.py::test_batches_are_those_of_one_read_after_another",
    ),
    Mutation(
        "with read_threads, the first error of the batch is raised",
        "core/batch/read_pool.py",
        "if answer.error is not None and answer.number < failed:",
        "if answer.error is not None and failed == len(samples):",
        "threads/test_read_threads.py::test_the_first_error_of_the_batch_is_raised_with_its_index",
    ),
    Mutation(
        "a draw from a generator that threads share is reported (LL418)",
        "core/seeding/shared_draws.py",
        "        if not drawn or self._has_reported:\n",
        "        if True:\n",
        "threads/test_exact.py::test_a_draw_from_a_shared_generator_is_reported_once",
    ),
    Mutation(
        "a thread that hangs is reported",
        "threads/thread_executor.py",
        "if not self._timeout or waited < self._timeout:",
        "if True:",
        "threads/test_threads.py::test_a_thread_that_hangs_is_reported_with_its_stack",
    ),
    Mutation(
        "threads end with their iterator",
        "threads/thread_executor.py",
        "            self.queue_of(worker.number).put(None)\n",
        "            pass\n",
        "threads/test_threads.py::test_no_thread_is_left_by_break_garbage_or_close",
    ),
    Mutation(
        "a resize starts threads",
        "threads/thread_executor.py",
        "surplus, self.count = len(self._threads) - num_workers, num_workers",
        "surplus = len(self._threads) - num_workers",
        "threads/test_threads.py::test_resizes_while_it_runs",
    ),
    # --- messages, statistics ---
    Mutation(
        "slow workers are called slow, and not stuck",
        "diagnostics/stall.py",
        "slow = _slow(rows.values(), self._began)",
        "slow = False",
        "diagnostics/test_stall.py::test_slow_is_not_stuck",
    ),
    Mutation(
        "a stall names the lock that was copied",
        "diagnostics/stall.py",
        "locked = pool.workers.forks and looks.LOCK",
        "locked = False and looks.LOCK",
        "diagnostics/test_stall.py::test_a_lock_that_was_copied",
    ),
    Mutation(
        "files that forked workers share are reported",
        "diagnostics/fork_dangers.py",
        "    if isinstance(value, io.IOBase):\n",
        "    if False:\n",
        "diagnostics/test_fork_dangers.py::test_a_file_that_was_opened_before_the_fork",
    ),
    Mutation(
        "handles that each worker opens for itself are not reported",
        "diagnostics/fork_dangers.py",
        "if not each.knows_forks and (danger",
        "if (danger",
        "diagnostics/test_fork_dangers.py",
    ),
    Mutation(
        "after a death by the OOM killer there are fewer workers",
        "diagnostics/death_messages.py",
        "    if kills <= before or not pool.is_any_worker_s",
        "    if True or not pool.is_any_worker_s",
        "diagnostics/test_death_messages.py",
    ),
    Mutation(
        "bad samples are counted",
        "data/sample_errors.py",
        'self._log.counts["sample_errors"] += len(errors)',
        "pass",
        "profiling/test_statistics.py::test_sample_errors_are_counted",
    ),
    Mutation(
        "the verdict knows that samples wait for storage",
        "profiling/verdict.py",
        "    if waiting >= ELSEWHERE and few:\n",
        "    if False:\n",
        "profiling/test_verdict.py",
    ),
    Mutation(
        "the verdict names seconds lost to hung workers",
        "profiling/recorder.py",
        "if each.asked <= m < each.given]",
        "if False]",
        "profiling/test_statistics.py::test_seconds_lost_to_a_hung_worker_are_named",
    ),
    Mutation(
        "the verdict judges the latest batches",
        "profiling/recorder.py",
        "records = [*self.latest][-JUDGED:]",
        "records = [*self.latest]",
        "profiling/test_statistics.py::test_the_verdict_judges_the_latest_batches",
    ),
    Mutation(
        "num_workers='auto' takes workers back that did not help",
        "profiling/controller.py",
        "            if not failed:  # perhaps",
        "            if True:  # perhaps",
        "profiling/test_controller.py",
    ),
    Mutation(
        "lit-loader-top shows how training goes on",
        "core/epoch/iterator.py",
        "            if given >= page.due:\n",
        "            if False:\n",
        "top/test_top.py",
    ),
    # --- devices, caches ---
    Mutation(
        "every batch is pinned and comes",
        "accelerator/pin_memory.py",
        "        self._items.append(self._pin(item))\n",
        "        if not self._items:\n            self._items.append(self._pin(item))\n",
        "accelerator/test_pin_memory.py::test_every_batch_is_pinned",
    ),
    Mutation(
        "pin_memory=True does no harm without an accelerator",
        "accelerator/pin_memory.py",
        "        if index is None:\n            if _TOLD:",
        "        if False:\n            if _TOLD:",
        "accelerator/test_pin_memory.py::test_without_an_accelerator_batches_are_left_as_they_are",
    ),
    Mutation(
        "caches of different keys are apart",
        "data/cache_folder.py",
        "name = repr((_FORMAT, platform.machine(), key, identity)).encode()",
        "name = repr((_FORMAT, platform.machine(), identity)).encode()",
        "data/test_cache_keys.py",
    ),
    Mutation(
        "a dataset that differs has a cache of its own",
        "data/cache_folder.py",
        "name = repr((_FORMAT, platform.machine(), key, identity)).encode()",
        "name = repr((_FORMAT, platform.machine(), key)).encode()",
        "data/test_cache_keys.py::test_another_dataset_of_the_same_key_has_a_cache_of_its_own",
    ),
    # --- options that add-ons serve ---
    *(
        Mutation(behaviour, "loader.py", f"    def {seam}(", f"    def no_{seam}(", tests)
        for seam, (behaviour, tests) in {
            "advice": (
                "Lightning's ranks that all read everything are reported",
                "lightning/test_one_import.py"
                "::test_without_lightnings_sampler_everybody_reads_everything_and_it_is_said",
            ),
            "idle": (
                "workers without a shard are reported",
                "streams/test_get_shard.py::test_workers_without_a_reader_are_told_of",
            ),
            "end_policy": (
                "uneven ranks of a stream end together",
                "streams/test_uneven_ranks.py",
            ),
            "device_copy": (
                "Lightning's batches are copied to the device ahead",
                "accelerator/test_device_copy.py",
            ),
            "pin_memory": (
                "pin_memory=True pins",
                "accelerator/test_pin_memory.py::test_every_batch_is_pinned",
            ),
            "executor": (
                "worker_method='thread' starts threads",
                "threads/test_threads.py::test_threads_share_the_dataset_and_its_samples",
            ),
            "remote_workers": (
                "remote workers make batches",
                "remote/test_remote_loader.py::test_batches_are_those_of_one_process",
            ),
            "auto": (
                "num_workers='auto' finds a number",
                "profiling/test_auto_workers.py",
            ),
            "sample_errors": ("max_sample_errors ends the run", "data/test_bad_samples.py"),
            "sum_up": ("statistics are of all batches", "profiling/test_statistics.py"),
            "figures": ("lit-loader-top shows figures", "top/test_top.py"),
            "torch_habits": (
                "programs find torch's private attributes of an iterator",
                "parity/test_torch_surface.py parity/test_libraries_subclasses.py",
            ),
            "shared_by_fork": (
                "what forked workers share is reported",
                "diagnostics/test_fork_dangers.py::test_a_file_that_was_opened_before_the_fork",
            ),
            "look_at_workers": (
                "a worker that the OOM killer ended is called that",
                "diagnostics/test_death_messages.py",
            ),
            "stall": ("a stall is reported", "diagnostics/test_stall.py::test_slow_is_not_stuck"),
            "explain": (
                "a worker's end is explained",
                "core/executors/test_recovery.py::test_one_warning_says_it_all",
            ),
            "fewer_workers": (
                "workers that memory has no room for are not replaced",
                "diagnostics/test_death_messages.py",
            ),
        }.items()
    ),
    Mutation(
        "on_sample_error='skip' skips in workers",
        "loader.py",
        'parts["tolerance"] = BadSamples.of(loader)',
        "pass",
        "data/test_bad_samples.py",
    ),
    Mutation(
        "a TensorDataset is read by one indexing",
        "loader.py",
        'parts["table_of"] = table_of',
        "pass",
        "data/test_tensor_table.py",
    ),
)


def test_the_list_fits_the_package_and_the_tests() -> None:
    wrong = []
    for each in MUTATIONS:
        count = (ROOT / "lit_loader" / each.file).read_text().count(each.old)
        if count != 1:
            wrong.append(f"{each.behaviour}: {each.old!r} is {count} times in {each.file}")
        for name in each.tests.split():
            file, _, function = name.partition("::")
            path = ROOT / "tests" / file
            if not path.exists() or (function and f"def {function}(" not in path.read_text()):
                wrong.append(f"{each.behaviour}: there is no {name}")
    assert not wrong, "\n".join(wrong)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository, as far as tests need it."""
    where = tmp_path_factory.mktemp("mutated")
    for name in ("lit_loader", "conf", "tests", "examples"):
        shutil.copytree(ROOT / name, where / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (*ROOT.glob("*.toml"), *ROOT.glob("*.md"), *ROOT.glob("*.txt")):
        shutil.copy(path, where)
    return where


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: each.behaviour.replace(" ", "_"))
def test_it_is_noticed(mutation: Mutation, copy: Path) -> None:
    path = copy / "lit_loader" / mutation.file
    source = path.read_text()
    path.write_text(source.replace(mutation.old, mutation.new))
    try:
        ended, output = run(mutation.tests.split(), copy)
    finally:
        path.write_text(source)
    failed = re.findall(r"^(?:FAILED|ERROR) tests/(\S+)", output, re.MULTILINE)
    if "+ Timeout +" in output:  # it hangs: the last one that was begun
        failed = re.findall(r"^tests/(\S+::.*?)(?: PASSED| \+|$)", output, re.MULTILINE)[-1:]
    print(f"\n{mutation.behaviour}: {failed[0] if failed else output[-400:]}")
    assert ended == 1 and failed, output[-4000:]


def run(tests: list[str], copy: Path) -> tuple[int, str]:
    """Run tests of the copy until one fails; a fault may keep processes from ending."""
    with tempfile.TemporaryFile("w+") as output:  # not a pipe, which such processes would keep open
        program = subprocess.Popen(
            [
                *(sys.executable, "-m", "pytest", "-n", "0", "-x", "-v", "-p", "no:cacheprovider"),
                *("--timeout", "60", "-o", "faulthandler_timeout=0"),
                *(f"tests/{each}" for each in tests),
            ],
            cwd=copy, env={**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"},
            stdout=output, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        try:
            program.wait(400)
        finally:
            with contextlib.suppress(ProcessLookupError):  # whatever is left of it
                os.killpg(program.pid, signal.SIGKILL)
            program.wait()
        output.seek(0)
        return program.returncode, output.read()
