"""lit-loader-bench: a user's own dataset, the setting to use, errors in one line, Ctrl-C."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hydra import compose, initialize_config_dir

pytest.importorskip("psutil")

from lit_loader import OptionError
from lit_loader.bench import app, machine
from lit_loader.bench.grid import Setting
from lit_loader.bench.report import advice, chosen
from lit_loader.hydra.conf_folder import conf_folder
from tests.support.programs import run_python

MODULE = """
import time, torch

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

class NoFolder:
    def __init__(self):
        raise FileNotFoundError("no folder data/train")

class BadSample(Numbers):
    def __getitem__(self, index):
        raise ValueError("no image in 0.jpg")

class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        yield from range(64)

class Endless(Numbers):
    def __getitem__(self, index):
        print("began", flush=True)
        time.sleep(0.01)
        return index
"""
QUICK = (
    *("rounds=1", "seconds=0.02", "num_workers=[0,1]", "prefetch_factor=2", "threads=false"),
    *("auto=false", "loader.batch_size=4"),
)

Bench = Callable[..., dict[str, Any]]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Run it in this process, where `mine_for_bench` is a module of the user's."""
    (tmp_path / "mine_for_bench.py").write_text(MODULE)
    (tmp_path / "needs_more.py").write_text("import not_there_at_all\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(machine, "load_now", lambda: 0.0)

    def run(*overrides: str) -> dict[str, Any]:
        with initialize_config_dir(str(conf_folder()), version_base="1.3"):
            cfg = compose("lit_loader/bench/default", overrides=[*QUICK, *overrides])
        assert app.run(cfg, tmp_path) == 0
        found: dict[str, Any] = json.loads((tmp_path / "results.json").read_text())
        return found

    return run


@pytest.mark.time
def test_a_dataset(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("+dataset.length=40", "loader.shuffle=true", "threads=true", "auto=true")
    found = bench("dataset._target_=mine_for_bench.Numbers", *options, "step_ms=1")
    settings = [(s["loader"], s["num_workers"], s["threads"]) for s in found["settings"]]
    assert settings == [
        *(("lit_loader", 0, False), ("torch", 0, False)),
        *(("lit_loader", 1, False), ("torch", 1, False)),
        *(("lit_loader", 1, True), ("lit_loader", "auto", False)),
    ]
    for setting in found["settings"]:
        assert setting["failure"] == "" and setting["rates"][0] > 0 and setting["memory"][0] > 10
        assert setting["first"][0] > 0 and 0 <= setting["waits"][0] < 1
    printed = capsys.readouterr().out
    assert printed.count("◀") == 1 and "step waits" in printed
    words = [line.split()[0] for line in found["advice"]]
    assert words[:3] == ["use", "torch's", "not"] and words[-3:] == ["Limit:", "Evidence:", "Fix:"]
    assert all(line in printed for line in found["advice"])


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["dataset=mine_for_bench.Numbrs"], ["cannot be made", "'mine_for_bench.Numbrs'"]),
        (["dataset=mine_for_bnch.Numbers"], ["No module named 'mine_for_bnch'"]),
        (["dataset=needs_more.Numbers"], ["No module named 'not_there_at_all'", "needs_more.py:1"]),
        (["dataset=mine_for_bench.NoFolder"], ["no folder data/train", "in __init__"]),
        (["dataset=mine_for_bench.BadSample"], ["no image in 0.jpg", "in __getitem__)"]),
        ([], ["name your dataset: dataset=my_module.MyDataset"]),
        (["dataset=mine_for_bench.Numbers", "+loader.nun_workers=1"], ["did you mean num_work"]),
        (["rounds=0"], ["rounds must be a whole number of at least 1"]),
        (["num_workers=[-1]"], ["num_workers must be a list of whole numbers"]),
        (["seconds=0"], ["seconds must be more than 0"]),
        (["auto=maybe"], ["auto must be True or False"]),
    ],
    ids=range(11),
)
def test_what_is_wrong_is_one_line(bench: Bench, overrides: list[str], words: list[str]) -> None:
    with pytest.raises(OptionError) as caught:
        bench(*overrides)
    assert "\n" not in caught.value.text
    for each in words:
        assert each in caught.value.text


@pytest.mark.time
def test_warnings_come_once_below_the_table(
    bench: Bench, capsys: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    bench("dataset=mine_for_bench.Stream", "num_workers=[0,2]")
    assert not [each for each in recwarn if "[LL201]" in str(each.message)]
    assert capsys.readouterr().out.count("[LL201]") == 1


def setting(workers: Any, rates: list[float], loader: str = "lit_loader", **more: Any) -> Setting:
    verdict = "Limit: a\nEvidence: b\nFix: raise num_workers"
    return Setting(loader, workers, 2, rates=rates, verdict=verdict, **more)


SETTINGS = [
    setting(0, [100, 102]), setting(1, [300, 310]), setting(2, [590, 600]), setting(4, [600, 610]),
    setting(4, [605, 615], threads=True), setting("auto", [610, 620]),
    setting(2, [200, 220], "torch"), setting(4, [300, 310], "torch"),
]  # fmt: skip


def lines(settings: list[Setting], step: float | None = None, load: float = 0.0) -> str:
    grid: Any = SimpleNamespace(settings=settings, warned={})
    return "\n".join(advice(grid, step, 4, load))


def test_the_fewest_workers_that_are_as_good_as_the_fastest() -> None:
    assert chosen(SETTINGS) is SETTINGS[2]
    assert chosen(SETTINGS, 250) is SETTINGS[1], "they keep up with the step"
    assert chosen([SETTINGS[0], setting("auto", [600])]).num_workers == "auto"  # type: ignore[union-attr]
    assert chosen([SETTINGS[2], setting(2, [900], threads=True)]).threads  # type: ignore[union-attr]
    assert chosen([]) is None
    text = lines(SETTINGS)
    assert text.startswith("use num_workers=2 prefetch_factor=2: 595 samples/s (590 to 600)\n")
    assert "torch's loader: at best 305 samples/s (300 to 310) with num_workers=4" in text
    assert "1.95 x" in text and "not sure" not in text


def test_more_workers_are_not_advised_where_they_were_measured() -> None:
    assert "Fix: none by workers: more were not faster" in lines(SETTINGS)
    assert "Fix: raise num_workers" in lines([setting(1, [10, 10]), setting(2, [20, 20])])


def test_when_it_is_not_sure() -> None:
    assert "the rounds differ by 40 %" in lines([setting(2, [80, 100, 120])])
    assert "not sure: there was one round only" in lines([setting(2, [80])])
    assert "other programs used 3.0 of 4 CPU cores" in lines(SETTINGS, load=3.0)


def test_help_is_quick(tmp_path: Path) -> None:
    code = (
        "import sys; sys.argv = ['lit-loader-bench', '--help']\n"
        "from lit_loader.bench.app import main\n"
        "try: main()\n"
        "finally: assert not {'torch', 'rich', 'psutil'} & set(sys.modules)"
    )
    printed = run_python(tmp_path, "-c", code)
    for option in ("num_workers=", "rounds=", "seconds=", "dataset._target_="):
        assert option in printed


def test_ctrl_c_keeps_what_was_measured(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MODULE)
    arguments = ("dataset=mine.Endless", "num_workers=0", "auto=false", "seconds=0.02", "rounds=99")
    command = [sys.executable, "-m", "lit_loader.bench", *arguments, f"hydra.run.dir={tmp_path}"]
    with subprocess.Popen(
        command, cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as program:  # fmt: skip
        assert program.stdout is not None
        for _ in range(200):  # turns of both loaders, in several rounds
            program.stdout.readline()
        program.send_signal(signal.SIGINT)
        out, _ = program.communicate(timeout=110)
    assert program.returncode == 130, out
    assert "use num_workers=0" in out
    assert json.loads((tmp_path / "results.json").read_text())["chosen"] == "num_workers=0"
