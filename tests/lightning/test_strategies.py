"""Ranks as real processes, under each strategy that a CPU can run."""

import json
import os
import signal
import subprocess
import time
from itertools import chain
from pathlib import Path

import pytest

from tests.support import strategy_fit
from tests.support.programs import start_program
from tests.support.samples import METHODS
from tests.support.sessions import members
from tests.support.strategy_runs import (
    BATCHES,
    EPOCHS,
    LENGTH,
    RANKS,
    SAVED,
    check_prediction,
    read,
)
from tests.support.tools import wait_gone

SCRIPT = Path(strategy_fit.__file__)
LIMIT = 240  # seconds for a run; one takes 5 to 20, and far longer where other work is going on

pytestmark = pytest.mark.timeout(300)


def run(folder: Path, *arguments: object, failed: bool = False) -> None:
    """Run the script of this module in a session of its own, of which nothing may be left."""
    program = start_program(
        SCRIPT, folder, *arguments, cwd=folder, stderr=subprocess.STDOUT,
        forked=arguments[0] != "ddp_spawn",
    )  # fmt: skip
    try:
        printed, _ = program.communicate(timeout=LIMIT)
        assert (program.returncode != 0) == failed, printed
        wait_gone(members(program.pid))
    finally:
        for pid in members(program.pid):
            os.kill(pid, signal.SIGKILL)
        program.communicate()


def indices(batches: list[list[str]]) -> list[int]:
    return [int(row.split(":")[0]) for row in chain.from_iterable(batches)]


def check_training(folder: Path, method: str) -> list[list[list[str]]]:
    """Check all that must be true of a run and its resumption; returns what each rank saw."""
    whole, resumed = read(folder, f"{method}-whole"), read(folder, f"{method}-resumed")
    assert [rank["length"] for rank in whole] == [BATCHES] * RANKS
    assert [len(rank["seen"]) for rank in whole] == [EPOCHS * BATCHES] * RANKS
    epochs = [
        [indices(rank["seen"][start : start + BATCHES]) for rank in whole]
        for start in range(0, EPOCHS * BATCHES, BATCHES)
    ]
    for shares in epochs:
        assert sorted(chain.from_iterable(shares)) == list(range(LENGTH))  # disjoint and complete
    assert epochs[0] != epochs[1]
    for before, after in zip(whole, resumed, strict=True):
        assert after["seen"] == before["seen"][SAVED:]
    return [rank["seen"] for rank in whole]


IN_FULL = [pytest.param(f"{strategy} {method}", marks=pytest.mark.slow)
           for strategy in ("ddp", "ddp_spawn", "ddp_fork", "ddp_notebook")
           for method in METHODS]  # fmt: skip
CELLS = ["ddp fork", "ddp_fork forkserver", "ddp_notebook fork"]  # ddp_spawn takes a minute


@pytest.mark.parametrize("cell", [*CELLS, *IN_FULL])
def test_strategies(cell: str, tmp_path: Path) -> None:
    strategy, methods = cell.split()
    run(tmp_path, strategy, methods)
    seen = [check_training(tmp_path, method) for method in methods.split(",")]
    assert all(one == seen[0] for one in seen)  # whatever the start method
    predicts = strategy != "ddp_spawn"
    if predicts:
        check_prediction(tmp_path, method=methods.split(",")[-1])
    prepared = (tmp_path / "prepared").read_text().split()
    assert prepared == ["0"] * (2 * len(seen) + predicts)  # once for each run, by one rank alone


def test_a_run_without_a_seed_resumes_exactly_with_the_random_state_callback(
    tmp_path: Path,
) -> None:
    run(tmp_path, "ddp_fork", "unseeded")
    whole, resumed = read(tmp_path, "fork-whole"), read(tmp_path, "fork-resumed")
    for before, after in zip(whole, resumed, strict=True):
        assert len(before["seen"]) == (EPOCHS + 1) * BATCHES
        assert after["seen"] == before["seen"][SAVED:]


SLOW_KILLS = [
    pytest.param(f"{strategy} {method} {rank}", marks=pytest.mark.slow)
    for strategy in ("ddp", "ddp_spawn", "ddp_fork", "ddp_notebook")
    for method in METHODS
    for rank in range(RANKS)
]


@pytest.mark.parametrize("cell", ["ddp fork 1", "ddp_fork fork 0", *SLOW_KILLS])
def test_a_killed_rank_leaves_nothing_behind(cell: str, tmp_path: Path) -> None:
    strategy, method, rank = cell.split()
    run(tmp_path, strategy, method, rank, failed=True)
    killed: float = json.loads((tmp_path / f"killed-{rank}.json").read_text())
    # Where torch has started the ranks it waits so long for the others to end before it kills them.
    assert time.monotonic() - killed < 30, "another rank did not end, perhaps for its workers"


@pytest.mark.parametrize("data_parallel", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_model_that_is_split_over_ranks(data_parallel: int, tmp_path: Path) -> None:
    run(tmp_path, "model_parallel", data_parallel)
    first, second = (rank["seen"] for rank in read(tmp_path, "fork-whole"))
    if data_parallel == 1:
        assert first == second  # both have a part of the model, and need all of the data
        assert sorted(indices(first)) == sorted([*range(LENGTH)] * EPOCHS)
    else:
        assert sorted(indices(first[:BATCHES] + second[:BATCHES])) == list(range(LENGTH))
