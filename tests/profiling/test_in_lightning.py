"""``num_workers="auto"`` under Lightning's Trainer."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lightning")

from lightning.pytorch.demos.boring_classes import BoringModel, RandomDataset
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import default_collate

import lit_loader
from lit_loader import LoaderDataModule, LoaderMonitor
from lit_loader.profiling import auto_workers, resources
from tests.profiling.test_auto_workers import Random
from tests.support.lightning_runs import quiet_trainer

DATA = RandomDataset(32, 240)


def module(**options: Any) -> LoaderDataModule:
    return LoaderDataModule(
        {"train": DATA},
        {"batch_size": 4, "seed": 1, "num_workers": "auto", "persistent_workers": True, **options},
    )


class Seen(BoringModel):
    validation_step = None  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[bytes] = []

    def training_step(self, batch: Any, index: int) -> Any:
        self.batches.append(batch.numpy().tobytes())
        return super().training_step(batch, index)


def fit(data: LoaderDataModule, folder: Path, epochs: int = 1, **options: Any) -> tuple[Any, Seen]:
    trainer = quiet_trainer(
        folder, max_epochs=epochs, log_every_n_steps=10, logger=CSVLogger(folder),
        limit_val_batches=0, callbacks=[LoaderMonitor(print_verdict=False)],
    )  # fmt: skip
    model = Seen()
    trainer.fit(model, datamodule=data, **options)
    return trainer, model


def test_a_fit_is_the_same_and_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, alone = fit(module(num_workers=0, persistent_workers=False), tmp_path / "alone", 2)
    monkeypatch.setattr(auto_workers, "LEAST", 0)
    monkeypatch.setattr(auto_workers, "Controller", lambda workers: Random(workers))
    trainer, found = fit(module(), tmp_path / "auto", 2)
    assert found.batches == alone.batches
    log = (Path(trainer.logger.log_dir) / "metrics.csv").read_text()
    assert "loader/num_workers" in log
    monitor = next(each for each in trainer.callbacks if isinstance(each, LoaderMonitor))
    (report,) = monitor.reports
    assert "in the end: by chance (workers computed for" in report.verdict
    assert resources.ranks_here == 1


def test_a_number_that_was_found_is_no_part_of_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Resumed, it is found anew, and the batches are those that would have come."""
    monkeypatch.setattr(auto_workers, "LEAST", 0)
    monkeypatch.setattr(auto_workers, "Controller", lambda workers: Random(workers))
    trainer, _ = fit(module(), tmp_path / "auto", 1)
    trainer.save_checkpoint(tmp_path / "auto.ckpt")
    _, whole = fit(module(), tmp_path / "whole", 2)
    _, resumed = fit(module(), tmp_path / "resumed", 2, ckpt_path=tmp_path / "auto.ckpt")
    assert resumed.batches == whole.batches[len(whole.batches) // 2 :]


def noting(samples: list[Any]) -> Any:
    lit_loader.note(tokens=5 * len(samples))
    return default_collate(samples)


def test_tokens_a_second_are_logged(tmp_path: Path) -> None:
    options = {"num_workers": 2, "persistent_workers": False}
    trainer, _ = fit(module(collate_fn=noting, **options), tmp_path)
    log = (Path(trainer.logger.log_dir) / "metrics.csv").read_text()
    assert "loader/tokens_per_second" in log
    monitor = next(each for each in trainer.callbacks if isinstance(each, LoaderMonitor))
    (report,) = monitor.reports
    assert report.statistics.tokens == 5 * 240 and "tokens a second" in report.verdict
