"""Trains on the digits with Lightning Fabric: no Trainer, no data module, resumable.

python examples/fabric.py
python examples/fabric.py --devices 2 --checkpoint /tmp/run.ckpt   # continues from it, if there
"""

import argparse
from pathlib import Path

import torch
from digits.dataset import Digits
from lightning.fabric import Fabric
from torch import nn

from lit_loader import DataLoader


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--checkpoint", type=Path, help="written every ten steps, and resumed from")
    parser.add_argument("--stop-after", type=int, help="steps, as if interrupted there")
    args = parser.parse_args()
    fabric = Fabric(accelerator="cpu", devices=args.devices)
    fabric.launch()
    fabric.seed_everything(1, verbose=False)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    model, optimizer = fabric.setup(net, torch.optim.AdamW(net.parameters(), 1e-2))
    # Not fabric.setup_dataloaders, which wraps the loader: fabric.save keeps this one's position.
    loader = DataLoader(
        Digits("train", augment=True), 64, shuffle=True, seed=1, num_workers=args.workers,
        persistent_workers=args.workers > 0,
        num_replicas=fabric.world_size, rank=fabric.global_rank,
    )  # fmt: skip
    state = {"model": model, "optimizer": optimizer, "loader": loader, "epoch": 0, "step": 0}
    if args.checkpoint and args.checkpoint.exists():
        fabric.load(args.checkpoint, state)

    for epoch in range(state["epoch"], args.epochs):
        state["epoch"] = epoch
        loader.set_epoch(epoch)  # keeps the place within this epoch that has been loaded
        for batch in loader:
            images, labels = fabric.to_device(batch)
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            fabric.backward(loss)
            optimizer.step()
            state["step"] += 1
            fabric.print(f"epoch {epoch} step {state['step']} loss {loss.item():.6f}")
            if args.checkpoint and state["step"] % 10 == 0:
                fabric.save(args.checkpoint, state)
            if state["step"] == args.stop_after:
                return


if __name__ == "__main__":
    main()
