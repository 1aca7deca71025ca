"""States: where they may be taken and loaded, what they cost (and give: test_exactness.py)."""

import copy
import itertools
import time
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import RandomSampler

from lit_loader import DataLoader
from tests.exactness.test_exactness import CASES
from tests.support.drawing_streams import STATES, OnDataset
from tests.support.exact import Augmented, digests, loaded, state_behind, taken, through_file
from tests.support.samples import Call, uncollated

LENGTH = 26


def make(source: str, **options: Any) -> DataLoader[Any]:
    return CASES[source].loader(seed=3, **options)


def test_states_given_out_do_not_change() -> None:
    for source in ("shuffle", "stateful", "random, generator"):
        loader = make(source)
        _, iterator = taken(loader, 2)
        state = loader.state_dict()
        kept = copy.deepcopy(state)
        digests(iterator)
        digests(loader)
        digests(loaded(make(source), state))
        assert state == kept


def test_taking_a_state_starts_nothing_and_changes_nothing() -> None:
    with make("shuffle", num_workers=2) as watched, make("shuffle") as alone:
        for _ in range(3):
            watched.state_dict()
        assert watched._core.pool is None
        got = []
        for batch in watched:
            got += digests([batch])
            watched.state_dict()
        watched.state_dict()
        assert [got, digests(watched)] == [digests(alone), digests(alone)]


@pytest.mark.parametrize("workers", [0, 2])
def test_loading_in_mid_iteration_takes_effect_at_the_next_iter(workers: int) -> None:
    expected = digests(make("shuffle"))
    with make("shuffle", num_workers=workers, persistent_workers=workers > 0) as loader:
        _, iterator = taken(loader, 2)
        state = loader.state_dict()
        assert digests(itertools.islice(iterator, 2)) == expected[2:4]
        loader.load_state_dict(state)
        assert loader.state_dict() == state
        assert digests([next(iterator)]) == expected[4:5]
        assert loader.state_dict() == state
        assert digests(loader) == expected[2:]


def test_commit_holds_the_position_back() -> None:
    loader = make("shuffle")
    expected = digests(make("shuffle"))
    loader.commit()
    iterator = iter(loader)
    for used in range(3):
        next(iterator)
        resumed = loaded(make("shuffle"), loader.state_dict())
        assert digests(resumed) == expected[used:]
        loader.commit()
        resumed.load_state_dict(loader.state_dict())
        assert digests(resumed) == expected[used + 1 :]


def test_commit_over_the_end_of_an_epoch() -> None:
    loader = make("shuffle")
    first, second = digests(make("shuffle")), None
    for _ in loader:
        loader.commit()
    after = loader.state_dict()
    iterator = iter(loader)
    second = digests([next(iterator)])
    in_flight = loader.state_dict()
    for state in (after, in_flight):
        assert (state["epoch"], state["batches"]) == (1, 0)
        assert digests(loaded(make("shuffle"), state))[:1] == second
    assert first[:1] != second


def test_the_same_epoch_keeps_a_position_and_another_gives_it_up() -> None:
    other, loader = make("shuffle"), make("shuffle")
    epochs = [digests(other) for _ in range(3)]
    loader.set_epoch(1)
    taken(loader, 3)
    state = loader.state_dict()
    for epoch, expected in ((1, epochs[1][3:]), (2, epochs[2])):
        resumed = loaded(make("shuffle"), state)
        resumed.set_epoch(epoch)
        assert (resumed.state_dict() == state) == (epoch == 1)
        assert digests(resumed) == expected
        resumed = loaded(make("shuffle"), state)
        resumed.sampler.set_epoch(epoch)
        assert digests(resumed) == expected


@pytest.mark.parametrize("stop", [2, 7])
@pytest.mark.parametrize(
    "source", ["random, generator", "stateful", "stateful iterator", "batches, stateful"]
)
def test_a_state_of_the_first_step_after_an_epoch_was_given_up(source: str, stop: int) -> None:
    def begun() -> DataLoader[Any]:
        loader = make(source)
        loader.commit()
        loader.set_epoch(0)
        taken(loader, stop)
        loader.commit()
        loader.set_epoch(1)
        return loader

    expected, loader = digests(begun()), begun()
    iterator = iter(loader)  # which a training loop holds
    assert digests([next(iterator)]) == expected[:1]
    state = through_file(loader.state_dict())  # of a batch that is not used yet
    for requested in (True, False):
        resumed = loaded(make(source), state)
        if requested:
            resumed.set_epoch(1)
        assert digests(resumed) == expected


def test_a_whole_epoch_is_one_whether_or_not_its_end_was_asked_for() -> None:
    """Lightning does not ask; torch's workers have drawn ahead to the end, and beyond nothing."""

    def after(loader_class: Any, workers: int, ask: bool) -> list[Any]:
        sampler = RandomSampler(range(24), generator=torch.Generator().manual_seed(8))
        loader = loader_class(range(24), 4, sampler=sampler, num_workers=workers)
        iterator = iter(loader)
        for _ in range(6):
            next(iterator)
        assert not ask or next(iterator, None) is None
        del iterator
        found = [batch.tolist() for batch in loader]
        if isinstance(loader, DataLoader):
            loader.close()
        return found

    expected = after(TorchLoader, 2, False)
    assert expected == after(TorchLoader, 0, True)
    for workers in (0, 2):
        assert after(DataLoader, workers, False) == after(DataLoader, workers, True) == expected


def test_a_short_loader_cycled_within_an_epoch() -> None:
    """A training loop sets the epoch once and goes through the loader as often as it needs."""
    whole, loader = make("shuffle"), make("shuffle")
    for each in (whole, loader):
        each.set_epoch(4)
        digests(each)
    expected = digests(whole)
    taken(loader, 3)
    state = loader.state_dict()
    assert (state["epoch"], state["requested"]) == (5, 4)
    for epoch in (4, 5):  # the one that was asked for, and its own
        resumed = loaded(make("shuffle"), state)
        resumed.set_epoch(epoch)
        assert digests(resumed) == expected[3:]
    resumed = loaded(make("shuffle"), state)
    for each in (resumed, loader):
        each.set_epoch(6)
    assert digests(resumed) == digests(loader)


def test_a_seed_that_nobody_chose_is_taken_over() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        loader = DataLoader(Augmented(LENGTH), 4, True)
        expected = digests(loader), digests(loader)
        torch.manual_seed(1)
        loader = DataLoader(Augmented(LENGTH), 4, True)
        taken(loader, 2)
        state = loader.state_dict()
        torch.manual_seed(2)
        resumed = loaded(DataLoader(Augmented(LENGTH), 4, True), state)
        assert (digests(resumed), digests(resumed)) == (expected[0][2:], expected[1])


@pytest.mark.parametrize("shuffle", [False, True])
def test_resuming_is_as_fast_at_the_end_as_at_the_start(shuffle: bool) -> None:
    length = 10**9

    def seconds(share: float) -> float:
        loader = DataLoader(Call(int, length), 256, shuffle, seed=1)
        state = loader.state_dict()
        state["batches"] = int(len(loader) * share)
        state["samples"] = 256 * state["batches"]
        taken = []
        for _ in range(5):
            start = time.process_time()
            loader.load_state_dict(state)
            next(iter(loader))
            taken.append(time.process_time() - start)
        return min(taken)

    assert seconds(0.99) < 10 * seconds(0)  # of four million batches


# Streams whose draws decide what comes next ------------------------------------------------------

SIZE = 3


def drawing(dataset: Any, size: int = SIZE) -> DataLoader[Any]:
    return DataLoader(dataset, size, seed=5, collate_fn=uncollated)


def test_a_state_without_marks() -> None:
    """As older versions have made them: read as these did, and saved again."""
    one = drawing(OnDataset("shuffled augmented", "random"))
    batches = iter(one)
    for _ in range(5):
        next(batches)
    state = one.state_dict()
    rest = list(batches)
    del state["workers"][0][4:]
    resumed = loaded(drawing(OnDataset("shuffled augmented", "random")), state)
    got = list(itertools.islice(resumed, 1))
    state = through_file(resumed.state_dict())
    again = loaded(drawing(OnDataset("shuffled augmented", "random")), state)
    assert got + list(again) == rest


@pytest.mark.filterwarnings("ignore:.* has no state_dict and load_state_dict")
@pytest.mark.parametrize("kind", ["shuffled augmented", "filter"])
def test_marks_of_older_versions(kind: str) -> None:
    """One of each batch, with its number and that of a state behind it; or of the last batches."""

    def make(state: str) -> DataLoader[Any]:
        return drawing(STATES[state](kind, "random"))

    def mark(behind: int) -> str:
        marks: list[list[Any]] = state_behind(make("none"), behind)["workers"][0][5]
        return str(marks[0][-1])

    one = make("dataset")
    batches = iter(one)
    for _ in range(5):
        next(batches)
    state = one.state_dict()
    rest = list(batches)
    for marks in ([[3, mark(4)], [4, mark(5) + 16 * "0"]], [mark(4), mark(5)]):
        state["workers"][0][5] = marks
        assert list(loaded(make("dataset"), through_file(state))) == rest


@pytest.mark.filterwarnings("ignore:.* has no state_dict and load_state_dict")
@pytest.mark.parametrize("state", ["dataset", "none"])
def test_what_cannot_be_found_again_is_told(state: str) -> None:
    def make() -> DataLoader[Any]:
        return drawing(STATES[state]("filter", "none knows", length=400), size=24)

    resumed = loaded(make(), state_behind(make(), 5))
    with pytest.warns(UserWarning, match="were read again, and were others"):
        next(iter(resumed))


@pytest.mark.parametrize("kind", ["filter", "buffer", "shuffled", "augmented"])
def test_a_state_spares_reading(kind: str) -> None:
    """Of what was given out, two batches are read again, at most twice."""
    state = state_behind(drawing(OnDataset(kind, "random")), 5)
    dataset = OnDataset(kind, "random")
    batches = iter(loaded(drawing(dataset), state))
    next(batches)
    assert 2 * SIZE < (before := dataset.taken) <= 5 * SIZE
    next(batches)
    assert dataset.taken > before  # this one is read, and no copy from the start
