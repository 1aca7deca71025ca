"""Remote workers on a real Ray cluster: one or two nodes on this host. Skipped without Ray.

Takes 100 MB of /dev/shm a node, and 20 to 60 seconds a test.
"""

import signal
from typing import Any

import psutil
import pytest
import torch

from tests.support.ray_nodes import NEEDS_RAY, Node, at, joined, joining
from tests.support.remote_loaders import (
    Broken,
    Calm,
    Drawn,
    collate,
    compare_until,
    loader_of,
    told,
)  # fmt: skip
from tests.support.samples import Call

pytestmark = NEEDS_RAY


def large(index: int) -> Any:
    """A sample of 40 MB; three do not fit into a node's object store."""
    return torch.full((40 << 20,), index, dtype=torch.uint8)


def test_batches_are_those_of_one_process_and_nothing_is_left(nodes: list[Node]) -> None:
    with loader_of(Broken(), 0, 1, at(nodes), on_sample_error="skip", collate_fn=collate) as loader:
        warned = compare_until(
            lambda: joined(loader), loader, Broken(), on_sample_error="skip", collate_fn=collate
        )
        assert nodes[0].processes("RemoteWorker")
    assert not [text for text in warned if "are up" not in text]
    _, alive = psutil.wait_procs(nodes[0].processes("RemoteWorker"), timeout=30)
    assert not alive


FAULTS = {
    "killed": "is gone",
    "stopped": "no sign of life",
    "relay": "The process for remote workers",
}
"""What befalls a process, and what is told of it."""


@pytest.mark.slow
@pytest.mark.parametrize("here", [0, 1])
@pytest.mark.parametrize("fault", FAULTS)
def test_faults(nodes: list[Node], fault: str, here: int) -> None:
    with loader_of(Drawn(), here, 2, at(nodes, patience=3.0)) as loader:
        compare_until(lambda: joined(loader), loader, Drawn())
        if fault == "relay":
            [relay] = [
                child
                for child in psutil.Process().children(recursive=True)
                if "spawn_main" in " ".join(child.cmdline())
                and "resource_tracker" not in " ".join(child.cmdline())
            ]
            relay.kill()
        else:
            worker = nodes[0].processes("RemoteWorker")[0]
            worker.send_signal(signal.SIGKILL if fault == "killed" else signal.SIGSTOP)
        told(FAULTS[fault], loader, Drawn())
        if fault == "stopped":
            worker.send_signal(signal.SIGCONT)


@pytest.mark.slow
def test_a_node_is_lost_and_another_joins(nodes: list[Node]) -> None:
    joining(nodes, 2)
    with loader_of(Calm(), 1, 4, at(nodes, patience=3.0)) as loader:
        compare_until(lambda: bool(nodes[1].processes("RemoteWorker")), loader, Calm())
        nodes[1].kill()
        compare_until(lambda: True, loader, Calm())
        joining(nodes, 2)
        compare_until(lambda: bool(nodes[2].processes("RemoteWorker")), loader, Calm())


@pytest.mark.slow
def test_an_object_store_that_is_full_loses_nothing(nodes: list[Node]) -> None:
    with loader_of(Call(large, 12), 0, 2, at(nodes), batch_size=1, shuffle=False) as loader:
        for _ in range(2):
            for index, batch in enumerate(loader):
                assert batch.shape == (1, 40 << 20) and bool((batch == index).all())
    assert loader.statistics().evidence.remote_batches == 24


TOLD: dict[str, tuple[int, dict[str, Any], str]] = {
    "fewer": (4, {}, "of 4 remote workers are up: see what the cluster has (ray status)"),
    "what no node has": (
        2,
        {"resources": {"nowhere": 1}, "cpus_per_worker": 0.5},
        "0 of 2 remote workers are up: see what the cluster has (ray status)",
    ),
    "environment": (
        1,
        {"runtime_env": {"conda": "no_such_environment"}},
        "did not come up (RuntimeEnvSetupError: Failed to set up",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TOLD)
def test_workers_that_do_not_come_up_are_told_of(nodes: list[Node], name: str) -> None:
    there, options, text = TOLD[name]
    with loader_of(Calm(), 1, there, at(nodes, patience=1.0, **options)) as loader:
        assert text in told(text, loader, Calm())[0]


@pytest.mark.slow
def test_workers_that_die_at_nothing_are_no_batchs_fault(nodes: list[Node]) -> None:
    with loader_of(Calm(), 0, 2, at(nodes)) as loader:
        compare_until(lambda: len(nodes[0].processes("RemoteWorker")) == 2, loader, Calm())
        for worker in nodes[0].processes("RemoteWorker"):
            worker.kill()
            worker.wait()
        compare_until(lambda: True, loader, Calm())


@pytest.mark.slow
def test_a_head_that_is_started_again_is_joined_again(nodes: list[Node]) -> None:
    with loader_of(Calm(), 1, 2, at(nodes, patience=1.0)) as loader:
        compare_until(lambda: joined(loader), loader, Calm())
        nodes[0].close()
        told("no Ray cluster can be reached", loader, Calm())
        nodes.append(nodes[0].again())
        before = loader.statistics().evidence.remote_batches
        compare_until(
            lambda: loader.statistics().evidence.remote_batches > before + 8, loader, Calm()
        )


@pytest.mark.slow
def test_two_trainings_share_a_cluster(nodes: list[Node]) -> None:
    with loader_of(Calm(), 1, 2, at(nodes, patience=1.0)) as later:
        with loader_of(Calm(), 0, 2, at(nodes)) as first:
            compare_until(lambda: joined(first), first, Calm())
            told("up: see what the cluster has (ray status)", later, Calm())
            compare_until(lambda: True, first, Calm())
        compare_until(lambda: joined(later), later, Calm())
