"""How often a stream's state is taken, and positions that a stream does not have.

That a resume continues exactly is in tests/exactness/test_streams.py.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import IterableDataset

from lit_loader import DataLoader, ExactnessWarning
from lit_loader.streams.state_meter import StateMeter
from tests.support.datasets import BufferedStream, Lines, StatefulStream
from tests.support.exact import digests, loaded, taken
from tests.support.samples import Cursor, share

pytestmark = pytest.mark.filterwarnings("ignore:.*(LL308|LL334)")

WAYS: list[dict[str, Any]] = [
    {},
    {"num_workers": 2},
    {"num_shards": 4},
    {"num_workers": 2, "num_shards": 4},
]


class Timed(IterableDataset[int]):
    """Has a clock of its own, whatever the machine is at: a sample takes 1, and a state 2."""

    now = 1

    def __init__(self) -> None:
        self.place = self.states = 0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        Timed.now += 1
        self.place += 1
        return self.place

    def state_dict(self) -> dict[str, int]:
        Timed.now += 2
        self.states += 1
        return vars(self)

    def load_state_dict(self, state: dict[str, int]) -> None:
        vars(self).update(state)


@pytest.mark.parametrize("workers", [{}, {"num_workers": 1, "multiprocessing_context": "fork"}])
def test_a_state_is_taken_as_often_as_it_can_be_afforded(
    workers: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One state takes 1/32 of the time of making batches: that of 16 batches of 4."""
    monkeypatch.setattr(StateMeter, "clock", staticmethod(lambda: Timed.now))
    with DataLoader(Timed(), 4, **workers) as loader:
        taken(loader, 110)
        (part,) = loader.state_dict()["readers"]
    assert part[2]["iterator"]["states"] == 2 + 108 // 16


def test_a_state_may_have_what_cannot_be_pickled() -> None:
    def make() -> DataLoader[Any]:
        return DataLoader(BufferedStream(40, more=lambda: None), 4, seed=1)

    expected, first = digests(make()), make()
    taken(first, 7)
    assert digests(loaded(make(), first.state_dict())) == expected[7:]


@pytest.mark.parametrize("options", WAYS)
def test_a_committed_position(options: dict[str, Any]) -> None:
    def make() -> DataLoader[Any]:
        return DataLoader(BufferedStream(120), 4, seed=5, **options)

    with make() as whole:
        expected = digests(whole)
    with make() as first:
        _, iterator = taken(first, 12)
        first.commit()
        digests(itertools.islice(iterator, 7))
        state = first.state_dict()
    with loaded(make(), state) as resumed:
        assert digests(resumed) == expected[12:]


# --- a position that there is not ---


@pytest.mark.parametrize("kind", [Lines, StatefulStream])
@pytest.mark.parametrize("options", WAYS)
def test_a_stream_shorter_than_its_position(kind: Any, options: dict[str, Any]) -> None:
    readers = options.get("num_shards") or options.get("num_workers", 1)
    with DataLoader(kind(20 * readers), 2, seed=1, **options) as long:
        taken(long, 7 * readers)
        state = long.state_dict()
    with loaded(DataLoader(kind(5 * readers), 2, seed=1, **options), state) as short:
        with pytest.warns(ExactnessWarning, match="yielded 7 batches, and has 3 now"):
            assert not [*short]
        assert len([*short]) == 3 * readers  # the next epoch is a whole one


# --- fewer batches than a length says ---


class Sized(IterableDataset[int]):
    """Has a length; every second sample may be bad."""

    def __init__(self, length: int, bad: bool = False) -> None:
        self.length, self.bad = length, bad

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        return Cursor(self.sample, share(range(self.length)))

    def sample(self, number: int) -> int:
        if self.bad and number % 2:
            raise ValueError(number)
        return number


def test_each_worker_drops_its_last_batch() -> None:
    """As with torch's loader, where nobody says so; Lightning then does not validate."""
    with DataLoader(Sized(22), 4, num_workers=2, drop_last=True) as loader:
        assert len(loader) == 5
        with pytest.warns(
            UserWarning,
            match=r"ended after 4 batches.*of the 2 workers.*Lightning does not validate",
        ):
            assert sum(1 for _ in loader) == 4
        assert sum(1 for _ in loader) == 4  # and once is enough


@pytest.mark.parametrize(
    ("dataset", "options"),
    [
        (Sized(22), {"num_workers": 1}),
        (Sized(24), {"num_workers": 2}),
        (Sized(22, bad=True), {"num_workers": 2, "on_sample_error": "skip"}),
    ],
)
def test_fewer_batches_for_other_reasons(dataset: Any, options: dict[str, Any]) -> None:
    with DataLoader(dataset, 4, drop_last=True, **options) as loader:
        assert len(loader) and list(loader)
