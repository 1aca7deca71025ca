"""The digits in a training loop: torch, a progress bar and lit_loader, resumable.

python examples/plain_loop.py
python examples/plain_loop.py --checkpoint /tmp/run.ckpt    # Ctrl-C, and again: it continues
"""

import argparse
from pathlib import Path

import torch
from digits.dataset import Digits
from torch import nn
from tqdm import tqdm

from lit_loader import DataLoader


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--checkpoint", type=Path, help="written every ten steps, and resumed from")
    args = parser.parse_args()
    torch.set_num_threads(1)  # the workers have the other cores
    torch.manual_seed(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    loader = DataLoader(
        Digits("train", augment=True), 64, shuffle=True, seed=1,
        num_workers=args.workers, persistent_workers=args.workers > 0,
    )  # fmt: skip
    parts, steps = {"model": model, "optimizer": optimizer, "loader": loader}, 0
    if args.checkpoint and args.checkpoint.exists():
        saved = torch.load(args.checkpoint, weights_only=True)
        steps = saved["steps"]
        for name, part in parts.items():
            part.load_state_dict(saved[name])

    with loader:  # its workers end with it
        total = args.epochs * len(loader)
        batches = (batch for _ in range(steps // len(loader), args.epochs) for batch in loader)
        for images, labels in tqdm(batches, "training", total, initial=steps):
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
            if args.checkpoint and steps % 10 == 0:
                states = {name: part.state_dict() for name, part in parts.items()}
                torch.save({"steps": steps, **states}, args.checkpoint)
        waited = 100 * loader.statistics().wait_fraction

    images, labels = next(iter(DataLoader(Digits("test"), batch_size=360)))  # all of them
    accuracy = (model(images).argmax(1) == labels).float().mean()
    print(f"{steps} steps, test accuracy {accuracy:.4f}, waited {waited:.0f} % of the time")


if __name__ == "__main__":
    main()
