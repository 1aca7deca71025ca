"""The recipe for Ray Train, on clusters of this host: ranks and nodes are killed in mid-epoch."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.ray_nodes import Node, joining
from tests.support.recipes import EXAMPLES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

pytest.importorskip("ray.train", exc_type=ImportError)


def train(tmp_path: Path, *arguments: str) -> str:
    """Runs the recipe; returns the line that says which samples there were."""
    environment = {**os.environ, "PYTHONPATH": str(EXAMPLES.parent), "RAY_AUTH_MODE": "disabled"}
    script, folder = EXAMPLES / "ray_train.py", tmp_path / "out"
    command = [sys.executable, str(script), "--folder", str(folder), "--epochs", "2", *arguments]
    ended = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=800
    )
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    assert (folder / "ray_train.png").read_bytes().startswith(b"\x89PNG")
    return next(line for line in ended.stdout.splitlines() if "the samples of one process" in line)


def wait_for(address: str, number: int) -> None:
    """Waits until so many nodes are there."""
    waiting = (
        "import ray, sys, time\nray.init(sys.argv[1], log_to_driver=False)\n"
        "while sum(node['Alive'] for node in ray.nodes()) < int(sys.argv[2]): time.sleep(0.1)"
    )
    command = [sys.executable, "-c", waiting, address, str(number)]
    subprocess.run(command, check=True, capture_output=True, timeout=200)


def test_a_rank_is_killed(tmp_path: Path) -> None:
    said = train(tmp_path, "--cpus", "4", "--kill-at", "45")
    assert "at all 66 steps: steps 1 to 45 on 2 ranks" in said and said.endswith(
        " to 66 on 2 ranks"
    )


def test_a_node_is_killed_and_one_rank_goes_on(nodes: list[Node], tmp_path: Path) -> None:
    for number in range(2):
        joining(nodes, 2, '--resources={"rank": 1}')
        wait_for(nodes[0].address, 2 + number)
    said = train(
        tmp_path,
        *("--address", nodes[0].address, "--ranks", "1-2", "--rank-resources", "rank=1"),
        *("--kill-at", "45", "--kill-node"),
    )
    assert "at all 66 steps: steps 1 to 45 on 2 ranks" in said and said.endswith(" to 66 on 1 rank")
