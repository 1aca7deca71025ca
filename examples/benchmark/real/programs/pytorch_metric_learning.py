"""pytorch-metric-learning: the loop of its README with a miner, then its MPerClassSampler."""

import torch
from measured import note, training
from pytorch_metric_learning import losses, miners, samplers
from torch import nn
from torch.utils.data import DataLoader, Dataset

N = 4000


class Clothes(Dataset):
    def __init__(self):
        self.images = torch.randn(20, 3, 16, 16)

    def __len__(self):
        return N

    def __getitem__(self, i):
        return self.images[i % 20] + 4 * torch.randn(3, 16, 16), i % 20, i


def step(images, labels):
    optimizer.zero_grad()
    embeddings = model(images)
    loss_func(embeddings, labels, miner(embeddings, labels)).backward()
    optimizer.step()


model = nn.Sequential(nn.Conv2d(3, 16, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(784, 32))
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
miner, loss_func = miners.MultiSimilarityMiner(), losses.TripletMarginLoss()
sampler = samplers.MPerClassSampler(
    [i % 20 for i in range(N)], m=4, batch_size=40, length_before_new_iter=N
)
shuffled = DataLoader(Clothes(), batch_size=40, shuffle=True, num_workers=2)
balanced = DataLoader(Clothes(), batch_size=40, sampler=sampler, num_workers=2)

with training(epochs=3):
    for _ in range(3):
        for images, labels, numbers in shuffled:
            note(numbers)
            step(images, labels)
        for images, labels, _ in balanced:
            assert set(labels.bincount().tolist()) <= {0, 4}
            step(images, labels)
