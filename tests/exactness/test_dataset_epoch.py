"""The epoch reaches the dataset wherever it is read: by ``set_epoch`` and ``get_epoch``."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import lit_loader


class Told(torch.utils.data.Dataset[tuple[int, int]]):
    epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[int, int]:
        return self.epoch, lit_loader.get_epoch()


class ToldStream(torch.utils.data.IterableDataset[tuple[int, int]]):
    epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Any:
        index, count = lit_loader.get_shard()
        return iter([(self.epoch, lit_loader.get_epoch())] * len(range(index, 12, count)))


def epochs_seen(loader: Any) -> set[tuple[int, int]]:
    return {
        pair for told, asked in loader for pair in zip(told.tolist(), asked.tolist(), strict=True)
    }


@pytest.mark.parametrize("dataset", [Told, ToldStream])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_workers": 2},
        {"num_workers": 2, "persistent_workers": True},
        {"num_workers": 2, "persistent_workers": True, "multiprocessing_context": "forkserver"},
    ],
    ids=["in-process", "workers", "persistent", "forkserver"],
)
def test_the_epoch_in_the_dataset(dataset: type, options: dict[str, Any]) -> None:
    with lit_loader.DataLoader(dataset(), batch_size=4, **options) as loader:
        assert epochs_seen(loader) == {(0, 0)}
        assert epochs_seen(loader) == {(1, 1)}
        loader.set_epoch(7)
        assert epochs_seen(loader) == {(7, 7)}
        assert epochs_seen(loader) == {(8, 8)}
