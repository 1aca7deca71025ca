"""torchdata's Stateful protocol: who is asked for a state, and streams resumed from it."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import pytest

from lit_loader import DataLoader
from tests.support.exact import Augmented, digests, taken
from tests.support.stateful_data import STREAMS

pytestmark = [
    pytest.mark.filterwarnings("ignore:.* has no state_dict and load_state_dict"),
    pytest.mark.filterwarnings("ignore:.set_vital. is deprecated"),  # which torchdata calls
]

LENGTH = 22


@pytest.mark.parametrize(
    ("kind", "order"),
    [
        ("neither", ["iter"]),
        ("iterator", ["iter", "load iterator"]),
        ("dataset", ["load", "iter"]),
        ("its own iterator", ["iter", "load iterator"]),
        ("both", ["load", "iter", "load iterator"]),
    ],
)
def test_in_which_order_datasets_are_restored(kind: str, order: list[str]) -> None:
    """As torchdata does it."""
    torchdata = pytest.importorskip("torchdata.stateful_dataloader")
    for cls in (DataLoader, torchdata.StatefulDataLoader):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loader = cls(STREAMS[kind](LENGTH), batch_size=3)
            iterator = iter(loader)
            list(itertools.islice(iterator, 3))
            state = loader.state_dict()
            dataset = STREAMS[kind](LENGTH)
            resumed = cls(dataset, batch_size=3)
            resumed.load_state_dict(state)
            next(iter(resumed))
            assert dataset.calls == order, cls


class StatefulTable(Augmented):
    def state_dict(self) -> dict[str, int]:
        raise AssertionError("not asked")

    load_state_dict = state_dict


@pytest.mark.parametrize("workers", [0, 2])
def test_map_style_datasets_are_not_asked_and_it_is_said(workers: int) -> None:
    def make(kind: type) -> DataLoader[Any]:
        return DataLoader(kind(LENGTH), 4, num_workers=workers, seed=7)

    with make(StatefulTable) as loader:
        expected = digests(loader)
    with make(StatefulTable) as loader:
        got, iterator = taken(loader, 2)
        with pytest.warns(
            UserWarning,
            match="StatefulTable has state_dict and load_state_dict, which are not called: a "
            "map-style dataset is read by whichever worker is free, so that each sample must",
        ) as record:
            state = loader.state_dict()
            loader.state_dict()
        assert len(record) == 1
        assert got + digests(iterator) == expected
    with make(StatefulTable) as resumed:
        resumed.load_state_dict(state)
        assert digests(resumed) == expected[2:]
