"""A project of its own, in lightning-hydra-template's layout, that has the wheel installed."""

from __future__ import annotations

import json
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.support.commands import run_python
from tests.support.hydra_apps import DATA, ROOT

PROJECT = {
    "src/__init__.py": "",
    "src/data/__init__.py": "",
    "src/data/numbers_data.py": DATA,
    "src/models/__init__.py": "",
    "src/models/line.py": """
import lightning
import torch


class Line(lightning.LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.lr, self.layer = lr, torch.nn.Linear(1, 1)
        self.sizes = {"train": [], "val": []}

    def training_step(self, batch):
        self.sizes["train"].append(len(batch))
        return (self.layer(batch) - 2 * batch).square().mean()

    def validation_step(self, batch):
        self.sizes["val"].append(len(batch))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), self.lr)
""",
    "src/train.py": """
import json
import sys
from pathlib import Path

import hydra

sys.path.insert(0, str(Path(__file__).parents[1]))


@hydra.main(version_base="1.3", config_path="../configs", config_name="train.yaml")
def main(cfg):
    import lightning as L

    import lit_loader

    L.seed_everything(cfg.seed)
    datamodule = hydra.utils.instantiate(cfg.data)
    model = hydra.utils.instantiate(cfg.model)
    callbacks = [hydra.utils.instantiate(each) for each in cfg.callbacks.values()]
    trainer = hydra.utils.instantiate(cfg.trainer, callbacks=callbacks, logger=False)
    trainer.fit(model=model, datamodule=datamodule)
    told = {
        "sizes": model.sizes,
        "package": lit_loader.__file__,
        "loader": type(trainer.train_dataloader).__module__,
        "num_workers": trainer.train_dataloader.num_workers,
    }
    Path(cfg.paths.output_dir, "told.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main()
""",
    "configs/train.yaml": """
defaults:
  - _self_
  - lit_loader/datamodule@data: default
  - data: numbers
  - model: line
  - callbacks: default
  - trainer: default
  - paths: default
  - experiment: null
  - override lit_loader/loader@loader: workers
seed: 1
""",
    "configs/data/numbers.yaml": """
datasets:
  train: {_target_: src.data.numbers_data.Numbers, length: 10, _partial_: true}
  val: {_target_: src.data.numbers_data.Numbers, length: 6, _partial_: true}
val:
  batch_size: 6
""",
    "configs/model/line.yaml": "_target_: src.models.line.Line\nlr: 0.001\n",
    "configs/callbacks/default.yaml": "defaults: [/lit_loader/callbacks@_here_: monitor]\n",
    "configs/trainer/default.yaml": """
_target_: lightning.pytorch.Trainer
default_root_dir: ${paths.output_dir}
accelerator: cpu
max_epochs: 1
num_sanity_val_steps: 0
log_every_n_steps: 1
enable_progress_bar: false
enable_model_summary: false
enable_checkpointing: false
""",
    "configs/paths/default.yaml": "output_dir: ${hydra:runtime.output_dir}\n",
    "configs/experiment/large.yaml": """# @package _global_
loader: {batch_size: 5, num_workers: 1}
""",
}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a fresh environment: the wheel, and besides it what this environment has."""
    pytest.importorskip("pip")
    directory = tmp_path_factory.mktemp("installed")
    run_python(ROOT, "-m", "hatchling", "build", "-t", "wheel", "-d", directory)
    (wheel,) = directory.glob("*.whl")
    run_python(directory, "-m", "venv", "--without-pip", directory / "venv")
    python = directory / "venv" / "bin" / "python"
    run_python(
        directory, "-m", "pip", "--python", python, "install", "-q", "--no-index", "--no-deps",
        "--disable-pip-version-check", wheel,
    )  # fmt: skip
    # Mere directories: the .pth files in them, that of an editable lit_loader too, are not read.
    (site,) = (directory / "venv" / "lib").glob("python*/site-packages")
    shared = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    shared += [path for path in sys.path if Path(path).name == "site-packages"]
    (site / "shared.pth").write_text("".join(f"{path}\n" for path in dict.fromkeys(shared)))
    return python


def test_two_lines_in_a_project_of_its_own(installed: Path, tmp_path: Path) -> None:
    for name, text in PROJECT.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    ours = [line for line in PROJECT["configs/train.yaml"].splitlines() if "lit_loader" in line]
    assert len(ours) == 2
    printed = run_python(
        tmp_path, "src/train.py", "experiment=large", "hydra.run.dir=run",
        python=installed, PYTHONPATH="",
    )  # fmt: skip
    told = json.loads((tmp_path / "run" / "told.json").read_text())
    assert told["sizes"] == {"train": [5, 5], "val": [6]}
    assert (told["loader"], told["num_workers"]) == ("lit_loader", 1)
    assert Path(told["package"]).is_relative_to(installed.parent.parent)
    assert "the trainer waited" in printed
