"""A small convolutional classifier."""

from __future__ import annotations

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

Batch = tuple[Tensor, Tensor]


class Classifier(LightningModule):
    """Two convolutions and two linear layers; logs loss and accuracy of each split.

    Args:
        width: Channels of the first convolution.
        dropout: Share of the hidden units left out in training.
        lr: Learning rate of AdamW at its peak; it falls along a cosine to nothing.
    """

    def __init__(self, width: int = 32, dropout: float = 0.2, lr: float = 3e-3) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(2 * width * 16, 128),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(128, 10),
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.net(images)

    def _step(self, batch: Batch, split: str) -> Tensor:
        images, labels = batch
        logits = self(images)
        loss = nn.functional.cross_entropy(logits, labels)
        accuracy = (logits.argmax(1) == labels).float().mean()
        metrics = {f"{split}/loss": loss, f"{split}/acc": accuracy}
        self.log_dict(
            metrics,
            prog_bar=split != "test",
            on_step=False,
            on_epoch=True,
            batch_size=len(labels),
            sync_dist=True,
        )
        return loss

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        return self._step(batch, "train")

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self._step(batch, "val")

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        self._step(batch, "test")

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams["lr"])
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(
            optimizer, T_max=self.trainer.max_epochs
        )
        return {"optimizer": optimizer, "lr_scheduler": scheduler}
