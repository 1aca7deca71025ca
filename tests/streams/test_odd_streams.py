"""Whatever a stream's state says, it goes on where it was.

Their states lag behind what was given or lead before it, leave out a buffer, or are those of a
stream that draws its order before its first sample. None says so; none may lose a sample silently.
"""

import itertools
import os
import signal
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from lit_loader import DataLoader
from lit_loader.streams.iterable_fetcher import StateMeter
from tests.support.exact import loaded, through_file
from tests.support.odd_streams import programs
from tests.support.samples import uncollated, worker_pids

PROGRAMS: dict[str, Callable[[], Any]] = dict(programs())
NAMES = list(PROGRAMS)


def loader(name: str, workers: int = 0, size: int = 3, **options: Any) -> DataLoader[Any]:
    return DataLoader(
        PROGRAMS[name](), size, num_workers=workers, seed=5, collate_fn=uncollated, **options
    )


@pytest.fixture(autouse=True)
def states_at_intervals(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some programs' states are taken before each batch, others' before each fourth."""
    interval = (1, 4)[NAMES.index(request.node.callspec.params["name"]) % 2]
    batches = itertools.count()
    monkeypatch.setattr(StateMeter, "due", property(lambda _: next(batches) % interval == 0))


@pytest.mark.parametrize("name", NAMES)
def test_it_goes_on_where_it_was(name: str) -> None:
    """In its first epoch or its second. What draws from what no state has may say so instead."""
    whole = loader(name)
    for _ in range(NAMES.index(name) // 2 % 2):
        list(whole)
    expected, states = [], [whole.state_dict()]
    for batch in whole:
        expected.append(batch)
        states.append(through_file(whole.state_dict()))
    for stop in (1, 2, *range(5, len(expected), 4)):
        resumed = loaded(loader(name), states[stop])
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            found = list(resumed)
        told = "were read again, and were others" in "".join(str(each.message) for each in said)
        assert found == expected[stop:] or (told and ("hidden" in name or "of the epoch" in name))


SOME = NAMES[1::17]


@pytest.mark.usefixtures("by_fork")
@pytest.mark.filterwarnings("ignore::lit_loader.WorkerRestartWarning")
@pytest.mark.parametrize("name", SOME)
def test_its_workers_are_killed(name: str) -> None:
    with loader(name, 2) as clean:
        expected = list(clean)
    found = []
    with loader(name, 2) as killed:
        for number, batch in enumerate(iterator := iter(killed)):
            found.append(batch)
            if number in (2, 7):
                os.kill(worker_pids(iterator)[number % 2], signal.SIGKILL)
    assert found == expected


@pytest.mark.usefixtures("by_fork")
@pytest.mark.parametrize("name", SOME)
def test_its_readers_move(name: str) -> None:
    found, expected = [], list(loader(name, size=2, num_shards=3))
    with loader(name, 1, size=2, num_shards=3) as resized:
        for number, batch in enumerate(resized):
            found.append(batch)
            if number in (3, 6, 9):
                resized.resize({3: 3, 6: 2, 9: 1}[number])
    assert found == expected
