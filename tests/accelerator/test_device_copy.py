"""Copying ahead to an accelerator: the order of things, here with a device that is none."""

from typing import Any

import pytest
import torch

from lit_loader import DataLoader
from lit_loader.accelerator import device_copy
from lit_loader.accelerator.device_copy import DeviceCopy, Staged
from tests.support.exact import loaded
from tests.support.samples import Call, Rows

PIN = pytest.mark.parametrize("pin", [False, True], ids=["", "pinned"])


class Recorded:
    """Stands in for DeviceCopy: notes what is staged and taken, by the batch's first number."""

    made: list["Recorded"]

    def __init__(self, device: torch.device, move: Any) -> None:
        self.log: list[tuple[str, int]] = []
        self.made.append(self)

    source = DeviceCopy.source

    def stage(self, batch: Any) -> Staged:
        if isinstance(batch, Staged):
            return batch
        self.log.append(("stage", int(batch.flatten()[0])))
        return Staged(batch.clone(), None, batch)  # type: ignore[arg-type]

    def take(self, staged: Staged) -> Any:
        self.log.append(("take", int(staged.batch.flatten()[0])))
        return staged.batch


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> type[Recorded]:
    Recorded.made = []
    monkeypatch.setattr(device_copy, "DeviceCopy", Recorded)
    return Recorded


def ahead(dataset: Any, **options: Any) -> DataLoader[Any]:
    # One worker: of two, an idle one may make a batch for the second time, which counts as ready.
    loader: DataLoader[Any] = DataLoader(dataset, num_workers=1, **options)
    loader._copies_to = (torch.device("meta"), lambda batch, device: batch)
    return loader


@PIN
@pytest.mark.usefixtures("pinned")
def test_what_is_there_is_staged_before_the_one_before_is_given(
    pin: bool, recorded: type[Recorded]
) -> None:
    loader = ahead(Rows(12), batch_size=2, prefetch_factor=8, pin_memory=pin)
    iterator = iter(loader)
    found = [next(iterator)]

    # Until all of them are made, and pinned: the copies' order is then certain.
    def made() -> int:
        return iterator._thread.pinned + len(iterator._tasks.arrived) if pin else iterator.ready  # type: ignore[attr-defined,no-any-return]

    while made() < 5:
        pass
    found += list(iterator)
    assert [int(batch[0, 0]) for batch in found] == [0, 2, 4, 6, 8, 10]
    log = recorded.made[0].log
    assert [number for what, number in log if what == "stage"] == [0, 2, 4, 6, 8, 10]
    assert [number for what, number in log if what == "take"] == [0, 2, 4, 6, 8, 10]
    for number in (4, 6, 8, 10):
        assert log.index(("stage", number)) < log.index(("take", number - 2))
        assert log.index(("stage", number)) > log.index(("take", number - 4))  # one ahead, no more


@PIN
@pytest.mark.usefixtures("pinned")
def test_a_batch_that_is_staged_is_not_delivered(pin: bool, recorded: type[Recorded]) -> None:
    loader = ahead(Rows(12), batch_size=2, prefetch_factor=8, pin_memory=pin)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    while iterator.ready < 3:  # type: ignore[attr-defined]
        pass
    state = loader.state_dict()
    again = loaded(DataLoader(Rows(12), batch_size=2), state)
    assert [int(batch[0, 0]) for batch in again] == [6, 8, 10]
    assert [int(batch[0, 0]) for batch in iterator] == [6, 8, 10]


@PIN
@pytest.mark.usefixtures("pinned")
def test_an_error_ahead_comes_in_its_turn(pin: bool, recorded: type[Recorded]) -> None:
    def sample(index: int) -> torch.Tensor:
        if index == 2:
            raise KeyError("two")
        return torch.tensor(index)

    iterator = iter(ahead(Call(sample, 5), prefetch_factor=6, pin_memory=pin))
    assert int(next(iterator)) == 0
    while iterator.ready < 3:  # type: ignore[attr-defined]
        pass
    assert int(next(iterator)) == 1
    with pytest.raises(KeyError, match="two"):
        next(iterator)
    assert [int(batch) for batch in iterator] == [3, 4]


def test_nothing_of_it_without_an_accelerator(recorded: type[Recorded]) -> None:
    loader = DataLoader(Rows(4), num_workers=1)
    loader._copy_ahead(torch.device("cpu"), lambda batch, device: batch)
    assert len(list(loader)) == 4
    assert not recorded.made


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("pin", [False, True])
def test_on_a_device(pin: bool) -> None:
    device = torch.device("cuda", 0)

    def move(batch: torch.Tensor, to: torch.device) -> torch.Tensor:
        return batch.to(to, non_blocking=True)

    with DataLoader(
        Rows(4096, 1024), batch_size=64, num_workers=2, pin_memory=pin, persistent_workers=True
    ) as loader:
        loader._copy_ahead(device, move)
        for _ in range(3):
            sums = []
            for batch in loader:
                assert batch.device == device
                torch.cuda._sleep(1_000_000)  # the copy of the next one goes on meanwhile
                sums.append(batch.sum(dim=1))
            found = torch.cat(sums).cpu()
            assert torch.equal(found, torch.arange(4096) * 1024)
