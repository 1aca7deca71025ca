"""Batches on their way through real workers: whole, unchanged, of any size, and for free."""

import fcntl
import gc
import os
from typing import Any

import pytest
import torch

from lit_loader import DataLoader
from lit_loader.core.executors.pipes import Pipes
from lit_loader.core.transport import arena as arena_module
from lit_loader.errors import LoaderError, TransportError
from tests.support.samples import BrokenArrival, Call, Counting, Rows, ints

SMALL = 64 << 10


@pytest.fixture
def small_slots(monkeypatch: pytest.MonkeyPatch) -> int:
    """Slots of 64 KiB, so that a batch is soon too large for one."""
    monkeypatch.setattr(arena_module, "_LARGEST_SLOT", SMALL)
    monkeypatch.setattr(arena_module, "_DISK_SLOT", SMALL)
    return SMALL


def is_row(row: torch.Tensor, index: int) -> bool:
    return bool((row == index).all())


# Whole, and unchanged --------------------------------------------------------------------------


def test_a_kept_batch_never_changes() -> None:
    with DataLoader(
        Rows(300, width=5_000), num_workers=2, persistent_workers=True, in_order=True
    ) as loader:
        kept = {}
        for epoch in range(3):
            for index, batch in enumerate(loader):
                if index % 50 == epoch:
                    kept[epoch, index] = batch[0, 100:200]  # a view alone keeps the batch
            assert all(is_row(row, index) for (_, index), row in kept.items())
    gc.collect()
    assert all(is_row(row, index) for (_, index), row in kept.items())


def test_an_epoch_leaves_only_warm_memory() -> None:
    """After a burst of kept batches the memory goes back when the next epoch begins."""
    with DataLoader(Rows(100, width=50_000), num_workers=2, persistent_workers=True) as loader:
        kept = list(loader)
        fd = loader._core.keeper.pool.arena.fd
        full = os.fstat(fd).st_blocks
        assert full * 512 > 30_000_000
        del kept
        for _ in loader:
            pass
        assert os.fstat(fd).st_blocks < full / 3


# Larger than a slot ----------------------------------------------------------------------------


def test_no_memory_for_a_larger_slot(small_slots: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(arena: Any, capacity: int) -> None:
        raise LoaderError("no more")

    monkeypatch.setattr(arena_module.Arena, "_append", refuse)
    loader = DataLoader(Call(lambda index: torch.zeros(SMALL * (index == 3)), 6), num_workers=2)
    iterator = iter(loader)
    lengths: list[Any] = []
    for _ in range(6):
        try:
            lengths.append(next(iterator).numel())
        except TransportError as error:
            lengths.append(str(error))
    assert lengths[:3] + lengths[4:] == [0, 0, 0, 0, 0]
    assert lengths[3].startswith("lit_loader: the batch needs more shared memory than is available")
    assert "batch 3, indices [3]" in lengths[3]


# Indices and tasks -----------------------------------------------------------------------------


def total(indices: list[int]) -> int:
    return sum(indices)


class Batches(Call):
    """Fetches a whole batch at once."""

    def __getitems__(self, indices: Any) -> list[Any]:
        return [self.function(indices)]


def test_index_lists_larger_than_a_slot(small_slots: int) -> None:
    lists = [list(range(n)) for n in (3, 20_000, 5, 30_000)]
    loader = DataLoader(Batches(total), batch_sampler=lists, num_workers=2)
    assert ints(loader) == [sum(indices) for indices in lists]


@pytest.mark.skipif(not hasattr(fcntl, "F_SETPIPE_SZ"), reason="needs Python 3.10 on Linux")
class TestNarrowPipes:
    """More tasks and results than the pipes have room for."""

    @pytest.fixture(autouse=True)
    def narrow(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Give every pipe of a pool one page, as the kernel does where a user has very many."""
        original = Pipes._pipe

        def pipe(own: Any) -> tuple[int, int]:
            ends = original(own)
            fcntl.fcntl(ends[1], fcntl.F_SETPIPE_SZ, 4096)
            return ends

        monkeypatch.setattr(Pipes, "_pipe", pipe)

    @pytest.mark.parametrize("iterable", [False, True], ids=["map", "iterable"])
    def test_a_long_queue(self, iterable: bool) -> None:
        dataset = Counting(1_500) if iterable else range(1_500)
        loader = DataLoader(dataset, num_workers=2, prefetch_factor=600)
        assert ints(loader) == list(range(1_500))


# What a batch may hold -------------------------------------------------------------------------


@pytest.mark.parametrize("persistent", [False, True], ids=["fresh", "persistent"])
def test_what_cannot_be_rebuilt_is_an_error_and_the_rest_goes_on(persistent: bool) -> None:
    with DataLoader(
        Call(lambda index: BrokenArrival() if index == 1 else index, 4),
        batch_size=None, num_workers=2, persistent_workers=persistent,
    ) as loader:  # fmt: skip
        for _ in range(2):
            iterator = iter(loader)
            assert next(iterator) == 0
            with pytest.raises(TransportError, match="batch 1.*no way to unpack this"):
                next(iterator)
            assert list(iterator) == [2, 3]
