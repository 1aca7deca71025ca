"""Run as a script with a folder: two ranks share a dataset; each notes which memory it reads."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path
from typing import Any

import torch

from lit_loader import LoaderDataModule
from tests.node.data import Bulk
from tests.support.lightning_runs import Seen, quiet_trainer
from tests.support.samples import uncollated


class Model(Seen):
    """Notes each sample's number, and the file in memory that its worker read it from."""

    width = 1

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        with open(self.folder / f"seen-{self.global_rank}", "a") as file:
            for number, _, process, inode in batch:
                assert process != os.getpid()
                file.write(f"{number} {inode}\n")
        return self.layer(torch.ones(1)).mean()


def main(folder: Path) -> None:
    """Train for one epoch."""
    data = LoaderDataModule(
        {"train": functools.partial(Bulk, folder / "built")},
        {"batch_size": 1, "num_workers": 1, "collate_fn": uncollated},
        shared_key=str(folder),
    )
    trainer = quiet_trainer(folder, strategy="ddp", devices=2, max_epochs=1)
    trainer.fit(Model(folder), data)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
