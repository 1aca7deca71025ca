"""What a worker is: its start, info, seeds, ``worker_init_fn``, threads, and how long it lives."""

import multiprocessing
import os
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import get_worker_info

from lit_loader import DataLoader
from tests.support.datasets import Call, Noise, Squares, Stream
from tests.support.samples import METHODS
from tests.support.samples import uncollated as as_is
from tests.support.tools import flat

INIT_LOG: dict[str, Any] = {}


class Rendezvous(Squares):
    """Samples wait until both of two workers have begun one, so that both take part.

    Not for a sample of the other worker's: a worker that is late may find all of them made, or
    being made a second time. Sample values come from ``describe``.
    """

    def __init__(self, describe: Any, length: int = 8) -> None:
        super().__init__(length)
        self.begun, self.describe = [multiprocessing.Event() for _ in range(2)], describe

    def __getitem__(self, index: int) -> Any:
        worker = get_worker_info().id
        self.begun[worker].set()
        assert self.begun[1 - worker].wait(30), "the other worker has begun nothing"
        return self.describe()


class CountingCalls(Squares):
    """How many samples this copy of the dataset has given so far."""

    calls = 0

    def __getitem__(self, index: int) -> int:
        self.calls += 1
        return self.calls


def log_worker(worker_id: int) -> None:
    """``worker_init_fn`` that notes all there is to know when it runs."""
    info = get_worker_info()
    assert info is not None
    INIT_LOG.update(
        worker_id=worker_id,
        info_id=info.id,
        num_workers=info.num_workers,
        info_seed=info.seed,
        torch_seed=torch.initial_seed(),
        random=random.random(),
        numpy=float(np.random.rand()),
        torch=float(torch.rand(())),
        pid=os.getpid(),
    )


def read_init_log() -> dict[str, Any]:
    """What ``log_worker`` noted in this process."""
    return dict(INIT_LOG)


def describe_worker(_: Any = None) -> dict[str, Any]:
    """The facts about this process that a loader promises."""
    info = get_worker_info()
    return {
        "pid": os.getpid(),
        "threads": torch.get_num_threads(),
        "id": None if info is None else info.id,
        "num_workers": None if info is None else info.num_workers,
    }


def two_workers(loader_class, describe, **options):
    """A loader whose two workers both take part, with samples from ``describe()``."""
    dataset = Rendezvous(describe)
    return loader_class(dataset, batch_size=None, num_workers=2, collate_fn=as_is, **options)


def test_facts_about_a_worker(loader_class):
    facts = list(two_workers(loader_class, describe_worker))
    assert {fact["id"] for fact in facts} == {0, 1}
    assert len({fact["pid"] for fact in facts} | {os.getpid()}) == 3
    assert {fact["num_workers"] for fact in facts} == {2}
    assert {fact["threads"] for fact in facts} == {1}
    here = loader_class(Call(describe_worker), batch_size=None, collate_fn=as_is)
    assert {(fact["id"], fact["pid"]) for fact in here} == {(None, os.getpid())}


def test_the_parent_stays_as_it_is(loader_class, num_workers):
    before = torch.get_num_threads()
    assert get_worker_info() is None
    for _ in loader_class(Squares(), num_workers=num_workers):
        assert get_worker_info() is None
    assert get_worker_info() is None
    assert torch.get_num_threads() == before


@pytest.mark.usefixtures("by_fork")  # for the parent
def test_a_worker_is_a_daemon_whose_info_cannot_be_changed(loader_class):
    def sample(index):
        with pytest.raises((AttributeError, RuntimeError)):  # torch 2.6: the second
            get_worker_info().id = 5
        process = multiprocessing.current_process()
        parent = multiprocessing.parent_process().pid
        return [get_worker_info().id, process.daemon, parent == os.getppid()]

    loader = loader_class(Call(sample, 2), batch_size=None, num_workers=1, collate_fn=as_is)
    assert list(loader) == [[0, True, True]] * 2


def test_worker_info_has_the_workers_copy_of_the_dataset(loader_class):
    def configure(worker_id):
        get_worker_info().dataset.length = 3 + worker_id

    loader = loader_class(Stream(1), num_workers=2, worker_init_fn=configure)
    assert flat(loader) == [0, 0, 1, 1, 2, 2, 3]
    assert loader.dataset.length == 1


def test_worker_init_fn_comes_once_and_before_the_first_fetch(loader_class):
    INIT_LOG.clear()
    logs = list(two_workers(loader_class, read_init_log, worker_init_fn=log_worker))
    assert INIT_LOG == {}, "it ran in the parent"
    by_id = {log["worker_id"]: log for log in logs}
    assert set(by_id) == {0, 1}
    for log in logs:
        assert log == by_id[log["worker_id"]], "it ran again"
        assert log["info_id"] == log["worker_id"]
        assert log["num_workers"] == 2
        assert log["torch_seed"] == log["info_seed"]
    first, second = by_id[0], by_id[1]
    assert second["info_seed"] == first["info_seed"] + 1
    for module in ("random", "numpy", "torch"):
        assert first[module] != second[module]


def test_seeds_in_worker_init_fn_follow_the_generator(loader_class):
    def run(seed):
        loader = two_workers(
            loader_class,
            read_init_log,
            worker_init_fn=log_worker,
            generator=torch.Generator().manual_seed(seed),
        )
        logs = {log["worker_id"]: log for log in loader}
        names = ("info_seed", "random", "numpy", "torch")
        return [[logs[i][name] for name in names] for i in range(2)]

    assert run(42) == run(42)
    assert run(42) != run(43)


def test_persistent_workers_live_across_epochs(loader_class):
    loader = two_workers(loader_class, os.getpid, persistent_workers=True)
    first = set(loader)
    assert len(first) == 2
    for _ in range(3):
        assert set(loader) <= first
        for _ in loader:
            break  # an epoch that is left


@pytest.mark.parametrize(
    ("persistent", "second_epoch"), [(False, [1, 2, 3, 4]), (True, [5, 6, 7, 8])]
)
def test_the_state_of_a_workers_dataset(loader_class, persistent, second_epoch):
    loader = loader_class(CountingCalls(4), num_workers=1, persistent_workers=persistent)
    assert flat(loader) == [1, 2, 3, 4]
    assert flat(loader) == second_epoch
    assert loader.dataset.calls == 0


# --- start methods ---


@pytest.mark.parametrize("method", METHODS)
def test_facts_by_start_method(loader_class, method):
    """The same seeds too, as those of the first method."""
    facts, rows = Call(describe_worker, 2), []
    for each in (method, multiprocessing.get_context(METHODS[0])):
        options = {"num_workers": 1, "multiprocessing_context": each}
        options["generator"] = torch.Generator().manual_seed(3)
        rows.append(torch.cat(list(loader_class(Noise(), batch_size=2, **options))).tolist())
    assert rows[0] == rows[1]
    options = {"num_workers": 1, "multiprocessing_context": method, "collate_fn": as_is}
    for fact in loader_class(facts, batch_size=None, **options):
        assert (fact["id"], fact["num_workers"], fact["threads"]) == (0, 1, 1)
        assert fact["pid"] != os.getpid()


def test_functions_that_are_set_between_epochs_reach_persistent_workers():
    loader = DataLoader(Squares(3), num_workers=1, persistent_workers=True)
    assert flat(loader) == [0, 1, 4]
    pids = [process.pid for process in loader._iterator._workers]
    loader.collate_fn = loader.collate_fn  # nothing new
    assert flat(loader) == [0, 1, 4]
    assert [process.pid for process in loader._iterator._workers] == pids
    loader.collate_fn = negated
    assert flat(loader) == [0, -1, -4]
    assert flat(loader) == [0, -1, -4]
    loader.close()


def negated(samples):
    return -torch.tensor(samples)
