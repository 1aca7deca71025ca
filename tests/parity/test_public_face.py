"""What users see of a `DataLoader`: what is documented, and nothing of its wiring."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import IterableDataset

from lit_loader import DataLoader, LoaderConfig, get_shard
from tests.parity.test_torch_class import DATA, Numbers, ids

DOCUMENTED = {
    *("set_epoch", "state_dict", "load_state_dict", "commit"),
    *("statistics", "close", "copy_ahead", "resize"),
}
"""Methods that torch's class does not have; the options, as attributes, come on top."""


def public(thing: Any) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


def test_the_class_shows_what_is_documented() -> None:
    options = set(LoaderConfig.__dataclass_fields__)
    assert public(DataLoader) - public(TorchLoader) - DOCUMENTED - options == set()
    assert all(getattr(DataLoader, name).__doc__ for name in DOCUMENTED)


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(10))

    def __len__(self) -> int:
        return 10


def test_a_rebuilt_loader_has_what_a_hook_has_asked_for() -> None:
    data = pytest.importorskip("lightning.fabric.utilities.data")
    with data._replace_dunder_methods(TorchLoader, "dataset"):
        loader = DataLoader(DATA, 2, seed=3)
        list(loader)
        next(iter(loader))
        loader.load_state_dict(loader.state_dict())
        loader.copy_ahead(torch.device("cuda"), print)
    rebuilt = data._update_dataloader(loader, loader.sampler)
    assert rebuilt is not loader
    assert rebuilt.state_dict() == loader.state_dict()
    assert rebuilt._copies_to == (torch.device("cuda"), print)
    assert ids(rebuilt) == [[2, 3], [4, 5], [6, 7], [8, 9]]


class Shares(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        share, shares = get_shard()
        yield from range(share, 12, shares)


class WithNumbersOfItsOwn(DataLoader[Any]):
    """Notes where it runs, as programs for several processes do; it asks for no sharding."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.rank, self.num_replicas = 1, 3


@pytest.mark.filterwarnings("ignore:Shares has no state_dict")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [Shares, Numbers])
def test_what_a_subclass_notes_as_its_rank_shares_nothing_out(kind: Any, workers: int) -> None:
    plain, noted = (
        each(kind(), 2, num_workers=workers, seed=1) for each in (DataLoader, WithNumbersOfItsOwn)
    )
    assert noted.state_dict() == plain.state_dict()
    assert list(map(str, noted)) == list(map(str, plain))
    iterator = iter(noted)
    next(iterator)
    plain.load_state_dict(noted.state_dict())
    assert list(map(str, plain)) == list(map(str, iterator))


def test_no_cycle_keeps_a_loader_that_was_iterated() -> None:
    loader = DataLoader(Numbers(), 2, shuffle=True, num_workers=1, persistent_workers=True)
    list(loader)
    next(iter(loader))
    gc.collect()
    gc.disable()
    try:
        parts = [weakref.ref(part) for part in (loader, loader._core)]
        del loader
        assert [part() for part in parts] == [None, None]
    finally:
        gc.enable()


class Lying(Stream):
    def __len__(self) -> int:
        return 3


class Through(DataLoader[Any]):
    """A subclass between the program and the loader is the program's own."""

    def state_of_another(self) -> None:
        self.load_state_dict({**self.state_dict(), "batches": 1, "workers": [[1, None, False]]})


def resume(loader: Any) -> None:
    next(iter(loader))
    loader.load_state_dict(loader.state_dict())


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("dataset", "act", "options", "text"),
    [
        (Stream(), iter, {"check_exactness": 1, "num_workers": 0}, "num_workers of at least 1"),
        (Stream(), resume, {}, "has no state_dict"),
        (Stream(), Through.state_of_another, {}, "has no state_dict"),
        (Lying(), lambda loader: (len(loader), list(loader)), {}, "Lying promised 3 samples"),
        (DATA, list, {"pin_memory": True}, "pin_memory=True has no effect"),
    ],
    ids=["iter", "load", "subclass", "next", "pin"],
)
def test_warnings_name_the_line_of_the_program(
    dataset: Any, act: Any, options: Any, text: str, workers: int
) -> None:
    if "pin_memory" in options and torch.accelerator.is_available():
        pytest.skip("there is an accelerator")
    loader = Through(dataset, **{"num_workers": workers, **options})
    with loader, pytest.warns(UserWarning, match=text) as caught:
        act(loader)
    assert [warning.filename for warning in caught] == [__file__]
