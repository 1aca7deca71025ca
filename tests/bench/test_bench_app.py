"""lit-loader-bench: every case measures, errors are one line, Ctrl-C keeps what was measured."""

import csv
import importlib.metadata
import importlib.util
import json
import mmap
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_dir

from lit_loader import OptionError
from lit_loader.bench import machine, runner, settings
from lit_loader.bench.datasets import Pool, tensors
from lit_loader.bench.loaders import LOADERS, Setup
from lit_loader.bench.report import FORMAT
from lit_loader.core.system.processors import usable_processors
from lit_loader.hydra.conf_folder import conf_folder
from tests.support.programs import run_python
from tests.support.samples import OfLength

for needed in ("rich", "matplotlib"):  # of which the modules above import nothing yet
    pytest.importorskip(needed)

Run = Callable[..., tuple[int, Any]]


class Squares(OfLength):
    """What a user brings."""

    def __init__(self, length: int = 64, fail: bool = False) -> None:
        super().__init__(length)
        self.fail = fail

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.fail:
            raise LookupError("no such file")
        return torch.full((8,), index * index)


class Unreadable(OfLength):
    """Notes each attempt to read a sample."""

    def __init__(self, notes: str) -> None:
        super().__init__(64)
        self.notes = notes

    def __getitem__(self, index: int) -> torch.Tensor:
        with open(self.notes, "a") as file:
            file.write("x")
        raise LookupError("no such file")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Run it in this process, quickly; returns exit code and report."""
    monkeypatch.setenv("COLUMNS", "160")
    with initialize_config_dir(str(conf_folder()), version_base="1.3"):

        def go(*overrides: str, quick: bool = True) -> tuple[int, Any]:
            cfg = compose(
                "lit_loader/bench/default", overrides=[f"quick={str(quick).lower()}", *overrides]
            )
            code = runner.run(cfg, tmp_path)
            return code, json.loads((tmp_path / "results.json").read_text())

        yield go


# --- every case ---


# Of these cases only so much in every run of the tests: starting processes takes long.
SOME = {"transport": "rows=32x", "start": "rows=fork\\,", "workers": "rows=decoding\\,"}


@pytest.mark.time
@pytest.mark.parametrize(
    ("case", "overrides"),
    [
        *((case, [SOME[case]] if case in SOME else []) for case in settings.CASES),
        *(pytest.param(case, [], marks=pytest.mark.slow) for case in SOME),
    ],
)
def test_every_case_measures(case: str, overrides: list[str], run: Run, tmp_path: Path) -> None:
    for module in settings.CASES[case][1]:
        pytest.importorskip(module)
    code, report = run(f"cases={case}", "loaders=[lit_loader,torch]", *overrides)
    assert code == 0
    found = report["measurements"]
    assert {row["case"] for row in found} == {case}
    for row in found:
        ours = row["loaders"]["lit_loader"]
        assert ours["cannot"] is None, row
        assert ours["figure"]["median"] > 0
        assert len(ours["rounds"]) == 1
        torchs = row["loaders"].get("torch")
        if torchs and torchs["figure"]:
            ratio = torchs["figure"]["median"] / ours["figure"]["median"]
            assert ours["vs_torch"]["median"] == pytest.approx(ratio)
        if row["limit"]:
            share = row["limit"]["median"] / ours["figure"]["median"]
            assert ours["of_limit"]["median"] == pytest.approx(share)
    assert (tmp_path / f"{case}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.time
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
@pytest.mark.parametrize("loader", ["torchdata", "spdl", "grain"])
def test_every_loader_gives_the_batches(loader: str) -> None:
    pytest.importorskip(loader)
    setup = Setup(4, num_workers=1)
    opened = LOADERS[loader](Pool(setup.length(4), tensors(2)), setup)
    try:
        for _ in range(2):
            opened.before_turn()
            batches = list(opened.epoch())
            assert len(batches) == 4 + 2 * setup.ahead
            assert {tuple(batch.shape) for batch in batches} == {(4, 2)}
            opened.after_turn()
    finally:
        opened.close()


# --- what is written ---


@pytest.mark.time
def test_reports_agree(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, report = run("cases=transport", "rows=batch of 1", "loaders=lit_loader")
    assert code == 0
    assert report["format"] == FORMAT
    assert report["interrupted"] is False
    assert report["machine"]["versions"]["torch"] == importlib.metadata.version("torch")
    assert report["machine"]["cores"] == usable_processors()
    with (tmp_path / "results.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [line["row"] for line in lines] == [row["name"] for row in report["measurements"]]
    figure = report["measurements"][0]["loaders"]["lit_loader"]["figure"]["median"]
    assert float(lines[0]["median"]) == figure
    printed = capsys.readouterr().out
    assert f"written to {tmp_path}: results.json, results.csv, transport.png" in printed
    assert "batch of 1" in printed


# --- the user's own dataset that nobody can read ---


def test_it_is_refused_at_its_first_setting(run: Run, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    options = f"dataset._target_={__name__}.Unreadable", f"+dataset.notes={notes}"
    with pytest.raises(OptionError, match="Unreadable cannot be loaded: LookupError: no such file"):
        run(*options, "loaders=[lit_loader,torch]")
    assert len(notes.read_text()) == 2  # once by each loader


# --- check ---


def test_check_of_ratios(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("cases=busy", "rows=consumer", "loaders=[lit_loader,torch]")
    _, report = run(*options)
    earlier = tmp_path / "earlier.json"
    earlier.write_text(json.dumps(report))
    code, _ = run(*options, f"check={earlier}", "tolerance=0.95")
    assert code == 0
    assert "check: 2 of 2 ratios are as good as before" in capsys.readouterr().out
    ours = report["measurements"][0]["loaders"]["lit_loader"]
    ours["of_limit"]["median"] *= 100
    earlier.write_text(json.dumps(report))
    code, _ = run(*options, f"check={earlier}", "tolerance=0.95")
    assert code == 1
    printed = capsys.readouterr().out
    assert "check: WORSE busy, steps of 5 ms, the consumer slower, of the limit: " in printed
    assert "95 % are tolerated" in printed


# --- refusals ---


@pytest.mark.process
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["cases=[trnsport]"], "unknown case 'trnsport': did you mean 'transport'?"),
        (
            ["cases=[growth]"],
            "unknown case 'growth': there are transport, decoding, stragglers, busy, start, work",
        ),
        (["cases=[]"], "no case was chosen"),
        (["loaders=spld"], "unknown loader 'spld': did you mean 'spdl'?"),
        (["rounds=0", "quick=false"], "rounds must be a whole number of at least 1, got rounds=0"),
        (["num_workers=0"], "num_workers must be a whole number of at least 1, got num_workers=0"),
        (["+grid.second=1"], "unknown option 'grid.second': did you mean 'seconds'?"),
        (["grid.num_workers=[-1]"], "grid.num_workers must be a list of whole numbers"),
        (["grid.auto=2"], "grid.auto must be true or false"),
        (["grid.seconds=0"], "grid.seconds must be more than 0"),
        (["rows=nothing", "cases=busy"], "no row of busy has 'nothing' in its name"),
        (["check=/nowhere.json"], "check cannot be read: .*, got check=/nowhere.json"),
        (["dataset._target_=my.Data"], "dataset=my.Data cannot be made: there is no module 'my'"),
        (
            [f"dataset._target_={__name__}.Squares", "+loader.nun_workers=1"],
            "loader: unknown option 'nun_workers': did you mean 'num_workers'?",
        ),
        (
            [f"dataset._target_={__name__}.Squares", "+dataset.fail=true", "grid.num_workers=0"],
            "Squares cannot be loaded: LookupError: no such file",
        ),
    ],
    ids=range(15),
)
def test_refusals(run: Run, overrides: list[str], message: str) -> None:
    with pytest.raises(OptionError, match=message.replace("?", r"\?")) as caught:
        run(*overrides)
    assert "\n" not in str(caught.value)


def test_what_is_missing_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    there = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: there(name + "?" * (name == "PIL"))
    )
    with pytest.raises(OptionError, match="needs pillow: pip install pillow"):
        run("cases=decoding")


@pytest.mark.process
def test_the_users_own_dataset_needs_no_other_loader(tmp_path: Path) -> None:
    """Nor matplotlib; and where there is no terminal it says in lines how far it is."""
    code = (
        "import importlib.util, sys\n"
        "there = importlib.util.find_spec\n"
        "gone = ('torchdata', 'spdl', 'grain', 'matplotlib', 'PIL', 'pyarrow')\n"
        "importlib.util.find_spec = lambda name: None if name in gone else there(name)\n"
        "class Absent:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name.partition('.')[0] in gone: raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "sys.argv = ['lit-loader-bench', 'dataset._target_=mine.numbers', 'quick=true',\n"
        "            'grid.num_workers=[0,1]', 'grid.seconds=0.05']\n"
        "from lit_loader.bench.app import main\n"
        "main()\n"
    )
    (tmp_path / "mine.py").write_text("def numbers():\n    return list(range(64))\n")
    printed = run_python(tmp_path, "-c", code)
    assert "use num_workers=" in printed
    assert "your dataset: 0 of 20 turns · num_workers=0 · lit_loader" in printed


def test_errors_are_one_line(tmp_path: Path) -> None:
    printed = run_python(tmp_path, "-m", "lit_loader.bench", "cases=transprt", code=2)
    assert printed == "lit-loader-bench: unknown case 'transprt': did you mean 'transport'?\n"


def test_help_is_quick(tmp_path: Path) -> None:
    code = (
        "import sys; sys.argv = ['lit-loader-bench', '--help']\n"
        "from lit_loader.bench.app import main\n"
        "try: main()\n"
        "finally: assert not {'torch', 'rich', 'matplotlib'} & set(sys.modules)"
    )
    printed = run_python(tmp_path, "-c", code)
    for option in ("cases=", "loaders=", "rounds=", "check=", "dataset._target_="):
        assert option in printed


# --- Ctrl-C ---


def test_ctrl_c_keeps_what_was_measured(tmp_path: Path) -> None:
    # The full start case would take minutes; it is interrupted in its first rows.
    arguments = ("cases=[busy,start]", "rows=workers", "loaders=[lit_loader,torch]", "rounds=1")
    with subprocess.Popen(
        [sys.executable, "-m", "lit_loader.bench", *arguments, f"hydra.run.dir={tmp_path / 'run'}"],
        cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        env={**os.environ, "COLUMNS": "160"},
    ) as program:  # fmt: skip
        assert program.stdout is not None
        for line in program.stdout:
            if line.startswith("busy: "):  # the first table is there, the second case under way
                break
        program.send_signal(signal.SIGINT)
        out, _ = program.communicate(timeout=110)
    assert program.returncode == 130, out
    assert "interrupted: what was measured so far follows" in out
    report = json.loads((tmp_path / "run" / "results.json").read_text())
    assert report["interrupted"] is True
    assert "steps of 5 ms, the workers slower" in {row["name"] for row in report["measurements"]}
    assert (tmp_path / "run" / "busy.png").exists()


# --- the user's own dataset ---


@pytest.mark.time
def test_grid(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, report = run(
        f"dataset._target_={__name__}.Squares", "+dataset.length=40", "loader.batch_size=8",
        "loader.shuffle=true", "grid.num_workers=[0,1]", "grid.prefetch_factor=[1,2]",
        "grid.seconds=0.1", "grid.step_ms=1",
    )  # fmt: skip
    assert code == 0
    grid = report["grid"]
    settings = [(p["num_workers"], p["prefetch_factor"], p["loader"]) for p in grid["points"]]
    both = ("lit_loader", "torch")
    expected = [(0, None), (1, 1), (1, 2), (2, 2)]  # and what the program has
    processes = [s for s, p in zip(settings, grid["points"], strict=True)
                 if p["worker_method"] != "thread"]  # fmt: skip
    assert processes == [(*setting, name) for setting in expected for name in both]
    assert [p["num_workers"] for p in grid["points"] if p["worker_method"] == "thread"] == [1]
    assert all(min(p["seconds_per_batch"]) > 0 for p in grid["points"])
    for place in (*grid["points"], grid["auto"]):
        assert min(place["memory_megabytes"]) > 10 and min(place["descriptors"]) > 3
        assert min(place["processor_seconds_per_batch"]) >= 0
        assert min(place["step_waits"]) >= 0 and max(place["step_waits"]) < 1
    first = {(p["num_workers"], p["loader"]): p["first_batch_seconds"][0] for p in grid["points"]}
    assert first[0, "torch"] < first[1, "torch"]  # nothing is started
    assert (grid["samples_per_batch"], grid["bytes_per_batch"]) == (8, 8 * 8 * 8)
    *lines, auto = grid["advice"]
    said = ["use", "not", "now:", "bound:", "measured:", "step:"]
    kinds = ("threads:", "processes:")  # where workers are advised
    assert [word for line in lines if (word := line.split()[0]) not in kinds] == said
    assert lines[1].startswith("not sure: there was one round only")
    assert "beside a step of 1 ms, which sleeps" in lines[-1]
    number = grid["auto"]["num_workers"]
    assert number >= 1 and min(grid["auto"]["seconds_per_batch"]) > 0
    assert re.match(rf'num_workers="auto" came to {number} \(.+\): [\d.]+ times as fast as', auto)
    printed = capsys.readouterr().out
    assert "1 thread" in printed
    assert "(◀: use this)" in printed
    for column in ("samples/s", "waits, %", "µs/sample", "MB", "batch, ms", "files", "busy"):
        assert column in printed, column
    assert printed.count(" lit_loader ◀ ") == 1
    assert grid["advice"][0] in printed and auto in printed
    assert f"auto: {number}" in printed
    assert (tmp_path / "grid.png").read_bytes().startswith(b"\x89PNG")


# --- how it measures ---


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/cpu.max": "50000 100000"}, 0.5),
        ({"proc/self/cgroup": "0::/a", "sys/fs/cgroup/a/cpu.max": "max 100000"}, None),
        (
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/a\n4:memory:/a",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "25000",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            0.25,
        ),
        ({}, None),
    ],
    ids=["version 2", "unlimited", "version 1", "nothing"],
)
def test_usable_processors(tmp_path: Path, files: dict[str, str], cores: float | None) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    every = len(os.sched_getaffinity(0))
    assert usable_processors(tmp_path) == (every if cores is None else cores)


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs Linux")
def test_shared_memory_counts_once_mapped_or_not() -> None:
    size = 64 << 20
    descriptor, before = os.memfd_create("on its way"), machine.memory_and_descriptors()
    try:
        os.write(descriptor, bytes(size))
        open_only, descriptors = machine.memory_and_descriptors()
        with mmap.mmap(descriptor, size) as memory:
            assert memory[:: mmap.PAGESIZE].count(0) == size // mmap.PAGESIZE
            mapped, _ = machine.memory_and_descriptors()
    finally:
        os.close(descriptor)
    assert descriptors == before[1]
    for found in (open_only, mapped):
        assert found - before[0] == pytest.approx(size / 1e6, rel=0.3)
    assert machine.memory_and_descriptors()[1] == descriptors - 1
