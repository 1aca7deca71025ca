"""LoaderMonitor in a Trainer: what it logs, shows, says; that nothing else changes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.utilities import CombinedLoader

import lit_loader
from lit_loader import DataLoader, LoaderMonitor
from tests.support.delays import DELAY, delay
from tests.support.lightning_runs import Noting, Points, quiet_trainer

# Many of the fits here are without validation, by a model that could validate.
pytestmark = pytest.mark.filterwarnings("ignore:You defined a `validation_step`")

FIGURES = {"wait_fraction", "samples_per_second", "worker_busy", "num_workers", "sample_errors"}


class Notes(DummyLogger):
    """Keeps what it is given, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[int | None, dict[str, float]]] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:  # type: ignore[override]
        self.rows.append((step, dict(metrics)))

    def of(self, prefix: str = "loader/") -> list[tuple[int | None, dict[str, float]]]:
        """The rows of ours."""
        return [row for row in self.rows if any(key.startswith(prefix) for key in row[1])]


class Anything(Noting):
    """Takes whatever a batch is."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.layer(torch.ones(1, 3)).mean()


def loader(length: int = 24, **options: Any) -> DataLoader[Any]:
    return DataLoader(Points(length), **{"batch_size": 2, **options})


def fit(
    root: Path, monitor: LoaderMonitor, *loaders: Any, model: Any = None, **options: Any
) -> tuple[Any, Notes]:
    notes = Notes()
    trainer = quiet_trainer(
        root, **{"callbacks": [monitor], "logger": notes, "log_every_n_steps": 4, **options}
    )
    trainer.fit(model or Noting(), *loaders)
    return trainer, notes


@pytest.mark.parametrize("num_workers", [0, 2])
def test_what_is_logged(tmp_path: Path, num_workers: int) -> None:
    _, notes = fit(tmp_path, LoaderMonitor(), loader(num_workers=num_workers), max_epochs=2)
    found = notes.of()
    assert [step for step, _ in found] == [3, 7, 11, 15, 19, 23]
    for _, row in found:
        assert set(row) == {f"loader/{name}" for name in FIGURES}
        assert 0 < row["loader/wait_fraction"] <= 1
        assert row["loader/samples_per_second"] > 0
        assert (row["loader/worker_busy"] > 0) == (num_workers > 0)
        assert row["loader/num_workers"] == num_workers and row["loader/sample_errors"] == 0


def counted(samples: list[Any]) -> Any:
    lit_loader.note(tokens=5 * len(samples))
    return torch.stack(samples)


def test_tokens_take_the_place_of_samples(tmp_path: Path) -> None:
    _, notes = fit(tmp_path, LoaderMonitor(), loader(collate_fn=counted))
    assert all(row["loader/tokens_per_second"] > 0 for _, row in notes.of())
    assert not any("loader/samples_per_second" in row for _, row in notes.of())


def test_the_figures_are_those_of_the_interval(tmp_path: Path) -> None:
    """Only the second four of twelve batches are slow, and have bad samples."""

    class Late(Points):
        def __getitem__(self, index: int) -> Any:
            if index == 9:
                raise ValueError("a bad sample")
            if 8 <= index < 16:
                delay()
            return super().__getitem__(index)

    monitor = LoaderMonitor()
    _, notes = fit(tmp_path, monitor, DataLoader(Late(24), batch_size=2, on_sample_error="skip"))
    rates = [row["loader/samples_per_second"] for _, row in notes.of()]
    assert rates[1] <= 1 / DELAY
    assert [row["loader/sample_errors"] for _, row in notes.of()] == [0, 1, 0]
    assert monitor.statistics["train"].sample_errors == 1


@pytest.mark.parametrize(
    ("loaders", "names"),
    [
        (lambda: [loader(), loader()], {"0/", "1/"}),
        (
            lambda: CombinedLoader({"a": loader(), "b": [loader(), loader()]}),
            {"a/", "b/0/", "b/1/"},
        ),
        (
            lambda: {"ours": loader(), "foreign": torch.utils.data.DataLoader(Points(24), 2)},
            {"ours/"},
        ),
        (lambda: torch.utils.data.DataLoader(Points(24), 2), set()),
    ],
    ids=["list", "nested", "mixed", "foreign"],
)
@pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers")
def test_several_loaders(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], loaders: Any, names: set[str]
) -> None:
    monitor = LoaderMonitor()
    trainer, notes = fit(tmp_path, monitor, loaders(), model=Anything())
    expected = {f"loader/{name}{figure}" for name in names for figure in FIGURES}
    assert all(set(row) == expected for _, row in notes.of())
    assert len(notes.of()) == (3 if names else 0)
    assert set(monitor.statistics) == {f"train/{name}".rstrip("/") for name in names}
    assert capsys.readouterr().out.count("Limit: ") == len(names)
    assert ("wait %" in trainer.progress_bar_metrics) == bool(names)


def test_validation_has_figures_of_its_own(tmp_path: Path) -> None:
    monitor, data = LoaderMonitor(), [loader(8), loader(4)]
    _, notes = fit(tmp_path, monitor, loader(), data, max_epochs=2, num_sanity_val_steps=2)
    found = notes.of("loader/val/")
    assert [step for step, _ in found] == [11, 23]
    assert set(found[0][1]) == {f"loader/val/{n}/{name}" for n in range(2) for name in FIGURES}
    batches = {name: statistics.batches for name, statistics in monitor.statistics.items()}
    assert batches == {"train": 24, "val/0": 2 * 4 + 2, "val/1": 2 * 2 + 2}


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt])
def test_a_run_that_is_cut_off(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], error: type[BaseException]
) -> None:
    class Stop(Noting):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if batch_idx == 5:
                raise error
            return super().training_step(batch, batch_idx)

    monitor, data = LoaderMonitor(), loader(num_workers=1)
    with pytest.raises((KeyError, SystemExit)):
        fit(tmp_path, monitor, data, model=Stop())
    data.close()
    assert monitor.statistics["train"].batches == 6
    assert f"train loader: {monitor.statistics['train']}\n" in capsys.readouterr().out
