"""What the training loop sets on a dataset reaches workers that live on."""

import contextlib
import os
import signal
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, IterableDataset, Subset

from lit_loader import DataLoader
from lit_loader.errors import WorkerRestartWarning
from tests.support.samples import OfLength

pytestmark = pytest.mark.timeout(120)

N = 8
HOW: dict[str, dict[str, Any]] = {
    "no workers": {"num_workers": 0},
    "fork": {"num_workers": 2, "multiprocessing_context": "fork"},
    "threads": {"num_workers": 2, "worker_method": "thread"},
}


class Rollouts(OfLength):
    """A sample is its index and the difficulty; a worker that finds the file dies, once."""

    length = N

    def __init__(self) -> None:
        self.difficulty: Any = 0
        self.deadly = ""
        self.mode = ("easy", None, True)
        self.shape = torch.zeros(1)
        self.handle: Any = None

    def __getitem__(self, index: int) -> Tensor:
        if index == 2 and self.deadly:  # which a worker begins with: nobody else makes it, too
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.deadly)
                os.kill(os.getpid(), signal.SIGKILL)
        hard = self.mode[0] == "hard"
        return torch.tensor([index, self.difficulty, int(hard), float(self.shape[0])])


class RolloutStream(IterableDataset[Tensor]):
    def __init__(self) -> None:
        self.difficulty: Any = 0
        self.wrapped = False

    def __iter__(self) -> Iterator[Tensor]:
        for index in range(N):
            yield torch.tensor([index, self.difficulty])


class Curriculum:
    """A sampler that sets the difficulty when it is iterated."""

    def __init__(self, dataset: Rollouts) -> None:
        self.dataset, self.passes = dataset, 0

    def __len__(self) -> int:
        return N

    def __iter__(self) -> Iterator[int]:
        self.dataset.difficulty = self.passes
        self.passes += 1
        return iter(range(N))


@pytest.fixture(params=HOW)
def make(request: pytest.FixtureRequest) -> Iterator[Callable[..., DataLoader[Any]]]:
    """Makes loaders whose workers live on, and closes them."""
    made: list[DataLoader[Any]] = []

    def loader(dataset: Any, **options: Any) -> DataLoader[Any]:
        options = {"batch_size": 2} | HOW[request.param] | options
        options["persistent_workers"] = options["num_workers"] > 0
        made.append(DataLoader(dataset, **options))
        return made[-1]

    yield loader
    for each in made:
        each.close()


def difficulties(loader: Any) -> set[float]:
    return {float(row[1]) for batch in loader for row in batch}


def test_a_changed_attribute_counts_from_the_next_pass_on(make: Any) -> None:
    dataset = Rollouts()
    loader = make(dataset)
    for difficulty in (0, 1, 1, 0.5, True):
        dataset.difficulty = difficulty
        assert difficulties(loader) == {difficulty}
    dataset.mode = ("hard" * 1, None, False)
    dataset.name = "new" * 100  # type: ignore[attr-defined]  # takes several messages
    assert {float(row[2]) for batch in loader for row in batch} == {1}


def test_it_reaches_what_a_dataset_wraps(make: Any) -> None:
    first, second = Rollouts(), Rollouts()
    loader = make(Subset(ConcatDataset([first, second]), range(2 * N)))
    assert difficulties(loader) == {0}
    first.difficulty, second.difficulty = 1, 2
    assert difficulties(loader) == {1, 2}


@pytest.mark.parametrize("shards", [None, 4])
def test_it_reaches_streams_and_their_shards(make: Any, shards: int | None) -> None:
    dataset = RolloutStream()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # each worker reads the whole stream
        loader = make(dataset, num_shards=shards)
        for difficulty in (0, 3, 4):
            dataset.difficulty = difficulty
            assert difficulties(loader) == {difficulty}


@pytest.mark.parametrize("early", [False, True])
def test_a_sampler_that_sets_it_is_in_time(make: Any, early: bool) -> None:
    dataset = Rollouts()
    loader = make(dataset, sampler=Curriculum(dataset))
    for number in range(3):
        if early:
            loader.start()
        assert difficulties(loader) == {number}


def test_a_pass_that_is_left_keeps_what_it_began_with(make: Any) -> None:
    dataset = Rollouts()
    loader = make(dataset)
    if loader.num_workers == 0 or loader.worker_method == "thread":
        pytest.skip("the dataset is the program's own")
    iterator = iter(loader)
    next(iterator)
    dataset.difficulty = 1
    assert {float(row[1]) for batch in iterator for row in batch} == {0}
    assert difficulties(loader) == {1}


def test_batches_made_ahead_are_made_again(make: Any) -> None:
    dataset = Rollouts()
    loader = make(dataset, seed=1, shuffle=True)
    for difficulty in (0, 1, 2):
        dataset.difficulty = difficulty
        assert difficulties(loader) == {difficulty}


def test_a_worker_in_the_place_of_a_dead_one_has_it(make: Any, tmp_path: Path) -> None:
    dataset = Rollouts()
    loader = make(dataset)
    if loader.num_workers == 0 or loader.worker_method == "thread":
        pytest.skip("nobody can be killed")
    assert difficulties(loader) == {0}
    dataset.difficulty, dataset.deadly = 5, str(tmp_path / "deadly")
    Path(dataset.deadly).touch()
    loader.start()
    dataset.difficulty = 6  # of the next pass
    with pytest.warns(WorkerRestartWarning, match="SIGKILL"):
        assert difficulties(loader) == {5}
    assert difficulties(loader) == {6}


def test_another_kind_of_change_is_reported_once(make: Any) -> None:
    dataset = Rollouts()
    loader = make(dataset)
    assert difficulties(loader) == {0}
    processes = loader.num_workers > 0 and loader.worker_method != "thread"
    dataset.handle = open(os.devnull)  # opened when it is first needed: nobody's business  # noqa: SIM115
    for _ in range(2):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            # Of threads, which share the file.
            warnings.filterwarnings("ignore", ".*share its position")
            dataset.shape = torch.ones(1)
            list(loader)
        expected = processes and dataset.difficulty == 0
        assert len(caught) == expected, [str(each.message) for each in caught]
        if expected:
            assert "dataset.shape changed" in str(caught[0].message)
        dataset.difficulty = 1
    loader.close()
    assert {float(row[3]) for batch in loader for row in batch} == {1}
    dataset.handle.close()


def test_a_dataset_that_grows_is_reported(make: Any) -> None:
    rows = list(range(8))
    loader = make(rows)
    assert sum(map(len, loader)) == 8
    rows += range(8, 12)
    if loader.num_workers == 0 or loader.worker_method == "thread":
        assert sum(map(len, loader)) == 12
        return
    with (
        pytest.warns(UserWarning, match=r"len\(dataset\) changed.*LL337"),
        pytest.raises(IndexError, match="list index out of range"),
    ):
        list(loader)
    loader.close()
    assert sum(map(len, loader)) == 12
