"""What the mixture recipe shows: how often each source is drawn, and that a resume is exact."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from digits.report import LOSS, canvas
from lightning.pytorch import Callback, LightningModule, Trainer
from text.report import COLORS

from lit_loader import LoaderDataModule


class Shares(Callback):
    """Counts from which source each sample of the training came, and plots it."""

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()
        self._bits: list[dict[str, float]] = []
        self._names: list[str] = []
        self._weights: list[float] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        mixture = trainer.train_dataloader.dataset
        total = sum(mixture.weights)
        self._names, self._weights = mixture.names, [w / total for w in mixture.weights]

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        sources = batch["source"]  # of each sample, or of each token
        self.counts.update((sources if sources.ndim == 1 else sources[:, 0]).tolist())

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        metrics = trainer.callback_metrics.items()
        found = {name.split("/")[1]: float(v) for name, v in metrics if name.endswith("/bits")}
        self._bits.append({"step": trainer.global_step, **found})

    @property
    def shares(self) -> dict[str, float]:
        """Each source's share of the samples so far."""
        total = max(1, self.counts.total())
        return {name: self.counts[number] / total for number, name in enumerate(self._names)}

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        figure, (bars, lines) = canvas(2)
        places = range(len(self._names))
        wanted = [100 * weight for weight in self._weights]
        got = [100 * share for share in self.shares.values()]
        bars.bar([p - 0.2 for p in places], wanted, 0.4, color="0.7", label="weight")
        drawn = bars.bar([p + 0.2 for p in places], got, 0.4, color=LOSS, label="drawn")
        bars.bar_label(drawn, fmt="%.2f")
        bars.set_xticks(list(places), self._names)
        bars.set(ylabel="% of the samples")
        bars.legend(frameon=False)
        for name, color in zip(self._names, COLORS, strict=False):
            points = [(epoch["step"], epoch[name]) for epoch in self._bits if name in epoch]
            if points:
                lines.plot(*zip(*points, strict=True), "o-", ms=4, color=color, label=name)
        lines.set(xlabel="training step", ylabel="bits per byte, validation")
        lines.legend(frameon=False)
        figure.savefig(Path(trainer.default_root_dir) / "mixture.png")

    def figures(self) -> dict[str, Any]:
        """What goes into metrics.json."""
        pairs = zip(self.shares.items(), self._weights, strict=True)
        text = ", ".join(f"{n} {100 * s:.2f} % (weight {100 * w:.2f} %)" for (n, s), w in pairs)
        return {
            "shares": {name: round(share, 5) for name, share in self.shares.items()},
            "weights": dict(zip(self._names, self._weights, strict=True)),
            "remark/shares": f"drawn: {text}",
        }


class ResumeCheck(Callback):
    """Saves a checkpoint mid-epoch, and compares what followed with what follows from it.

    Args:
        step: The step after which the checkpoint is saved.
        batches: Batches that are compared.
    """

    def __init__(self, step: int, batches: int = 50) -> None:
        self.step, self.batches = step, batches
        self._path: Path | None = None
        self._seen: list[str] = []
        self._equal = 0

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx) -> None:
        if self._path is not None and len(self._seen) < self.batches:
            self._seen.append(_digest(batch))

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        if trainer.global_step == self.step:
            self._path = Path(trainer.default_root_dir) / "checkpoints" / "middle.ckpt"
            trainer.save_checkpoint(self._path)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not self._seen or self._equal:
            return
        # As after a restart: from the file, through a new loader.
        module: LoaderDataModule = trainer.datamodule
        saved = torch.load(self._path, weights_only=True)["loops"]["fit_loop"]["state_dict"]
        with module.make_loader("train") as loader:
            loader.load_state_dict(saved["combined_loader"][0])
            again = [_digest(batch) for batch in itertools.islice(loader, len(self._seen))]
        self._equal = sum(a == b for a, b in zip(self._seen, again, strict=True))

    def figures(self) -> dict[str, Any]:
        """What goes into metrics.json."""
        return {
            "resumed_at_step": self.step if self._seen else None,
            "resumed_batches": len(self._seen),
            "resumed_batches_equal": self._equal,
            "remark/resumed": f"resumed mid-epoch from the checkpoint of step {self.step}: "
            f"{self._equal} of {len(self._seen)} batches equal, byte for byte",
        }


def _digest(batch: dict[str, torch.Tensor]) -> str:
    """Names a batch by its bytes."""
    data = b"".join(batch[name].cpu().numpy().tobytes() for name in sorted(batch))
    return hashlib.blake2b(data, digest_size=8).hexdigest()
