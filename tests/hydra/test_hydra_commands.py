"""The groups on real command lines: sweeps, refusals, shell completion, help and launchers."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from lit_loader import DataLoader, LoaderConfig
from tests.support.programs import run_python

CONF = Path(__file__).parents[2] / "conf" / "lit_loader"
PRESETS = {
    "auto": "auto", "debug": 0, "default": 0, "fault_tolerant": 2, "reproducible": 2,
    "storage": 2, "threads": 2, "throughput": 4, "workers": 2,
}  # fmt: skip
"""Presets of the loader, with their number of workers."""

PROGRAM = """
import json
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig

from lit_loader.hydra.calls import MAIN_OPTIONS


@hydra.main(**MAIN_OPTIONS, config_path="configs", config_name="train")
def main(cfg):
    from hydra.utils import instantiate

    config = instantiate(cfg.loader)  # refuses options before torch is imported

    from lit_loader import DataLoader

    with DataLoader(instantiate(cfg.dataset), **config.as_kwargs()) as loader:
        seen = [batch.tolist() for batch in loader]
    told = {"batches": seen, "num_workers": config.num_workers}
    Path(HydraConfig.get().runtime.output_dir, "seen.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main()
"""

PROGRAM_CONFIG = """
defaults:
  - lit_loader/loader@loader: default
  - _self_
loader: {batch_size: 5, shuffle: true, seed: 3}
dataset: {_target_: builtins.range, _args_: [12]}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An application's script; nothing in it but in functions imports torch."""
    directory = tmp_path_factory.mktemp("program")
    (directory / "configs").mkdir()
    (directory / "configs" / "train.yaml").write_text(PROGRAM_CONFIG)
    (directory / "app.py").write_text(PROGRAM)
    return directory / "app.py"


def jobs(directory: Path) -> dict[int, Any]:
    """What each job of a sweep has written, by its number."""
    return {
        int(path.parent.name): json.loads(path.read_text())
        for path in directory.glob("*/seen.json")
    }


def test_sweep_over_presets(program: Path, tmp_path: Path) -> None:
    run_python(
        tmp_path, program, "--multirun", f"lit_loader/loader@loader={','.join(PRESETS)}",
        f"hydra.sweep.dir={tmp_path}",
    )  # fmt: skip
    told = jobs(tmp_path)
    workers = {preset: told[number]["num_workers"] for number, preset in enumerate(PRESETS)}
    assert workers == PRESETS
    assert all(job["batches"] == told[0]["batches"] for job in told.values())
    assert [len(batch) for batch in told[0]["batches"]] == [5, 5, 2]


def without_torch(program: Path, cwd: Path, *commands: list[str]) -> list[str]:
    """Runs the script with arguments that only ask for something: torch stays out.

    Each time in a fork of a process that has Hydra, which takes longest to import.
    """
    code = f"""
import os, runpy, sys, hydra
sys.path.insert(0, {str(program.parent)!r})
for arguments in {[*commands]!r}:
    sys.stdout.flush()
    if (child := os.fork()) == 0:
        if "--shell-completion" in arguments:
            line = "python app.py " + arguments.pop()
            os.environ.update(COMP_LINE=line, COMP_POINT=str(len(line)))
        sys.argv = ["app.py", *arguments]
        try:
            runpy.run_path({str(program)!r}, run_name="__main__")
        finally:
            assert not {{"torch", "lightning", "numpy"}} & set(sys.modules)
            sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    print("END")
"""
    return run_python(cwd, "-c", code).split("END\n")[:-1]


COMPLETIONS = {
    "loader.num_": "loader.num_replicas= loader.num_shards= loader.num_workers=",
    "loader.on_sample_error=skip loader.max_s": "loader.max_sample_errors=",
    "lit_loader/sa": "lit_loader/sampler=",
    "lit_loader/sampler=w": "lit_loader/sampler=weighted",
    "lit_loader/loader=t": "lit_loader/loader=threads lit_loader/loader=throughput",
}


def test_completion(program: Path, tmp_path: Path) -> None:
    asked = [["--shell-completion", "query=bash", typed] for typed in COMPLETIONS]
    offered = without_torch(program, tmp_path, *asked)
    assert [each.split() for each in offered] == [each.split() for each in COMPLETIONS.values()]


def test_what_the_help_shows(program: Path, tmp_path: Path) -> None:
    shown, info, options = without_torch(
        program, tmp_path,
        ["--help"], ["--info", "defaults"], ["--cfg", "job", "--package", "loader"],
    )  # fmt: skip
    for group in ("loader", "remote", "sampler", "collate", "callbacks"):
        names = sorted(path.stem for path in (CONF / group).glob("*.yaml"))
        assert f"lit_loader/{group}: {', '.join(names)}" in shown
    assert re.search(r"\| lit_loader/loader/default +\| loader ", info)
    assert "# @package loader" in options
    assert set(LoaderConfig().as_kwargs()) <= {
        line.partition(":")[0] for line in options.split("\n")
    }


@pytest.mark.parametrize("name", ["joblib", "submitit"])
def test_launchers(program: Path, tmp_path: Path, name: str) -> None:
    """Jobs of loky's own start method; or as on a cluster's nodes. Each has the same data."""
    pytest.importorskip(f"hydra_plugins.hydra_{name}_launcher")
    launcher = {"joblib": ["joblib", "hydra.launcher.n_jobs=2"], "submitit": ["submitit_local"]}
    run_python(
        program.parent,  # submitit's jobs import from the directory that they are launched in
        program, "--multirun", "hydra/launcher=" + launcher[name][0], *launcher[name][1:],
        "loader.num_workers=1,2", f"hydra.sweep.dir={tmp_path}",
    )  # fmt: skip
    told = jobs(tmp_path)
    assert [told[number]["num_workers"] for number in range(2)] == [1, 2]
    with DataLoader(range(12), batch_size=5, shuffle=True, seed=3) as loader:
        expected = [batch.tolist() for batch in loader]
    assert [told[number]["batches"] for number in range(2)] == [expected] * 2
