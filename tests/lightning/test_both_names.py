"""``lightning.pytorch`` and ``pytorch_lightning``: both names are supported side by side."""

import importlib
from pathlib import Path
from typing import Any

import pytest

from lit_loader import LoaderDataModule, LoaderMonitor, LoaderStateCallback
from lit_loader.lightning import trainer_plugin
from tests.support.programs import run_python

NAMES = ("lightning.pytorch", "pytorch_lightning")

names = [importlib.import_module(name) for name in NAMES]
pytestmark = pytest.mark.skipif(
    len({each.__version__ for each in names}) > 1, reason="of different versions"
)


@pytest.mark.parametrize("pl", names, ids=NAMES)
def test_ours_are_of_both_names(pl: Any) -> None:
    assert issubclass(LoaderDataModule, pl.LightningDataModule)
    assert all(issubclass(each, pl.Callback) for each in (LoaderMonitor, LoaderStateCallback))


PROGRAM = f"""
import runpy, sys
callbacks = runpy.run_path({trainer_plugin.__file__!r})["callbacks"]
assert callbacks() == []
assert "lit_loader" not in sys.modules and "torch" not in sys.modules
import lit_loader
(callback,) = callbacks()
assert type(callback).__name__ == "LoaderStateCallback"
assert "lit_loader.loader" not in sys.modules
import pytorch_lightning as pl
pl.Trainer(logger=False)
"""


def test_another_version_beside_it_is_told_and_the_plugin_imports_little(tmp_path: Path) -> None:
    """Every Trainer of the environment loads it; and Hydra imports lit_loader in any program."""
    record = tmp_path / "pytorch_lightning-2.0.0.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Name: pytorch-lightning\nVersion: 2.0.0\n")
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    printed = run_python(tmp_path, script, PYTHONPATH=str(tmp_path))
    assert printed.count("lit_loader: pytorch_lightning 2.0.0 ") == 1
    assert "pip install lightning==2.0.0" in printed
