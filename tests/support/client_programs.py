"""Run as ``python client_programs.py NAME FOLDER``: another framework's program, with our loader.

Each process writes what it saw. Programs of two processes are started by ``torch.distributed.run``.
"""

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import lit_loader
from tests.support.samples import OfLength

LENGTH, BATCH_SIZE, EPOCHS = 22, 4, 2


class Numbers(OfLength):
    length = LENGTH

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor([float(index)])


def loader(**options: Any) -> lit_loader.DataLoader[Tensor]:
    options = {"batch_size": BATCH_SIZE, "shuffle": True, "num_workers": 1, **options}
    return lit_loader.DataLoader(Numbers(), **options)


def ids(batch: Tensor) -> list[int]:
    return [int(number) for number in batch[:, 0]]


ACCELERATE: dict[str, dict[str, Any]] = {
    "accelerate": {},
    "accelerate_split": {"split_batches": True},
    "accelerate_uneven": {"even_batches": False},
    "accelerate_dispatched": {"dispatch_batches": True},
    "accelerate_seedable": {"use_seedable_sampler": True},
    "accelerate_with_our_engine": {},
}


def accelerate(name: str) -> Any:
    from accelerate import Accelerator, DataLoaderConfiguration

    if name == "accelerate_with_our_engine":
        lit_loader.replace_torch()
    if name == "accelerate_seedable":
        torch.manual_seed(1)  # its sampler is seeded from this, and must be on all ranks alike
    config = DataLoaderConfiguration(**ACCELERATE[name])
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, dataloader_config=config)
    model = torch.nn.Linear(1, 1)
    model, optimizer, prepared = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), 0.1), loader()
    )
    epochs, steps = [], []
    for _ in range(EPOCHS):
        seen = []
        for batch in prepared:
            with accelerator.accumulate(model):
                model(batch).mean().backward()
                steps.append(accelerator.sync_gradients)
                optimizer.step()
                seen.append(ids(batch))
        epochs.append(seen)
    engine = type(prepared.base_dataloader)
    return {"epochs": epochs, "steps": steps, "engine": f"{engine.__module__}.{engine.__name__}"}


def transformers(name: str) -> Any:
    from transformers import Trainer, TrainingArguments

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.seen: list[list[int]] = []

        def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
            self.seen.append(ids(x))
            return {"loss": (self.layer(x) - labels).square().mean()}

    class Own(Trainer):
        def get_train_dataloader(self) -> Any:
            made = loader(collate_fn=labelled)
            return made if name == "transformers_unprepared" else self.accelerator.prepare(made)

    model = Model()
    arguments = TrainingArguments(
        output_dir=sys.argv[2], per_device_train_batch_size=BATCH_SIZE, num_train_epochs=EPOCHS,
        report_to=[], use_cpu=True, save_strategy="no", logging_strategy="no", disable_tqdm=True,
        ddp_find_unused_parameters=False,
    )  # fmt: skip
    Own(model=model, args=arguments, train_dataset=Numbers()).train()
    half = len(model.seen) // EPOCHS
    return {"epochs": [model.seen[:half], model.seen[half:]]}


def labelled(samples: list[Tensor]) -> dict[str, Tensor]:
    x = torch.stack(samples)
    return {"x": x, "labels": torch.zeros_like(x)}


def ignite(_: str) -> Any:
    from ignite.engine import Engine, Events

    epochs: list[Any] = []
    engine = Engine(lambda engine, batch: epochs[-1].append(ids(batch)))
    engine.add_event_handler(Events.EPOCH_STARTED, lambda: epochs.append([]))
    with loader(persistent_workers=True) as made:
        engine.run(made, max_epochs=EPOCHS)
    return {"epochs": epochs}


def skorch(_: str) -> Any:
    from skorch import NeuralNetRegressor

    class Seen(torch.nn.Linear):
        seen: list[list[int]] = []  # noqa: RUF012

        def forward(self, x: Tensor) -> Tensor:
            self.seen.append(ids(x))
            return super().forward(x)

    data = torch.arange(float(LENGTH))[:, None]
    net = NeuralNetRegressor(
        Seen, module__in_features=1, module__out_features=1, max_epochs=EPOCHS, train_split=None,
        batch_size=BATCH_SIZE, iterator_train=lit_loader.DataLoader, iterator_train__shuffle=True,
        iterator_train__num_workers=1, iterator_valid=lit_loader.DataLoader, verbose=0,
    )  # fmt: skip
    net.fit(data, data)
    half = len(Seen.seen) // EPOCHS
    epochs = [Seen.seen[:half], Seen.seen[half:]]
    return {"epochs": epochs, "predicted": len(net.predict(data))}


def geometric(_: str) -> Any:
    lit_loader.replace_torch()
    from torch_geometric.data import Data
    from torch_geometric.loader import DataLoader

    edges = torch.tensor([[0, 1], [1, 2]])
    graphs = [Data(x=torch.full((3, 1), float(i)), edge_index=edges) for i in range(LENGTH)]
    made = DataLoader(graphs, batch_size=BATCH_SIZE, shuffle=True, num_workers=2)
    assert isinstance(made, lit_loader.DataLoader)
    epochs = [[[int(i) for i in batch.x[::3, 0]] for batch in made] for _ in range(EPOCHS)]
    return {"epochs": epochs}


def monai(_: str) -> Any:
    lit_loader.replace_torch()
    from monai.data import DataLoader, Dataset
    from monai.transforms import Compose, EnsureTyped, RandScaleIntensityd

    def digests(workers: int) -> Any:
        items = [{"image": torch.ones(1, 4, 4) * i, "id": i} for i in range(1, LENGTH + 1)]
        augment = RandScaleIntensityd("image", factors=0.5, prob=1.0)
        data = Dataset(items, Compose([EnsureTyped("image"), augment]))
        made = DataLoader(data, batch_size=BATCH_SIZE, shuffle=True, num_workers=workers, seed=3)
        assert isinstance(made, lit_loader.DataLoader)
        return [[(b["id"] - 1).tolist(), b["image"][:, 0, 0, 0].tolist()] for b in made]

    assert digests(0) == digests(2), "the data depends on the number of workers"
    return {"epochs": [[batch[0] for batch in digests(2)]]}


def timm(_: str) -> Any:
    lit_loader.replace_torch()
    from timm.data.loader import MultiEpochsDataLoader

    made = MultiEpochsDataLoader(Numbers(), batch_size=BATCH_SIZE, shuffle=True, num_workers=2)
    assert isinstance(made, lit_loader.DataLoader)
    return {"epochs": [[ids(batch) for batch in made] for _ in range(EPOCHS)]}


if __name__ == "__main__":
    name, folder = sys.argv[1], Path(sys.argv[2])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        seen = globals()[name.partition("_")[0]](name)
    seen["warned"] = [str(each.message) for each in caught]
    (folder / f"{os.environ.get('RANK', '0')}.json").write_text(json.dumps(seen))
