"""Streams: the same batches for any workers; after a stop, a kill, a resize; or a warning.

A stream without ``num_shards`` keeps its number of workers; with it, any number continues. Each
test does one thing to a loader, and compares with one to which nothing happened.
"""

import functools
import itertools
import os
import random
import signal
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset

import lit_loader
from lit_loader import DataLoader, MixtureStream
from lit_loader.streams.state_meter import StateMeter
from tests.support.datasets import (
    BufferedStream,
    BufferOfTheProcess,
    ByName,
    Endless,
    Lines,
    Shuffled,
    SomeAreBad,
    StatefulStream,
    share,
)
from tests.support.exact import loaded, through_file
from tests.support.odd_streams import BUILDS, OfIterator, programs
from tests.support.samples import worker_pids
from tests.support.stateful_data import STREAMS

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings("ignore:.*(LL308|LL334)"),
    pytest.mark.filterwarnings("ignore::lit_loader.WorkerRestartWarning"),
]

ALL = "all_exhausted_without_replacement"
MOST = 14
"""Batches that are read of an epoch."""


def hugging_face(*shuffle: int) -> Any:
    rows = pytest.importorskip("datasets").Dataset.from_dict({"x": [*range(24)]})
    stream = rows.to_iterable_dataset(num_shards=6)
    return stream.shuffle(seed=42, buffer_size=shuffle[0]) if shuffle else stream


def numbers() -> Iterator[int]:
    return iter(share(range(24)))


def webdataset(**options: Any) -> Any:
    library = pytest.importorskip("webdataset")
    return library.DataPipeline(numbers, library.shuffle(6, **options))


class OfNodes(IterableDataset[int]):
    """A graph of torchdata's nodes, one of which reads ahead in a thread."""

    state: Any = None

    def __iter__(self) -> Iterator[int]:
        import torchdata.nodes as nodes

        node = nodes.Batcher(nodes.IterableWrapper([*numbers()]), 2, drop_last=False)
        self.nodes = nodes.Loader(nodes.Prefetcher(node, 3))
        if self.state is not None:
            self.nodes.load_state_dict(self.state)
            self.state = None
        yield from self.nodes

    def state_dict(self) -> Any:
        return self.nodes.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.state = state


class Case(NamedTuple):
    """What is loaded."""

    make: Callable[[], Any]
    options: dict[str, Any] = {}  # noqa: RUF012


def of_nodes() -> OfNodes:
    pytest.importorskip("torchdata.nodes")
    return OfNodes()


def mixture(*sources: Any, **options: Any) -> MixtureStream:
    return MixtureStream([make() for make in sources], **{"stopping_strategy": ALL} | options)


CASES: dict[str, Case] = {
    "no state": Case(Lines),
    "a place": Case(StatefulStream),
    "its own iterator": Case(lambda: STREAMS["its own iterator"](26)),
    "shuffle buffer": Case(BufferedStream),
    "shuffle buffer, globally": Case(BufferOfTheProcess),
    "large state": Case(lambda: BufferedStream(40, more=bytes(2_000_000))),
    "shuffled in iter": Case(lambda: Shuffled(random)),
    "shuffled in iter, held": Case(lambda: Shuffled(torch.Generator().manual_seed(4))),
    "shuffled late": Case(lambda: Shuffled(np.random.default_rng(4), lazy=True)),
    "order by name": Case(ByName),
    "endless": Case(Endless),
    "single samples": Case(StatefulStream, {"batch_size": None}),
    "drop_last": Case(lambda: BufferedStream(22), {"drop_last": True}),
    "by sample": Case(BufferedStream, {"seeding": "sample"}),
    "bad samples": Case(SomeAreBad, {"on_sample_error": "skip"}),
    "mixture": Case(lambda: mixture(BufferedStream, StatefulStream, weights=[3, 1])),
    "mixture, repeated": Case(
        lambda: mixture(
            StatefulStream, lambda: Lines(5), stopping_strategy="repeat", epoch_length=40
        )
    ),
    "Hugging Face": Case(hugging_face),
    "Hugging Face, shuffled": Case(lambda: hugging_face(5)),
    "WebDataset": Case(lambda: webdataset(rng=random.Random(0))),
    "torchdata nodes": Case(of_nodes),
}
THREADED = "torchdata nodes"


def some(first: int) -> list[Any]:
    """Return the cases; the default run has one of three."""
    return [
        pytest.param(name, marks=[] if place % 3 == first else [pytest.mark.slow])
        for place, name in enumerate(CASES)
    ]


def named(samples: Any) -> list[str]:
    """A collate_fn: each sample by all that there is of it."""
    samples = samples if isinstance(samples, list) else [samples]
    return [str(each.tolist() if isinstance(each, torch.Tensor) else each) for each in samples]


def loader(name: str, workers: int = 0, shards: int | None = None, **more: Any) -> DataLoader[Any]:
    options = {"batch_size": 3, "seed": 5, "num_shards": shards, **CASES[name].options, **more}
    return DataLoader(CASES[name].make(), num_workers=workers, collate_fn=named, **options)


def read(batches: Any, most: int = MOST) -> list[Any]:
    return list(itertools.islice(batches, most))


@functools.cache
def reference(name: str, workers: int, shards: int | None) -> list[list[Any]]:
    """Return two epochs to which nothing happens: with shards, of this process."""
    with loader(name, 0 if shards else workers, shards) as whole:
        epochs = [read(whole) for _ in range(2)]
    assert epochs[0] and (epochs[0] != epochs[1] or name in (THREADED, "Hugging Face"))
    return epochs


def stopped(name: str, workers: int, shards: int | None, step: int = 1) -> Iterator[Any]:
    """Yield (states after some batches of the second epoch, what comes next)."""
    with loader(name, workers, shards) as whole:
        read(whole)
        batches = itertools.islice(whole, MOST - 1)
        states = [through_file(whole.state_dict()) for _ in batches]
    rest = reference(name, workers, shards)[1]
    for number in sorted({*range(0, len(states), step), len(states) - 1}):
        yield states[number], rest[number + 1 :]


@pytest.mark.parametrize("name", some(0))
def test_shards_depend_on_no_number_of_workers(name: str) -> None:
    for workers, persistent in ((1, False), (3, True)):
        with loader(name, workers, 3, persistent_workers=persistent) as whole:
            assert [read(whole) for _ in range(2)] == reference(name, workers, 3)


@pytest.mark.parametrize("shards", [None, 3])
@pytest.mark.parametrize("name", CASES)
def test_stopped_after_each_batch_and_resumed_twice(name: str, shards: int | None) -> None:
    for state, expected in stopped(name, 0, shards):
        with loaded(loader(name, 0, shards), state) as first:
            found = read(first, 1)
            again = through_file(first.state_dict())
        if found:
            with loaded(loader(name, 0, shards), again) as second:
                assert found + read(second, len(expected) - 1) == expected


@pytest.mark.parametrize("shards", [None, 3])
@pytest.mark.parametrize("name", some(1))
def test_stopped_in_workers_and_resumed_by_others(name: str, shards: int | None) -> None:
    workers, other = (2, 3) if shards else (2, 2)
    for state, expected in stopped(name, workers, shards, 8):
        with loaded(loader(name, other, shards), state) as resumed:
            assert read(resumed, len(expected)) == expected


@pytest.mark.usefixtures("by_fork")
@pytest.mark.parametrize("shards", [None, 3])
@pytest.mark.parametrize("name", some(2))
def test_workers_are_killed(name: str, shards: int | None) -> None:
    expected, found = reference(name, 2, shards)[0], []
    with loader(name, 2, shards) as killed:
        for number, batch in enumerate(itertools.islice(iterator := iter(killed), MOST)):
            found.append(batch)
            if number in (1, 4):
                os.kill(worker_pids(iterator)[number % 2], signal.SIGKILL)
    assert found == expected


@pytest.mark.usefixtures("by_fork")
@pytest.mark.parametrize("name", some(1))
def test_resized(name: str) -> None:
    found = []
    with loader(name, 1, 3) as resized:
        for number, batch in enumerate(itertools.islice(resized, MOST)):
            found.append(batch)
            if number in (2, 5, 8):
                resized.resize({2: 3, 5: 2, 8: 1}[number])
    assert found == reference(name, 1, 3)[0]


@pytest.mark.parametrize("name", ["a place", "order by name"])
def test_another_start_method(name: str) -> None:
    options = {"multiprocessing_context": "forkserver", "persistent_workers": True}
    with loader(name, 2, 3, **options) as whole:
        first, second = reference(name, 2, 3)
        assert read(whole) == first
        state = whole.state_dict()
        assert read(whole, 4) == second[:4]
        loaded(whole, through_file(whole.state_dict()))
        assert read(whole) == second[4:]
        assert read(loaded(whole, state)) == second


def test_without_order_nothing_is_lost_or_repeated() -> None:
    expected = sorted(reference("shuffle buffer", 2, 3)[0])
    for stop in range(0, len(expected), 2):
        with loader("shuffle buffer", 2, 3, in_order=False) as first:
            found = read(first, stop)
            state = through_file(first.state_dict())
        with loaded(loader("shuffle buffer", 2, 3, in_order=False), state) as resumed:
            assert sorted(found + list(resumed)) == expected


# --- states that do not lead to where the stream was ---

PROGRAMS: dict[str, Callable[[], Any]] = dict(programs())
NAMES = [*PROGRAMS]


@pytest.mark.parametrize("name", NAMES)
def test_no_resume_is_silently_other(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their states lag or lead, leave out a buffer, or do not have what the stream draws by."""
    place, batches = NAMES.index(name), itertools.count()
    interval = (1, 4)[place % 2]  # of two states
    monkeypatch.setattr(StateMeter, "due", property(lambda _: next(batches) % interval == 0))

    def make() -> DataLoader[Any]:
        return DataLoader(PROGRAMS[name](), 3, seed=5, collate_fn=named)

    whole, expected, states = make(), [], []
    for _ in range(place // 2 % 2):
        list(whole)
    for batch in whole:
        expected.append(batch)
        states.append(through_file(whole.state_dict()))
    exact = True
    for stop in (0, 1, *range(4, len(expected) - 1, 4)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            same = list(loaded(make(), states[stop])) == expected[stop + 1 :]
        kinds = [each.category for each in caught]
        reports = [kind for kind in kinds if issubclass(kind, lit_loader.ExactnessWarning)]
        assert same or len(reports) >= 1
        exact = exact and same and not reports
    sound = not any(part in name for part in ("lost", "late", "mixed"))
    assert exact or not sound or any(kind in name for kind in ("hidden", "of the epoch"))


@pytest.mark.parametrize("options", [{}, {"num_workers": 1}, {"num_shards": 3, "num_workers": 3}])
def test_what_a_state_does_not_have_is_reported_once(options: dict[str, Any]) -> None:
    def make() -> DataLoader[Any]:
        stream = OfIterator(BUILDS["buffer of 25, lost"], "held")
        return DataLoader(stream, 2, seed=5, collate_fn=named, **options)

    with make() as first:
        read(first, 18 if "num_shards" in options else 9)
        state = first.state_dict()
    with (
        loaded(make(), state) as resumed,
        pytest.warns(
            lit_loader.ExactnessWarning, match="LL321|before the resumed position"
        ) as caught,
    ):
        list(resumed)
    assert len([each for each in caught if "LL321" in str(each.message)]) <= 1


class AtNext(Shuffled):
    """An iterator with a ``__next__`` of its own, which shuffles at the first."""

    def __iter__(self) -> Any:
        self.left: Any = None
        return self

    def __next__(self) -> Any:
        self.left = iter(self.order()) if self.left is None else self.left
        return next(self.left)


FILES = 24
DRAWS = [random, torch, np.random.default_rng(1), random.Random(1)]
LAZY = functools.partial(Shuffled, lazy=True)


@pytest.mark.parametrize(
    ("kind", "draw", "options"),
    [
        *((Shuffled, draw, {}) for draw in DRAWS),
        *((kind, draw, {}) for kind in (LAZY, AtNext) for draw in DRAWS[1:3]),
        *((kind, random, {"seeding": "sample"}) for kind in (Shuffled, LAZY, AtNext)),
        (LAZY, random, {"on_sample_error": "skip"}),
    ],
)
def test_each_file_is_read_once(kind: Any, draw: Any, options: dict[str, Any]) -> None:
    """Shards, on two ranks, shuffle alike and each takes its share; epochs differ."""
    orders = []
    for epoch in range(2):
        found = []
        for rank in range(2):
            ranks = {"num_replicas": 2, "rank": rank, "num_shards": 6, "uneven_ranks": "keep"}
            with DataLoader(kind(draw, length=FILES), 3, seed=5, **ranks, **options) as one:
                one.set_epoch(epoch)
                found += [float(row if row.ndim == 0 else row[0]) for batch in one for row in batch]
        assert sorted(found) == [*range(FILES)]
        orders.append(found)
    assert orders[0] != orders[1]
