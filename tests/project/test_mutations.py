"""Behaviours that are broken on purpose, one at a time: the default tests must notice each.

Each is one replacement of text in a copy of the package; then the tests that are named for it run
there, and one must fail. ``pytest -m slow -n 0 -s tests/project/test_mutations.py`` prints which.
Where a text is not found any more, the code has changed: write the same fault into the new code.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final, NamedTuple

import pytest

ROOT: Final = Path(__file__).parents[2]

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.timeout(600)]


class Mutation(NamedTuple):
    """A fault.

    Attributes:
        fault: What is broken, as a user would put it.
        old: The text that is replaced; it occurs once in the package.
        new: What takes its place.
        tests: Who is to notice: files below ``tests``, or tests in them.
        file: The end of the path of the only file that is searched.
    """

    fault: str
    old: str
    new: str
    tests: str
    file: str = ".py"


ADD_ONS: Final = {
    "advice": "lightning/test_one_import.py",
    "idle": "streams/test_get_shard.py",
    "end_policy": "streams/test_uneven_ranks.py",
    "observer": "profiling/test_exactness_check.py",
    "device_copy": "accelerator/test_device_copy.py",
    "pin_memory": "accelerator/test_pin_memory.py",
    "executor": "threads",
    "remote_workers": "remote/test_remote_loader.py",
    "sum_up": "profiling/test_statistics.py",
    "figures": "top/test_top.py",
    "torch_habits": "parity/test_torch_surface.py parity/test_libraries_subclasses.py",
    "shared_by_fork": "diagnostics/test_fork_dangers.py",
    "look_at_workers": "diagnostics/test_death_messages.py",
    "stall": "diagnostics/test_stall.py",
    "explain": "core/executors/test_recovery.py",
    "fewer_workers": "diagnostics/test_death_messages.py",
}
"""Seams at which an add-on hangs, and who notices if it does not."""

PARTS: Final = {
    'parts["tolerance"] = BadSamples.of(loader)': "data/test_bad_samples.py",
    'parts["table_of"] = table_of': "data/test_tensor_table.py",
}
"""The same of what workers are sent."""

MUTATIONS: Final = (
    # --- orders, ranks, mixtures, packs ---
    Mutation(
        "the last full batch of a stretch of indices is lost",
        "self._next_size * self._size, self._share)",
        "self._next_size * self._size, self._share - self._size)",
        "parity/test_batches.py::test_map_style",
    ),
    Mutation(
        "the last, partial batch is dropped",
        "        if plan.drop_last:\n            self._share",
        "        if True:\n            self._share",
        "parity/test_batches.py::test_map_style",
    ),
    Mutation(
        "ranks read the same samples",
        "        positions += self.rank\n",
        "",
        "parity/test_batches.py::test_distributed_samplers_are_told_the_epoch_and_cover_the_dataset",
    ),
    Mutation(
        "ranks differ in length where samples are to be repeated",
        'left + (self.num_replicas if self.remainder == "pad" else 0)',
        'left + (left if self.remainder == "pad" else 0)',
        "core/sampling/test_sharding.py",
    ),
    Mutation(
        "datasets of other lengths have the same order",
        "return seed if self.older else extend(seed, length)",
        "return seed",
        "core/sampling core/seeding/test_what_is_random.py",
    ),
    Mutation(
        "samples of a step are dealt once, and not exchanged",
        "    if size > fixed:\n",
        "    if False:\n",
        "data/test_by_length.py",
    ),
    Mutation(
        "accumulated batches are no part of a balanced step",
        "self.group = ranks * accumulated",
        "self.group = ranks",
        "data/test_by_length.py",
    ),
    Mutation(
        "a pack holds a token too many",
        "left = np.full((windows, int(1.1 * least) + 2), room, np.int32)",
        "left = np.full((windows, int(1.1 * least) + 2), room + 1, np.int32)",
        "data/test_by_length.py",
    ),
    Mutation(
        "positions in a pack do not begin again with each sample",
        "position_ids=torch.arange(len(firsts)) - firsts",
        "position_ids=torch.arange(len(firsts))",
        "data/test_collation.py",
    ),
    Mutation(
        "a packed stream is resumed at the start of a document",
        "documents, offset = self._pieces[0].before, self._pieces[0].start",
        "documents, offset = self._pieces[0].before, 0",
        "data/test_collation.py",
    ),
    Mutation(
        "a source of a mixture comes in the same order each time",
        "seed = derive(self.seed, _WITHIN, source, number)",
        "seed = derive(self.seed, _WITHIN, source)",
        "data/test_mixture.py",
    ),
    Mutation(
        "a mixture's new weights count for what was drawn before, too",
        "timeline = theirs.going_on(self._own_timeline(), draw)",
        "timeline = self._own_timeline()",
        "data/test_mixture.py",
    ),
    # --- epochs ---
    Mutation(
        "an epoch is not counted",
        "one.asked is None:\n            self._next = one.position.start.epoch + 1",
        "one.asked is None:\n            self._next = one.position.start.epoch",
        "core/epoch/test_epochs.py",
    ),
    Mutation(
        "a look at a batch moves the position",
        "beside = loaded is None and current is not None and current.goes_on",
        "beside = False",
        "core/epoch/test_epochs.py",
    ),
    Mutation(
        "an epoch that was set is that of all that follow",
        "one.asked is self._asked and one.counts:",
        "one.asked is self._asked and False:",
        "core/epoch/test_epochs.py",
    ),
    Mutation(
        "a sampler's exception passes for the end of the epoch",
        "self.error, self.is_drawn = error, True",
        "self.is_drawn = True",
        "parity/test_exceptions.py core/sampling",
    ),
    Mutation(
        "an epoch that was begun ahead is used although the seed has changed",
        "if start.seeds != self.start.seeds.ahead(start.epoch - self.start.epoch):",
        "if False:",
        "core/epoch/test_next_epoch.py::test_what_was_begun_before_the_program_seeds_is_dropped",
    ),
    Mutation(
        "an epoch that was begun ahead is used although the order has changed",
        "if number != task_number(epoch, batch) or not np.array_equal(wanted, task.indices):",
        "if False:",
        "core/epoch/test_next_epoch.py",
    ),
    Mutation(
        "no epoch is begun ahead",
        "if not (loader.persistent_workers and loader.prefetch_next_epoch):",
        "if True:",
        "core/epoch/test_next_epoch.py",
    ),
    Mutation(
        "readers that were interrupted begin at their start",
        "if point.batches or point.before  # it has ended where it is now",
        "if point.before",
        "exactness/test_streams.py",
    ),
    Mutation(
        "a batch that a signal's exception broke into is lost",
        "        self.place.take_back()\n        self.given = None",
        "        pass",
        "faults/test_signals.py::test_an_iterator_goes_on_after_an_interruption",
    ),
    Mutation(
        "batches come in the order in which workers finish",
        "self._lines = 1 if loader.in_order or here is not None else core.turns",
        "self._lines = 1 if here is not None else core.turns",
        "parity/test_iterators.py::test_batches_keep_their_order_however_the_workers_finish",
    ),
    # --- states ---
    Mutation(
        "a resume begins one batch late",
        "plan, start = self._plan, number * self._size",
        "plan, start = self._plan, (number + (number > 0 == len(self._chunk[1]))) * self._size",
        "exactness/test_map_style.py::test_stopped_after_each_batch_and_resumed_twice",
    ),
    Mutation(
        "a state forgets where the sampler is",
        "sampler=self._samplers.get(batches),",
        "sampler=None,",
        "exactness/test_map_style.py::test_stopped_after_each_batch_and_resumed_twice",
    ),
    Mutation(
        "a state forgets what the loader has drawn its seeds from",
        "if bases != Bases.of(bases.order):",
        "if False:",
        "core/seeding/test_what_is_random.py::test_a_state_has_the_seed_of_each_generator",
    ),
    Mutation(
        "batches that Lightning has not trained on count as used",
        "if self._commits and (committed is None or committed.delivered < now.delivered):",
        "if False:",
        "lightning/test_resume.py",
    ),
    Mutation(
        "a stream that cannot be brought to its place loses samples without a word",
        "        if differs is not None:\n",
        "        if False:\n",
        "exactness/test_streams.py::test_no_resume_is_silently_other",
    ),
    # --- what is random ---
    Mutation(
        "a batch's seed is off by one",
        "return number * self._spec.num_replicas + self._spec.rank",
        "return number * self._spec.num_replicas + self._spec.rank + 1",
        "core/state/test_older_states.py",
    ),
    Mutation(
        "a batch's seed depends on the worker",
        "number = number * spec.num_replicas + spec.rank\n",
        "number = number * spec.num_replicas + spec.rank + self._share[0]\n",
        "exactness/test_map_style.py::test_epochs_are_equal_for_any_number_of_workers",
    ),
    Mutation(
        "get_rng gives a sample its neighbour's generator",
        "return indices[position]",
        "return indices[position - 1]",
        "core/seeding/test_get_rng.py",
    ),
    Mutation(
        "two loaders of a program draw the same",
        "drawn = [int(number.random_(generator=generator))]",
        "drawn = [generator.initial_seed()]",
        "core/seeding/test_what_is_random.py",
    ),
    Mutation(
        "a second pass of an epoch draws what the first has drawn",
        "return extend(seed, _REPEATS, self.repeats) if self.repeats else seed",
        "return seed",
        "core/seeding/test_what_is_random.py",
    ),
    Mutation(
        "torch.manual_seed between two passes has no effect",
        'if "torch" in new:\n                self._bases',
        "if False:\n                self._bases",
        "core/seeding/test_what_is_random.py",
    ),
    Mutation(
        "np.random.seed between two passes has no effect",
        "            elif new:\n                old = self._bases",
        "            elif False:\n                old = self._bases",
        "core/seeding/test_what_is_random.py",
    ),
    Mutation(
        "ranks draw orders of their own",
        "drawn = self._name.first_ranks(drawn)",
        "pass",
        "core/seeding/test_ranks.py",
    ),
    Mutation(
        "a dataset that begins to draw late draws without a seed",
        "            if GlobalStates.now() == before:\n                if self._loan",
        "            if True:\n                if self._loan",
        "core/batch/test_unseeded_batches.py",
    ),
    Mutation(
        "a generator that is made anew in each pass is not seeded",
        "if self._watch.search(first_batch=True):  # it makes one in each pass",
        "if False:",
        "core/batch/test_unseeded_batches.py",
    ),
    Mutation(
        "a worker keeps the locks that other threads held at the fork",
        "            _renew_locks()\n",
        "            pass\n",
        "core/executors/test_start.py::test_a_lock_that_workers_have_anew",
    ),
    Mutation(
        "a forked worker has a plain attribute that was set after the pass began",
        "                self._attributes.restore()\n",
        "                pass\n",
        "core/executors/test_start.py::test_the_program_changes_the_dataset_and_a_worker_is_killed",
    ),
    Mutation(
        "the program's own generators are left moved",
        "            _install(self._outside)\n",
        "",
        "parity/test_seeding.py",
    ),
    # --- workers, their batches in shared memory ---
    Mutation(
        "a slot is freed while its batch is held",
        "memory = self.arena.lease(slot, end)",
        "memory = self.arena.lease(slot, end)\n                    self.arena.release(slot)",
        "core/transport/test_transport.py::test_a_kept_batch_never_changes",
    ),
    Mutation(
        "a slot is not freed with its batch",
        "        self._leased.discard(slot)\n        self._warm.append(slot)",
        "        self._leased.discard(slot)",
        "core/transport/test_transport.py memory/test_arena_memory.py",
    ),
    Mutation(
        "a dead worker's batch is not made again",
        "                lost.append(copy.task)\n",
        "                pass\n",
        "faults/test_fault_matrix.py::test_what_ends_or_stops_a_worker",
    ),
    Mutation(
        "a worker that hangs is not replaced",
        "            if awaited.get(worker) == row:\n",
        "            if False:\n",
        "core/executors/test_recovery.py::test_hanging_in_user_code",
    ),
    Mutation(
        "workers that hang at the same copied lock use up the budget",
        "        self._charged -= together and self._hung_at_first\n",
        "",
        "core/executors/test_start.py::test_a_lock_that_is_free_by_the_time_workers_are_replaced",
    ),
    Mutation(
        "a forked worker that does not come up is waited for",
        "if workers.forks and workers.starting and self._stall.seconds >= _STUCK:",
        "if False:",
        "core/executors/test_start.py::test_a_worker_that_does_not_come_up",
    ),
    Mutation(
        "a stream that is left is not closed",
        "            self._loader.begin_epoch()\n            gc.collect()",
        "            gc.collect()",
        "faults/test_close.py::test_a_stream_that_is_left_is_closed",
    ),
    Mutation(
        "workers are replaced without end",
        "if self._charged > self._max_restarts:",
        "if False:",
        "core/executors/test_recovery.py",
    ),
    Mutation(
        "a second copy's batch, which was called off, is given out too",
        "                del self._tasks[task.number]\n                end",
        "                self._tasks[task.number] = task\n                end",
        "core/executors/test_pool_model.py",
    ),
    Mutation(
        "a resize loses what a worker has that leaves",
        "                        hand.leaving = True\n",
        "                        hand.leaving = True\n"
        "                        for copy in hand.queue:\n"
        "                            self._tasks.pop(copy.task.number, None)\n",
        "core/epoch/test_resizing.py::test_who_leaves_finishes_what_it_has",
    ),
    Mutation(
        "batches of an epoch that was left come in the next one",
        "            self._ready.clear()\n            self._read_all()",
        "            self._read_all()",
        "faults/test_lifecycle.py::test_nothing_of_a_pass_that_was_left_is_delivered_in_the_next_of_its_epoch",
    ),
    Mutation(
        "a reader moves to another worker without its state, and is read from its start",
        "        self._homes[reader] = worker\n        self._next[reader] = _UNKNOWN",
        "        self._homes[reader] = worker",
        "streams/test_moved_readers.py exactness/test_streams.py::test_resized",
    ),
    Mutation(
        "a reader that moves is a batch behind its place",
        "            while earlier < batch:\n",
        "            while earlier < batch - 1:\n",
        "exactness/test_streams.py::test_resized",
    ),
    Mutation(
        "persistent workers start anew with each epoch",
        "            had.closed or had.num_workers",
        "            True or had.num_workers",
        "parity/test_workers.py::test_persistent_workers_live_across_epochs",
    ),
    Mutation(
        "worker_init_fn is not called",
        "spec.worker_init_fn(worker)",
        "pass",
        "parity/test_workers.py",
    ),
    # --- threads ---
    Mutation(
        "a draw from a global generator in a thread is not told",
        "drawn = [name for name, state, other in pairs if state != other]",
        "drawn = []",
        "threads/test_exact.py",
    ),
    Mutation(
        "a thread that hangs is waited for",
        "if not self._timeout or waited < self._timeout:",
        "if True:",
        "threads",
    ),
    Mutation(
        "threads do not end with their loader",
        "            self.queue_of(worker.number).put(None)\n        await_threads",
        "            pass\n        await_threads",
        "threads",
    ),
    Mutation(
        "a resize starts no threads",
        "surplus, self.count = len(self._threads) - num_workers, num_workers",
        "surplus = len(self._threads) - num_workers",
        "threads",
    ),
    # --- what is said ---
    Mutation(
        "slow workers are said to be stuck",
        "slow = _slow(rows.values(), self._began)",
        "slow = False",
        "diagnostics/test_stall.py",
    ),
    Mutation(
        "a stall is reported without the lock",
        "locked = pool.workers.forks and looks.LOCK",
        "locked = False and looks.LOCK",
        "diagnostics/test_stall.py",
    ),
    Mutation(
        "files that forked workers share are not told",
        "    if isinstance(value, io.IOBase):\n",
        "    if False:\n",
        "diagnostics/test_fork_dangers.py",
    ),
    Mutation(
        "handles that each worker opens for itself are reported",
        "if not each.knows_forks and (danger",
        "if (danger",
        "diagnostics/test_fork_dangers.py",
    ),
    Mutation(
        "a worker that the OOM killer ended is replaced forever",
        "    if kills <= before or not pool.is_any_worker_s",
        "    if True or not pool.is_any_worker_s",
        "diagnostics/test_death_messages.py",
    ),
    Mutation(
        "a bad sample is not counted",
        'self._log.counts["sample_errors"] += len(errors)',
        "pass",
        "profiling/test_statistics.py::test_sample_errors_are_counted",
    ),
    Mutation(
        "the verdict does not know that samples wait for storage",
        "    if waiting >= ELSEWHERE and few:\n",
        "    if False:\n",
        "profiling/test_verdict.py",
    ),
    Mutation(
        "the verdict does not name seconds lost to hung workers",
        "if each.asked <= m < each.given]",
        "if False]",
        "profiling/test_statistics.py",
    ),
    Mutation(
        "the verdict judges all batches since the start",
        "records = [*self.latest][-JUDGED:]",
        "records = [*self.latest]",
        "profiling/test_statistics.py",
    ),
    Mutation(
        "twice the workers are kept where they did not help",
        "            if not failed:  # perhaps",
        "            if True:  # perhaps",
        "profiling/test_controller.py",
    ),
    Mutation(
        "what lit-loader-top shows stands still",
        "            if given >= page.due:\n",
        "            if False:\n",
        "top/test_top.py",
    ),
    # --- devices, caches ---
    Mutation(
        "the pin-memory thread drops a batch",
        "        self._items.append(self._pin(item))\n",
        "        if not self._items:\n            self._items.append(self._pin(item))\n",
        "accelerator/test_pin_memory.py",
    ),
    Mutation(
        "pin_memory fails where there is no accelerator",
        "        if index is None:\n            if _TOLD:",
        "        if False:\n            if _TOLD:",
        "accelerator parity/test_arguments.py",
    ),
    Mutation(
        "a cache does not look at its key",
        "name = repr((_FORMAT, platform.machine(), key)).encode()",
        "name = repr((_FORMAT, platform.machine())).encode()",
        "data/test_cache_keys.py",
    ),
    Mutation(
        "a cache is not compared with what its dataset makes",
        "any(a != b for a, b in pairs if a and b)",
        "False",
        "data/test_cache_keys.py",
    ),
    # --- add-ons ---
    *(
        Mutation(
            f"the add-on does not hang at the seam {seam}",
            f"    def {seam}(",
            f"    def no_{seam}(",
            tests,
            "lit_loader/loader.py",
        )
        for seam, tests in ADD_ONS.items()
    ),
    *(
        Mutation(f"workers are not sent {part.split(chr(34))[1]}", part, "pass", tests)
        for part, tests in PARTS.items()
    ),
)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository, as far as tests need it."""
    where = tmp_path_factory.mktemp("mutated")
    for name in ("lit_loader", "conf", "tests", "examples"):
        shutil.copytree(ROOT / name, where / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (*ROOT.glob("*.toml"), *ROOT.glob("*.md"), *ROOT.glob("*.txt")):
        shutil.copy(path, where)
    return where


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: each.fault.replace(" ", "_"))
def test_it_is_noticed(mutation: Mutation, copy: Path) -> None:
    sources = {path: path.read_text() for path in (copy / "lit_loader").rglob("*.py")}
    found = {
        path: source
        for path, source in sources.items()
        if mutation.old in source and str(path).endswith(mutation.file)
    }
    assert len(found) == 1, f"the code has changed: {mutation.old!r} is in {[*found]}"
    [(path, source)] = found.items()
    assert source.count(mutation.old) == 1, f"{path} has changed: {mutation.old!r}"
    path.write_text(source.replace(mutation.old, mutation.new))
    try:
        ended, output = run(mutation.tests.split(), copy)
    finally:
        path.write_text(source)
    failed = re.findall(r"^(?:FAILED|ERROR) tests/(\S+)", output, re.MULTILINE)
    if "+ Timeout +" in output:  # it hangs: the last one that was begun
        failed = re.findall(r"^tests/(\S+::.*?)(?: PASSED| \+|$)", output, re.MULTILINE)[-1:]
    print(f"\n{mutation.fault}: {failed[0] if failed else output[-400:]}")
    assert ended == 1 and failed, output[-4000:]


def run(tests: list[str], copy: Path) -> tuple[int, str]:
    """Run tests of the copy until one fails; a fault may keep processes from ending."""
    program = subprocess.Popen(
        [
            *(sys.executable, "-m", "pytest", "-n", "0", "-x", "-v", "-p", "no:cacheprovider"),
            *("--timeout", "60", "-o", "faulthandler_timeout=0"),
            *(f"tests/{each}" for each in tests),
        ],
        cwd=copy, env={**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = program.communicate(timeout=400)
    finally:
        with contextlib.suppress(ProcessLookupError):  # whatever is left of it
            os.killpg(program.pid, signal.SIGKILL)
        program.wait()
    return program.returncode, output
