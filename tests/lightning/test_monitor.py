"""LoaderMonitor in a Trainer: what it logs, shows, says, writes; that nothing else changes."""

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import TQDMProgressBar
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.utilities import CombinedLoader

from lit_loader import CachedDataset, DataLoader, LoaderDataModule
from lit_loader.errors import OptionError
from lit_loader.lightning.monitor import LoaderMonitor
from tests.profiling.test_chrome_trace import by_track, check
from tests.support.delays import DELAY, SAMPLES, Delayed, sleep
from tests.support.lightning_runs import Noting, Points, quiet_trainer
from tests.support.samples import Counting

# Many of the fits here are without validation, by a model that could validate.
pytestmark = pytest.mark.filterwarnings("ignore:You defined a `validation_step`")

FIGURES = {
    "wait_ms", "wait_fraction", "ready", "num_workers", "worker_busy", "worker_restarts",
    "sample_errors",
}  # fmt: skip


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


class Logging(Noting):
    """Logs a metric of its own at every step."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.log("mine", float(batch_idx), prog_bar=True)
        return super().training_step(batch, batch_idx)


class Anything(Noting):
    """Takes whatever a batch is; and its time, if told to."""

    waits = False

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if self.waits:
            sleep()
        return self.layer(torch.ones(1, 3)).mean()


def loader(length: int = 24, **options: Any) -> DataLoader[Any]:
    return DataLoader(Points(length), **{"batch_size": 2, **options})


def foreign() -> Any:
    return torch.utils.data.DataLoader(Points(24), 2)


def fit(
    root: Path, monitor: LoaderMonitor, *loaders: Any, model: Any = None, **options: Any
) -> tuple[Any, Notes]:
    notes = Notes()
    trainer = quiet_trainer(
        root, **{"callbacks": [monitor], "logger": notes, "log_every_n_steps": 4, **options}
    )
    trainer.fit(model or Noting(), *loaders)
    return trainer, notes


# --- figures ---


@pytest.mark.parametrize("num_workers", [0, 2])
def test_what_is_logged(tmp_path: Path, num_workers: int) -> None:
    _, notes = fit(tmp_path, LoaderMonitor(), loader(num_workers=num_workers), max_epochs=2)
    found = notes.of()
    assert [step for step, _ in found] == [3, 7, 11, 15, 19, 23]
    for _, row in found:
        assert set(row) == {f"loader/{name}" for name in FIGURES}
        assert row["loader/wait_ms"] > 0
        assert 0 < row["loader/wait_fraction"] <= 1
        assert 0 < row["loader/worker_busy"] <= 1
        assert (row["loader/worker_restarts"], row["loader/sample_errors"]) == (0, 0)


def test_the_figures_are_those_of_the_interval(tmp_path: Path) -> None:
    """Only the second four of twelve batches are slow."""

    class Late(Points):
        def __getitem__(self, index: int) -> Any:
            if 8 <= index < 16:
                sleep()
            return super().__getitem__(index)

    _, notes = fit(tmp_path, LoaderMonitor(), DataLoader(Late(24), batch_size=2))
    waits = [row["loader/wait_ms"] for _, row in notes.of()]
    assert waits[1] >= 2e3 * DELAY
    assert max(waits[0], waits[2]) < 1e3 * DELAY
    fractions = [row["loader/wait_fraction"] for _, row in notes.of()]
    assert fractions[1] > max(fractions[0], fractions[2])


@pytest.mark.parametrize(
    ("loaders", "names"),
    [
        (lambda: {"a": loader(), "b": loader()}, {"a/", "b/"}),
        (lambda: [loader(), loader()], {"0/", "1/"}),
        (
            lambda: CombinedLoader({"a": loader(), "b": [loader(), loader()]}),
            {"a/", "b/0/", "b/1/"},
        ),
        (lambda: {"ours": loader(), "foreign": foreign()}, {"ours/"}),
        (lambda: foreign(), set()),
    ],
    ids=["dict", "list", "nested", "mixed", "foreign"],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers")
def test_several_loaders(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], loaders: Any, names: set[str]
) -> None:
    monitor = LoaderMonitor()
    trainer, notes = fit(tmp_path, monitor, loaders(), model=Anything())
    expected = {f"loader/{name}{figure}" for name in names for figure in FIGURES}
    assert all(set(row) == expected for _, row in notes.of())
    assert len(notes.of()) == (3 if names else 0)
    assert {report.name for report in monitor.reports} == {
        f"train/{name}".rstrip("/") for name in names
    }
    assert len(capsys.readouterr().out.splitlines()) == len(names)
    assert ("wait %" in trainer.progress_bar_metrics) == bool(names)


def test_validation_has_figures_of_its_own(tmp_path: Path) -> None:
    monitor = LoaderMonitor()
    _, notes = fit(
        tmp_path, monitor, loader(), [loader(8), loader(4)], max_epochs=2, num_sanity_val_steps=2
    )
    found = notes.of("loader/val/")
    assert [step for step, _ in found] == [11, 23]
    assert set(found[0][1]) == {f"loader/val/{n}/{name}" for n in range(2) for name in FIGURES}
    batches = {report.name: report.statistics.batches for report in monitor.reports}
    assert batches == {"train": 24, "val/0": 2 * 4 + 2, "val/1": 2 * 2 + 2}


def test_validate_test_and_predict_are_left_alone(tmp_path: Path) -> None:
    monitor = LoaderMonitor()
    trainer = quiet_trainer(tmp_path, callbacks=[monitor], logger=(notes := Notes()))
    trainer.validate(Noting(), loader(), verbose=False)
    trainer.test(Noting(), loader(), verbose=False)
    trainer.predict(Noting(), loader())
    assert (notes.of(), monitor.reports) == ([], ())


# --- the progress bar ---


class Bar(TQDMProgressBar):
    """Notes what it was given to show."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: list[dict[str, Any]] = []

    def get_metrics(self, *args: Any) -> dict[str, Any]:
        metrics = super().get_metrics(*args)
        self.shown.append(dict(metrics))
        return metrics


def test_the_bar_shows_the_wait_beside_the_models_metrics(tmp_path: Path) -> None:
    with_it, without = Bar(), Bar()
    for monitor, bar in ((LoaderMonitor(), with_it), (LoaderMonitor(progress_bar=False), without)):
        fit(
            tmp_path, monitor, loader(), model=Logging(), enable_progress_bar=True,
            callbacks=[monitor, bar],
        )  # fmt: skip
    assert 0 < with_it.shown[-1]["wait %"] <= 100
    rest = [{k: v for k, v in shown.items() if k != "wait %"} for shown in with_it.shown]
    assert rest == without.shown
    assert without.shown[-1]["mine"] == 11.0


# --- flags ---


@pytest.mark.parametrize(
    "options",
    [{"fast_dev_run": 1}, {"logger": False}, {"limit_train_batches": 0}, {"overfit_batches": 4}],
    ids=lambda options: next(iter(options)),
)
@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.filterwarnings("ignore:The combination of `DataLoader` with `num_workers`")
def test_flags(tmp_path: Path, options: dict[str, Any], num_workers: int) -> None:
    monitor, common = LoaderMonitor(trace=True), {"batch_size": 2, "num_workers": num_workers}
    data = LoaderDataModule({"train": Points(24), "val": Points(8)}, common)
    trainer, _ = fit(tmp_path, monitor, data, **options)
    steps = trainer.global_step
    assert sum(r.statistics.batches for r in monitor.reports if r.name == "train") == steps
    if steps:
        check(json.loads((tmp_path / "loader_trace.json").read_text())["traceEvents"])


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_loader_without_length(tmp_path: Path, num_workers: int) -> None:
    """Lightning takes its batches one ahead, the first before training has begun."""
    monitor = LoaderMonitor()
    data = DataLoader(Counting(24, float), batch_size=4, num_workers=num_workers)

    fit(tmp_path, monitor, data, model=Anything(), max_epochs=2)
    (report,) = monitor.reports
    assert (report.statistics.batches, report.statistics.starts) == (12, 2)


def test_restarts_and_sample_errors(tmp_path: Path) -> None:
    class Bad(Points):
        def __getitem__(self, index: int) -> Any:
            if index in (3, 17):
                raise ValueError("a bad sample")
            return super().__getitem__(index)

    monitor = LoaderMonitor(print_verdict=False)
    data = DataLoader(Bad(24), batch_size=2, on_sample_error="skip")
    _, notes = fit(tmp_path, monitor, data)
    assert [row["loader/sample_errors"] for _, row in notes.of()] == [1, 0, 1]
    (report,) = monitor.reports
    assert report.statistics.sample_errors == 2
    assert report.verdict.endswith("2 samples could not be read")


# --- at the end ---


def test_a_cache_in_the_dataset(tmp_path: Path) -> None:
    """Of this fit alone, though the cache was filled before it."""
    cached = CachedDataset(Points(24), "1 MB")
    assert len([cached[index] for index in range(24)]) == 24
    monitor = LoaderMonitor(print_verdict=False)
    fit(tmp_path, monitor, DataLoader(cached, batch_size=4), max_epochs=2)
    (report,) = monitor.reports
    assert (report.statistics.cache_hits, report.statistics.cache_misses) == (48, 0)
    assert report.statistics.cache_bytes == cached.figures().bytes
    assert "; 100 % of the samples came from the cache" in report.verdict


def test_the_verdict_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monitor = LoaderMonitor()
    data = DataLoader(Delayed("fetch", sleep, 6), batch_size=SAMPLES)
    fit(tmp_path, monitor, data, model=Anything())
    (line,) = capsys.readouterr().out.splitlines()
    assert line == f"train loader: {monitor.reports[0].verdict}"
    said = (
        r"the loop waited \d+ % .* loads the data itself, \d+ % of that in __getitem__: set num_w"
    )
    assert re.search(said, line)
    fit(tmp_path, LoaderMonitor(print_verdict=False), data, model=Anything())
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt])
def test_a_run_that_is_cut_off(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], error: type[BaseException]
) -> None:
    class Stop(Noting):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if batch_idx == 5:
                raise error
            return super().training_step(batch, batch_idx)

    monitor, data = LoaderMonitor(trace=True), loader(num_workers=1)
    with pytest.raises((KeyError, SystemExit)):
        fit(tmp_path, monitor, data, model=Stop())
    data.close()
    assert [report.statistics.batches for report in monitor.reports] == [6]
    assert capsys.readouterr().out.count("train loader: ") == 1
    check(json.loads((tmp_path / "loader_trace.json").read_text())["traceEvents"])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_files(tmp_path: Path, num_workers: int) -> None:
    pytest.importorskip("matplotlib")
    monitor = LoaderMonitor(trace=True, plot=tmp_path / "deep" / "where.png", keep=7)
    fit(tmp_path, monitor, loader(num_workers=num_workers), loader(8), max_epochs=2)
    assert (tmp_path / "deep" / "where.png").read_bytes().startswith(b"\x89PNG")
    trace = json.loads((tmp_path / "loader_trace.json").read_text())
    check(trace["traceEvents"])
    assert trace["otherData"]["batches"] == {
        "train": "the last 7 of 24",
        "val": "the last 7 of 10",
    }
    train = by_track([event for event in trace["traceEvents"] if event["pid"] == 1])
    stages = [event["name"] for event in train["consumer"]]
    assert stages.count("transfer") == stages.count("step") == 7
    assert stages.count("wait" if num_workers else "fetch") == 7
    epochs = [event["args"]["epoch"] for event in train["consumer"] if event["args"]]
    assert set(epochs) == {1}


def test_matplotlib_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    told = r"plot=\.\.\.\) needs matplotlib: pip install matplotlib"
    with pytest.raises(OptionError, match=told):
        LoaderMonitor(plot=True)
    LoaderMonitor(trace=True)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("trace", 3, "trace must be a file's name, True or None, got trace=3"),
        ("plot", "", "plot must be a file's name, True or None, got plot=''"),
        ("progress_bar", "no", "progress_bar must be True or False, got progress_bar='no'"),
    ],
)
def test_options_are_checked(option: str, value: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        LoaderMonitor(**{option: value})


# --- transfer and step ---


def test_a_step_is_not_taken_for_the_transfer_after_it(tmp_path: Path) -> None:
    """Where Lightning takes batches ahead, none was given out between the last two steps."""
    data = DataLoader(Counting(12, float), batch_size=4)

    monitor, model = LoaderMonitor(print_verdict=False), Anything()
    model.waits = True
    fit(tmp_path, monitor, data, model=model)
    (report,) = monitor.reports
    assert report.step.p50 >= DELAY
    assert report.transfer.max < DELAY


# --- several processes ---


def test_another_rank(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trainer, "global_rank", 3)
    monkeypatch.setattr(Trainer, "is_global_zero", False)
    monitor = LoaderMonitor(trace=True)
    fit(tmp_path, monitor, loader())
    assert capsys.readouterr().out == ""
    assert [report.statistics.batches for report in monitor.reports] == [12]
    assert [each.name for each in tmp_path.iterdir()] == ["loader_trace.rank3.json"]
