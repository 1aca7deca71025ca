"""What the search for generators costs: little beside torch's loader, whatever a dataset holds."""

import logging
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import default_collate

from lit_loader import DataLoader
from tests.support.samples import OfLength

lightning = pytest.importorskip("lightning")
pd = pytest.importorskip("pandas")
requests = pytest.importorskip("requests")
sklearn = pytest.importorskip("sklearn")
pipelines = pytest.importorskip("sklearn.pipeline")
scalers = pytest.importorskip("sklearn.preprocessing")

BATCH = 16
EPOCHS = 30


class Rows(OfLength):
    """Holds something; a sample takes some 20 us."""

    length = 4 * BATCH

    def __init__(self, held: Any = None) -> None:
        self.held, self.rng = held, np.random.default_rng(1)

    def __getitem__(self, index: int) -> Tensor:
        return torch.from_numpy(self.rng.normal(size=1000)).exp().sum()


class Model(lightning.LightningModule):  # type: ignore[misc, name-defined]
    """Collates itself, and has been fitted."""

    def __init__(self, held: Any = None) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(8)))
        self.trainer = lightning.Trainer(
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )

    def collate(self, samples: list[Tensor]) -> Any:
        return default_collate(samples)


class Owner:
    """Has a method that collates, and all else besides."""

    def __init__(self, **held: Any) -> None:
        self.__dict__.update(held)

    def collate(self, samples: list[Tensor]) -> Any:
        return default_collate(samples)


def over_libraries() -> Callable[[Any], Any]:
    scaler, module, frame = scalers.StandardScaler, Model(), pd.DataFrame
    return lambda samples: (default_collate(samples), (scaler, module, frame, np, pd, sklearn))[0]


def pipeline() -> Any:
    made = pipelines.make_pipeline(scalers.StandardScaler(), scalers.PolynomialFeatures())
    return made.fit(np.arange(20.0).reshape(10, 2))


def frame() -> Any:
    return pd.DataFrame({"text": [f"row {i}" for i in range(1000)], "x": range(1000)})


def logger() -> Any:
    found = logging.getLogger("tests.search_cost")
    found.handlers = [logging.NullHandler(), logging.StreamHandler()]
    return found


def tree() -> Any:
    """100,000 objects, and no container of more than 50."""
    return {
        f"video {i}": {j: {"boxes": [[k, k, 1.0] for k in range(44)]} for j in range(47)}
        for i in range(47)
    }


def objects() -> Any:
    return [[Owner(name=str(j), box=[[j], [j]]) for j in range(60)] for _ in range(60)]


HELD: dict[str, Callable[[], Any]] = {
    "frame": frame,
    "tree": tree,
    "objects": objects,
    "pipeline": pipeline,
    "session": requests.Session,
    "logger": logger,
    "vocabulary": lambda: Owner(words={f"word {i}": i for i in range(50_000)}, unknown=0),
    "model": Model,
}
COLLATES: dict[str, Callable[[], Any]] = {
    "model": lambda: Model().collate,
    "closure": over_libraries,
    "owner": lambda: Owner(model=Model(), frame=frame(), session=requests.Session()).collate,
}


def cost(make: Any, dataset: Any, collate: Any, anew: bool) -> float:
    """Processor time of this process, which others on the machine do not change much."""
    loader = make(dataset, BATCH, collate_fn=collate)
    began = time.process_time()
    for _ in range(EPOCHS):
        if anew:
            loader = make(dataset, BATCH, collate_fn=collate)
        for _ in loader:
            pass
    return time.process_time() - began


@pytest.mark.parametrize("anew", [False, True])
@pytest.mark.parametrize(
    ("held", "collate"), [*((name, None) for name in HELD), *((None, name) for name in COLLATES)]
)
def test_many_short_epochs_take_little_longer_than_torchs(
    held: str | None, collate: str | None, anew: bool
) -> None:
    dataset = Rows(None if held is None else HELD[held]())
    collate_fn = default_collate if collate is None else COLLATES[collate]()
    # In the same units on every machine: the search alone took twelve times torch's whole pass.
    rounds = (cost(DataLoader, dataset, collate_fn, anew) for _ in range(3))
    ratios = (ours / cost(TorchLoader, dataset, collate_fn, anew) for ours in rounds)
    assert any(ratio < 6 for ratio in ratios)
