"""Loaders whose batches the training process makes itself, looked at from within a sample."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from lit_loader import DataLoader
from lit_loader.pool import shown_loader
from lit_loader.top import watch
from lit_loader.top.discovery import NotFound
from lit_loader.top.findings import findings
from lit_loader.top.processes import files_of
from lit_loader.top.snapshot import Loader
from lit_loader.top.watch import Watch
from lit_loader.transport import own_page

pytestmark = pytest.mark.process


class Looked(Dataset):
    """Twelve samples; while one of them is read, something else is done."""

    def __init__(self, index: int = -1, do: Callable[[], Any] = lambda: None) -> None:
        self.index, self.do = index, do

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == self.index:
            self.do()
        return torch.tensor([index])


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """They are shown from their first batch on, and no file is left behind."""
    monkeypatch.setattr(own_page, "AFTER", -1)
    monkeypatch.setattr(shown_loader, "AFTER", -1)
    yield
    assert files_of(os.getpid()) == {}


def seen() -> list[Loader]:
    try:
        [training] = Watch(os.getpid()).look()
    except NotFound:
        return []
    [rank] = [rank for rank in training.ranks if rank.pid == os.getpid()]
    return rank.loaders


def test_the_sample_that_is_read() -> None:
    at_it: list[Loader] = []
    with DataLoader(Looked(6, lambda: at_it.extend(seen())), batch_size=4) as loader:
        for batch in loader:
            [found] = seen()
            assert (found.state, found.dataset, found.num_workers) == ("computing", "Looked", 0)
            assert found.batches == int(batch[-1]) // 4 + 1
            assert found.workers[0].stage == "idle"
        [found] = seen()
        assert (found.state, found.batches, found.length) == ("idle", 3, 3)
    [found] = at_it
    [process] = found.workers
    assert found.state == "waiting"
    assert (process.worker, process.pid, process.stage) == (-1, os.getpid(), "fetch")
    assert (process.batch, process.sample) == (1, 2)
    assert seen() == []


def test_one_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "STALLED", 0.0)
    at_it: list[Loader] = []

    def look() -> None:
        view = Watch(os.getpid())
        view.every = True
        at_it.extend(view.look()[0].loaders())

    with DataLoader(Looked(6, look), batch_size=4) as loader:
        assert len(list(loader)) == 3
    [found] = at_it
    text = findings(found)[0]
    assert text.startswith("the training process itself has been reading sample 2 of batch 1 for")
    assert f"py-spy dump --pid {os.getpid()}" in str(found.workers[0].stack_problem)


def test_an_iterator_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    with DataLoader(Looked(), batch_size=4) as loader:
        iterator = iter(loader)
        next(iterator)
        del iterator
        assert seen()[0].state == "idle"
        next(iter(loader))
        assert (seen()[0].epoch, seen()[0].batches) == (1, 1)


def test_not_before_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shown_loader, "AFTER", 1 << 62)
    with DataLoader(Looked(), batch_size=4) as loader:
        assert len(list(loader)) == 3
        assert seen() == [] and files_of(os.getpid()) == {}


def test_few_have_a_file() -> None:
    loaders = [DataLoader(Looked(), batch_size=4) for _ in range(own_page.MOST + 3)]
    assert all(len(list(loader)) == 3 for loader in loaders)
    assert len(seen()) == own_page.MOST
    loaders.pop(0).close()
    assert len(list(loaders[-1])) == 3
    assert len(seen()) == own_page.MOST
    del loaders[:]
    assert seen() == []


def test_workers_take_its_place_and_give_it_back() -> None:
    with DataLoader(Looked(), batch_size=4) as loader:
        next(iter(loader))
        for workers in (1, 0):
            loader.num_workers = workers
            for given, _ in enumerate(loader, 1):
                [found] = seen()
                assert (found.num_workers, found.batches) == (workers, given)
        assert seen()[0].epoch == 2
        assert seen()[0].batches == 3


def test_a_forked_copy_writes_elsewhere() -> None:
    with DataLoader(Looked(), batch_size=4) as loader:
        iterator = iter(loader)
        next(iterator)
        child = os.fork()
        if not child:
            right = [int(batch[0]) for batch in iterator] == [4, 8]
            right = right and [int(batch[0]) for batch in loader] == [0, 4, 8]
            os._exit(not right)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        [found] = seen()
        assert (found.epoch, found.batches, found.state) == (0, 1, "computing")
        assert [int(batch[0]) for batch in iterator] == [4, 8]
        assert seen()[0].batches == 3


def test_a_copy_has_its_own() -> None:
    with DataLoader(Looked(), batch_size=4) as loader:
        next(iter(loader))
        loader.dataset.do = os.getpid  # a lambda cannot be pickled
        with pickle.loads(pickle.dumps(loader)) as copy:
            assert len(list(copy)) == 3
            assert sorted(found.batches for found in seen()) == [1, 3]
