"""``lightning.pytorch`` and ``pytorch_lightning``: the same programs, with a Trainer of either."""

import importlib
import inspect
from pathlib import Path
from typing import Any

import pytest
import torch

from lit_loader import DataLoader, LoaderDataModule, LoaderMonitor, LoaderStateCallback
from tests.support.exact import Augmented
from tests.support.lightning_runs import Saves, Sees, quiet_trainer
from tests.support.programs import run_python

LENGTH, BATCHES, EPOCHS = 22, 6, 2
OPTIONS: dict[str, Any] = {"batch_size": 4, "seed": 5, "seeding": "sample"}
KINDS = ("datasets", "swapped", "one import")

NAMES = ("lightning.pytorch", "pytorch_lightning")

names = [importlib.import_module(name) for name in NAMES]
pytestmark = pytest.mark.skipif(
    len({each.__version__ for each in names}) > 1, reason="of different versions"
)


@pytest.fixture(params=names, ids=NAMES)
def pl(request: pytest.FixtureRequest) -> Any:
    return request.param


def data(pl: Any, kind: str) -> Any:
    """A data module that loads the same batches in one of the ways that there are."""
    if kind == "datasets":
        return LoaderDataModule({"train": Augmented(LENGTH)}, OPTIONS, train={"shuffle": True})

    class Data(pl.LightningDataModule):
        def train_dataloader(self) -> Any:
            if kind == "swapped":
                return torch.utils.data.DataLoader(Augmented(LENGTH), 4, shuffle=True)
            return DataLoader(Augmented(LENGTH), shuffle=True, **OPTIONS)

    if kind == "swapped":
        return LoaderDataModule.from_datamodule(Data(), seed=5, seeding="sample")
    return Data()


def fit(pl: Any, kind: str, root: Path, *callbacks: Any, resumed: Path | None = None) -> list[Any]:
    """Trains with a Trainer of this name; returns what was seen."""
    model = type("Model", (Sees, pl.LightningModule), {})()
    trainer = quiet_trainer(root, pl.Trainer, max_epochs=EPOCHS, callbacks=[*callbacks])
    options = {"weights_only": True}
    if "weights_only" not in inspect.signature(pl.Trainer.fit).parameters:  # before 2.6
        options = {}
    trainer.fit(model, datamodule=data(pl, kind), ckpt_path=resumed, **options)
    seen: list[Any] = model.seen
    return seen


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("resumed_by", names, ids=NAMES)
def test_a_checkpoint_of_either_goes_on_in_either(
    pl: Any, resumed_by: Any, kind: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.ckpt"
    saves = type("SaveAt", (Saves, pl.Callback), {})(path, BATCHES + 2)
    whole = fit(pl, kind, tmp_path, saves)
    assert len(whole) == EPOCHS * BATCHES
    assert fit(resumed_by, kind, tmp_path, resumed=path) == whole[BATCHES + 2 :]


QUIET = """
import logging, sys
from importlib import import_module
name = sys.argv[1]
pl = import_module(name)
for each in (name, name.replace("pytorch", "fabric") if "." in name else "lightning_fabric"):
    logging.getLogger(each).setLevel(logging.WARNING)
from lit_loader import LoaderDataModule
pl.Trainer(accelerator="cpu", logger=False)
print("made")
"""


@pytest.mark.parametrize("name", NAMES)
def test_a_quietened_lightning_stays_quiet(name: str, tmp_path: Path) -> None:
    (tmp_path / "quiet.py").write_text(QUIET)
    assert run_python(tmp_path, tmp_path / "quiet.py", name) == "made\n"


def test_ours_are_of_both_names(pl: Any) -> None:
    assert issubclass(LoaderDataModule, pl.LightningDataModule)
    assert isinstance(data(pl, "swapped"), pl.LightningDataModule)
    assert all(issubclass(each, pl.Callback) for each in (LoaderMonitor, LoaderStateCallback))


def test_another_version_beside_it_is_told(tmp_path: Path) -> None:
    record = tmp_path / "pytorch_lightning-2.0.0.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Name: pytorch-lightning\nVersion: 2.0.0\n")
    script = tmp_path / "program.py"
    script.write_text("import lit_loader, pytorch_lightning as pl\npl.Trainer(logger=False)")
    printed = run_python(tmp_path, script, PYTHONPATH=str(tmp_path))
    assert printed.count("lit_loader: pytorch_lightning 2.0.0 ") == 1
    assert "pip install lightning==2.0.0" in printed
