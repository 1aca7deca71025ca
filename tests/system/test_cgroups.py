"""What is read of memory limits, from trees of files as kernels and containers lay them out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lit_loader.system.cgroups import MemoryLimits, memory_limits

GIB = 1 << 30
NO_LIMIT = 0x7FFFFFFFFFFFF000


def tree(root: Path, files: dict[str, object]) -> Path:
    """Write files; a dict stands for lines of name and number."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, dict):
            content = "".join(f"{field} {number}\n" for field, number in content.items())
        path.write_text(f"{content}")
    return root


def group_2(folder: str, used: int, limit: object, kills: int = 0, cache: int = 0) -> dict:
    return {
        f"{folder}/memory.current": f"{used}\n",
        f"{folder}/memory.max": f"{limit}\n",
        f"{folder}/memory.events": {"low": 0, "max": 7, "oom": 3, "oom_kill": kills},
        f"{folder}/memory.stat": {"anon": 5, "inactive_file": cache, "active_file": 9},
    }


def group_1(folder: str, used: int, limit: int, kills: int = 0, cache: int = 0) -> dict:
    return {
        f"{folder}/memory.usage_in_bytes": f"{used}\n",
        f"{folder}/memory.limit_in_bytes": f"{limit}\n",
        f"{folder}/memory.oom_control": {
            "oom_kill_disable": 0,
            "under_oom": 0,
            "oom_kill": kills,
        },
        f"{folder}/memory.stat": {"inactive_file": 1, "total_inactive_file": cache},
    }


PROC = {
    "proc/self/statm": "90000 262144 100 1 0 80000 0\n",
    "proc/meminfo": "MemTotal:       16 kB\nMemFree:  5 kB\nMemAvailable:    2097152 kB\n",
}


def test_version_2_in_a_container(tmp_path: Path) -> None:
    """The container's own cgroup is the root of what is mounted."""
    root = tree(
        tmp_path,
        {
            **PROC,
            "proc/self/cgroup": "0::/\n",
            **group_2("sys/fs/cgroup", 5 * GIB, 4 * GIB, kills=2, cache=GIB + GIB // 10),
        },
    )
    found = memory_limits(root=root)
    assert found == MemoryLimits(
        process=262144 * os.sysconf("SC_PAGE_SIZE"),
        used=5 * GIB - GIB - GIB // 10,
        limit=4 * GIB,
        available=2 * GIB,
        oom_kills=2,
    )
    assert found.describe() == (
        "this process has 1.0 GiB, cgroup memory 3.9 of 4.0 GiB, the machine 2.0 GiB available, "
        "2 OOM kills"
    )


def test_the_level_nearest_to_its_limit_counts(tmp_path: Path) -> None:
    """With the kills of the process's own level: those above have other processes, too."""
    base = "sys/fs/cgroup"
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/user.slice/job/step\n",
            **group_2(f"{base}/user.slice/job/step", 2 * GIB, "max", kills=1),
            **group_2(f"{base}/user.slice/job", 3 * GIB, 4 * GIB, kills=5),
            **group_2(f"{base}/user.slice", 6 * GIB, 64 * GIB, kills=9),
        },
    )
    found = memory_limits(root=root)
    assert (found.used, found.limit, found.oom_kills) == (3 * GIB, 4 * GIB, 1)
    assert found.describe() == "cgroup memory 3.0 of 4.0 GiB, 1 OOM kill"


def test_version_1_with_the_path_of_the_host(tmp_path: Path) -> None:
    """In a container the path is the host's, and what is mounted is the container's part of it."""
    root = tree(
        tmp_path,
        {
            **PROC,
            "proc/self/cgroup": "5:cpu,cpuacct:/docker/ab\n4:blkio,memory:/docker/ab\n1:name=x:/\n",
            **group_1("sys/fs/cgroup/memory", 300 << 20, 512 << 20, kills=0, cache=50 << 20),
        },
    )
    found = memory_limits(root=root)
    assert (found.used, found.limit, found.oom_kills) == (250 << 20, 512 << 20, 0)
    assert "cgroup memory 250.0 of 512.0 MiB, the machine" in found.describe()
    assert "OOM" not in found.describe()


def test_both_versions_beside_each_other(tmp_path: Path) -> None:
    """Memory is version 1's; version 2 is mounted for systemd's sake."""
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/a/b\n0::/a/b\n",
            **group_1("sys/fs/cgroup/memory/a/b", GIB, NO_LIMIT, kills=3),
            **group_1("sys/fs/cgroup/memory/a", GIB, 2 * GIB),
            **group_1("sys/fs/cgroup/memory", 9 * GIB, NO_LIMIT),
            "sys/fs/cgroup/unified/cgroup.procs": "1\n",
        },
    )
    found = memory_limits(root=root)
    assert (found.used, found.limit, found.oom_kills) == (GIB, 2 * GIB, 3)


def test_without_a_limit(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {"proc/self/cgroup": "0::/a\n", **group_2("sys/fs/cgroup/a", GIB, "max", kills=1)},
    )
    found = memory_limits(root=root)
    assert (found.used, found.limit) == (GIB, None)
    assert found.describe() == "1 OOM kill"


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"proc/self/cgroup": "0::/gone\n"},
        {"proc/self/cgroup": "nonsense\n"},
        {
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/memory.current": "many\n",
            "sys/fs/cgroup/memory.max": "\n",
            "proc/self/statm": "1\n",
            "proc/meminfo": "MemAvailable:\n",
        },
    ],
    ids=["nothing", "gone", "nonsense", "broken"],
)
def test_what_cannot_be_read_is_not_known(tmp_path: Path, files: dict[str, object]) -> None:
    found = memory_limits(root=tree(tmp_path, files))
    assert found == MemoryLimits()
    assert found.describe() == "memory unknown"


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc here")
def test_this_machine() -> None:
    found = memory_limits()
    assert found.process is not None
    assert 10 << 20 < found.process < 1 << 40
    assert found.available is not None
    assert "process" in found.describe()
