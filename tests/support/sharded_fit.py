"""Run as a script: several ranks train on a stream with ``num_shards``, and write what they saw.

Arguments: folder, number of ranks, what becomes of readers that do not have as many batches ("":
they have), and runs, one after the other, each as NAME,STOP,BEFORE: its name, steps after which it
is saved and stopped (0: never), and the name of the run that it goes on from ("": none).
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from torch import Tensor

from lit_loader import DataLoader, LoaderDataModule
from tests.support import tail_ranks
from tests.support.exact import digest
from tests.support.lightning_runs import SaveAt, Seen, quiet_trainer
from tests.support.shard_data import WithIteratorState

SHARDS, LENGTH, BATCH_SIZE, EPOCHS = 4, 48, 2, 2


class Model(Seen):
    """Notes the shard and the digest of every batch that a step was done with."""

    width = 12

    def note(self, batch: Tensor) -> Any:
        return [self.trainer.current_epoch, int(batch[0, 0]), digest(batch)]


def stream() -> Any:
    return WithIteratorState(LENGTH, "torch", True)


def options(workers: int) -> dict[str, Any]:
    shards = {"num_shards": SHARDS, "uneven_ranks": "keep"}
    return {"batch_size": BATCH_SIZE, "seed": 5, "num_workers": workers, **shards}


def plain(ranks: int, rank: int = 0, workers: int = 0) -> DataLoader[Tensor]:
    return DataLoader(stream(), **options(workers), num_replicas=ranks, rank=rank)


def fit(folder: Path, ranks: int, tail: str, name: str, stop: int, before: str) -> None:
    model = Model()
    saved = [SaveAt(folder / f"{name}.ckpt", stop)] if stop else []
    trainer = quiet_trainer(
        folder,
        strategy="ddp" if ranks > 1 else "auto",
        devices=ranks,
        max_epochs=EPOCHS,
        max_steps=stop or -1,
        callbacks=saved,
    )
    trainer.fit(
        model,
        LoaderDataModule(
            {"train": tail_ranks.WithIteratorState(80, "torch", True) if tail else stream()},
            options(workers=ranks % 4) | ({"uneven_ranks": tail} if tail else {}),
        ),
        ckpt_path=folder / f"{before}.ckpt" if before else None,
        weights_only=True,
    )
    rank = os.environ.get("LOCAL_RANK", "0")
    (folder / f"{name}-{rank}.json").write_text(json.dumps(model.seen))


if __name__ == "__main__":
    for run in sys.argv[4:]:
        name, stop, before = run.split(",")
        fit(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], name, int(stop), before)
