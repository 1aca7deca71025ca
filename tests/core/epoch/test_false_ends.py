"""A StopIteration that is not an epoch's end does not pass for it: the rest would be lost."""

from typing import Any

import pytest

from lit_loader import DataLoader
from lit_loader.core.epoch.loader_core import LoaderCore
from lit_loader.errors import LoaderError
from tests.support.samples import Call, ints


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_stray_stop_iteration(num_workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Raised by something that is called when a batch has been made, and is about to be given."""
    note, calls = LoaderCore.note, 0

    def stray(*arguments: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            next(iter([]))
        note(*arguments)

    monkeypatch.setattr(LoaderCore, "note", stray)
    with DataLoader(Call(int, 8), num_workers=num_workers) as loader:
        iterator, found = iter(loader), []
        found += [int(next(iterator)), int(next(iterator))]
        with pytest.raises(LoaderError, match="and would have been taken for its end") as caught:
            next(iterator)
        assert type(caught.value.__cause__) is StopIteration
        assert loader.state_dict()["batches"] == 2
        found += ints(iterator)
        assert found == list(range(8))
        assert ints(loader) == list(range(8))
