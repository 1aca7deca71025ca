"""Remote workers on a cluster that grows when they ask for it, and shrinks when they have gone.

Ray's autoscaler with the provider that it has for trying out: nodes are processes of this host.
(`ray.cluster_utils.AutoscalingCluster`, which starts it, would end all other clusters of this
machine first. Its second version, ``RAY_enable_autoscaler_v2``, reads ``example.yaml`` of that
provider, which the wheels of Ray 2.60 do not have.)
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.remote.test_ray import Calm
from tests.remote.test_remote_loader import compare_until, loader_of
from tests.support.ray_nodes import NEEDS_RAY, Node, at, cluster, free_port

pytestmark = [*NEEDS_RAY, pytest.mark.slow]

EMPTY: dict[str, Any] = {
    **{key: {} for key in ("auth", "docker", "file_mounts")},
    **{key: [] for key in ("cluster_synced_files", "rsync_exclude", "rsync_filter")},
    **{f"{who}setup_commands": [] for who in ("", "head_", "worker_")},
    **{f"{who}_start_ray_commands": [] for who in ("head", "worker")},
    "initialization_commands": [],
    "file_mounts_sync_continuously": False,
}
"""What the description of a cluster has besides."""


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Node]]:
    """A cluster of a head without processors, that may have three nodes with one each."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    port = free_port()
    provider: dict[str, Any] = {
        "type": "fake_multinode",
        "gcs_address": f"127.0.0.1:{port}",
        "use_node_id_as_ip": True,  # all nodes have the same
        "disable_node_updaters": True,
        "disable_launch_config_check": True,
    }
    environment = {"RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1"}
    resources = {"CPU": 1, "object_store_memory": 100_000_000}
    described = {
        **EMPTY,
        "cluster_name": "fake_multinode",
        "max_workers": 3,
        "provider": provider,
        "available_node_types": {
            "ray.head.default": {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
            "loader": {"resources": resources, "node_config": {}, "max_workers": 3},
        },
        "head_node_type": "ray.head.default",
        "upscaling_speed": 10.0,
        "idle_timeout_minutes": 0.1,
    }
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps(described))
    option = f"--autoscaling-config={file}"
    with cluster(0, option, port=port, environment=environment) as started:
        yield started


def test_nodes_are_added_for_remote_workers_and_removed_after_them(nodes: list[Node]) -> None:
    def all_are_there() -> bool:
        made = [worker for worker in loader.statistics().workers if worker.node]
        return len(made) == 3

    with loader_of(Calm(), 1, 3, at(nodes)) as loader:
        warned = compare_until(all_are_there, loader, Calm())
        assert len(nodes[0].processes("RemoteWorker")) == 3
        raylets = nodes[0].processes("raylet")
        added = [raylet for raylet in raylets if raylet.ppid() != nodes[0].process.pid]
        assert len(added) == 3
    assert not [text for text in warned if "are up" not in text]
    _, alive = psutil.wait_procs(added, timeout=120)
    assert not alive
