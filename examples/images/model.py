"""A convolutional classifier of grey images of any size."""

from __future__ import annotations

import itertools

import torch
from digits.model import Classifier
from torch import Tensor, nn


class ImageClassifier(Classifier):
    """Four convolutions and a linear layer; steps, metrics and optimizer are the digits' own.

    Args:
        width: Channels of the first convolution.
        dropout: Share of the last layer's inputs left out in training.
        lr: Learning rate of AdamW at its peak.
    """

    def __init__(self, width: int = 16, dropout: float = 0.1, lr: float = 3e-3) -> None:
        super().__init__(lr=lr)
        layers: list[nn.Module] = []
        channels = [1, width, 2 * width, 4 * width, 4 * width]
        for before, after in itertools.pairwise(channels):
            layers += [
                nn.Conv2d(before, after, 3, stride=2, padding=1),
                nn.BatchNorm2d(after),
                nn.ReLU(),
            ]
        pooled = [nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(dropout)]
        self.net = nn.Sequential(*layers, *pooled, nn.Linear(16 * width, 10))

    def forward(self, images: Tensor) -> Tensor:
        """Takes bytes, batch × 1 × height × width, and returns batch × 10 logits."""
        return self.net(images.to(torch.float32) / 127.5 - 1)
