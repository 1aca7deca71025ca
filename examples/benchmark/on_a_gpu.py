"""All that needs a GPU, planned for eight minutes: checks, copies to the device, a real training.

    python examples/benchmark/on_a_gpu.py [--seconds 60] [--dry-run]

Needs torch and Lightning alone. Prints tables, and the same as JSON in the last line.

- *Checks*: batches are page-locked, by the pin-memory thread and without it; with
  ``device_prefetch=True`` they are on the device, and have the same bytes.
- *Copies* of 64 MiB a batch, as `device_copy.py` measures them.
- *Training*: a small convolutional network on images that two workers crop, flip and scale;
  `--seconds` with each loader, taking turns. Steps a second, and what part of the time the loop
  waited for a batch.

Exit code 0: all is as it should be; 1: a check failed; 2: there is no GPU. ``--dry-run`` does on
the CPU, in seconds, what can be done there.
"""

import argparse
import json
import logging
import statistics
import sys
import time
import warnings

import lightning
import torch
from common import table
from torch.utils.data import Dataset

import lit_loader
from lit_loader import LoaderDataModule

LOADERS = {
    "torch": (torch.utils.data.DataLoader, {"pin_memory": True}),
    "lit_loader": (lit_loader.DataLoader, {"pin_memory": True}),
    "lit_loader, not pinned": (lit_loader.DataLoader, {}),
    "lit_loader, device_prefetch": (lit_loader.DataLoader, {"pin_memory": True}),
    "lit_loader, threads": (lit_loader.DataLoader, {"pin_memory": True, "worker_method": "thread"}),
}


class Images(Dataset):
    """Images of 3 x 128 x 128, cropped, flipped and scaled; the label is their number's."""

    def __init__(self, length):
        generator = torch.Generator().manual_seed(0)
        shape = 256, 3, 144, 144
        self.images = torch.randint(256, shape, dtype=torch.uint8, generator=generator)
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        image = self.images[index % 256]
        top, left = index % 16, index // 16 % 16
        image = image[:, top : top + 128, left : left + 128]
        return (image.flip(2) if index % 2 else image).float() / 255, index % 10


class Network(lightning.LightningModule):
    """Four convolutions; notes when steps began, and how long was waited for batches."""

    def __init__(self, width):
        super().__init__()
        layers, channels = [], 3
        for _ in range(4):
            layers += [torch.nn.Conv2d(channels, width, 3, 2, 1), torch.nn.ReLU()]
            channels = width
        pooled = [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(width, 10)]
        self.layers = torch.nn.Sequential(*layers, *pooled)
        self.waited, self.began, self.ended = 0.0, [], 0.0

    def on_train_batch_start(self, batch, batch_idx):
        self.began.append(time.perf_counter())
        if self.ended:
            self.waited += self.began[-1] - self.ended

    def training_step(self, batch, batch_idx):
        return torch.nn.functional.cross_entropy(self.layers(batch[0]), batch[1])

    def on_train_batch_end(self, outputs, batch, batch_idx):
        if batch[0].is_cuda:
            torch.cuda.synchronize()
        self.ended = time.perf_counter()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)


def fit(name, device, seconds, steps, batch_size, width):
    """Train; give steps a second without the first ones, and the part of time that was waited."""
    torch.manual_seed(0)
    kind, options = LOADERS[name]
    options = {"batch_size": batch_size, "num_workers": 2, "shuffle": True, **options}
    images = Images(1 << 20)
    if "device_prefetch" in name:
        module = LoaderDataModule({"train": images}, train=options, device_prefetch=True)
        data = {"datamodule": module}
    else:
        data = {"train_dataloaders": kind(images, **options)}
    network = Network(width)
    trainer = lightning.Trainer(
        accelerator=device, devices=1, max_steps=steps, max_time={"seconds": seconds},
        logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(network, **data)
    skipped = min(20, len(network.began) // 2)
    took = network.ended - network.began[skipped]
    waited = network.waited / (network.ended - network.began[0])
    return (len(network.began) - skipped) / took, waited


def checks(device):
    """Give what was checked, and whether it is as it should be."""
    found, images = {}, Images(64)
    expected = [each for each, _ in torch.utils.data.DataLoader(images, batch_size=8)]
    pins = device == "cuda"
    for method in ("multiprocessing", "thread"):
        for workers in (0, 2):
            options = {"num_workers": workers, "worker_method": method, "pin_memory": pins}
            with lit_loader.DataLoader(images, batch_size=8, **options) as loader:
                batches = [each for each, _ in loader]
            good = all(map(torch.equal, batches, expected))
            good &= all(each.is_pinned() == pins for each in batches)
            found[f"page-locked, the same bytes: {workers} workers, {method}"] = good
    for pin in (False, pins):
        seen = []

        class Look(Network):
            def training_step(self, batch, batch_idx):
                seen.append((batch[0].device.type, batch[0].cpu()))  # noqa: B023
                return super().training_step(batch, batch_idx)

        options = {"batch_size": 8, "num_workers": 2, "pin_memory": pin}
        data = LoaderDataModule({"train": images}, train=options, device_prefetch=True)
        trainer = lightning.Trainer(
            accelerator=device, devices=1, max_epochs=2, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(Look(8), datamodule=data)
        kinds, batches = zip(*seen, strict=True)
        good = set(kinds) == {device} and all(map(torch.equal, batches, 2 * expected))
        found[f"device_prefetch, the same bytes: {'' if pin else 'not '}pinned"] = good
    return found


def main():
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--seconds", type=float, default=45, help="of each training (45)")
    options.add_argument(
        "--dry-run", action="store_true", help="on the CPU, what can be done there"
    )
    given = options.parse_args()
    if not (torch.cuda.is_available() or given.dry_run):
        print("no GPU: nothing was measured (--dry-run does on the CPU what can be done there)")
        return 2
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    device = "cpu" if given.dry_run else "cuda"
    name = "the CPU" if given.dry_run else torch.cuda.get_device_name(0)
    print(f"{name}, torch {torch.__version__}, lit_loader {lit_loader.__version__}\n")

    checked = checks(device)
    table(["check", ""], [[each, "yes" if good else "NO"] for each, good in checked.items()])

    copies = {}
    if not given.dry_run:
        from device_copy import measure

        copies = measure(megabytes=64, batches=100, rounds=3, step_ms=5)
        print()
        rows = [
            [way, statistics.median(each), min(each), max(each)] for way, each in copies.items()
        ]
        table(["64 MiB a batch, 5 ms a step", "ms a batch", "least", "most"], rows)

    trained = {each: [] for each in LOADERS}
    rounds, steps, size, width = (1, 6, 8, 8) if given.dry_run else (2, -1, 64, 256)
    for number in range(rounds):
        names = [*LOADERS]
        for each in names[number:] + names[:number]:
            found = fit(each, device, given.seconds / rounds, steps, size, width)
            trained[each].append(found)
    print()
    rows = [
        [each, *(statistics.median(column) for column in zip(*found, strict=True))]
        for each, found in trained.items()
    ]
    table(["training", "steps a second", "part of the time waited"], rows)
    figures = {"device": name, "checks": checked, "copies_ms": copies, "training": trained}
    print("\n" + json.dumps(figures))
    return 0 if all(checked.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
