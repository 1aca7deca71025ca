"""A training of one's own: handwritten digits, a small network, a DataLoader."""

import torch
from sklearn.datasets import load_digits
from torch import nn, utils

from lit_loader import DataLoader


class Digits(utils.data.Dataset):
    """Images of 8 x 8 and their classes."""

    def __init__(self):
        self.pixels, self.classes = load_digits(return_X_y=True)

    def __len__(self):
        return len(self.classes)

    def __getitem__(self, index):
        return torch.tensor(self.pixels[index] / 16).float(), self.classes[index]


def main() -> list[float]:
    """Returns the loss of each step."""
    dataset = Digits()
    order = utils.data.RandomSampler(dataset, generator=torch.Generator().manual_seed(1))
    loader = DataLoader(dataset, batch_size=64, sampler=order, num_workers=2, drop_last=True)

    torch.set_num_threads(1)  # the workers have the other cores
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for epoch in range(5):
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch}: loss {sum(losses[-len(loader) :]) / len(loader):.6f}")
    return losses


if __name__ == "__main__":
    main()
