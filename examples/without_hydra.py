"""The digits with a Trainer and a LoaderDataModule, and no Hydra.

python examples/without_hydra.py
python examples/without_hydra.py --workers 4 --epochs 5
"""

import argparse
import functools

import torch
from digits.dataset import Digits
from digits.model import Classifier
from lightning.pytorch import Trainer, seed_everything

from lit_loader import LoaderDataModule, LoaderMonitor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(1)  # the workers have the other cores
    seed_everything(12345, verbose=False)
    data = LoaderDataModule(
        # Factories: each is called once, in setup, in each process that needs the split.
        datasets={
            "train": functools.partial(Digits, "train", augment=True),
            "val": functools.partial(Digits, "val"),
            "test": functools.partial(Digits, "test"),
        },
        loader={
            "batch_size": 64,
            "num_workers": args.workers,
            "persistent_workers": args.workers > 0,
        },
        train={"shuffle": True},
        val={"batch_size": 256},
        test={"batch_size": 256},
    )
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=args.epochs,
        log_every_n_steps=1,
        callbacks=[LoaderMonitor()],  # prints where the time went
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    model = Classifier()
    trainer.fit(model, datamodule=data)
    trainer.test(model, datamodule=data)


if __name__ == "__main__":
    main()
