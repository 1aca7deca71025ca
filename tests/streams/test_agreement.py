"""What ranks make of each other's words; ranks that end, leave, or say nothing."""

from datetime import timedelta

import pytest
import torch
from torch.distributed import HashStore, distributed_c10d

from lit_loader import LoaderError
from lit_loader.streams.uneven_ranks import ShardTail, Talks


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch) -> HashStore:
    """Pretend that this process is each one of a job, whose store it has."""
    made = HashStore()
    made.set_timeout(timedelta(seconds=0.02))
    monkeypatch.setattr(distributed_c10d, "_get_default_store", lambda: made)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 3)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)  # it does not wait at the end
    return made


def tails(ranks: int, subject: str = "a") -> list[ShardTail]:
    return [ShardTail(subject, rank, ranks, "epoch 3") for rank in range(ranks)]


def test_a_store_that_is_gone(store: HashStore, monkeypatch: pytest.MonkeyPatch) -> None:
    one, _ = tails(2)
    one.tell(1)

    def lost(*_: object) -> None:
        raise RuntimeError("Connection reset by peer")

    monkeypatch.setattr("lit_loader.streams.uneven_ranks._word", lost)
    with pytest.raises(LoaderError, match="store, in the first rank's process, is lost in epoch 3"):
        one.agreed(2)


def test_fewer_processes_than_ranks() -> None:
    with pytest.raises(
        LoaderError, match="the job of torch.distributed, and this one has 3 processes"
    ):
        Talks().begin("Stream", 0, object(), 0, 4, "epoch 0")


def test_an_end_behind_the_end_of_the_process_group(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = tails(2)

    def gone() -> int:
        raise ValueError("Default process group has not been initialized")

    monkeypatch.setattr(torch.distributed, "get_rank", gone)
    one.end()
    other.end()
