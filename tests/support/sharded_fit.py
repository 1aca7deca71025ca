"""Two ranks train on a stream whose shards are of unequal length, and write what they saw."""

import json
import os
from pathlib import Path
from typing import Any

from torch import Tensor

from lit_loader import LoaderDataModule
from tests.support import tail_ranks
from tests.support.exact import digest
from tests.support.lightning_runs import SaveAt, Seen, quiet_trainer


class Model(Seen):
    """Notes the shard and the digest of every batch that a step was done with."""

    width = 12

    def note(self, batch: Tensor) -> Any:
        return [self.trainer.current_epoch, int(batch[0, 0]), digest(batch)]


def fit(folder: Path, name: str, stop: int = 0, before: str = "") -> None:
    """Train; saved and stopped after some steps (0: not), or resumed from the run ``before``."""
    model = Model()
    saved = [SaveAt(folder / f"{name}.ckpt", stop)] if stop else []
    trainer = quiet_trainer(
        folder, strategy="ddp", devices=2, max_epochs=2, max_steps=stop or -1, callbacks=saved
    )
    options = {"batch_size": 2, "seed": 5, "num_workers": 2, "num_shards": tail_ranks.SHARDS}
    stream = tail_ranks.WithIteratorState(80, "torch", True)
    trainer.fit(
        model, LoaderDataModule({"train": stream}, {**options, "uneven_ranks": "pad"}),
        ckpt_path=folder / f"{before}.ckpt" if before else None, weights_only=True,
    )  # fmt: skip
    rank = os.environ.get("LOCAL_RANK", "0")
    (folder / f"{name}-{rank}.json").write_text(json.dumps(model.seen))
