"""Tables of tensors: batches taken at once, equal to those read by the sample."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Subset, TensorDataset

from lit_loader import DataLoader
from lit_loader.data.tensor_table import table_of
from tests.support.samples import Call


def by_sample(dataset: Any) -> Call:
    """The same samples, from a dataset that nothing is known of."""
    return Call(dataset.__getitem__, len(dataset))


def table(length: int = 23) -> TensorDataset:
    base = torch.arange(length * 6).view(length, 6)
    return TensorDataset(
        base.float(),
        base[:, 0],
        base[:, ::2],
        base.to(torch.uint8).view(length, 2, 3).permute(0, 2, 1),
        base[:, 0] % 2 == 0,
        base[:, :0],
        base[:, :2].to(torch.complex64),
        base.double().view(length, 1, 6).expand(length, 4000, 6),  # large: stacked in the slot
    )


def test_rows_are_taken_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TensorDataset, "__getitem__", None)
    assert [rows.tolist() for (rows,) in DataLoader(TensorDataset(torch.arange(6)), 4)] == [
        [0, 1, 2, 3],
        [4, 5],
    ]


DATASETS = {
    "whole": table(),
    "subset": Subset(table(), [3, 1, 4, 1, 5, 9, 2, 6]),
    "subset of a subset": Subset(Subset(table(), list(range(20, 2, -2))), range(1, 8)),
    "array of indices": Subset(table(), np.array([7, 0, 22])),
}


def equal(found: Any, expected: Any) -> bool:
    return (
        type(found) is type(expected)
        and [(t.dtype, t.shape, t.stride()) for t in found]
        == [(t.dtype, t.shape, t.stride()) for t in expected]
        and all(map(torch.equal, found, expected))
    )


@pytest.mark.parametrize("kind", DATASETS)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_equal_to_those_read_by_the_sample(num_workers: int, kind: str) -> None:
    dataset = DATASETS[kind]
    assert table_of(dataset) is not None
    options: dict[str, Any] = {"batch_size": 5, "shuffle": True, "seed": 3}
    reference = DataLoader(by_sample(dataset), **options)
    persistent = num_workers > 0
    with DataLoader(
        dataset, num_workers=num_workers, persistent_workers=persistent, **options
    ) as loader:
        for _ in range(2):
            found, expected = list(loader), list(reference)
            assert len(found) == len(expected)
            assert all(map(equal, found, expected))


class Odd(Sequence):
    """Indices that are computed one by one, and never all of them."""

    def __len__(self) -> int:
        return 10**12

    def __getitem__(self, place: Any) -> int:
        return place % 4


def objects(*values: Any) -> np.ndarray:
    array = np.empty(len(values), object)
    array[:] = values
    return array


INDICES: dict[str, Any] = {
    "strings": ["a", "b", "c", "a"],
    "tuples": [(0, 1), (2, 0), (1, 1), (3, 2)],
    "huge": [10**30, -(10**30), 2**63, 2**64],
    "objects": objects(0, 3, 1, 2),
    "dict": {0: 3, 1: 1, 2: 0, 3: 2},
    "negative": [-1, 0, -2, -4],
    "beyond": [0, 1, 2, 99],
    "bools": [True, False, True, True],
    "two dimensions": np.arange(8).reshape(4, 2) % 4,
    "numpy's": list(np.array([3, 0, 1, 2])),
    "tensor": torch.tensor([3, 0, 1, 2]),
    "range": range(3, -1, -1),
    "empty": [],
    "computed": Odd(),
}


def outcome(loader: Any, most: int = 3) -> Any:
    """The batches, up to an exception, which is told by its type."""
    batches = []
    try:
        for _, batch in zip(range(most), loader, strict=False):
            batches.append(batch)
    except Exception as error:
        return batches, type(error)
    return batches, None


def check_as_torch(dataset: Any, num_workers: int) -> None:
    options: dict[str, Any] = {"batch_size": 2}
    if len(dataset) > 1_000:
        options["sampler"] = [10**11, 1, 2, 3]
    expected, its_error = outcome(TorchLoader(dataset, **options))
    found, error = outcome(DataLoader(dataset, num_workers=num_workers, **options))
    assert error is its_error
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        tensors = isinstance(theirs, list) and isinstance(theirs[0], torch.Tensor)
        assert equal(mine, theirs) if tensors else mine == theirs


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("kind", INDICES)
def test_indices_of_any_kind_as_torch_takes_them(num_workers: int, kind: str) -> None:
    """Of a table: what its tensors make of them."""
    dataset = TensorDataset(torch.arange(12).view(4, 3), torch.arange(4))
    check_as_torch(Subset(dataset, INDICES[kind]), num_workers)
    check_as_torch(Subset(Subset(dataset, range(4)), INDICES[kind]), num_workers)


def change_indices(dataset: Any) -> None:
    dataset.indices = [7, 7, 7, 7, 7, 7, 7, 7]


def change_in_place(dataset: Any) -> None:
    dataset.indices[:] = [7] * 8


CHANGES = [change_indices, change_in_place]


def changeable() -> Any:
    return Subset(Subset(TensorDataset(torch.arange(8)), list(range(8))), list(range(8)))


@pytest.mark.parametrize("change", CHANGES)
def test_without_workers_a_change_is_seen_at_once(change: Any) -> None:
    for loader_class in (DataLoader, TorchLoader):
        dataset = changeable()
        iterator = iter(loader_class(dataset, 2))
        assert next(iterator)[0].tolist() == [0, 1]
        change(dataset)
        assert [batch.tolist() for [batch] in iterator] == [[7, 7]] * 3
