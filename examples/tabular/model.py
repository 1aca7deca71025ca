"""A small network for rows of numbers."""

from __future__ import annotations

from digits.model import Classifier
from torch import nn


class TabularClassifier(Classifier):
    """Two hidden layers; steps, metrics and optimizer are the digits' own.

    Args:
        features: Columns that it takes.
        classes: Logits that it gives.
        width: Units of each hidden layer.
        dropout: Share of the hidden units left out in training.
        lr: Learning rate of AdamW at its peak.
    """

    def __init__(
        self,
        features: int = 30,
        classes: int = 2,
        width: int = 64,
        dropout: float = 0.2,
        lr: float = 3e-3,
    ) -> None:
        super().__init__(lr=lr)
        self.net = nn.Sequential(
            nn.Linear(features, width), nn.ReLU(), nn.Dropout(dropout),
            nn.Linear(width, width), nn.ReLU(), nn.Dropout(dropout),
            nn.Linear(width, classes),
        )  # fmt: skip
