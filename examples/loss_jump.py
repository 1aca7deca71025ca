"""The loss jumps: which samples were that step, and how does it go on without them?

    python examples/loss_jump.py

A regression on data of which one sample is broken. The step at which the loss jumps is looked up,
its samples are looked at, the training goes back to a checkpoint before it, and leaves it out.
"""

from __future__ import annotations

import copy
import itertools
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from lit_loader import DataLoader

BROKEN = 1234


class Measured(Dataset[tuple[Tensor, Tensor]]):
    """Points on a line; one was written down wrongly."""

    def __len__(self) -> int:
        return 2000

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x = torch.tensor([index / 1000 - 1])
        return x, 1e6 * x if index == BROKEN else 3 * x


class Run:
    """A model and its optimizer, and copies of both that can be gone back to."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(1, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.losses: list[float] = []

    def step(self, x: Tensor, y: Tensor) -> float:
        loss = nn.functional.mse_loss(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.losses.append(loss.item())
        return loss.item()

    def state(self) -> Any:
        return copy.deepcopy((self.model.state_dict(), self.optimizer.state_dict()))

    def load(self, state: Any) -> None:
        self.model.load_state_dict(state[0])
        self.optimizer.load_state_dict(state[1])


def main() -> None:
    data, run, saved = Measured(), Run(), {}
    loader = DataLoader(data, 32, shuffle=True, seed=1)
    for number, (x, y) in enumerate(loader):
        if number % 10 == 0:
            saved[number] = run.state()
        if run.step(x, y) > 1000:
            break
    print(f"the loss jumped to {run.losses[-1]:,.0f} at step {number}")

    # Which samples? The order is computed: nothing was written down, and nothing is read but them.
    indices = loader.indices_of(0, number)
    worst = max(indices, key=lambda index: float(data[index][1].abs()))
    print(f"its sample {worst} has the target {float(data[worst][1]):,.0f}")

    # Back to the checkpoint before it, and on, without that step.
    start = number // 10 * 10
    run.load(saved[start])
    loader.load_state_dict(loader.state_at(0, start))
    for x, y in itertools.islice(loader, number - start):
        run.step(x, y)
    loader.load_state_dict(loader.state_at(0, number + 1))
    for x, y in loader:
        run.step(x, y)
    print(f"gone back to step {start}, and on from {number + 1}: the loss ends at ", end="")
    print(f"{run.losses[-1]:.4f}")


if __name__ == "__main__":
    main()
