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
    """

    fault: str
    old: str
    new: str
    tests: str


MUTATIONS: Final = (
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
        "a resume begins one batch late",
        "plan, start = self._plan, number * self._size",
        "plan, start = self._plan, (number + (number > 0 == len(self._chunk[1]))) * self._size",
        "exactness/test_exactness.py::test_stopped_behind_each_batch_and_resumed_twice",
    ),
    Mutation(
        "a batch's seed is off by one",
        "self._reseed(extend(self._epoch_seed, position))",
        "self._reseed(extend(self._epoch_seed, position + 1))",
        "core/state/test_older_states.py",
    ),
    Mutation(
        "a batch's seed depends on the worker",
        "self._reseed(extend(self._epoch_seed, position))",
        "self._reseed(extend(self._epoch_seed, position + self._share[0]))",
        "exactness/test_exactness.py::test_epochs_are_equal_for_any_number_of_workers",
    ),
    Mutation(
        "get_rng gives a sample its neighbour's generator",
        "return indices[position]",
        "return indices[position - 1]",
        "core/seeding/test_get_rng.py",
    ),
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
        "a reader moves to another worker without its state, and is read from its start",
        "if self._homes.send(turn) and self.point is not None and not task.packed:",
        "if self._homes.send(turn) and self.point is None:",
        "streams/test_moved_readers.py::test_a_reader_with_a_state_moves_for_a_few_batches",
    ),
    Mutation(
        "a reader that moves is a batch behind its place",
        "        for earlier in range(first, number, readers):\n",
        "        for earlier in range(first, number - readers, readers):\n",
        "exactness/test_exactness.py::test_resized",
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
        "faults/test_lifecycle.py::test_nothing_of_an_abandoned_epoch_is_delivered",
    ),
    Mutation(
        "a second copy's batch, which was called off, is given out too",
        "                del self._tasks[task.number]\n",
        "                self._tasks[task.number] = task\n",
        "core/executors/test_pool_model.py",
    ),
    Mutation(
        "batches come in the order in which workers finish",
        "self._lines = 1 if in_order else turns",
        "self._lines = turns",
        "parity/test_iterators.py::test_batches_keep_their_order_however_the_workers_finish",
    ),
    Mutation(
        "ranks read the same samples",
        "        positions += self.rank\n",
        "",
        "parity/test_batches.py::test_distributed_samplers_are_told_the_epoch_and_cover_the_dataset",
    ),
    Mutation(
        "an epoch is not counted",
        "_next_epoch = False, start.epoch + 1\n",
        "_next_epoch = False, start.epoch\n",
        "core/epoch/test_epochs.py",
    ),
    Mutation(
        "a state forgets where the sampler is",
        "            self.sampler_at(self._batches),\n            tuple(self._readers),",
        "            None,\n            tuple(self._readers),",
        "exactness/test_exactness.py::test_stopped_behind_each_batch_and_resumed_twice",
    ),
    Mutation(
        "a bad sample is not counted",
        "recorder.sample_errors += len(errors)",
        "pass",
        "insight/test_statistics.py::test_sample_errors_are_counted",
    ),
    Mutation(
        "worker_init_fn is not called",
        "spec.worker_init_fn(worker)",
        "pass",
        "parity/test_workers.py",
    ),
    Mutation(
        "the pin-memory thread drops a batch",
        "        self._items.append(self._pin(item))\n",
        "        if not self._items:\n            self._items.append(self._pin(item))\n",
        "core/transport/test_pin_memory.py",
    ),
    Mutation(
        "persistent workers start anew with each epoch",
        "            had.closed\n            or had.num_workers",
        "            True\n            or had.num_workers",
        "parity/test_workers.py::test_persistent_workers_live_across_epochs",
    ),
    Mutation(
        "a cache does not look at its key",
        "_FORMAT, platform.machine(), self.key, size, self.dataset",
        '_FORMAT, platform.machine(), "", size, self.dataset',
        "data/test_identity.py data/test_among_ranks.py data/test_cached_dataset.py",
    ),
    Mutation(
        "a cache does not look at what its dataset holds",
        "_FORMAT, platform.machine(), self.key, size, self.dataset",
        "_FORMAT, platform.machine(), self.key, size",
        "data/test_identity.py",
    ),
    Mutation(
        "what lit-loader-top shows stands still",
        "                if given >= page.due:\n",
        "                if False:\n",
        "top/test_watch.py top/test_app.py",
    ),
    Mutation(
        "the program's own generators are left moved",
        "            _install(self._outside)\n",
        "",
        "parity/test_seeding.py",
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
    found = {path: source for path, source in sources.items() if mutation.old in source}
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
