"""(Data, options, fault, stop) → bytes: whatever happens, the batches are those of one process.

A `Case` is what is loaded, and how. Each test does one thing to all of them, and compares every
byte with a loader without workers to which nothing happens: other workers, states taken behind each
batch and resumed, workers that are killed, other numbers of workers in mid-epoch. The default run
has some of the cells of each kind.
"""

import functools
import itertools
import os
import random
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from lit_loader import (
    BalancedBatchSampler,
    CachedDataset,
    DataLoader,
    MixtureDataset,
    MixtureStream,
    PackingBatchSampler,
    TokenBudgetBatchSampler,
)
from lit_loader.data.cached_dataset import MappedDataset
from lit_loader.data.mixture import MixtureSampler
from tests.core.seeding import test_get_rng
from tests.data import test_sample_errors, test_tensor_table
from tests.exactness import test_before_first_sample as before
from tests.exactness import test_cached as cached
from tests.support import drawing_streams, shard_data
from tests.support import mixed_sources as mixed
from tests.support.decoded import Decoded, ManyAtOnce
from tests.support.drawn_apart import draw_apart
from tests.support.exact import (
    Augmented,
    EveryOther,
    Pairs,
    SamplerWithStatefulIterator,
    Shared,
    SharedWithIteratorState,
    SharedWithState,
    StatefulSampler,
    digests,
    noisy_collate,
    taken,
    through_file,
    with_states,
)
from tests.support.samples import Counting, OfLength, own_generators, worker_pids
from tests.support.stateful_data import SAMPLERS, STREAMS, sampling

pytestmark = [
    pytest.mark.process,
    pytest.mark.filterwarnings("ignore:.* has no state_dict"),
    pytest.mark.filterwarnings("ignore:.*has a source that has no state_dict"),
    pytest.mark.filterwarnings("ignore::lit_loader.WorkerRestartWarning"),
    pytest.mark.filterwarnings("ignore:.*is a random generator that was made while"),
]

LENGTH = 26


class Case(NamedTuple):
    """What is loaded.

    Attributes:
        dataset: Makes the dataset.
        options: Makes the loader's options, anew for each: some samplers have a place.
        readers: A stream that is shared out among so many workers is another with others; None:
            workers are all the same to it.
        following: Whether the epoch after a resumed one is known: what a program's own stream gives
            next may depend on all that it has drawn.
        plain: Makes what a clean run reads.
    """

    dataset: Callable[[], Any]
    options: Callable[[], dict[str, Any]] = dict
    readers: int | None = None
    following: bool = True
    plain: Callable[[], Any] | None = None

    def loader(self, workers: int = 0, *, clean: bool = False, **more: Any) -> DataLoader[Any]:
        """Load it by so many workers, or by as many as it must be."""
        workers = workers if self.readers is None else self.readers
        options = {"batch_size": 4, "seed": 11, "num_workers": workers, **self.options(), **more}
        if "batch_sampler" in options:
            del options["batch_size"]
        if clean and "read_threads" in options:
            options["read_threads"] = 0
        make = self.plain if clean and self.plain is not None else self.dataset
        return DataLoader(make(), **options)


# What is loaded --------------------------------------------------------------------------------


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(8)


def by(sampler: Any) -> dict[str, Any]:
    return {"sampler": sampler}


def batched(sampler: Any) -> dict[str, Any]:
    return {"batch_sampler": BatchSampler(sampler, 4, drop_last=False)}


WEIGHTS = torch.arange(1.0, LENGTH + 1).tolist()
ORDERS: dict[str, Callable[[], dict[str, Any]]] = {
    "order": lambda: {},
    "shuffle": lambda: {"shuffle": True},
    "shuffle, single": lambda: {"batch_size": None, "shuffle": True},
    "shuffle, by sample": lambda: {"shuffle": True, "seeding": "sample"},
    "shuffle, noisy": lambda: {"shuffle": True, "collate_fn": noisy_collate},
    "random": lambda: by(RandomSampler(range(LENGTH))),
    "random, replaced": lambda: by(RandomSampler(range(LENGTH), replacement=True, num_samples=30)),
    "random, generator": lambda: by(RandomSampler(range(LENGTH), generator=generator())),
    "weighted": lambda: by(WeightedRandomSampler(WEIGHTS, LENGTH)),
    "weighted, generator": lambda: by(
        WeightedRandomSampler(WEIGHTS, LENGTH, generator=generator())
    ),
    "subset": lambda: by(SubsetRandomSampler(range(3, 20))),
    "subset, generator": lambda: by(SubsetRandomSampler(range(3, 20), generator=generator())),
    "list": lambda: by([5, 3, 1, 1, 2, 9, 20, 25, 0]),
    "custom": lambda: by(EveryOther(LENGTH)),
    "stateful": lambda: by(StatefulSampler(LENGTH)),
    "stateful iterator": lambda: by(SamplerWithStatefulIterator(LENGTH)),
    "batches": lambda: batched(SequentialSampler(range(LENGTH))),
    "batches, random": lambda: batched(RandomSampler(range(LENGTH))),
    "batches, generator": lambda: batched(RandomSampler(range(LENGTH), generator=generator())),
    "batches, stateful": lambda: batched(StatefulSampler(LENGTH)),
    "custom batches": lambda: {"batch_sampler": Pairs(LENGTH)},
}
"""Options that order the samples of a map-style dataset."""

SHUFFLED: dict[str, Any] = {"shuffle": True}
OF_MIXTURE = MixtureDataset([Augmented(10), Augmented(40), Augmented(20)], [5, 3, 2])


def sampler_cases() -> Iterator[tuple[str, Case]]:
    """Samplers of each kind that torchdata's protocol knows, by their use and what they draw."""
    uses = ("sampler", "batch sampler", "in torch's batch sampler")
    draws = (("torch", True, False), ("torch", False, True), ("python", True, True))
    for use, kind, drawn in itertools.product(uses, SAMPLERS, draws):

        def options(use: str = use, kind: str = kind, drawn: Any = drawn) -> dict[str, Any]:
            return sampling(use, kind, LENGTH, *drawn)[1]

        yield f"{kind} as {use}, {drawn}", Case(Augmented, options)


class Jittered(OfLength):
    """Holds functions of the global generators, and draws by them."""

    length = LENGTH

    def __init__(self) -> None:
        choose = functools.partial(random.choice, range(99))
        self.draws = [functools.partial(np.random.uniform, -1), random.random, choose]

    def __getitem__(self, index: int) -> float:
        return index + sum(draw() for draw in self.draws)


class Episodes(Augmented):
    """Makes loaders within a sample, and iterates kept ones, in the midst of its own draws."""

    def __init__(self) -> None:
        super().__init__(8)
        self.kept = DataLoader(Augmented(4), 2, shuffle=True)
        self.sampled: Any = DataLoader(Augmented(4), 2, sampler=RandomSampler(range(4)))

    def __getitem__(self, index: int) -> Tensor:
        new: Any = DataLoader(Augmented(4), 2, shuffle=True)
        whole = [new, self.kept][index % 2]
        looks = [next(iter(each)) for each in (new, self.kept, self.sampled)]
        parts = super().__getitem__(index), *looks, *whole
        return torch.cat([part.flatten() for part in parts])


def map_cases() -> Iterator[tuple[str, Case]]:
    """Datasets that are read by index."""
    for name, options in ORDERS.items():
        yield name, Case(functools.partial(Augmented, LENGTH), options)
    yield from sampler_cases()
    mixing = functools.partial(MixtureSampler, OF_MIXTURE, epoch_length=30, seed=1)
    yield "mixture", Case(lambda: OF_MIXTURE, lambda: by(mixing()))
    for ranks in ({}, {"num_replicas": 2, "rank": 0}, {"num_replicas": 2, "rank": 1}):
        options = functools.partial(lambda ranks: {"batch_sampler": budgeted(), **ranks}, ranks)
        yield f"token budget, {ranks}", Case(functools.partial(Augmented, 60), options)
        options = functools.partial(lambda ranks: {"batch_sampler": balanced(), **ranks}, ranks)
        yield f"balanced, {ranks}", Case(functools.partial(Augmented, 62), options)
        options = functools.partial(lambda ranks: {"batch_sampler": packing(), **ranks}, ranks)
        yield f"packed, {ranks}", Case(functools.partial(Augmented, 60), options)
    for threads, seeding in itertools.product((2, 16), ("batch", "sample")):
        options = functools.partial(dict, SHUFFLED, read_threads=threads, seeding=seeding)
        yield f"{threads} read threads, by {seeding}", Case(test_get_rng.Noisy, options)
    for policy in ("skip", "replace"):
        options = functools.partial(dict, SHUFFLED, on_sample_error=policy, read_threads=3)
        flaky = functools.partial(test_get_rng.Flaky, 0, 7)
        yield f"bad samples, read threads, {policy}", Case(flaky, options, following=False)
    for seeding in ("batch", "sample"):
        options = functools.partial(dict, SHUFFLED, batch_size=2, seeding=seeding)
        yield f"loaders within, by {seeding}", Case(Episodes, options)
    yield "global functions", Case(Jittered, functools.partial(dict, SHUFFLED))
    yield "table", Case(test_tensor_table.table, functools.partial(dict, SHUFFLED))
    yield "get_rng", Case(test_get_rng.Noisy, functools.partial(dict, SHUFFLED))
    yield "bad samples", tolerant(test_sample_errors.Choosy)
    for kind, seeding in itertools.product((Decoded, ManyAtOnce), ("batch", "sample")):
        for memory in ("1 MB", 5000):
            yield (
                f"cached, {kind.__name__}, {seeding}, {memory}",
                Case(
                    lambda kind=kind, memory=memory: MappedDataset(
                        CachedDataset(kind(), memory), cached.Numbers()
                    ),
                    functools.partial(dict, SHUFFLED, seeding=seeding),
                    plain=lambda kind=kind: MappedDataset(kind(), cached.Numbers()),
                ),
            )


def budgeted() -> TokenBudgetBatchSampler:
    lengths = [1 + 7 * index % 40 for index in range(60)]
    return TokenBudgetBatchSampler(lengths, 100, seed=1, num_replicas=2)


def balanced() -> BalancedBatchSampler:
    return BalancedBatchSampler([1 + 7 * index % 40 for index in range(62)], 3, group=4, seed=1)


def packing() -> PackingBatchSampler:
    lengths = [1 + 7 * index % 40 for index in range(60)]
    return PackingBatchSampler(lengths, 60, window=5, seed=1, num_replicas=2)


def tolerant(kind: Any) -> Case:
    return Case(
        kind, functools.partial(dict, batch_size=2, on_sample_error="skip"), following=False
    )


OPTIONS: list[dict[str, Any]] = [
    {},
    {"batch_size": None},
    {"batch_size": 1},
    {"drop_last": True},
    {"on_sample_error": "skip"},
    {"seeding": "sample"},
    {"rank": 1, "num_replicas": 2},  # the last one: of shards ranks take whole readers
]


def stream_cases() -> Iterator[tuple[str, Case]]:
    """Streams whose readers are no workers (``num_shards``), and those that are a worker each."""
    every = itertools.product(shard_data.KINDS, (False, True))
    for place, (kind, keeps) in enumerate(every):
        make = functools.partial(shard_data.KINDS[kind], 45, "torch", keeps)
        options = {"num_shards": 4, "batch_size": 3, **OPTIONS[place // 2 % 6]}
        name = f"shards, {kind}{', keeps' * keeps}"
        yield name, Case(make, functools.partial(dict, options), following=False)
    shards = functools.partial(dict, num_shards=3)
    jittered = lambda: Counting(LENGTH, Jittered().__getitem__)  # noqa: E731
    yield "shards, global functions", Case(jittered, shards, following=False)
    for name, make in test_get_rng.STREAMS.items():
        yield f"get_rng, {name}", Case(make, lambda: {"num_shards": 3, "batch_size": 3})
    for kind, readers in itertools.product(
        (test_sample_errors.Stream, test_sample_errors.StatefulStream), (0, 2)
    ):
        name = f"bad samples, {kind.__name__}, {readers}"
        yield name, tolerant(kind)._replace(readers=readers)
    shards = functools.partial(dict, num_shards=3, batch_size=2, on_sample_error="skip")
    yield "bad samples, Sources", tolerant(bad_sources)._replace(readers=0)
    yield "bad samples, Shards", Case(test_sample_errors.Stream, shards, following=False)
    rows = lambda: cached.rows_of(  # noqa: E731
        MappedDataset(CachedDataset(Decoded(), "1 MB"), cached.Numbers())
    )
    plain = lambda: cached.rows_of(MappedDataset(Decoded(), cached.Numbers()))  # noqa: E731
    yield "cached, a stream", Case(rows, lambda: {"num_shards": 3}, plain=plain)
    every = itertools.product(
        drawing_streams.KINDS, drawing_streams.GENERATORS, drawing_streams.STATES
    )
    for place, (kind, drawn, state) in enumerate(every):
        make = functools.partial(drawing_streams.stream, kind, drawn, state)
        shards = {"num_shards": 2} if place % 2 else {}
        more = (*[{}] * 3, {"seeding": "sample"}, {"on_sample_error": "skip"})[place % 5]
        options = functools.partial(dict, shards, batch_size=3, **more)
        readers = None if shards else (0, 1, 2)[place // 2 % 3]
        name = f"drawing, {kind}, {drawn}, {state}"
        yield name, Case(make, options, readers, following=False)
    for options, readers in (({}, 0), ({}, 1), ({"num_shards": 2}, None)):
        make = functools.partial(drawing_streams.KnowsItself, "filter", "random", length=400)
        options = functools.partial(dict, options, batch_size=24)
        yield f"drawing, hidden, {readers}", Case(make, options, readers, following=False)
    for kind, readers in itertools.product(before.KINDS, (0, 2)):
        make = functools.partial(kind, "own torch")
        yield f"first drawn, {kind.__name__}, {readers}", Case(make, readers=readers)
    for sources, shards in itertools.product(mixed.SOURCES, (None, 1, 2)):
        make = functools.partial(
            mixture_of,
            sources,
            weights=[3, 1],
            stopping_strategy="all_exhausted_without_replacement",
            seed=1,
        )
        options = functools.partial(dict, num_shards=shards, batch_size=2)
        name = f"mixed, {sources}, {shards}"
        yield name, Case(make, options, None if shards else 0, following=False)
    for strategy, length in (
        *(("first_exhausted", None), ("all_exhausted_without_replacement", None)),
        ("repeat", 120),
    ):
        make = functools.partial(
            mixture_of, "with state", epoch_length=length, stopping_strategy=strategy, seed=7
        )
        yield f"mixed, {strategy}", Case(make, readers=2)
    lengths = [(12, 12), (5, 17), (0, 9), (14,), (7, 10, 2)]
    for kind, shares in itertools.product(
        (Shared, SharedWithIteratorState, SharedWithState), lengths
    ):
        make = functools.partial(kind, *shares)
        yield f"{kind.__name__}, {shares}", Case(make, readers=len(shares))
    several = itertools.product(STREAMS, ("no", "own", "torch", "python", "numpy"), (False, True))
    for place, (kind, shuffle, keeps) in enumerate(several):
        make = functools.partial(STREAMS[kind], 22, shuffle, keeps)
        options = functools.partial(dict, OPTIONS[place % len(OPTIONS)])
        name = f"{kind}, {shuffle}{', keeps' * keeps}, {options()}"
        yield name, Case(make, options, readers=(0, 2)[place // 7 % 2], following=False)
    large = itertools.product(
        ("buffer", "filter", "shuffled buffer", "shuffled filter", "mixture"),
        ("random", "own numpy"),
        ("dataset", "iterator", "lazy iterator"),
    )
    for place, (kind, drawn, state) in enumerate(large):
        make = functools.partial(drawing_streams.stream, kind, drawn, state, large=True)
        shards = {"num_shards": 2} if place % 2 else {}
        options = functools.partial(dict, shards, batch_size=4)
        name = f"large, {kind}, {drawn}, {state}"
        yield name, Case(make, options, None if shards else place % 4, following=False)


def mixture_of(sources: str, **options: Any) -> MixtureStream:
    return MixtureStream(mixed.SOURCES[sources](), **options)


def bad_sources() -> MixtureStream:
    sources: list[Any] = [test_sample_errors.Stream(), test_sample_errors.StatefulStream()]
    return MixtureStream(sources, stopping_strategy="all_exhausted_without_replacement")


CASES = {**dict(map_cases()), **dict(stream_cases())}


def some(every: int, names: Iterable[str] = CASES, first: int = 0, also: str = "^$") -> list[Any]:
    """The default run has one of so many of them, and those that match ``also``."""
    return [
        pytest.param(
            name, marks=[] if place % every == first or re.match(also, name) else [pytest.mark.slow]
        )
        for place, name in enumerate(names)
    ]


MOVABLE = [name for name, case in CASES.items() if case.readers is None]
IN_WORKERS = [name for name, case in CASES.items() if case.readers != 0]


ALIKE = "table|bad samples, S|drawing, hidden|drawing, shuffled by the process's seed"
"""What may have the same bytes in all epochs."""


@functools.cache
def reference(name: str) -> list[list[str]]:
    """Three epochs to which nothing happens: in this process, if they may be."""
    before = own_generators()
    with CASES[name].loader(clean=True) as loader:
        epochs = [digests(loader) for _ in range(3)]
    assert epochs[0]
    assert len({*map(str, epochs)}) == 3 or re.match(ALIKE, name)
    assert own_generators() == before
    return epochs


# What happens to it ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", some(17, IN_WORKERS))
@pytest.mark.parametrize("workers", [1, 2, pytest.param(4, marks=pytest.mark.slow)])
def test_epochs_are_equal_for_any_number_of_workers(workers: int, name: str) -> None:
    expected, before = reference(name), own_generators()
    # A stream whose dataset is drawn from or counts, and lives on in a worker, is its own affair.
    stay = CASES[name].following
    with CASES[name].loader(workers, persistent_workers=stay) as loader:
        assert [digests(loader) for _ in expected] == expected
    assert own_generators() == before


PARTICULAR = "table|token budget|bad samples, (S[ho]|read)|drawing, hidden|first drawn, Sh.*AtNext"
"""What the default run has no other test of."""


@pytest.mark.filterwarnings("ignore:.*stay idle")  # a worker beside a single reader
@pytest.mark.parametrize("name", some(9, first=1, also=PARTICULAR))
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_stopped_behind_each_batch_and_resumed_twice(name: str, workers: int) -> None:
    check_resumes(name, workers, step=1 if workers == 0 and CASES[name].readers in (0, None) else 5)


@pytest.mark.parametrize("name", some(19, IN_WORKERS, first=3))
def test_stopped_in_workers_and_resumed_by_others(name: str) -> None:
    check_resumes(name, 2, step=5)


def check_resumes(name: str, workers: int, step: int) -> None:
    """In the second epoch, if the first one's end leaves it known; with other workers each time."""
    case = CASES[name]
    with case.loader(workers) as loader:
        if case.following:
            assert digests(loader) == reference(name)[0]
        expected, states = with_states(loader)
        between = through_file(loader.state_dict())
        after = digests(loader) if case.following else None
    assert expected == reference(name)[int(case.following)]
    for stop in sorted({*range(0, len(expected), step), 1, len(expected)}):
        second, third = ((0, 1), (1, 0))[stop % 2] if workers else (0, 0)
        ahead = {"prefetch_factor": 3} if second and case.readers is None else {}
        with case.loader(second, **ahead) as resumed:
            resumed.load_state_dict(states[stop])
            if not states[stop].get("since"):  # else it says since when its readers are these
                assert through_file(resumed.state_dict()) == states[stop]
            got, _ = taken(resumed, 1)
            state = through_file(resumed.state_dict())
        with case.loader(third) as again:
            again.load_state_dict(state)
            if got:
                assert got + digests(again) == expected[stop:], stop
            # When nothing was left, the first resume has come to the epoch's end.
            if after is not None:
                assert digests(again) == after, stop
    if after is not None:
        with case.loader(workers) as resumed:
            resumed.load_state_dict(between)
            assert digests(resumed) == after


@pytest.mark.usefixtures("by_fork")
@pytest.mark.parametrize("name", some(19, IN_WORKERS, first=5))
def test_workers_are_killed(name: str) -> None:
    """And what is saved then is gone on with by another number."""
    expected, got = reference(name)[0], []
    with CASES[name].loader(2) as loader:
        for number, batch in enumerate(iterator := iter(loader)):
            got += digests([batch])
            if number < 4:
                state, given = through_file(loader.state_dict()), len(got)
            if number in (1, 4):
                pids = worker_pids(iterator)
                os.kill(pids[number % len(pids)], signal.SIGKILL)
    assert got == expected
    with CASES[name].loader(1) as resumed:
        resumed.load_state_dict(state)
        assert digests(resumed) == expected[given:]


@pytest.mark.usefixtures("by_fork", "pinned")
@pytest.mark.parametrize("name", some(13, MOVABLE, first=2))
def test_resized(name: str) -> None:
    """At random moments, several times in a row too; with options that are others for each case."""
    case, chance = CASES[name], random.Random(name)
    in_order = "by sample" in name or chance.random() < 0.7
    options: dict[str, Any] = {
        "persistent_workers": case.following and chance.random() < 0.5,
        "pin_memory": chance.random() < 0.5,
        "prefetch_factor": chance.randint(1, 3),
    }
    with case.loader(chance.randint(1, 3), in_order=in_order, **options) as loader:
        for expected in reference(name)[: 1 + case.following]:
            found = []
            for batch in loader:
                found += digests([batch])
                while chance.random() < 0.3:
                    loader.resize(chance.randint(1, 6), chance.choice([None, 1, 3]))
            assert found == expected if in_order else Counter(found) == Counter(expected)


FEW = ["shuffle", "shuffle, by sample", "shards, dataset, keeps", "cached, Decoded, batch, 5000"]
FEW += [
    "global functions",
    "shards, global functions",
    "get_rng",
    "2 read threads, by batch",
    "drawing, shuffled buffer, own numpy, iterator",
]


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize("name", FEW)
def test_other_start_methods(name: str, method: str) -> None:
    """One set of workers: every stop by loading in place."""
    case, expected = CASES[name], reference(name)
    stay = {"persistent_workers": True} if case.following else {}
    with case.loader(2, multiprocessing_context=method, **stay) as loader:
        assert digests(loader) == expected[0]
        if case.following:
            begins = loader.state_dict()  # which set_epoch is not: what comes again draws otherwise
            for stop in (0, 1, 3, len(expected[1])):
                loader.load_state_dict(begins)
                got, iterator = taken(loader, stop)
                assert got == expected[1][:stop]
                loader.load_state_dict(through_file(loader.state_dict()))
                assert digests(loader) == expected[1][stop:]
                assert digests(loader) == expected[2]
                del iterator


@pytest.mark.parametrize("workers", [1, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["shuffle", "shards, iterator"])
def test_out_of_order_loses_and_repeats_nothing(name: str, workers: int) -> None:
    expected = Counter(reference(name)[0])
    for stop in range(0, len(reference(name)[0]) + 1, 2):
        with CASES[name].loader(workers, in_order=False, prefetch_factor=3) as loader:
            got, _ = taken(loader, stop)
            state = through_file(loader.state_dict())
        for options in ({}, {"num_workers": 2, "in_order": False}):
            with CASES[name].loader(**options) as resumed:
                resumed.load_state_dict(state)
                assert Counter(got) + Counter(digests(resumed)) == expected


# By threads ------------------------------------------------------------------------------------

THREADS: dict[str, Any] = {"worker_method": "thread"}
GLOBALLY = "loaders within|shards, .*keeps|shards, global|first drawn, ShuffledInSetEpoch"
"""What draws a loader's seed from a global generator, or keeps that one's state."""
IN_THREADS = [name for name in IN_WORKERS if not re.match(GLOBALLY, name)]


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Data draws from `get_rng` where it would draw from the global generators."""
    draw_apart(monkeypatch)


@functools.cache
def reference_apart(name: str) -> list[list[str]]:
    with CASES[name].loader(clean=True) as loader:
        return [digests(loader) for _ in range(1 + CASES[name].following)]


@pytest.mark.usefixtures("apart", "by_fork")
@pytest.mark.filterwarnings("ignore:num_shards=1 are 1 reader")
@pytest.mark.parametrize("name", some(17, IN_THREADS, first=4))
def test_threads_give_what_processes_give(name: str) -> None:
    """Left behind some batches, resumed by the other kind; resized, if that may be."""
    case, expected = CASES[name], reference_apart(name)
    with case.loader(2, **THREADS) as loader:
        assert [digests(loader) for _ in expected] == expected
    kinds = itertools.cycle([THREADS, {}, THREADS])
    for stop in {1, len(expected[0]) // 2}:
        one, other = next(kinds), next(kinds)
        with case.loader(2, **one) as loader, case.loader(1, **other) as resumed:
            got, _ = taken(loader, stop)
            resumed.load_state_dict(through_file(loader.state_dict()))
            assert got + digests(resumed) == expected[0], (stop, one)
    if case.readers is None:
        with case.loader(3, **THREADS, persistent_workers=case.following) as loader:
            for epoch in expected:
                found = []
                for number, batch in enumerate(loader):
                    found += digests([batch])
                    loader.resize((5, 1, 3, 2)[number % 4])
                assert found == epoch


# What is particular ----------------------------------------------------------------------------


def make(**options: Any) -> DataLoader[Any]:
    options = {"batch_size": 4, "shuffle": True, "seed": 11} | options
    return DataLoader(Augmented(), collate_fn=noisy_collate, **options)


def test_sample_seeding_does_not_depend_on_the_batch_size() -> None:
    def rows(batch_size: int) -> list[str]:
        loader = DataLoader(Augmented(), batch_size, True, seed=11, seeding="sample")
        return digests(row for batch in loader for row in batch)

    assert rows(4) == rows(5) == rows(26)


def test_the_largest_seed_and_epoch() -> None:
    with make(seed=2**64 - 1, num_workers=1) as loader, make(seed=2**64 - 1) as alone:
        for each in (loader, alone):
            each.set_epoch(2**62 - 1)
        assert digests(loader) == digests(alone)


def test_the_parents_generators_are_not_touched_by_a_loop_left_early() -> None:
    before = own_generators()
    for workers in (0, 2):
        with make(num_workers=workers) as loader:
            _, iterator = taken(loader, 2)
            loader.state_dict()
            assert own_generators() == before
            del iterator
    assert own_generators() == before


def test_worker_seeding_resumes_with_the_right_indices() -> None:
    """PyTorch's own scheme makes no promise about random numbers, but the order is exact."""
    with make(seeding="worker", num_workers=2) as loader:
        whole = [batch[:, 0].tolist() for batch in loader]
    with make(seeding="worker", num_workers=2) as loader:
        taken(loader, 3)
        state = loader.state_dict()
    with make(seeding="worker", num_workers=1) as resumed:
        resumed.load_state_dict(state)
        assert [batch[:, 0].tolist() for batch in resumed] == whole[3:]
