"""``num_shards``: what a reader gives does not depend on who serves it, or on how often it stops.

The reference is a loader without workers and ranks. Every sample says which reader it was read by,
what the dataset was told about it, and what it drew from each generator.
"""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import os
import random
import signal
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

import lit_loader
from lit_loader import DataLoader, OptionError, StateError, TransportError, WorkerRestartWarning
from tests.support.samples import Counting
from tests.support.shard_data import COLUMNS, KINDS, WithIteratorState

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

SHARDS, LENGTH, SIZE = 4, 45, 3


Batches = list[bytes]


def stream(kind: str, keeps: bool = False) -> Any:
    return KINDS[kind](LENGTH, "torch", keeps)


def loader(dataset: Any, workers: int = 0, ranks: int = 1, rank: int = 0, **options: Any) -> Any:
    options = {"batch_size": SIZE, "num_shards": SHARDS, "seed": 7, **options}
    if ranks > 1:
        options |= {"num_replicas": ranks, "rank": rank, "shard_tail": "keep"}
    return DataLoader(dataset, num_workers=workers, **options)


def content(batch: Tensor) -> bytes:
    return batch.numpy().tobytes()


def shard_of(batch: bytes) -> int:
    return int(np.frombuffer(batch)[0])


def by_shard(batches: Batches) -> dict[int, Batches]:
    found: dict[int, Batches] = {shard: [] for shard in range(SHARDS)}
    for batch in batches:
        found[shard_of(batch)].append(batch)
    return found


@functools.cache
def reference(kind: str, keeps: bool = False) -> Batches:
    return [content(batch) for batch in loader(stream(kind, keeps))]


def restored(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def quiet(recwarn: pytest.WarningsRecorder) -> None:
    warnings.filterwarnings("ignore", ".*resuming reads again")


def test_rounds_and_what_a_reader_is_told() -> None:
    batches = [np.frombuffer(batch).reshape(-1, COLUMNS) for batch in reference("iterator")]
    shards = [int(batch[0, 0]) for batch in batches]
    assert shards == [*range(SHARDS)] * 4  # 12 or 11 samples each, in threes
    for batch in batches:
        shard = batch[0, 0]
        assert (batch[:, :7] == [shard, SHARDS, shard, SHARDS, 7 + shard, 0, 7 + shard]).all()
    numbers = sorted(int(row[7]) for batch in batches for row in batch)
    assert numbers == [*range(LENGTH)]
    assert get_worker_info() is None


@pytest.mark.parametrize("kind", ["dataset", "generator"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_take_every_so_many_a_batch(kind: str, ranks: int) -> None:
    expected = reference(kind)
    for rank in range(ranks):
        found = [content(batch) for batch in loader(stream(kind), rank % 2, ranks, rank)]
        assert found == expected[rank::ranks]


def part(
    kind: str,
    keeps: bool,
    workers: int,
    ranks: int,
    taken: int | None,
    state: dict[str, Any] | None = None,
    **options: Any,
) -> tuple[list[Batches], dict[str, Any]]:
    """What each rank is given, and the state of all ranks then."""
    given, states = [], []
    for rank in range(ranks):
        with loader(stream(kind, keeps), workers, ranks, rank, **options) as one:
            if state is not None:
                one.load_state_dict(state)
            given.append([content(batch) for batch in itertools.islice(one, taken)])
            states.append(restored(one.state_dict()))
    random.Random(taken).shuffle(states)
    return given, lit_loader.merge_states(states)


CHAINS = [
    # (workers, ranks, batches that each rank takes), one after the other
    [(2, 4, 1), (0, 2, 1), (5, 1, None)],
    [(0, 1, 4), (2, 2, 3), (1, 4, None)],
    [(3, 2, 0), (0, 2, 5), (2, 1, None)],
    [(1, 1, 5), (0, 2, 2), (2, 1, 1), (0, 4, None)],  # in the midst of a round
    [(0, 1, 15), (2, 1, None)],
    [(2, 1, 1), (0, 1, 1), (2, 1, 9), (5, 1, None)],
]


def chains() -> Iterator[Any]:
    """Every kind of dataset with every chain; by default each kind and each chain once."""
    for place, (kind, number, keeps) in enumerate(
        itertools.product(KINDS, range(len(CHAINS)), (False, True))
    ):
        default = place % (2 * len(CHAINS) + 2) == 0
        marks = () if default else pytest.mark.slow
        name = f"{kind}-{number}{'-keeps' * keeps}".replace(" ", "_")
        yield pytest.param(kind, CHAINS[number], keeps, id=name, marks=marks)


@pytest.mark.parametrize(("kind", "chain", "keeps"), [*chains()])
def test_stopped_and_resumed_with_others(kind: str, chain: Any, keeps: bool) -> None:
    expected = by_shard(reference(kind, keeps))
    found: dict[int, Batches] = {shard: [] for shard in range(SHARDS)}
    state = None
    for workers, ranks, taken in chain:
        given, state = part(kind, keeps, workers, ranks, taken, state)
        for batches in given:
            for shard, more in by_shard(batches).items():
                found[shard] += more
    assert found == expected


class Deadly(WithIteratorState):
    """Ends the process that reads one of its samples first, if it can remove the file "kill"."""

    folder: Path
    at: tuple[int, ...] = ()

    def item(self, number: int) -> Tensor:
        if number in self.at:
            with contextlib.suppress(FileNotFoundError):
                (self.folder / "kill").unlink()
                os.kill(os.getpid(), signal.SIGKILL)
        return super().item(number)


def test_a_reader_whose_worker_is_killed_is_named(tmp_path: Path) -> None:
    dataset = Deadly(LENGTH, "python", True)
    dataset.folder, dataset.at = tmp_path, (20, 21)
    expected = [content(batch) for batch in loader(dataset)]
    (tmp_path / "kill").touch()
    with (
        loader(dataset, 2, max_worker_restarts=1) as one,
        pytest.warns(WorkerRestartWarning, match=r"the next samples of shard \d of 4"),
    ):
        assert [content(batch) for batch in one] == expected


class Bad(WithIteratorState):
    def item(self, number: int) -> Tensor:
        sample = super().item(number)
        if number % 5 == 3:
            raise LookupError(f"sample {number} is broken")
        return sample


@pytest.mark.parametrize("workers", [1, 3])
def test_bad_samples_are_skipped(workers: int) -> None:
    def given(workers: int, ranks: int = 1, rank: int = 0) -> Batches:
        found = loader(Bad(LENGTH), workers, ranks, rank, on_sample_error="skip")
        return [content(batch) for batch in found]

    expected = given(0)
    assert given(workers) == expected
    assert [given(workers, 2, rank) for rank in range(2)] == [expected[0::2], expected[1::2]]
    numbers = [
        int(row[7]) for batch in expected for row in np.frombuffer(batch).reshape(-1, COLUMNS)
    ]
    assert sorted(numbers) == [number for number in range(LENGTH) if number % 5 != 3]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have no notes: it is logged")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_failing_reader_is_named_and_goes_on(workers: int) -> None:
    with loader(Bad(LENGTH), workers) as one:
        found = with_errors(one)
    assert found == with_errors(loader(Bad(LENGTH), 0))
    assert any(isinstance(entry, str) for entry in found)


def with_errors(one: DataLoader[Any]) -> list[Any]:
    """The batches, and in their places the readers that have failed."""
    batches, found = iter(one), []
    while True:
        try:
            found.append(content(next(batches)))
        except StopIteration:
            return found
        except LookupError as error:
            text = "".join([str(error), *getattr(error, "__notes__", [])])
            found.append(text[text.index("the next samples of shard ") :][:32])


def test_exactness_is_checked() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "This DataLoader will create")
        with loader(stream("iterator"), 2, check_exactness=6) as one:
            assert len([*one]) == 16


class AsksTorch(IterableDataset[int]):
    """As a dataset that was written for torch does it."""

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        assert info is not None
        yield from range(info.id, 20, info.num_workers)


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_dataset_written_for_torch(workers: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "This DataLoader will create")
        batches = [batch.tolist() for batch in loader(AsksTorch(), workers)]
    assert batches[:5] == [[0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7, 11], [12, 16]]
    assert sorted(itertools.chain(*batches)) == [*range(20)]


class AsksNothing(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


@pytest.mark.process
@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_that_does_not_ask(workers: int) -> None:
    text = r"AsksNothing is iterated by 4 readers \(num_shards\) and has not asked"
    with pytest.warns(UserWarning, match=text):
        assert len([*loader(AsksNothing(), workers)]) == 8
    text = r"by 2 readers \(workers x ranks\).*get_shard\(\), and pass num_shards, with which"
    with pytest.warns(UserWarning, match=text):
        [*DataLoader(AsksNothing(), num_workers=2)]


class Remembers(Counting):
    """Keeps what it has given in a list, and large numbers in arrays."""

    def __init__(self, table: np.ndarray[Any, Any]) -> None:
        super().__init__()
        self.given: list[int] = []
        self.table = table

    def __iter__(self) -> Iterator[Any]:
        for number in super().__iter__():
            self.given.append(number)
            self.table[0] += not self.table.flags.writeable or 1
            yield torch.tensor([number, len(self.given), int(self.table[0])])


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_each_reader_has_a_copy(workers: int) -> None:
    dataset = Remembers(np.zeros(3))
    rows = torch.cat([*loader(dataset, workers)])
    for row in rows.tolist():
        assert row[1] == row[2] == row[0] // SHARDS + 1
    assert dataset.given == [] and dataset.table[0] == 0


@pytest.mark.usefixtures("by_fork")  # cloudpickle would carry the file to another process
@pytest.mark.parametrize("workers", [0, 1])
def test_a_dataset_that_cannot_be_copied(workers: int) -> None:
    dataset = Counting()
    with open(os.devnull) as dataset.file:  # type: ignore[attr-defined]
        text = r"dataset\.file: .* cannot be copied, and with num_shards each reader has a copy"
        with pytest.raises(TransportError, match=text), loader(dataset, workers) as one:
            next(iter(one))


def _asks_for_the_dataset(worker: int) -> None:
    info = get_worker_info()
    assert info is not None and (info.id, info.num_workers) == (worker, 1)
    info.dataset.length = 3


def test_worker_init_fn_finds_no_dataset() -> None:
    with (
        pytest.raises(
            OptionError, match="worker_init_fn asks for get_worker_info.*with num_shards"
        ),
        loader(Counting(), 1, worker_init_fn=_asks_for_the_dataset) as one,
    ):
        next(iter(one))


class SplitByRanks(Counting):
    """Says so as streams of other libraries do."""

    def __init__(self, **said: Any) -> None:
        super().__init__()
        vars(self).update(said)


def split_by_node(shards: Any) -> Any:
    return shards


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ({"_distributed": (0, 2)}, "split_dataset_by_node"),
        ({"pipeline": [list, split_by_node]}, r"split_by_node \(pass nodesplitter=None\)"),
        ({"pipeline": [functools.partial(split_by_node)]}, "split_by_node"),
    ],
)
def test_a_stream_that_is_split_by_ranks_already(said: dict[str, Any], name: str) -> None:
    dataset = SplitByRanks(**said)
    text = f"SplitByRanks is split by ranks already, by {name}.*, and num_shards=4 readers of 2"
    with pytest.raises(OptionError, match=text):
        DataLoader(dataset, num_shards=4, num_replicas=2, rank=0)
    DataLoader(dataset, num_shards=4)  # one rank, as far as the loader is concerned
    DataLoader(dataset, num_replicas=2, rank=0)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_shards": 0}, "num_shards must be a whole number of at least 1"),
        ({"num_shards": 6, "num_replicas": 4, "rank": 0}, "use 4 or 8, got num_shards=6 and"),
        ({"num_shards": 2, "num_replicas": 4, "rank": 0}, "use 4, got num_shards=2 and num_repl"),
        ({"num_shards": 2, "seeding": "worker"}, "num_shards makes readers that do not depend"),
        (
            {"num_shards": 2, "shard_tail": "drop"},
            "shard_tail='drop' is for map-style datasets, .*: pass 'pad', .* or 'keep'",
        ),
    ],
)
def test_refused_options(options: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        DataLoader(Counting(), **options)


def test_a_map_style_dataset_has_no_shards() -> None:
    with pytest.raises(OptionError, match="num_shards applies to an IterableDataset"):
        DataLoader([1, 2], num_shards=2)  # type: ignore[arg-type]


def states_at(taken: list[int], epoch: int = 0, **options: Any) -> list[dict[str, Any]]:
    """States of as many ranks, each after so many batches."""
    states = []
    for rank, number in enumerate(taken):
        one = loader(Counting(40), 0, len(taken), rank, **options)
        one.set_epoch(epoch)
        batches = iter(one)
        for _ in range(number):
            next(batches)
        states.append(one.state_dict())
    return states


def test_what_does_not_fit_is_not_merged() -> None:
    merge = lit_loader.merge_states
    one, two = states_at([2, 2])
    assert [part[:2] for part in merge([two, one])["readers"]] == [[0, 1], [1, 1], [2, 1], [3, 1]]
    assert merge([merge([one, two])]) == merge([one, two])
    with pytest.raises(StateError, match="of all 2 ranks, each once, got 1 states .* ranks .0."):
        merge([one])
    with pytest.raises(StateError, match="of all 2 ranks, each once, got 3 states"):
        merge([one, two, two])
    with pytest.raises(StateError, match="after 2 batches on one rank and after 3 on another"):
        merge([one, states_at([2, 3])[1]])
    with pytest.raises(StateError, match="in epoch 0 and in epoch 1"):
        merge([one, states_at([2, 2], epoch=1)[1]])
    with pytest.raises(StateError, match="state was taken with seed=7, but this loader has seed=8"):
        merge([one, states_at([2, 2], seed=8)[1]])
    with pytest.raises(StateError, match="states must be those of all ranks, got none"):
        merge([])
    with pytest.raises(StateError, match="states must be a list of those of all ranks, got None"):
        merge(None)
    with pytest.raises(StateError, match="states must be a list of those of all ranks, got {"):
        merge(one)
    with pytest.raises(StateError, match="must be the dict that state_dict"):
        merge([{}])
    plain = DataLoader(Counting(), num_workers=0)
    next(iter(plain))
    with pytest.raises(StateError, match="read without num_shards are each rank's own"):
        merge([plain.state_dict(), plain.state_dict()])
    whole = DataLoader([1, 2, 3], seed=1)  # type: ignore[arg-type]
    before = whole.state_dict()
    assert merge([before, before]) == before
    next(iter(whole))
    with pytest.raises(StateError, match="states differ, which are the same on all ranks"):
        merge([before, whole.state_dict()])


def test_a_rank_that_has_ended_may_be_merged() -> None:
    states = []
    for rank in range(2):
        one = loader(Counting(5), 0, 2, rank, batch_size=1, num_shards=2)
        batches = iter(one)
        states.append([one.state_dict() for _ in zip(range(4), batches, strict=False)])
    # Rank 0 has three samples, rank 1 has two, and does not know of its end yet.
    assert [len(each) for each in states] == [3, 2]
    with pytest.raises(StateError, match="after 2 batches on one rank and after 3"):
        lit_loader.merge_states([states[0][2], states[1][1]])


def test_states_that_do_not_fit_are_refused() -> None:
    one, two = states_at([2, 2])
    with pytest.raises(StateError, match=r"readers of one rank, \[0, 2\] of 4, but rank 0 of 1"):
        loader(Counting(40)).load_state_dict(one)
    with pytest.raises(StateError, match="load what lit_loader.merge_states makes"):
        loader(Counting(40), 0, 2, 1).load_state_dict(one)
    merged = lit_loader.merge_states([one, two])
    with pytest.raises(StateError, match="num_shards=4, but this loader has num_shards=8"):
        loader(Counting(40), num_shards=8).load_state_dict(merged)
    with pytest.raises(StateError, match="taken with num_"):
        DataLoader(Counting(40), batch_size=SIZE, seed=7).load_state_dict(merged)
    for name, value in [
        ("readers", []),
        ("readers", [[0, 1, None, False]]),
        ("readers", [[5, 1, None, False], *merged["readers"]]),
        ("readers", [*merged["readers"], [3, 1, None, False]]),
        ("readers", [[0], *merged["readers"][1:]]),
        ("readers", 3),
        ("readers", {"a": 1}),
        ("since", -1),
        ("since", "x"),
        ("batches", 9),
        ("fingerprint", {**merged["fingerprint"], "num_replicas": 0}),
        ("fingerprint", {**merged["fingerprint"], "num_shards": None}),
        ("workers", [[1, None, False]]),
    ]:
        with pytest.raises(StateError):
            loader(Counting(40)).load_state_dict({**merged, name: value})
            pytest.fail(f"{name}={value} was loaded")
    with pytest.raises(StateError):
        DataLoader([1, 2], seed=7).load_state_dict(merged)  # type: ignore[arg-type]
