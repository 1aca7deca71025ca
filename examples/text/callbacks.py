"""What the text recipes show when they end: baselines, a piece of text, and the padding."""

from __future__ import annotations

import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from digits.report import ACCENT, LOSS, canvas
from lightning.pytorch import Callback, LightningModule, Trainer
from matplotlib.ticker import LogFormatter

from lit_loader import Packed, TokenBudgetBatchSampler


class Writes(Callback):
    """Lets the model go on with a text at the end, and measures what it is to be compared with.

    Args:
        prompt: The text that the model continues.
        count: Bytes that it writes.
    """

    def __init__(self, prompt: str, count: int = 300) -> None:
        self.prompt, self.count = prompt, count
        self._figures: dict[str, Any] = {}

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        text: Any = trainer.datamodule.dataset("test").bytes[:]
        odds = np.bincount(text.numpy(), minlength=256) / len(text)
        odds = odds[odds > 0]
        packed = len(zlib.compress(text.numpy().tobytes(), 9))
        written = pl_module.continue_text(self.prompt.encode(), self.count)
        self._figures = {
            "baseline/unigram_bits": float(-(odds * np.log2(odds)).sum()),
            "baseline/zlib_bits": 8 * packed / len(text),
            "sample": written.decode("utf-8", "replace"),
        }

    def figures(self) -> dict[str, Any]:
        """What goes into metrics.json."""
        return self._figures


class Work(Callback):
    """Counts what each process computes in each batch: how much is padding, and who waits."""

    def __init__(self) -> None:
        self.tokens, self.computed = 0, list[int]()
        self._began = self._seconds = 0.0
        self._of_ranks = np.zeros((1, 0))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._began = time.perf_counter()

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        if isinstance(batch, Packed):
            tokens, computed = int((batch.sequence_ids >= 0).sum()), len(batch.sequence_ids)
        else:
            tokens, computed = int(batch["lengths"].sum()), batch["tokens"].numel()
        self.tokens += tokens
        self.computed.append(computed)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._seconds = time.perf_counter() - self._began
        found = [(self.tokens, self.computed)] * trainer.world_size
        if trainer.world_size > 1:
            torch.distributed.all_gather_object(found, (self.tokens, self.computed))
        self.tokens = sum(tokens for tokens, _ in found)
        self._of_ranks = np.array([computed for _, computed in found])

    def figures(self) -> dict[str, Any]:
        """What goes into metrics.json."""
        batches, seconds = self._of_ranks, self._seconds
        waits = 1 - float(batches.mean() / batches.max(axis=0).mean())
        padding = 1 - self.tokens / float(batches.sum())
        return {
            "padding": round(padding, 4),
            "ranks_wait": round(waits, 4),
            "tokens_per_second": round(self.tokens / seconds),
            "remark/work": f"padding: {100 * padding:.1f} %; behind each batch {len(batches)} "
            f"process(es) wait {100 * waits:.1f} %, by the tokens they compute; "
            f"{self.tokens / seconds:,.0f} tokens of text a second",
        }


class Padding(Callback):
    """Counts what the batches of a training hold, and compares it with other ways to batch."""

    def __init__(self) -> None:
        self.tokens = self.padded = 0
        self.shapes: list[tuple[int, int]] = []
        self._padding, self._batches = 0.0, 0
        self._others: dict[str, float] = {}
        self._began, self._seconds, self._budget = 0.0, 0.0, 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        loader = trainer.train_dataloader
        sampler: TokenBudgetBatchSampler = loader.batch_sampler
        self._budget = sampler.max_tokens
        lengths = np.asarray(loader.dataset.lengths)
        batches = [lengths[list(batch)] for batch in sampler]  # of the epoch that begins
        padded = sum(len(batch) * int(batch.max()) for batch in batches)
        self._padding = 1 - sum(int(batch.sum()) for batch in batches) / padded
        self._batches = len(batches)
        size = max(1, round(len(lengths) / len(sampler)))  # as many batches, all of one size
        rows = [lengths[order] for order in self._orders(lengths)]
        self._others = {
            name: _padding(row, size)
            for name, row in zip(("random batches", "in the files' order"), rows, strict=True)
        }
        self._began = time.perf_counter()

    def _orders(self, lengths: np.ndarray) -> list[np.ndarray]:
        return [np.random.default_rng(0).permutation(len(lengths)), np.arange(len(lengths))]

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        samples, longest = batch["tokens"].shape
        self.shapes.append((longest, samples))
        self.tokens += int(batch["lengths"].sum())
        self.padded += samples * longest

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._seconds = time.perf_counter() - self._began
        if trainer.is_global_zero:
            self._plot(Path(trainer.default_root_dir))

    @property
    def _share(self) -> float:
        return 1 - self.tokens / max(1, self.padded)

    def _plot(self, directory: Path) -> None:
        figure, (shapes, bars) = canvas(2)
        shapes.plot(*zip(*self.shapes, strict=True), ".", ms=4, color=LOSS, label="a batch")
        longest = np.arange(min(self.shapes)[0], max(self.shapes)[0] + 1)
        shapes.plot(longest, self._budget / longest, color="0.3", lw=1, label=f"{self._budget:,}")
        shapes.set(xlabel="longest sample, tokens", ylabel="samples", xscale="log", yscale="log")
        for axis in (shapes.xaxis, shapes.yaxis):  # 60, and not 6 × 10¹
            axis.set_major_formatter(LogFormatter())
            axis.set_minor_formatter(LogFormatter())
        shapes.legend(frameon=False, title="max_tokens")
        shares = {"token budget": self._share, **self._others}
        drawn = bars.barh(list(shares), [100 * s for s in shares.values()], color=LOSS)
        drawn[0].set_color(ACCENT)
        bars.bar_label(drawn, fmt="%.1f %%", padding=3)
        bars.set(xlabel="padding, % of the tokens computed", xlim=(0, 100))
        bars.invert_yaxis()
        figure.savefig(directory / "padding.png")

    def figures(self) -> dict[str, Any]:
        """What goes into metrics.json."""
        others = ", ".join(f"{100 * share:.1f} % {name}" for name, share in self._others.items())
        return {
            "padding": round(self._share, 4),
            "padding_of_an_epoch": round(self._padding, 4),
            "padding_otherwise": self._others,
            "batches_of_an_epoch": self._batches,
            "largest_batch_tokens": max(x * n for x, n in self.shapes),
            "tokens_per_second": round(self.tokens / self._seconds),
            "remark/padding": f"padding: {100 * self._share:.1f} % with the token budget "
            f"({others}); {self.tokens / self._seconds:,.0f} tokens of text a second",
        }


def _padding(lengths: np.ndarray, size: int) -> float:
    """The share of padding in batches of ``size`` samples each."""
    longest = np.maximum.reduceat(lengths, np.arange(0, len(lengths), size))
    counts = np.minimum(size, len(lengths) - np.arange(0, len(lengths), size))
    return float(1 - lengths.sum() / (longest * counts).sum())
