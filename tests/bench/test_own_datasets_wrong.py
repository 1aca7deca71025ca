"""A user's own dataset that cannot be measured: one line says what was typed, why, what to do."""

import json
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir

from lit_loader import OptionError
from lit_loader.bench import runner
from lit_loader.hydra.conf_folder import conf_folder

for needed in ("rich", "psutil"):
    pytest.importorskip(needed)

MODULE = """
import torch

class Numbers:
    def __init__(self, length=64):
        self.length = length
    def __len__(self):
        return self.length
    def __getitem__(self, index):
        return index

class Augmented(Numbers):
    def __getitem__(self, index):
        return torch.rand(2)

class NoLength:
    def __getitem__(self, index):
        return index

class NoFolder:
    def __init__(self):
        raise FileNotFoundError("no folder data/train")

class BadSample(Numbers):
    def __getitem__(self, index):
        raise ValueError("no image in 0.jpg")

class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        yield from range(64)
"""
QUICK = (
    *("quick=true", "grid.seconds=0.02", "grid.num_workers=[0,1]", "grid.prefetch_factor=[2]"),
    *("loader.batch_size=4", "loaders=lit_loader"),
)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run the bench in this process, where `mine` is a module of the user's."""
    (tmp_path / "mine_for_bench.py").write_text(MODULE)
    (tmp_path / "needs_more.py").write_text("import not_there_at_all\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("COLUMNS", "160")

    def run(*overrides: str) -> Any:
        with initialize_config_dir(str(conf_folder()), version_base="1.3"):
            cfg = compose("lit_loader/bench/default", overrides=[*QUICK, *overrides])
        assert runner.run(cfg, tmp_path) == 0
        return json.loads((tmp_path / "results.json").read_text())["grid"]

    return run


@pytest.mark.process
@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["dataset=mine_for_bench.Numbrs"], ["has no 'Numbrs': did you mean 'Numbers'?"]),
        (["dataset._target_=mine_for_bench.Numbrs"], ["did you mean 'Numbers'?"]),
        (["dataset=mine_for_bnch.Numbers"], ["no module 'mine_for_bnch'", "in the folder that"]),
        (["dataset=Numbers"], ["name its module, too, as in dataset=my_module.Numbers"]),
        (["dataset=needs_more.Numbers"], ["No module named 'not_there_at_all'", "needs_more.py:1"]),
        (["dataset=mine_for_bench.NoFolder"], ["no folder data/train", "in __init__"]),
        (["dataset=mine_for_bench.NoLength"], ["has no len()", "give the dataset __len__"]),
        (["dataset=mine_for_bench.BadSample"], ["no image in 0.jpg", "in __getitem__, index=0)"]),
    ],
    ids=range(8),
)
def test_what_is_wrong_is_one_line(
    bench: Any, overrides: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(OptionError) as caught:
        bench(*overrides)
    text = caught.value.text
    typed = overrides[0].replace("._target_", "")
    assert text.startswith(f"{typed} cannot be ") and "\n" not in text
    for each in words:
        assert each in text
    if "BadSample" not in typed and "NoLength" not in typed:  # which are found by loading
        assert capsys.readouterr() == ("", "")


def test_arguments_without_a_class_are_refused(bench: Any) -> None:
    with pytest.raises(OptionError, match=r"write dataset._target_=my.Dataset \+dataset.length=…"):
        bench("+dataset.length=8")


@pytest.mark.time
def test_what_a_setting_cannot_do_is_a_line_below_the_table(
    bench: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    bench("dataset=mine_for_bench.Augmented")
    printed = capsys.readouterr().out
    (line,) = (line for line in printed.splitlines() if line.startswith("no figures: "))
    assert 'num_workers=1 prefetch_factor=2 worker_method="thread": ' in line
    assert "global generator" in line and "get_rng()" in line
    assert "Augmented in 1 round, after one that does not count" in printed


@pytest.mark.time
def test_busy_is_the_same_in_the_table_and_below_it(bench: Any) -> None:
    """The table's has no start of the workers in it, as the line below has none."""
    from lit_loader.bench.advice import Point
    from lit_loader.profiling.records import StageTimes, WorkerTimes
    from lit_loader.profiling.verdict import LoaderStatistics, cause

    worker = WorkerTimes(0, 10, 80, 0.9, 0.45)
    point = Point(1, 2)
    point.statistics = LoaderStatistics(
        batches=10, samples=80, seconds=2.0, starts=1, startup=1.0, waited=2.0,
        fetch=StageTimes(total=0.9, mean=0.09), workers=(worker,), busy_fraction=0.45,
        num_workers=1,
    )  # fmt: skip
    running = point.running
    assert running is not None
    assert f"workers were {100 * running.busy_fraction:.0f} % busy" in cause(running)


@pytest.mark.time
def test_a_stream_that_is_not_divided_is_told_once(
    bench: Any, capsys: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    bench("dataset=mine_for_bench.Stream", "grid.num_workers=[0,2]")
    assert not [each for each in recwarn if "[LL201]" in str(each.message)]
    printed = capsys.readouterr().out
    assert printed.count("has not asked which of them it serves") == 1
