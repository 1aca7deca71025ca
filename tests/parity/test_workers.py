"""What a worker process is: its info, seeds, ``worker_init_fn``, threads, and how long it lives."""

from __future__ import annotations

import multiprocessing
import os

import pytest
import torch
from torch.utils.data import get_worker_info

from .datasets import (
    INIT_LOG,
    Call,
    CountingCalls,
    Rendezvous,
    Squares,
    Stream,
    describe_worker,
    log_worker,
    read_init_log,
    reseed_torch,
    torch_seed,
)
from .tools import as_is, flat, is_oracle, raises


def two_workers(loader_class, describe, length=4, **options):
    """A loader whose two workers both take part, giving ``length`` times ``describe()``."""
    dataset = Rendezvous(multiprocessing.Barrier(2), 2, describe, length)
    return loader_class(dataset, batch_size=None, num_workers=2, collate_fn=as_is, **options)


def test_facts_about_a_worker(loader_class):
    facts = list(two_workers(loader_class, describe_worker))
    assert {fact["id"] for fact in facts} == {0, 1}
    assert len({fact["pid"] for fact in facts}) == 2
    assert os.getpid() not in {fact["pid"] for fact in facts}
    assert {fact["num_workers"] for fact in facts} == {2}
    assert {fact["threads"] for fact in facts} == {1}


def test_the_parent_is_no_worker(loader_class, num_workers):
    assert get_worker_info() is None
    for _ in loader_class(Squares(), num_workers=num_workers):
        assert get_worker_info() is None
    assert get_worker_info() is None


def test_in_process_samples_see_no_worker_info(loader_class):
    loader = loader_class(Call(describe_worker), batch_size=None, collate_fn=as_is)
    assert {fact["id"] for fact in loader} == {None}
    assert {fact["pid"] for fact in loader} == {os.getpid()}


def test_loading_leaves_the_parents_thread_count(loader_class, num_workers):
    before = torch.get_num_threads()
    list(loader_class(Squares(), num_workers=num_workers))
    assert torch.get_num_threads() == before


def test_worker_info_refuses_changes(loader_class):
    def change(index):
        with pytest.raises(AttributeError):
            get_worker_info().id = 5
        return get_worker_info().id

    assert flat(loader_class(Call(change, length=2), num_workers=1)) == [0, 0]


def test_worker_info_has_the_workers_copy_of_the_dataset(loader_class):
    def configure(worker_id):
        get_worker_info().dataset.length = 3 + worker_id

    loader = loader_class(Stream(1), num_workers=2, worker_init_fn=configure)
    assert flat(loader) == [0, 0, 1, 1, 2, 2, 3]
    assert loader.dataset.length == 1


def test_worker_init_fn_is_not_called_in_process(loader_class):
    def never(worker_id):
        raise AssertionError("there is no worker")

    assert flat(loader_class(Squares(3), worker_init_fn=never)) == [0, 1, 4]


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


def test_seeds_in_worker_init_fn(loader_class):
    logs = list(two_workers(loader_class, read_init_log, worker_init_fn=log_worker))
    first, second = ({log["worker_id"]: log for log in logs}[i] for i in range(2))
    for log in (first, second):
        assert log["torch_seed"] == log["info_seed"]
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


def test_the_torch_seed_of_a_sample_is_the_workers_own(loader_class):
    """Torch seeds a worker once; ours every batch, unless asked for torch's way."""
    if not is_oracle(loader_class):
        loader_class = _with_worker_seeding(loader_class)

    def sample(index):
        return torch.initial_seed() - get_worker_info().seed

    assert flat(loader_class(Call(sample), num_workers=2)) == [0] * 10


def _with_worker_seeding(loader_class):
    def make(*args, **options):
        return loader_class(*args, seeding="worker", **options)

    return make


def test_a_seed_that_worker_init_fn_sets_stays(loader_class):
    loader = loader_class(Call(torch_seed, 4), num_workers=2, worker_init_fn=reseed_torch)
    assert flat(loader) == [12345] * 4


def test_non_persistent_workers_are_new_every_epoch(loader_class):
    loader = two_workers(loader_class, os.getpid)
    first, second = set(loader), set(loader)
    assert len(first) == len(second) == 2
    assert not first & second


def test_persistent_workers_live_across_epochs(loader_class):
    loader = two_workers(loader_class, os.getpid, persistent_workers=True)
    epochs = [set(loader) for _ in range(4)]
    assert len(epochs[0]) == 2
    assert all(epoch == epochs[0] for epoch in epochs)


def test_persistent_workers_survive_an_abandoned_epoch(loader_class):
    # Long enough that the epoch after the abandoned one has not begun when it ends: a worker in the
    # rendezvous of an epoch that is then given up would wait for the other one in vain.
    loader = two_workers(loader_class, os.getpid, length=32, persistent_workers=True)
    first = set(loader)
    for _ in loader:
        break
    assert set(loader) == first


@pytest.mark.parametrize(
    ("persistent", "second_epoch"), [(False, [1, 2, 3, 4]), (True, [5, 6, 7, 8])]
)
def test_the_state_of_a_workers_dataset(loader_class, persistent, second_epoch):
    loader = loader_class(CountingCalls(4), num_workers=1, persistent_workers=persistent)
    assert flat(loader) == [1, 2, 3, 4]
    assert flat(loader) == second_epoch
    assert loader.dataset.calls == 0


@pytest.mark.parametrize("persistent", [False, True])
def test_persistent_workers_keep_the_dataset_they_started_with(loader_class, persistent):
    data = [1, 2, 3]
    loader = loader_class(data, num_workers=1, persistent_workers=persistent)
    assert flat(loader) == [1, 2, 3]
    data[:] = [7, 8, 9]
    assert flat(loader) == ([1, 2, 3] if persistent else [7, 8, 9])


def test_worker_init_fn_of_persistent_workers_runs_once(loader_class):
    loader = loader_class(
        Call(lambda index: INIT_LOG["count"], 2),
        num_workers=1,
        persistent_workers=True,
        worker_init_fn=lambda i: INIT_LOG.update(count=INIT_LOG.get("count", 0) + 1),
    )
    assert [flat(loader) for _ in range(3)] == [[1, 1]] * 3


def test_workers_are_daemons_of_the_parent(loader_class):
    def sample(index):
        process = multiprocessing.current_process()
        return [process.daemon, multiprocessing.parent_process().pid == os.getppid()]

    loader = loader_class(Call(sample, 2), batch_size=None, num_workers=1, collate_fn=as_is)
    assert list(loader) == [[True, True]] * 2


def test_a_worker_may_use_an_in_process_loader(loader_class):
    def sample(index):
        inner = loader_class(Squares(index + 1), batch_size=2)
        assert get_worker_info() is not None
        return sum(flat(inner))

    assert flat(loader_class(Call(sample, 4), num_workers=2)) == [0, 1, 5, 14]


def test_a_worker_cannot_have_workers(loader_class):
    def sample(index):
        return flat(loader_class(Squares(2), num_workers=1))

    with raises((AssertionError, RuntimeError), match="daemonic"):
        list(loader_class(Call(sample), num_workers=1))
