"""Workers and readers that are done with an epoch begin the next one; no byte is another for it."""

import contextlib
import os
import signal
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DistributedSampler, SequentialSampler

import lit_loader
from lit_loader import DataLoader, WorkerRestartWarning
from tests.support.exact import state_behind
from tests.support.samples import Call, Counting, ints
from tests.support.shard_data import KINDS
from tests.support.tools import lists

pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures("by_fork")]  # for pipes


class Log:
    """What workers have read, in the order in which they did: pairs of epoch and number."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._reading, False)
        self._read: list[tuple[int, int]] = []

    def sample(self, index: int) -> int:
        os.write(self._writing, struct.pack("qq", lit_loader.get_epoch() or 0, index))
        return index

    def read(self) -> list[tuple[int, int]]:
        with contextlib.suppress(BlockingIOError):
            self._read += struct.iter_unpack("qq", os.read(self._reading, 65536))  # type: ignore[arg-type]
        return self._read

    def until(self, condition: Callable[[list[tuple[int, int]]], Any]) -> None:
        while not condition(self.read()):  # the test's timeout ends it
            os.sched_yield()

    def close(self) -> None:
        os.close(self._reading)
        os.close(self._writing)


@pytest.fixture
def log() -> Iterator[Log]:
    made = Log()
    yield made
    made.close()


def drawn(index: int) -> torch.Tensor:
    """A sample that depends on everything that a batch is a function of."""
    noise = torch.randint(10**9, ()).item()
    return torch.tensor([index, lit_loader.get_epoch() or 0, noise])


def single(length: int, **options: Any) -> DataLoader[Any]:
    """The reference: everything in this process."""
    return DataLoader(Call(drawn, length), seed=3, **options)


def many(length: int, **options: Any) -> DataLoader[Any]:
    options = {"num_workers": 2, "persistent_workers": True, **options}
    return DataLoader(Call(drawn, length), seed=3, **options)


def begun(loader: Any) -> set[int]:
    """Epochs that workers were asked for and nobody has taken over."""
    kept = loader._core.begun
    return set() if kept is None else {number >> 40 for number in kept.tasks}


@pytest.mark.parametrize("pin", [False, True], ids=["", "pin"])
@pytest.mark.parametrize("prefetch", [1, 2, 8])
@pytest.mark.parametrize("length", [1, 2, 3, 7, 40])
def test_epochs_are_what_they_are(length: int, prefetch: int, pin: bool, pinned: None) -> None:
    reference = single(length, shuffle=True)
    with many(length, shuffle=True, prefetch_factor=prefetch, pin_memory=pin) as loader:
        for _ in range(5):
            assert lists(loader) == lists(reference)
        assert begun(loader)
        assert min(begun(loader)) == 5


@pytest.mark.parametrize("length", [2, 5, 40])
@pytest.mark.parametrize("kind", ["shuffle", "sampler"])
def test_an_epoch_that_is_asked_for_and_was_expected(kind: str, length: int) -> None:
    """It is taken as begun although nothing of it is drawn any more."""

    def options() -> dict[str, Any]:
        if kind == "shuffle":
            return {"shuffle": True}
        return {"sampler": DistributedSampler(range(length), 1, 0)}

    def passes(loader: DataLoader[Any]) -> list[Any]:
        found = []
        for epoch in range(4):
            if kind == "shuffle":
                loader.set_epoch(epoch)
            else:
                loader.sampler.set_epoch(epoch)
            found += [lists(loader), loader.state_dict()["epoch"]]
        return [*found, *(lists(loader) for _ in range(2 * (kind == "shuffle")))]

    with many(length, prefetch_factor=8, **options()) as loader:
        assert passes(loader) == passes(single(length, **options()))


def test_they_are_made_before_anybody_asks(log: Log) -> None:
    with DataLoader(Call(log.sample, 6), num_workers=2, persistent_workers=True, seed=1) as loader:
        list(loader)
        ahead = {(1, 0), (1, 1), (1, 2), (1, 3)}  # the depth is 2 x 2 batches
        log.until(lambda read: ahead <= {*read})
        assert {*sorted(log.read())[6:]} == ahead


def test_a_consumer_that_does_not_ask_for_the_end() -> None:
    """As Lightning's: it knows the number of batches, and begins the next epoch after the last."""
    reference = single(5, shuffle=True)
    with many(5, shuffle=True) as loader:
        before = None
        for _ in range(4):
            iterator = iter(loader)
            assert lists(next(iterator) for _ in range(5)) == lists(reference)
            pids = loader._core.pool.workers.pids
            assert before in (None, pids)
            before = pids


def test_an_iterator_whose_rest_was_taken_over_is_at_its_end() -> None:
    def passes(loader: DataLoader[Any]) -> list[Any]:
        old = iter(loader)
        given = [next(old) for _ in range(4)]
        new = iter(loader)
        first = next(new)
        with pytest.raises(StopIteration):
            next(old)
        return [lists(given), lists([first, *new]), lists([*loader])]

    with many(4) as loader:
        found = passes(loader)
    assert found == passes(single(4))
    assert found[0] != found[1] != found[2] == lists(list(epoch(single(4), 2)))


def epoch(loader: DataLoader[Any], number: int) -> DataLoader[Any]:
    loader.set_epoch(number)
    return loader


def _leave_one_out(loader: Any) -> None:
    """Of a short epoch all is there, and the next one begun, too; then there are fewer workers."""
    loader.set_epoch(2)
    if loader.num_workers:
        assert begun(loader) >= {1, 2}
        loader.resize(1)


def _resume(loader: Any) -> None:
    loader.load_state_dict(state_behind(single(9, shuffle=True), 4))


def _grow(loader: Any) -> None:
    loader.dataset.length += 3


@pytest.mark.parametrize(
    ("change", "length"),
    [
        pytest.param(lambda loader: loader.set_epoch(7), 9, id="another epoch"),
        pytest.param(lambda loader: loader.set_epoch(0), 9, id="the same epoch again"),
        pytest.param(lambda loader: loader.load_state_dict({**loader.state_dict()}), 9, id="next"),
        *((_resume, 9), (_grow, 9), (_leave_one_out, 3)),
    ],
)
def test_what_does_not_come_next_is_dropped(change: Callable[[Any], None], length: int) -> None:
    reference = single(length, shuffle=True)
    with many(length, shuffle=True, prefetch_factor=3) as loader:
        assert lists(loader) == lists(reference)
        assert min(begun(loader)) == 1
        change(reference)
        change(loader)
        for _ in range(3):
            assert lists(loader) == lists(reference)


def test_what_was_begun_before_the_program_seeds_is_dropped() -> None:
    """In the dataset's own order, so that only what samples draw can tell."""

    def passes(**options: Any) -> list[Any]:
        torch.manual_seed(0)
        np.random.seed(0)
        data = Call(lambda index: torch.tensor([index, np.random.randint(10**9)]), 4)
        with DataLoader(data, **options) as loader:
            first = lists(loader)
            assert bool(begun(loader)) == bool(options)
            np.random.seed(1)
            return [first, lists(loader)]

    assert passes(num_workers=2, persistent_workers=True) == passes()


@pytest.mark.parametrize(("before", "after"), [(4, 5), (8, 12), (8, 16), (8, 30), (23, 30), (9, 5)])
def test_a_dataset_that_grows_or_shrinks_between_epochs(before: int, after: int) -> None:
    """In its own order what was begun of an epoch is right; and it may have more batches now."""
    dataset = Call(int, before)
    with DataLoader(dataset, 4, num_workers=2, persistent_workers=True) as loader:
        assert ints(loader) == list(range(before))
        dataset.length = after
        iterator = iter(loader)
        assert ints(next(iterator) for _ in range(len(loader))) == list(range(after))
        assert next(iterator, None) is None
        assert ints(loader) == list(range(after))


@pytest.mark.parametrize(
    "options",
    [
        {"sampler": SequentialSampler(range(5))},
        {"batch_sampler": [[0, 1], [2], [3, 4]]},
        {"seeding": "worker"},
        {"prefetch_next_epoch": False},
    ],
    ids=lambda options: next(iter(options)),
)
def test_where_it_is_not_done(options: dict[str, Any]) -> None:
    """An order that is not the loader's own changes when it is drawn from."""
    with many(5, **options) as loader:
        found = lists(loader)
        assert sum(len(batch) for batch in found) == 5
        assert not begun(loader)


def test_while_one_batch_is_awaited_the_others_begin() -> None:
    """A slow last batch does not let the other workers idle."""
    seen = os.pipe()

    def sample(index: int) -> int:
        if lit_loader.get_epoch() == 0 and index == 3:
            os.read(seen[0], 1)  # until the next epoch is begun
        elif lit_loader.get_epoch() == 1:
            os.write(seen[1], b"!")
        return index

    with DataLoader(Call(sample, 4), num_workers=2, persistent_workers=True) as loader:
        assert ints(loader) == [0, 1, 2, 3]
    for end in seen:
        os.close(end)


# Readers of a stream -----------------------------------------------------------------------------

SHARDS, LENGTH = 4, 24


def noted(log: Log, function: Callable[[int], object] = int) -> Counting:
    """Each sample is noted, and then given to a function, which may do something to the process."""

    def sample(number: int) -> int:
        log.sample(number)
        if lit_loader.get_epoch() == 1:
            function(number)
        return number

    return Counting(LENGTH, sample)


def streamed(dataset: Any, **options: Any) -> DataLoader[Any]:
    options = {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 1, **options}
    return DataLoader(dataset, 2, num_shards=SHARDS, seed=3, **options)


ORDER = [number + SHARDS * step for first in (0, 2, 4) for number in range(SHARDS)
         for step in (first, first + 1)]  # fmt: skip


def is_begun(epoch: int, samples: int = 1) -> Callable[[list[tuple[int, int]]], bool]:
    return lambda read: sum(each[0] == epoch for each in read) >= samples


def test_readers_begin_before_anybody_asks_and_read_nothing_twice(log: Log) -> None:
    with streamed(noted(log)) as loader:
        for epoch in range(3):
            assert ints(loader) == ORDER
            # Each worker begins as many readers as its batches in flight.
            log.until(is_begun(epoch + 1, samples=4))
        times = Counter(log.read())
        assert {key: times[key] for key in times if key[0] < 3} == {
            (epoch, number): 1 for epoch in range(3) for number in range(LENGTH)
        }
        assert {number for epoch, number in times if epoch == 3} < {*range(2 * SHARDS)}


def test_readers_begin_while_the_last_batches_are_trained_on(log: Log) -> None:
    with streamed(noted(log)) as loader:
        batches = iter(loader)
        for _ in range(LENGTH // 2):
            last = next(batches)
        log.until(is_begun(1))  # the end was not asked for
        assert last.flatten().tolist() == ORDER[-2:]


@pytest.mark.parametrize("option", ["prefetch_next_epoch", "persistent_workers"])
def test_readers_do_not_begin_where_it_is_not_wanted(option: str, log: Log) -> None:
    with streamed(noted(log), **{option: False}) as loader:
        for _ in range(2):
            assert ints(loader) == ORDER
        assert not is_begun(2)(log.read())
        assert ints(loader) == ORDER
    assert {*Counter(log.read()).values()} == {1}


def test_another_epoch_is_asked_for(log: Log) -> None:
    data = KINDS["both"](45, "torch", True)
    alone = DataLoader(data, 2, num_shards=SHARDS, seed=3)
    with streamed(data) as loader, streamed(noted(log)) as other:
        for epoch in (0, 1, 5, 5, 2):
            for each in (loader, alone, other):
                each.set_epoch(epoch)
            assert lists(loader) == lists(alone)
            assert ints(other) == ORDER
            log.until(is_begun(epoch + 1))


def test_what_fails_then_fails_in_its_turn(log: Log) -> None:
    def fail(number: int) -> None:
        raise LookupError(f"sample {number} is broken")

    with streamed(noted(log, fail)) as loader:
        assert ints(loader) == ORDER
        log.until(is_begun(1))
        with pytest.raises(LookupError, match="sample 0 is broken"):
            next(iter(loader))


def test_who_dies_then_is_replaced(log: Log, tmp_path: Path) -> None:
    def die(number: int) -> None:
        with contextlib.suppress(FileExistsError):
            (tmp_path / "struck").touch(exist_ok=False)
            os.kill(os.getpid(), signal.SIGKILL)

    with streamed(noted(log, die)) as loader, pytest.warns(WorkerRestartWarning) as told:
        assert ints(loader) == ORDER
        log.until(lambda _: (tmp_path / "struck").exists())
        assert ints(loader) == ORDER
    assert len(told) == 1


def test_another_worker_gets_the_reader(log: Log) -> None:
    with streamed(noted(log)) as loader:
        for workers in (1, 3, 2, 4):
            assert ints(loader) == ORDER
            loader.resize(workers)
        assert ints(loader) == ORDER
