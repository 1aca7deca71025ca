"""Lightly: the SimCLR example of its README, over a folder of images."""

from pathlib import Path

import numpy as np
import torch
from lightly import loss, transforms
from lightly.data import LightlyDataset
from lightly.models.modules import heads
from measured import note, training
from PIL import Image
from torch import nn

draw = np.random.default_rng(1)
Path("images").mkdir()
for number in range(300):
    pixels = draw.integers(0, 256, (48, 48, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(f"images/{number:03}.png")


class SimCLR(nn.Module):
    def __init__(self, backbone):
        super().__init__()
        self.backbone = backbone
        self.projection_head = heads.SimCLRProjectionHead(16, 16, 16)

    def forward(self, x):
        return self.projection_head(self.backbone(x).flatten(start_dim=1))


model = SimCLR(nn.Sequential(nn.Conv2d(3, 16, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1)))
dataset = LightlyDataset("images", transform=transforms.SimCLRTransform(input_size=32, cj_prob=0.5))
loader = torch.utils.data.DataLoader(dataset, batch_size=20, shuffle=True, num_workers=2)
criterion = loss.NTXentLoss(temperature=0.5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=1e-6)

with training(epochs=5):
    for _ in range(5):
        for (view0, view1), _targets, names in loader:
            note([int(Path(name).stem) for name in names])
            criterion(model(view0), model(view1)).backward()
            optimizer.step()
            optimizer.zero_grad()
