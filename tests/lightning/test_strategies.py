"""Ranks as real processes, under each strategy that a CPU can run; two nodes on one machine."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import hydra
import psutil
import pytest
import torch
from lightning.pytorch.strategies import FSDPStrategy, ModelParallelStrategy

from lit_loader import LoaderDataModule
from tests.parity.tools import wait_gone
from tests.support.lightning_runs import Points
from tests.support.programs import WITH_LIGHTNING, start_program
from tests.support.strategy_runs import BATCHES, EPOCHS, LENGTH, PREDICTED, RANKS, SAVED

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tests" / "support" / "strategy_fit.py"
TRAIN = ROOT / "examples" / "train.py"
LIMIT = 240  # seconds for a run; one takes 5 to 20, and far longer where other work is going on

pytestmark = pytest.mark.timeout(300)


class Runs:
    """Programs in sessions of their own, of which nothing may be left."""

    def __init__(self) -> None:
        self._programs: list[subprocess.Popen[str]] = []

    def start(self, *arguments: object, cwd: Path) -> subprocess.Popen[str]:
        """Start the script of this module."""
        program = start_program(
            SCRIPT, *arguments, modules=WITH_LIGHTNING, environment=clean_environment(),
            cwd=cwd, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self._programs.append(program)
        return program

    def start_python(self, *command: object, cwd: Path) -> subprocess.Popen[str]:
        program = subprocess.Popen(
            [sys.executable, *map(str, command)],
            cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True, env=clean_environment(),
        )  # fmt: skip
        self._programs.append(program)
        return program

    def finish(self, program: subprocess.Popen[str], failed: bool = False) -> str:
        printed, _ = program.communicate(timeout=LIMIT)
        assert (program.returncode != 0) == failed, printed
        wait_gone(members(program.pid))
        return printed

    def end(self) -> None:
        for program in self._programs:
            left = members(program.pid)
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            program.communicate()
            assert not left


def members(session: int) -> list[int]:
    """The processes of a session, also those whose parents are gone."""
    found = []
    for pid in psutil.pids():
        try:
            if os.getsid(pid) == session and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.append(pid)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return found


def clean_environment() -> dict[str, str]:
    ours = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "COLUMNS": "160"}
    ranks = ("LOCAL_RANK", "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "NODE_RANK")
    return {**{k: v for k, v in os.environ.items() if k not in ranks}, **ours}


@pytest.fixture
def runs() -> Iterator[Runs]:
    started = Runs()
    yield started
    started.end()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def read(folder: Path, name: str) -> list[Any]:
    """What each rank wrote."""
    return [json.loads((folder / f"{name}-{rank}.json").read_text()) for rank in range(RANKS)]


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


def check_prediction(folder: Path, method: str) -> None:
    shares = []
    for rank, written in enumerate(read(folder, f"{method}-predict")):
        assert [seen for _, seen in written["batches"]] == written["epoch"][0]
        assert all(prediction == seen for prediction, seen in written["batches"])
        shares.append(list(chain.from_iterable(written["epoch"][0])))
        assert shares[rank] == list(range(rank, PREDICTED, RANKS))  # neither padded nor dropped


METHODS = ["fork", "spawn", "forkserver"]
IN_FULL = [pytest.param(f"{strategy} {method}", marks=pytest.mark.slow)
           for strategy in ("ddp", "ddp_spawn", "ddp_fork", "ddp_notebook")
           for method in METHODS]  # fmt: skip
CELLS = ["ddp fork", "ddp_fork forkserver", "ddp_notebook fork"]  # ddp_spawn takes a minute


@pytest.mark.parametrize("cell", [*CELLS, *IN_FULL])
def test_strategies(cell: str, runs: Runs, tmp_path: Path) -> None:
    strategy, methods = cell.split()
    runs.finish(runs.start(tmp_path, strategy, methods, cwd=tmp_path))
    seen = [check_training(tmp_path, method) for method in methods.split(",")]
    assert all(one == seen[0] for one in seen)  # whatever the start method
    predicts = strategy != "ddp_spawn"
    if predicts:
        check_prediction(tmp_path, method=methods.split(",")[-1])
    prepared = (tmp_path / "prepared").read_text().split()
    assert prepared == ["0"] * (2 * len(seen) + predicts)  # once for each run, by one rank alone


SLOW_KILLS = [
    pytest.param(f"{strategy} {method} {rank}", marks=pytest.mark.slow)
    for strategy in ("ddp", "ddp_spawn", "ddp_fork", "ddp_notebook")
    for method in METHODS
    for rank in range(RANKS)
]


@pytest.mark.parametrize("cell", ["ddp fork 1", "ddp_fork fork 0", *SLOW_KILLS])
def test_a_killed_rank_leaves_nothing_behind(cell: str, runs: Runs, tmp_path: Path) -> None:
    strategy, method, rank = cell.split()
    runs.finish(runs.start(tmp_path, strategy, method, rank, cwd=tmp_path), failed=True)
    killed: float = json.loads((tmp_path / f"killed-{rank}.json").read_text())
    # Where torch has started the ranks it waits so long for the others to end before it kills them.
    assert time.monotonic() - killed < 30, "another rank did not end, perhaps for its workers"


def test_two_nodes(runs: Runs, tmp_path: Path) -> None:
    """The README's command for several machines, with both on the loopback address."""
    port = free_port()
    nodes = [
        runs.start_python(
            "-m", "torch.distributed.run", "--nnodes=2", f"--node-rank={node}",
            "--nproc-per-node=1", "--master-addr=127.0.0.1", f"--master-port={port}",
            TRAIN, "trainer=ddp", "++trainer.num_nodes=2", "trainer.devices=1",
            "trainer.max_epochs=1", "test=false", "loader.num_workers=1",
            f"hydra.run.dir={tmp_path / 'run'}",
            cwd=tmp_path,
        )
        for node in range(2)
    ]  # fmt: skip
    printed = [runs.finish(node) for node in nodes]
    warned = [line for line in "".join(printed).splitlines() if "Warning" in line]
    if hydra.__version__ == "1.3.0":  # uses what a later OmegaConf warns of
        warned = [line for line in warned if "/site-packages/hydra/" not in line]
    assert not warned
    assert ["written to" in lines for lines in printed] == [True, False]
    # 1,077 images over two nodes in batches of 64.
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["steps"] == 9


# --- where a model is split over ranks, only some of them share the data out ---


class Mesh:
    """As much of a device mesh as says who is who: two groups of data, two parts of a model."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __getitem__(self, name: str) -> Mesh:
        assert name == "data_parallel"
        return self

    def size(self) -> int:
        return 2

    def get_local_rank(self) -> int:
        return self.rank // 2


def sharded(strategy: Any) -> list[list[int]]:
    class Parallel:
        overfit_batches = 0.0
        distributed_sampler_kwargs = strategy.distributed_sampler_kwargs

    module = LoaderDataModule({"train": lambda: Points(8)}, {"batch_size": 2})
    module.trainer = Parallel()  # type: ignore[assignment]
    return [[int(index) for index in batch[:, 0]] for batch in module.train_dataloader()]


def test_model_parallel_ranks_share_a_shard() -> None:
    shards = []
    for rank in range(4):
        strategy = ModelParallelStrategy()
        strategy._device_mesh = Mesh(rank)  # type: ignore[assignment]
        shards.append(sharded(strategy))
    assert shards == [[[0, 2], [4, 6]]] * 2 + [[[1, 3], [5, 7]]] * 2


@pytest.mark.slow
@pytest.mark.parametrize("data_parallel", [1, 2])
def test_a_model_that_is_split_over_ranks(data_parallel: int, runs: Runs, tmp_path: Path) -> None:
    runs.finish(runs.start(tmp_path, "model_parallel", data_parallel, cwd=tmp_path))
    first, second = (rank["seen"] for rank in read(tmp_path, "fork-whole"))
    if data_parallel == 1:
        assert first == second  # both have a part of the model, and need all of the data
        assert sorted(indices(first)) == sorted([*range(LENGTH)] * EPOCHS)
    else:
        assert sorted(indices(first[:BATCHES] + second[:BATCHES])) == list(range(LENGTH))


class Environment:
    """The cluster of two processes, as one of them sees it."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def global_rank(self) -> int:
        return self.rank


def test_fsdp_ranks_have_a_shard_each() -> None:
    shards = []
    for rank in range(2):
        strategy = FSDPStrategy(
            parallel_devices=[torch.device("cpu")] * 2,
            cluster_environment=Environment(rank),  # type: ignore[arg-type]
        )
        shards.append(sharded(strategy))
    assert shards == [[[0, 2], [4, 6]], [[1, 3], [5, 7]]]
