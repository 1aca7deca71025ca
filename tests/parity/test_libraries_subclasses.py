"""Subclasses and wrappers of torch's loader, in the shapes that libraries have them.

Each class is made of torch's loader and of ours, as by another import, and gives the same.
"""

from itertools import chain, cycle
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import DistributedSampler

from lit_loader import DataLoader

BASES = pytest.mark.parametrize("base", [TorchLoader, DataLoader])


def concat_class(base: Any) -> Any:
    class Cells(base):
        def __init__(self, numbers: list[int], batch_size: int, **options: Any) -> None:
            self.numbers = numbers
            super().__init__(numbers, batch_size, **options)

    class Concat(base):
        def __init__(self, parts: list[list[int]], batch_size: int = 2, **options: Any) -> None:
            self.dataloader_kwargs = options
            self.dataloaders = [Cells(part, batch_size, **options) for part in parts]
            self.largest_dl = max(self.dataloaders, key=len)
            super().__init__(self.largest_dl, **options)

        def __len__(self) -> int:
            return len(self.largest_dl)

        def __iter__(self) -> Any:
            loaders = self.dataloaders
            return zip(
                *(dl if dl is self.largest_dl else cycle(dl) for dl in loaders), strict=False
            )

    class SemiSupervised(Concat):
        def resample(self) -> list[int]:
            return [n for loader in self.dataloaders for n in loader.numbers]

    return SemiSupervised


@BASES
@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_whose_dataset_is_a_loader(base: Any, workers: int) -> None:
    loader = concat_class(base)([[1, 2, 3, 4, 5], [6, 7]], num_workers=workers)
    assert loader.dataset is loader.largest_dl
    assert (len(loader), len(loader.resample())) == (3, 7)
    for _ in range(2):
        got = [tuple(part.tolist() for part in batch) for batch in loader]
        assert got == [([1, 2], [6, 7]), ([3, 4], [6, 7]), ([5], [6, 7])]


# --- another dataset within iter() than outside, as RecBole's ---


def recommender_class(base: Any) -> Any:
    starting = False

    class Recommender(base):
        def __init__(self, dataset: Any, step: int, sampler: Any = None, **options: Any) -> None:
            self._dataset, self._sampler = dataset, "the program's own"
            self.generator = torch.Generator()
            self.generator.manual_seed(3)
            super().__init__(
                dataset=list(range(len(dataset.rows))),
                batch_size=step,
                collate_fn=self.collate_fn,
                sampler=sampler,
                generator=self.generator,
                **options,
            )

        def collate_fn(self, index: list[int]) -> Any:
            return [self._dataset.rows[i] for i in index]

        def __iter__(self) -> Any:
            nonlocal starting
            starting = True
            res = super().__iter__()
            starting = False
            return res

        def __getattribute__(self, name: str) -> Any:
            if name == "dataset" and not starting:
                name = "_dataset"
            return super().__getattribute__(name)

    return Recommender


class Interactions:
    """What cannot be read by a loader; or, with an index, something else than what is meant."""

    def __init__(self) -> None:
        self.rows = [f"user {n}" for n in range(7)]


class Readable(Interactions):
    def __getitem__(self, index: int) -> str:
        return f"not meant {index}"

    def __len__(self) -> int:
        return 7


@BASES
@pytest.mark.usefixtures("by_fork")
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", [Interactions, Readable])
def test_another_dataset_within_iter_than_outside(base: Any, workers: int, kind: Any) -> None:
    data = kind()
    loader = recommender_class(base)(data, 3, num_workers=workers)
    assert loader.dataset is data
    expected = [[f"user {n}" for n in part] for part in ([0, 1, 2], [3, 4, 5], [6])]
    assert [*loader] == expected
    assert loader.dataset is data
    assert len(loader) == 3
    sampler: Any = DistributedSampler(range(7), 2, 0, shuffle=False)
    shared = recommender_class(base)(data, 2, sampler, num_workers=workers)
    assert [*shared] == [["user 0", "user 2"], ["user 4", "user 6"]]
    if base is DataLoader:
        begun = iter(loader)
        next(begun)
        state = loader.state_dict()
        resumed = recommender_class(base)(data, 3, num_workers=workers)
        resumed.load_state_dict(state)
        assert [*resumed] == expected[1:]
        shuffled = recommender_class(base)(data, 3, shuffle=True, num_workers=workers)
        assert sorted(chain(*shuffled)) == sorted(data.rows)
