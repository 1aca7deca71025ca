"""The digits by LightningCLI: every option of loader, model and Trainer on the command line.

python examples/lightning_cli.py fit
python examples/lightning_cli.py fit --data.loader.num_workers=4 --model.width=16
python examples/lightning_cli.py fit --data.val='{batch_size: 512}' --print_config
"""

from typing import Any

import torch
from digits.dataset import Digits
from digits.model import Classifier
from lightning.pytorch.cli import LightningCLI

from lit_loader import LoaderDataModule, LoaderMonitor

Options = dict[str, Any] | None
LOADER = {"batch_size": 64, "num_workers": 2, "persistent_workers": True}


class DigitsData(LoaderDataModule):
    """Makes its own datasets, and has defaults that suit them."""

    splits = ("train", "val")

    def __init__(self, loader: Options = None, train: Options = None, val: Options = None) -> None:
        super().__init__(
            loader={**LOADER, **(loader or {})},
            train={"shuffle": True, **(train or {})},
            val=val,
        )

    def make_dataset(self, split: str) -> Digits:
        return Digits(split, augment=split == "train")


def main() -> None:
    torch.set_num_threads(1)  # the workers have the other cores
    cli = LightningCLI(
        Classifier,
        DigitsData,
        seed_everything_default=12345,
        save_config_kwargs={"overwrite": True},
        trainer_defaults={
            "accelerator": "cpu",
            "max_epochs": 10,
            "log_every_n_steps": 1,
            "logger": {"class_path": "CSVLogger", "init_args": {"save_dir": "outputs"}},
            "callbacks": [LoaderMonitor()],  # prints where the time went
        },
    )
    metrics = {name: round(float(v), 4) for name, v in cli.trainer.callback_metrics.items()}
    print(f"written to {cli.trainer.log_dir}: {metrics}")


if __name__ == "__main__":
    main()
