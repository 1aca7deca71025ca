"""`loader.start()`: workers begin while the program does something else; no byte changes."""

import contextlib
import functools
import gc
import os
import pickle
import signal
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import RandomSampler

import lit_loader
from lit_loader import DataLoader
from tests.parity.tools import wait_gone
from tests.support.exact import digests
from tests.support.samples import Call, OfLength, StatefulCounting, until, usage

pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures("by_fork")]  # for pipes


class Log:
    """Which samples have been read, in whatever process."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._reading, False)
        self.read: list[int] = []

    def sample(self, index: int) -> int:
        os.write(self._writing, struct.pack("q", index))
        return int(index)

    def until(self, condition: Callable[[list[int]], Any]) -> None:
        def looked() -> Any:
            with contextlib.suppress(BlockingIOError):
                data = os.read(self._reading, 65536)
                self.read += [number for [number] in struct.iter_unpack("q", data)]
            return condition(self.read)

        until(looked)

    def close(self) -> None:
        os.close(self._reading)
        os.close(self._writing)


@pytest.fixture
def log() -> Iterator[Log]:
    made = Log()
    yield made
    made.close()


PROCESSES: dict[str, Any] = {"num_workers": 2}
PERSISTENT: dict[str, Any] = {"num_workers": 2, "persistent_workers": True}
THREADS: dict[str, Any] = {"num_workers": 2, "worker_method": "thread"}
EXECUTORS = {"processes": PROCESSES, "persistent": PERSISTENT, "threads": THREADS}
WORKERS = pytest.mark.parametrize("options", EXECUTORS.values(), ids=EXECUTORS)


# --- the ordinary program ---


@pytest.mark.parametrize("loader_class", [DataLoader, TorchLoader])
def test_batches_are_made_while_the_model_is_built(loader_class: Any, log: Log) -> None:
    """With torch's loader an early ``iter(loader)`` does so."""
    loader = loader_class(Call(log.sample, 40), batch_size=4, num_workers=2)
    early: Any = loader
    if loader_class is DataLoader:
        loader.start()
    else:
        early = iter(loader)
    log.until(lambda read: len(read) >= 16)  # 2 x 2 batches are in flight; the model is built
    log.until(lambda read: {*read} == {*range(16)})
    assert [batch.tolist() for batch in early] == [[*range(n, n + 4)] for n in range(0, 40, 4)]
    log.until(lambda read: sorted(read) == [*range(40)])  # none was read twice


@WORKERS
def test_each_executor_begins(options: dict[str, Any], log: Log) -> None:
    with DataLoader(Call(log.sample, 12), seed=1, **options) as loader:
        loader.start()
        log.until(lambda read: {*read} == {0, 1, 2, 3})
        assert [int(batch) for batch in loader] == [*range(12)]
        log.until(lambda read: {*read} == {*range(12)})


def test_without_workers_nothing_begins(log: Log) -> None:
    loader = DataLoader(Call(log.sample, 4), num_workers=0)
    loader.start()
    assert [int(batch) for batch in loader] == [0, 1, 2, 3]
    log.until(lambda read: read == [0, 1, 2, 3])


# --- exactness ---


class Drawing(OfLength):
    """A sample depends on index, epoch and what is drawn."""

    length = 14

    def __getitem__(self, index: int) -> torch.Tensor:
        drawn = lit_loader.get_rng().integers(10**9)
        return torch.tensor([index, lit_loader.get_epoch() or 0, int(drawn)])


KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "shuffled": (Drawing(), {"shuffle": True}),
    "in any order": (Drawing(), {"shuffle": True, "in_order": False}),
    "a sampler": (Drawing(), {"sampler": RandomSampler(range(14))}),
    "single samples": (Drawing(), {"batch_size": None}),
    "by worker": (Drawing(), {"shuffle": True, "seeding": "worker"}),
    "under a budget": (Drawing(), {"memory_budget": "1 MB"}),
    "a stream": (StatefulCounting(20), {}),
    "shards": (StatefulCounting(20), {"num_shards": 3}),
}
BY_WORKER = ("by worker", "a stream")  # what depends on how many there are

Step = Callable[[DataLoader[Any], dict[str, Any]], Any]
BEFORE: dict[str, Step] = {
    "nothing": lambda loader, state: None,
    "set_epoch": lambda loader, state: loader.set_epoch(4),
    "load": lambda loader, state: loader.load_state_dict(state),
    "an epoch": lambda loader, state: list(loader),
    "a look": lambda loader, state: next(iter(loader)),
    "both": lambda loader, state: (loader.load_state_dict(state), loader.set_epoch(0)),
}
AFTER: dict[str, Step] = {
    "set_epoch": BEFORE["set_epoch"],
    "load": BEFORE["load"],
    "start": lambda loader, state: loader.start(),
    "close": lambda loader, state: loader.close(),
    "seed": lambda loader, state: setattr(loader, "seed", 3),
    "workers": lambda loader, state: setattr(loader, "num_workers", 1),
    "a copy": lambda loader, state: digests(pickle.loads(pickle.dumps(loader))),
}


def loader_of(kind: str, options: dict[str, Any]) -> DataLoader[Any]:
    dataset, own = KINDS[kind]
    return DataLoader(dataset, **{"batch_size": 3, "seed": 7, **own, **options})


@functools.cache
def state_of(kind: str) -> dict[str, Any]:
    """A state within the first epoch; where any order will do, it has gaps perhaps."""
    with loader_of(kind, PROCESSES) as source, contextlib.closing(iter(source)) as iterator:
        for _ in range(2):
            next(iterator)
        return source.state_dict()


def passes(
    kind: str, options: dict[str, Any], before: Step | None, after: Step | None, starts: bool
) -> list[list[str]]:
    """What two epochs give."""
    state = state_of(kind)
    with loader_of(kind, options) as loader:
        torch.manual_seed(1)
        if before is not None:
            before(loader, state)
        if starts:
            loader.start()
        if after is not None:
            after(loader, state)
        found = [digests(loader), digests(loader)]
    return [*map(sorted, found)] if kind == "in any order" else found


def cells() -> Iterator[Any]:
    for name, options in {**EXECUTORS, "inline": {"num_workers": 0}}.items():
        for kind in KINDS:
            if name == "inline" and kind != "shuffled":
                continue
            if name == "threads" and kind in (*BY_WORKER, "shards", "under a budget"):
                continue  # refused
            for when, steps in (("before", BEFORE), ("after", AFTER)):
                for step in steps:
                    yield pytest.param(kind, options, when, step, id=f"{name}-{kind}-{when}-{step}")


@pytest.mark.parametrize(("kind", "options", "when", "step"), [*cells()])
def test_no_byte_is_another_for_it(
    kind: str, options: dict[str, Any], when: str, step: str
) -> None:
    before = BEFORE[step] if when == "before" else None
    after = AFTER[step] if when == "after" else None
    plain = options if kind in BY_WORKER else {"num_workers": 0}
    expected = passes(kind, plain, before, after, starts=False)
    assert passes(kind, options, before, after, starts=True) == expected


def test_what_the_program_draws_next_does_not_depend_on_workers() -> None:
    """Workers begin, then a model is built: the same model and batches without workers."""
    found = []
    for workers in (0, 2):
        torch.manual_seed(0)
        with DataLoader(range(40), 8, shuffle=True, num_workers=workers) as loader:
            loader.start()
            weights = torch.nn.Linear(2, 2).weight.tolist()
            found.append((weights, [batch.tolist() for batch in loader]))
    assert found[0] == found[1]


@WORKERS
def test_a_state_does_not_depend_on_it(options: dict[str, Any]) -> None:
    with loader_of("shuffled", options) as loader:
        before = loader.state_dict()
        loader.start()
        assert loader.state_dict() == before
        list(loader)
        loader.start()
        assert loader.state_dict()["epoch"] == 1


@WORKERS
def test_beside_an_iterator_it_does_nothing(options: dict[str, Any]) -> None:
    with loader_of("shuffled", options) as loader:
        expected = [digests(loader), digests(loader)]
    with loader_of("shuffled", options) as loader:
        iterator = iter(loader)
        first = next(iterator)
        loader.start()
        assert loader._core.early is None
        assert [digests([first, *iterator]), digests(loader)] == expected


# --- its end ---


def ours() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name.startswith("lit_loader worker")]


@WORKERS
@pytest.mark.parametrize("end", ["close", "forgotten"])
def test_nothing_is_left_of_a_loader_that_is_not_iterated(
    options: dict[str, Any], end: str, log: Log
) -> None:
    loader = DataLoader(Call(log.sample, 8), seed=1, **options)
    gc.collect()
    before = usage()
    loader.start()
    log.until(lambda read: len(read) >= 4)
    assert usage() != before
    if end == "close":
        loader.close()
    else:
        del loader
        gc.collect()
    for each in ours():
        each.join(5)
    assert usage() == before


@pytest.mark.parametrize("options", [PROCESSES, PERSISTENT], ids=["processes", "persistent"])
def test_a_worker_that_dies_before_the_first_next_is_replaced(options: dict[str, Any]) -> None:
    with loader_of("shuffled", options) as loader:
        expected = digests(loader)
    with loader_of("shuffled", options) as loader:
        loader.start()
        victim = loader._core.early.workers.workers.pids[0]
        os.kill(victim, signal.SIGKILL)
        wait_gone([victim])  # on a loaded machine it may take longer than the epoch
        with pytest.warns(lit_loader.WorkerRestartWarning, match="was killed by SIGKILL"):
            assert digests(loader) == expected


@WORKERS
def test_a_forked_child_leaves_it_to_its_parent(options: dict[str, Any]) -> None:
    with loader_of("shuffled", options) as loader:
        expected = digests(loader)
    with loader_of("shuffled", options) as loader:
        loader.start()
        if (child := os.fork()) == 0:
            ended = 1
            with contextlib.suppress(BaseException):
                ended = int(digests(loader) != expected)
            os._exit(ended)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert digests(loader) == expected


def test_threads_that_begin_early_raise_no_alarm_at_what_the_program_draws() -> None:
    """What the program draws while it builds its model is not what samples draw."""
    loader = DataLoader(Call(int, 8), num_workers=2, worker_method="thread", seed=1)
    loader.start()
    torch.nn.Linear(3, 3)
    assert [int(batch) for batch in loader] == [*range(8)]
