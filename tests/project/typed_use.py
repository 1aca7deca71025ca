"""What users write with type annotations of torch's; ``mypy --strict`` must take it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset

import lit_loader


class Numbers(Dataset[Tensor]):
    """Ten numbers."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor(index)


class Objects(Dataset[Tensor]):
    """What waits for storage is marked, and typed as it was."""

    @lit_loader.reads_ahead
    def read(self, index: int) -> bytes:
        return b"%d" % index

    @lit_loader.reads_ahead
    async def wait(self, index: int) -> bytes:
        return b"%d" % index

    def __getitem__(self, index: int) -> Tensor:
        data: list[bytes] = [self.read(index), self.wait(index)]
        return torch.tensor(len(data))


def loader() -> TorchLoader[Tensor]:
    """A hook, say, that is annotated as Lightning's are."""
    return lit_loader.DataLoader(Numbers(), batch_size=4, num_workers=0, seed=3)


def total(batches: TorchLoader[Tensor]) -> int:
    """Takes any loader."""
    return sum(int(batch.sum()) for batch in batches)


ours: lit_loader.DataLoader[Tensor] = lit_loader.DataLoader(Numbers(), shuffle=True)
theirs: TorchLoader[Tensor] = ours
