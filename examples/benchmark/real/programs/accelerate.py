"""accelerate: the loop of its README."""

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from measured import note, training
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __init__(self):
        self.images = torch.randn(200, 3, 32, 32)

    def __len__(self):
        return 3000

    def __getitem__(self, i):
        image = self.images[i % 200]
        if torch.rand(()) < 0.5:
            image = image.flip(-1)
        image = F.avg_pool2d(image, 3, 1, 1) + 0.1 * torch.randn(3, 32, 32)
        return image, i % 10, i


accelerator = Accelerator()
model = nn.Sequential(
    nn.Conv2d(3, 16, 3, 2), nn.ReLU(), nn.Conv2d(16, 16, 3, 2), nn.ReLU(), nn.Flatten(),
    nn.Linear(784, 10),
)  # fmt: skip
optimizer = torch.optim.Adam(model.parameters())
data = DataLoader(Images(), shuffle=True, batch_size=32, num_workers=2)

with training(epochs=3):
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    model.train()
    for _ in range(3):
        for source, targets, numbers in data:
            note(numbers)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(source), targets)
            accelerator.backward(loss)
            optimizer.step()
