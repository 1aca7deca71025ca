"""From the first next() to the last process: beginnings, epochs, users side by side, and ends."""

import gc
import importlib.util
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import lit_loader
from lit_loader import DataLoader
from tests.support.bulk import Child
from tests.support.programs import run_program
from tests.support.samples import Call, Counting, ints, pool_of, until, usage
from tests.support.tools import Gate, finish_script, start_script, wait_gone

PERSISTENT = pytest.mark.parametrize("persistent", [False, True], ids=["fresh", "persistent"])
KIND = pytest.mark.parametrize("iterable", [False, True], ids=["map", "iterable"])


def data_of(iterable: bool, length: int, function: Callable[[int], Any] = int) -> Any:
    return Counting(length, function) if iterable else Call(function, length)


# Beginnings and epochs -------------------------------------------------------------------------


@PERSISTENT
@KIND
def test_nothing_starts_before_the_first_next(persistent: bool, iterable: bool) -> None:
    before = usage()
    loader = DataLoader(data_of(iterable, 8), num_workers=2, persistent_workers=persistent)
    iterators = [iter(loader) for _ in range(3)]
    assert usage() == before
    assert lit_loader.DataLoader is DataLoader
    assert loader.state_dict()["epoch"] == 0  # and no epoch is used up
    del iterators
    assert ints(loader) == list(range(8))
    loader.close()
    assert usage() == before


@KIND
@pytest.mark.parametrize("in_order", [True, False], ids=["in order", "as it comes"])
def test_nothing_of_an_abandoned_epoch_is_delivered(iterable: bool, in_order: bool) -> None:
    rng = random.Random(4)
    data = data_of(iterable, 40, lambda index: (lit_loader.get_epoch(), index))
    with DataLoader(
        data, None, num_workers=3, persistent_workers=True, in_order=in_order, prefetch_factor=4
    ) as loader:
        for epoch in range(25):
            taken = rng.choice([1, 2, 5, 20, 40])
            got = []
            for sample in loader:
                got.append(sample)
                if len(got) == taken:
                    break
            assert {tag for tag, _ in got} == {epoch}
            indices = [index for _, index in got]
            if in_order:
                assert indices == list(range(taken))
            assert len(set(indices)) == taken
        assert sorted(index for _, index in loader) == list(range(40))


def test_nothing_of_a_pass_that_was_left_is_delivered_in_the_next_of_its_epoch() -> None:
    def second(**options: Any) -> list[Any]:
        data = Call(lambda index: (index, torch.rand(()).item()), 8)
        with DataLoader(data, None, seed=1, **options) as loader:
            iterator: Any = iter(loader)
            next(iterator)
            if options:
                until(lambda: iterator.ready >= 3)
            next(iterator)  # takes the others in, too: of one worker they come in order
            iterator = None
            loader.set_epoch(0)
            return list(loader)

    assert second(num_workers=1, prefetch_factor=4, persistent_workers=True) == second()


# Forks -----------------------------------------------------------------------------------------


def told_by_child(function: Callable[[], str]) -> str:
    """What ``function`` returns in a child made by os.fork()."""
    child = Child(lambda say: function())
    try:
        return child.line()
    finally:
        child.end()


@PERSISTENT
@pytest.mark.parametrize("how", ["close", "del", "exit"])
def test_a_forked_child_takes_nothing_from_its_parent(persistent: bool, how: str) -> None:
    with DataLoader(range(60), num_workers=2, persistent_workers=persistent) as loader:
        iterator = iter(loader)
        assert int(next(iterator)) == 0
        holder = [loader, iterator]

        def leave() -> str:
            if how == "close":
                loader.close()
            elif how == "del":
                iterator._finalizer()
                if pool_of(loader) is not None:
                    pool_of(loader).cancel()
                holder.clear()
            gc.collect()
            return "done"

        assert told_by_child(leave) == "done"
        assert ints(iterator) == list(range(1, 60))
        assert ints(loader) == list(range(60))


# Ends ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("by_fork")  # which has the descriptors
def test_cancelled_work_stops_at_the_sample_it_is_in(gate: Gate) -> None:
    """A batch of ten thousand samples is not finished for nobody."""
    seen = os.pipe()

    def sample(index: int) -> int:
        if lit_loader.get_epoch() == 0:
            if index == 1:
                os.write(seen[1], b"!")
                gate.wait()
            elif index > 2:
                os.write(seen[1], b"too far")
        return index

    batches = [[0], range(1, 10_001)]
    with DataLoader(
        Call(sample, 10_001), num_workers=1, persistent_workers=True, batch_sampler=batches
    ) as loader:
        iterator = iter(loader)
        next(iterator)
        assert os.read(seen[0], 1) == b"!"
        iterator.workers.cancel()
        gate.open()
        assert [len(batch) for batch in loader] == [1, 10_000]
        os.set_blocking(seen[0], False)
        with pytest.raises(BlockingIOError):
            os.read(seen[0], 1)
    for end in seen:
        os.close(end)


# Whole programs --------------------------------------------------------------------------------

PROGRAM = """
import itertools, os, sys
import lit_loader
from tests.support.samples import Call
from torch.utils.data import IterableDataset

def pid(index):
    return os.getpid()

class Stream(IterableDataset):
    def __iter__(self):
        lit_loader.get_shard()
        return map(pid, itertools.count())

def say(*words):
    print(*words, flush=True)

if __name__ == "__main__":
    options = dict(num_workers=2, multiprocessing_context=METHOD, persistent_workers=PERSISTENT)
"""


def program(body: str, method: str = "fork", persistent: bool = True) -> str:
    source = PROGRAM.replace("METHOD", repr(method)).replace("PERSISTENT", str(persistent))
    return source + "".join(f"    {line}\n" for line in body.strip().splitlines())


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_exit_with_live_iterators(tmp_path: Path, method: str) -> None:
    """In a variable, a generator that nobody ends, a cycle, a __del__: nothing is said of them."""
    body = """
def endless(loader):
    while True:
        yield from loader

class Rows(Call):
    def __init__(self):
        super().__init__(int, 8)
        self.loader = DataLoader(self, 4, collate_fn=self.collate)

    def collate(self, samples):
        return samples

class Owner:
    def __del__(self):
        self.loader.close()

owner = Owner()
owner.loader = DataLoader(range(12), 4, **options)
owner.batches = iter(owner.loader)
next(owner.batches)
loader = DataLoader(Call(pid, 1000), **options)
iterators = [iter(loader), iter(DataLoader(Stream(), **options))]
for iterator in iterators:
    for _ in range(4):
        say(int(next(iterator)))
batches, rows = endless(DataLoader(range(12), 4, **options)), Rows()
assert len([next(batches) for _ in range(5)]) == 5 and len(list(rows.loader)) == 2
"""
    out, err, status = finish_script(start_script(program(body, method), tmp_path))
    assert (err, status) == ("", 0)
    wait_gone(map(int, out.split()))


@pytest.mark.parametrize(
    ("last_word", "status", "last_line", "persistent"),
    [("1 / 0", 1, "ZeroDivisionError: division by zero", False), ("sys.exit(5)", 5, "", True)],
)
def test_the_loop_ends_the_program(
    tmp_path: Path, last_word: str, status: int, last_line: str, persistent: bool
) -> None:
    """As it is, and without a word of the workers."""
    body = f"""
for batch in DataLoader(Call(pid, 1000), **options):
    say(int(batch))
    {last_word}
"""
    out, err, ended = finish_script(start_script(program(body, persistent=persistent), tmp_path))
    assert (ended, err.count("Traceback")) == (status, int(status == 1))
    assert err.strip().splitlines()[-1:] == [last_line][: bool(last_line)]
    wait_gone(map(int, out.split()))


JOBLIB = """
import joblib
from lit_loader import DataLoader

class Squares:
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return index * index

def job():
    loader = DataLoader(Squares(), 4, num_workers=2)
    return [batch.tolist() for batch in loader]

if __name__ == "__main__":
    print(*joblib.Parallel(n_jobs=2, backend="loky")([joblib.delayed(job)()]))
"""


@pytest.mark.skipif(importlib.util.find_spec("joblib") is None, reason="joblib is not installed")
def test_workers_in_a_process_of_joblibs(tmp_path: Path) -> None:
    """loky sets a start method of its own there, which no worker knows."""
    (program := tmp_path / "program.py").write_text(JOBLIB)
    assert run_program(program, forked=True) == "[[0, 1, 4, 9], [16, 25, 36, 49]]\n"


FORKED = """
import multiprocessing
from lit_loader import DataLoader

kept = []

def job(queue):
    loader = DataLoader(range(12), 4, num_workers=2, persistent_workers=True)
    open_iterator = iter(DataLoader(range(12), 4, num_workers=2))
    kept.extend([loader, open_iterator])
    queue.put((len(list(loader)), next(open_iterator).tolist()))

list(DataLoader(range(12), 4, num_workers=2))  # what starts workers is imported before the fork
context = multiprocessing.get_context("fork")
queue = context.SimpleQueue()
process = context.Process(target=job, args=(queue,))
process.start()
print(queue.get())
process.join(60)
print(process.exitcode)
"""


def test_a_forked_process_ends_though_its_loaders_have_workers(tmp_path: Path) -> None:
    (program := tmp_path / "program.py").write_text(FORKED)
    assert run_program(program, forked=True) == "(3, [0, 1, 2, 3])\n0\n"
