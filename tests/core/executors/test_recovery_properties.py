"""Whatever the data, the options and the faults: the batches are those of one process.

A `Case` is one loader and what is done with it: epochs that are read to the end, left in the
middle, or continued by another loader with another number of workers, while faults strike the
workers. Compared are types, shapes and bytes with what ``num_workers=0`` gives. How the pool and
its workers interleave is the subject of test_pool_model.py.
"""

import collections
import itertools
import random
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset, IterableDataset

import lit_loader
from lit_loader import DataLoader
from lit_loader.core.transport import arena as arena_module
from lit_loader.errors import WorkerRestartWarning
from tests.support.exact import EveryOther, Pairs
from tests.support.faults import Faults, Strike, plain, visit
from tests.support.samples import Cursor, uncollated

pytestmark = pytest.mark.timeout(600)  # what fails is to be shrunk, too

# Data: what a sample is made of is a value that Hypothesis can shrink ---------------------------

TENSORS = ("float32", "float64", "float16", "bfloat16", "complex64", "int64", "uint8", "bool")
ARRAYS = ("float32", "float64", "int64", "int16", "uint8", "bool")
WIDE = 3_000  # numbers a tensor: two such samples are more than a slot of 64 KiB


class Leaf(NamedTuple):
    """What is no container."""

    kind: str  # "tensor", "array", "str", "int", "float" or "none"
    dtype: str = ""
    shape: tuple[int, ...] = ()


class Pair(NamedTuple):
    first: Any
    second: Any


def sample_of(schema: Any, index: int) -> Any:
    """Make the sample ``index``."""
    if isinstance(schema, dict):
        return {key: sample_of(value, index) for key, value in schema.items()}
    if isinstance(schema, Pair):
        return Pair(*(sample_of(value, index) for value in schema))
    if not isinstance(schema, Leaf):
        return type(schema)(sample_of(value, index) for value in schema)
    if schema.kind == "tensor":
        return (torch.rand(schema.shape) * 100 + index).to(getattr(torch, schema.dtype))
    if schema.kind == "array":
        # From a zero-dimensional product comes a scalar, which is no array.
        return np.asarray(np.random.random(schema.shape) * 100 + index % 100).astype(schema.dtype)
    if schema.kind == "str":
        return f"{index} {random.random()}"
    return {"int": index, "float": random.random(), "none": None}[schema.kind]


def holds_none(schema: Any) -> bool:
    """Whether a sample has a None, for which the default collate has no place."""
    if isinstance(schema, Leaf):
        return schema.kind == "none"
    return any(map(holds_none, schema.values() if isinstance(schema, dict) else schema))


def schemas() -> st.SearchStrategy[Any]:
    """Schemas of all shapes; zero-dimensional, empty and wide tensors among their parts."""
    shapes = st.sampled_from([(), (3,), (2, 3), (0,), (2, 0, 1), (1,), (WIDE,)])
    leaves = st.one_of(
        st.builds(Leaf, st.just("tensor"), st.sampled_from(TENSORS), shapes),
        st.builds(Leaf, st.just("array"), st.sampled_from(ARRAYS), shapes),
        st.sampled_from(["int", "float", "str", "none"]).map(Leaf),
    )
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
            st.lists(inner, max_size=2),
            st.lists(inner, max_size=2).map(tuple),
            st.builds(Pair, inner, inner),
        ),
        max_leaves=5,
    )


class Samples(Dataset):
    """A sample by index."""

    def __init__(self, schema: Any, length: int) -> None:
        self.schema = schema
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        assert 0 <= index < self.length
        visit("fetching")
        return sample_of(self.schema, index)


class Stream(IterableDataset):
    """The samples in order. Readers take turns batch by batch: any number gives the same.

    A reader's first sample draws from what is the same in all readers, and not from its batch's; so
    each block's first one, which is some reader's first, brings numbers of its own.
    """

    def __init__(self, schema: Any, length: int, block: int) -> None:
        self.schema = schema
        self.length = length
        self.block = block

    def share(self) -> list[int]:
        """Indices of the reader that asks."""
        reader, readers = lit_loader.get_shard()
        block = self.block
        starts = range(reader * block, self.length, readers * block)
        return [i for start in starts for i in range(start, min(start + block, self.length))]

    def sample(self, index: int) -> Any:
        """Make the sample ``index``."""
        if index % self.block:
            return sample_of(self.schema, index)
        outside = random.getstate(), np.random.get_state(), torch.get_rng_state()
        random.seed(index)
        np.random.seed(index)
        torch.manual_seed(index)
        try:
            return sample_of(self.schema, index)
        finally:
            random.setstate(outside[0])
            np.random.set_state(outside[1])
            torch.set_rng_state(outside[2])

    def make(self, index: int) -> Any:
        visit("fetching")
        return self.sample(index)

    def __iter__(self) -> Iterator[Any]:
        return (self.make(index) for index in self.share())


class StatefulStream(Stream):
    """The same, by an iterator that can say where it is."""

    def __iter__(self) -> Iterator[Any]:
        return Cursor(self.make, self.share())


def noisy(samples: Any) -> Any:
    """A ``collate_fn`` that draws from the generators, too."""
    return {"samples": samples, "noise": (torch.rand(2), random.random(), np.random.random())}


# Loaders, and what is done with them ------------------------------------------------------------

KINDS = ("map", "stream", "stateful")
COLLATES = {"default": None, "uncollated": uncollated, "noisy": noisy}
FAULTS = ("SIGKILL", "_exit", "SIGSEGV")
POINTS = ("taking", "announcing", "fetching", "collating", "encoding", "granting", "sending")
LATE = ("sent", "ending")  # the consumer may be gone before


class Epoch(NamedTuple):
    """What is done in one epoch."""

    stop: int | None = None  # batches after which it is left; None: it is read to the end
    # How many workers the loader has that then goes on by a state; None: the epoch is given up.
    workers: int | None = None


class Case(NamedTuple):
    """A loader, what is done with it, and what goes wrong."""

    kind: str
    schema: Any
    length: int
    batch_size: int | None
    drop_last: bool
    order: str  # "in order", "shuffled", "sampler" or "batch sampler"
    collate: str
    seeding: str
    num_workers: int
    prefetch_factor: int
    persistent: bool
    in_order: bool
    resizes: tuple[int, ...]  # numbers of workers that are wanted, behind one batch after the other
    hold: int  # batches that the consumer keeps, and looks at again when it lets go of them
    epochs: tuple[Epoch, ...]
    strikes: tuple[Strike, ...]  # at most one a batch: two would be one too many

    def loader(self, num_workers: int, faults: Faults | None = None) -> DataLoader[Any]:
        options: dict[str, Any] = {"seed": 3, "seeding": self.seeding}
        options["collate_fn"] = COLLATES[self.collate]
        if num_workers:
            options |= {
                "num_workers": num_workers,
                "prefetch_factor": self.prefetch_factor,
                "persistent_workers": self.persistent,
                "in_order": self.in_order,
                "worker_init_fn": faults,
                "max_worker_restarts": 100,
                "multiprocessing_context": "fork",
            }
        batched = {"batch_size": self.batch_size, "drop_last": self.drop_last}
        if self.kind != "map":
            stream = {"stream": Stream, "stateful": StatefulStream}[self.kind]
            data = stream(self.schema, self.length, self.batch_size or 1)
            return DataLoader(data, **batched, **options)
        data = Samples(self.schema, self.length)
        if self.order == "batch sampler":
            return DataLoader(data, batch_sampler=Pairs(self.length), **options)
        if self.order == "sampler":
            return DataLoader(data, sampler=EveryOther(self.length), **batched, **options)
        return DataLoader(data, shuffle=self.order == "shuffled", **batched, **options)


def batch_of(strike: Strike) -> tuple[int, int]:
    return strike.epoch, strike.number


@st.composite
def cases(draw: st.DrawFn) -> Case:
    kind = draw(st.sampled_from(KINDS))
    schema = draw(schemas())
    collates = ["uncollated", "noisy"] if holds_none(schema) else list(COLLATES)
    length = draw(st.integers(0, 40))
    orders = ["in order"]
    if kind == "map":
        # Nothing cannot be shuffled: torch's own word, and so ours.
        orders += ["shuffled", "sampler", "batch sampler"] if length else ["sampler"]
    order = draw(st.sampled_from(orders))
    batch_size = draw(st.one_of(st.integers(1, 7), st.none()))
    num_workers = draw(st.integers(1, 3))
    # A position in an iterable dataset belongs to its workers.
    workers = st.integers(0, 3) if kind == "map" else st.just(num_workers)
    # Without a single next() no epoch would begin.
    cut = st.builds(Epoch, st.integers(1, 9), st.one_of(st.none(), workers))
    epochs = draw(st.lists(st.one_of(st.just(Epoch()), cut), min_size=1, max_size=3))
    strikes = st.builds(
        Strike,
        st.sampled_from(FAULTS),
        st.sampled_from(POINTS + LATE),
        st.integers(0, min(12, length // (batch_size or 1))),
        st.integers(0, len(epochs) - 1),
        st.just(1),
    )
    return Case(
        kind,
        schema,
        length,
        batch_size,
        batch_size is not None and draw(st.booleans()),
        order,
        draw(st.sampled_from(collates)),
        draw(st.sampled_from(["batch", "sample"])) if kind == "map" else "batch",
        num_workers,
        draw(st.integers(1, 4)),
        draw(st.booleans()),
        draw(st.booleans()),
        # Readers of a stream are its workers.
        tuple(draw(st.lists(st.integers(1, 4), max_size=5))) if kind == "map" else (),
        draw(st.integers(0, 5)),
        tuple(epochs),
        tuple(draw(st.lists(strikes, min_size=1, max_size=5, unique_by=batch_of))),
    )


class Consumer:
    """Takes batches, keeps some, and writes all of them down."""

    def __init__(self, hold: int, resizes: tuple[int, ...]) -> None:
        self._hold, self._resizes = hold, list(resizes)
        self._held: collections.deque[tuple[Any, Any]] = collections.deque()

    def take(self, loader: Any, most: int | None = None) -> list[Any]:
        """Take batches of an epoch, at most so many."""
        taken = []
        for batch in itertools.islice(loader, most):
            if self._resizes and loader.num_workers:
                loader.resize(self._resizes.pop())
            taken.append(plain(batch))
            self._held.append((batch, taken[-1]))
            del batch
            self._let_go(self._hold)
        return taken

    def _let_go(self, keep: int) -> None:
        while len(self._held) > keep:
            batch, before = self._held.popleft()
            assert plain(batch) == before, "a batch has changed while it was held"

    def end(self) -> None:
        """Let go of all."""
        self._let_go(0)


def same(case: Case, found: list[Any], expected: list[Any], complete: bool) -> bool:
    """Whether batches are the first, or all, of those expected, in whatever order that may be."""
    if case.in_order:
        return found == (expected if complete else expected[: len(found)])
    left = collections.Counter(map(repr, found))
    wanted = collections.Counter(map(repr, expected))
    return left == wanted if complete else not left - wanted


def check(case: Case) -> None:
    reference = case.loader(0)
    expected = [[plain(batch) for batch in reference] for _ in case.epochs]
    consumer = Consumer(case.hold, case.resizes)
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(arena_module, "_LARGEST_SLOT", 64 << 10),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", WorkerRestartWarning)
        warnings.filterwarnings("ignore", message=".*has no state_dict and load_state_dict")
        faults = Faults(Path(folder), *case.strikes)
        loader = case.loader(case.num_workers, faults)
        try:
            for number, (epoch, wanted) in enumerate(zip(case.epochs, expected, strict=True)):
                found = consumer.take(loader, epoch.stop)
                complete = epoch.stop is None or epoch.stop > len(wanted)
                if epoch.workers is not None:
                    state = loader.state_dict()
                    loader.close()
                    loader = case.loader(epoch.workers, faults)
                    loader.load_state_dict(state)
                    if not complete:  # else the next one to begin is the next epoch
                        found += consumer.take(loader)
                        complete = True
                assert same(case, found, wanted, complete), f"epoch {number}"
        finally:
            loader.close()
        consumer.end()
        event(f"faults: {faults.struck}")
        certain = [strike for strike in case.strikes if must_strike(case, strike, expected)]
        assert faults.struck >= len(certain)


def must_strike(case: Case, strike: Strike, expected: list[list[Any]]) -> bool:
    """Whether a fault is on the way of a batch that has been read."""
    return (
        strike.point in POINTS
        and strike.point not in ("fetching", "granting")  # few samples; room enough
        and case.epochs[strike.epoch].stop is None
        and strike.number < len(expected[strike.epoch])
        # Who goes on without workers has none that could be struck.
        and all(epoch.workers != 0 for epoch in case.epochs[: strike.epoch])
    )


def options(examples: int) -> settings:
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


@options(15)
@given(cases())
def test_as_if_nothing_had_happened(case: Case) -> None:
    check(case)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@options(1_000)
@given(cases())
def test_as_if_nothing_had_happened_at_length(case: Case) -> None:
    check(case)
