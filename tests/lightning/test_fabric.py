"""examples/fabric.py: our loader with Lightning Fabric, interrupted, resumed, in two processes."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tests.support.programs import WITH_LIGHTNING, run_program

EXAMPLE = Path(__file__).parents[2] / "examples" / "fabric.py"
STEPS = 17  # an epoch of 1,077 images in batches of 64

Run = Callable[..., list[str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """Runs the example in this process; gives its lines."""

    def run_example(*arguments: object) -> list[str]:
        monkeypatch.setattr(sys, "argv", [str(EXAMPLE), *map(str, arguments)])
        capsys.readouterr()
        runpy.run_path(str(EXAMPLE), run_name="__main__")
        return capsys.readouterr().out.splitlines()

    monkeypatch.syspath_prepend(EXAMPLE.parent)
    for name in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS"):
        monkeypatch.setenv(name, "0")  # and put back afterwards
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    torch.set_num_threads(1)  # more only wait for each other where other work is going on
    yield run_example
    torch.set_num_threads(threads)
    torch.set_rng_state(state)


def test_it_learns(run: Run) -> None:
    lines = run("--epochs", 3, "--workers", 1)
    assert len(lines) == 3 * STEPS
    losses = [float(line.split()[-1]) for line in lines]
    assert sum(losses[-5:]) < 0.6 * sum(losses[:5])


@pytest.mark.parametrize("stop", [13, STEPS + 5])
def test_goes_on_exactly(stop: int, run: Run, tmp_path: Path) -> None:
    checkpoint = tmp_path / "run.ckpt"
    whole = run("--epochs", 2, "--workers", 0)
    begun = run("--workers", 2, "--checkpoint", checkpoint, "--stop-after", stop)
    assert begun == whole[:stop]
    saved = stop // 10 * 10
    loaded = torch.load(checkpoint, weights_only=True)
    assert (loaded["step"], loaded["loader"]["epoch"]) == (saved, saved // STEPS)
    assert run("--epochs", 2, "--workers", 1, "--checkpoint", checkpoint) == whole[saved:]


def test_two_processes(tmp_path: Path) -> None:
    arguments = ("--devices", 2, "--epochs", 1)
    printed = run_program(EXAMPLE, *arguments, modules=WITH_LIGHTNING, cwd=tmp_path)
    steps = [line for line in printed.splitlines() if line.startswith("epoch 0 step ")]
    assert len(steps) == -(-STEPS // 2)  # the first process's; each has half of the images
