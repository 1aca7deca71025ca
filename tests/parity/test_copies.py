"""A loader that was never iterated can be pickled and copied, like any configuration."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch.utils.data import RandomSampler

import lit_loader
from tests.support.samples import uncollated as as_is

from .datasets import Squares
from .tools import flat


def by_pickle(loader):
    return pickle.loads(pickle.dumps(loader))


@pytest.fixture(params=[copy.copy, copy.deepcopy, by_pickle], ids=["copy", "deepcopy", "pickle"])
def duplicate(request):
    return request.param


def test_map_style(loader_class, num_workers, duplicate):
    loader = loader_class(Squares(5), batch_size=2, num_workers=num_workers, collate_fn=as_is)
    twin = duplicate(loader)
    assert type(twin) is loader_class
    assert twin is not loader
    assert list(twin) == list(loader) == [[0, 1], [4, 9], [16]]
    assert (twin.batch_size, twin.num_workers, len(twin)) == (2, num_workers, 3)


def test_shuffled_with_a_generator(loader_class, duplicate):
    generator = torch.Generator().manual_seed(3)
    twin = duplicate(loader_class(range(20), shuffle=True, generator=generator))
    assert isinstance(twin.sampler, RandomSampler)
    assert sorted(flat(twin)) == list(range(20))


def test_a_copy_shares_the_dataset(loader_class):
    loader = loader_class(Squares(5))
    assert copy.copy(loader).dataset is loader.dataset
    assert copy.deepcopy(loader).dataset is not loader.dataset


def test_a_copy_still_refuses_reassignment(loader_class, duplicate):
    twin = duplicate(loader_class(Squares(5), batch_size=2))
    with pytest.raises(ValueError, match="batch_size"):
        twin.batch_size = 3
    twin.num_workers = 1
    assert twin.num_workers == 1


def test_copies_with_persistent_workers_are_independent(loader_class, duplicate):
    loader = loader_class(Squares(6), num_workers=1, persistent_workers=True)
    twin = duplicate(loader)
    pairs = [(int(a), int(b)) for a, b in zip(loader, twin, strict=True)]
    assert pairs == [(i * i, i * i) for i in range(6)]


def test_a_copy_goes_on_by_itself() -> None:
    """What a copy of our loader is asked for does not move the loader's own position."""
    loader = lit_loader.DataLoader(list(range(20)), 4, shuffle=True, seed=1)
    next(iter(loader))
    copied, before = copy.copy(loader), loader.state_dict()
    assert copied.state_dict() == before
    epochs = [[batch.tolist() for batch in copied] for _ in range(2)]
    assert loader.state_dict() == before
    assert [[batch.tolist() for batch in loader] for _ in range(2)] == epochs


@pytest.mark.parametrize(
    ("option", "value"),
    [("prefetch_factor", -3), ("prefetch_factor", 0), ("num_workers", -1), ("timeout", -1),
     ("pin_memory", "x"), ("seed", -1), ("collate_fn", 3), ("generator", torch.Generator)],
)  # fmt: skip
def test_an_option_that_is_set_later_is_checked(option: str, value: object) -> None:
    loader = lit_loader.DataLoader(list(range(20)), 4, num_workers=2)
    with pytest.raises(lit_loader.OptionError, match=f"^{option} must be "):
        setattr(loader, option, value)
    loader.num_workers = 0
    assert len(list(loader)) == 5
