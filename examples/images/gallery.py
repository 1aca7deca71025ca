"""A callback that draws test images and what the model takes them for."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor


class Gallery(Callback):
    """Writes a picture of test images at the end of the test, mistaken ones first, in red.

    Args:
        path: The picture's file.
        number: Images shown.
    """

    def __init__(self, path: str, number: int = 40) -> None:
        self.path, self.number = path, number
        self._seen: list[tuple[float, Tensor, int, int]] = []

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._seen = []

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, *_: Any
    ) -> None:
        images, labels = batch
        with torch.inference_mode():
            probabilities = pl_module(images).softmax(1).cpu()
        sure, guesses = probabilities.max(1)
        rows = zip(images.cpu(), labels.tolist(), guesses.tolist(), sure.tolist(), strict=True)
        for image, label, guess, certainty in rows:
            # Mistakes first, then what was least sure; copied, for the rest of its batch can go.
            rank = certainty - (guess != label)
            self._seen.append((rank, image[0].clone(), label, guess))
        self._seen.sort(key=lambda seen: seen[0])
        del self._seen[self.number :]

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.is_global_zero or not self._seen:
            return
        columns = 10
        rows = -(-len(self._seen) // columns)
        figure = Figure(figsize=(columns, 1.25 * rows), layout="constrained", dpi=110)
        FigureCanvasAgg(figure)
        for axes in (grid := figure.subplots(rows, columns, squeeze=False)).flat:
            axes.axis("off")
        for axes, (_, image, label, guess) in zip(grid.flat, self._seen, strict=False):
            axes.imshow(image, cmap="gray", vmin=0, vmax=255)
            right = guess == label
            title = f"{label}" if right else f"{label}, not {guess}"
            axes.set_title(title, fontsize=9, color="0.3" if right else "#c44e52")
        figure.suptitle("Test images: mistakes first, then the least certain", fontsize=11)
        figure.savefig(self.path)
        self._seen = []
