"""A fit under DDP whose loader has a batch sampler with arguments of its own."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer

from lit_loader import DataLoader
from tests.support.lightning_runs import Noting, Points, quiet_trainer


class Buckets:
    """A batch sampler, of whose arguments Lightning knows none."""

    def __init__(self, lengths: list[int]) -> None:
        self.batch_size, self.drop_last, self.lengths = 2, False, lengths

    def __len__(self) -> int:
        return len(self.lengths) // 2

    def __iter__(self) -> Iterator[list[int]]:
        return iter([[2 * n, 2 * n + 1] for n in range(len(self))])


def fit(root: Path, advised: bool) -> list[Any]:
    model = Noting()
    options: dict[str, Any] = {"strategy": "ddp", "use_distributed_sampler": not advised}
    trainer: Trainer = quiet_trainer(root, **options)

    def train_dataloader() -> Any:
        ranks = {"num_replicas": trainer.world_size, "rank": trainer.global_rank} if advised else {}
        return DataLoader(Points(8), batch_sampler=Buckets([1] * 8), **ranks)

    model.train_dataloader = train_dataloader  # type: ignore[method-assign]
    trainer.fit(model)
    return model.seen("train")


if __name__ == "__main__":
    try:
        fit(Path(sys.argv[1]), advised=False)
    except TypeError as error:
        print(error)
    print(fit(Path(sys.argv[1]), advised=True))
