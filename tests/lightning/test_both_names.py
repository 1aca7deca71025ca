"""``lightning.pytorch`` and ``pytorch_lightning``: the same programs, with a Trainer of either."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from lit_loader import LoaderDataModule, LoaderMonitor, LoaderStateCallback
from tests.support import both_names as program
from tests.support.both_names import BATCHES, EPOCHS, KINDS
from tests.support.commands import run_python

NAMES = ("lightning.pytorch", "pytorch_lightning")

names = [importlib.import_module(name) for name in NAMES]
pytestmark = pytest.mark.skipif(
    len({each.__version__ for each in names}) > 1, reason="of different versions"
)


@pytest.fixture(params=names, ids=NAMES)
def pl(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("resumed_by", names, ids=NAMES)
def test_a_checkpoint_of_either_goes_on_in_either(
    pl: Any, resumed_by: Any, kind: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.ckpt"
    whole = program.fit(pl, kind, tmp_path, program.save_at(pl, path, BATCHES + 2))
    assert len(whole) == EPOCHS * BATCHES
    assert program.fit(resumed_by, kind, tmp_path, resumed=path) == whole[BATCHES + 2 :]


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


def test_without_a_val_split_no_validation_is_asked_for(pl: Any, tmp_path: Path) -> None:
    model = program.model(pl)
    program.trainer(pl, tmp_path).fit(model, program.data(pl, "datasets"))
    assert len(model.seen) == EPOCHS * BATCHES


def test_ours_are_of_both_names(pl: Any) -> None:
    assert issubclass(LoaderDataModule, pl.LightningDataModule)
    assert isinstance(program.data(pl, "swapped"), pl.LightningDataModule)
    assert all(issubclass(each, pl.Callback) for each in (LoaderMonitor, LoaderStateCallback))


def test_another_version_beside_it_is_told(tmp_path: Path) -> None:
    record = tmp_path / "pytorch_lightning-2.0.0.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Name: pytorch-lightning\nVersion: 2.0.0\n")
    script = tmp_path / "program.py"
    script.write_text("import lit_loader, pytorch_lightning as pl\npl.Trainer(logger=False)")
    printed = run_python(tmp_path, script, PYTHONPATH=str(tmp_path))
    assert printed.count("pytorch_lightning 2.0.0 is installed beside lightning") == 1
    assert "pip install lightning==2.0.0" in printed
