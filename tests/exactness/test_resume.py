"""States: where they may be taken and loaded, and what that costs."""

import copy
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import RandomSampler

from lit_loader import CachedDataset, DataLoader
from tests.support.datasets import Augmented, BufferedStream, Numbers
from tests.support.exact import StatefulSampler, digests, loaded, taken, through_file
from tests.support.samples import Call, Counting

SAMPLERS: dict[str, Any] = {
    "shuffle": lambda: {"shuffle": True},
    "generator": lambda: {
        "sampler": RandomSampler(range(26), generator=torch.Generator().manual_seed(8))
    },
    "stateful": lambda: {"sampler": StatefulSampler(26)},
}


def make(kind: str = "shuffle", **options: Any) -> DataLoader[Any]:
    return DataLoader(Augmented(), 4, seed=3, **SAMPLERS[kind](), **options)


@pytest.mark.parametrize("kind", SAMPLERS)
def test_states_given_out_do_not_change(kind: str) -> None:
    loader = make(kind)
    _, iterator = taken(loader, 2)
    state = loader.state_dict()
    kept = copy.deepcopy(state)
    digests(iterator), digests(loader), digests(loaded(make(kind), state))
    assert state == kept


def test_commit_holds_the_position_back() -> None:
    loader, expected = make(), digests(make())
    loader.commit()
    iterator = iter(loader)
    for used in range(3):
        next(iterator)
        resumed = loaded(make(), loader.state_dict())
        assert digests(resumed) == expected[used:]
        loader.commit()
        resumed.load_state_dict(loader.state_dict())
        assert digests(resumed) == expected[used + 1 :]


@pytest.mark.parametrize("data", [Augmented, BufferedStream])
def test_commit_ahead_leaves_out_the_last_batch(data: Any) -> None:
    loader, again = (DataLoader(data(), 4, seed=3) for _ in range(2))
    expected = digests(again)
    _, iterator = taken(loader, 3)
    loader.commit(ahead=True)
    assert digests(loaded(again, loader.state_dict())) == expected[2:]
    assert digests(iterator) == expected[3:]


def test_commit_over_the_end_of_an_epoch() -> None:
    loader = make()
    for _ in loader:
        loader.commit()
    after = loader.state_dict()
    iterator = iter(loader)
    second = digests([next(iterator)])
    for state in (after, loader.state_dict()):
        resumed = loaded(make(), state)
        assert resumed.position[:2] == (1, 0)
        assert digests(resumed)[:1] == second


@pytest.mark.parametrize(("taken", "ask"), [(1, False), (6, False), (6, True)])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_samplers_generator_moves_as_far_as_with_torch(
    workers: int, taken: int, ask: bool
) -> None:
    """Where a loop takes one batch, as Composer's resume; and where it does not ask for the end.

    The sampler comes to its end with its last batch, as with torch's workers.
    """
    if workers and taken == 1:
        pytest.skip("torch draws ahead for its workers")
    found = []
    for kind in (TorchLoader, DataLoader):
        sampler = RandomSampler(range(24), generator=torch.Generator().manual_seed(8))
        loader: Any = kind(range(24), 4, sampler=sampler, num_workers=workers)
        iterator = iter(loader)
        for _ in range(taken):
            next(iterator)
        if ask or (taken == 6 and kind is TorchLoader):
            assert next(iterator, None) is None
        del iterator
        found.append([batch.tolist() for batch in loader])
    assert found[0] == found[1]


def test_the_epoch_after_a_state_of_an_epochs_last_batch() -> None:
    """As Lightning resumes: the sampler's last draw comes after its last index."""

    def make() -> Any:
        sampler = RandomSampler(range(24), generator=torch.Generator().manual_seed(8))
        return DataLoader(range(24), 4, sampler=sampler)

    whole, stopped, resumed = make(), make(), make()
    passes = [[batch.tolist() for batch in whole] for _ in range(3)]
    iterator = iter(stopped)
    for _ in range(6):
        next(iterator)
    resumed.load_state_dict(stopped.state_dict())
    resumed.set_epoch(1)
    assert [[batch.tolist() for batch in resumed] for _ in range(2)] == passes[1:]


def augment(number: int) -> torch.Tensor:
    return torch.tensor([number, float(torch.rand(()))])


def test_a_cache_changes_no_byte(tmp_path: Any) -> None:
    """What is drawn after it follows from the batch; a resume finds what is kept on disk."""

    def cached(memory: Any) -> Any:
        return CachedDataset(Numbers(), memory, tmp_path, "v1")

    options: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 11}
    whole = DataLoader(Call(augment, 24), **options)
    expected = [digests(whole) for _ in range(3)]
    with DataLoader(cached(0).map(augment), num_workers=2, **options) as loader:
        assert digests(loader) == expected[0]
        assert taken(loader, 3)[0] == expected[1][:3]
        state = through_file(loader.state_dict())
    kept = cached("1 MB")
    with loaded(DataLoader(kept.map(augment), num_workers=1, **options), state) as resumed:
        assert [digests(resumed), digests(resumed)] == [expected[1][3:], expected[2]]
    assert kept.figures().misses == 0


@pytest.mark.parametrize("workers", [0, 2])
def test_shards_of_a_stream_share_a_cache(workers: int) -> None:
    """Each has a copy of the dataset, another one in each epoch."""
    cached: Any = CachedDataset(Numbers(), "1 MB")
    rows = Counting(24, cached.map(augment).__getitem__)
    options = {"num_workers": workers, "persistent_workers": workers > 0}
    with DataLoader(rows, 4, num_shards=3, seed=11, **options) as loader:
        found = [digests(loader) for _ in range(3)]
    plain = DataLoader(Counting(24, augment), 4, num_shards=3, seed=11)
    assert found == [digests(plain) for _ in range(3)]
    hits, misses, *_ = cached.figures()
    assert misses == 24 and hits >= 2 * 24
