"""What is read of memory limits, from trees of files as kernels and containers lay them out."""

import os
from pathlib import Path

import pytest

from lit_loader.data.memory import MemoryLimits, memory_limits

GIB = 1 << 30
BASE = "sys/fs/cgroup"
RESIDENT = 262144 * os.sysconf("SC_PAGE_SIZE")


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
        f"{folder}/memory.oom_control": {"oom_kill_disable": 0, "under_oom": 0, "oom_kill": kills},
        f"{folder}/memory.stat": {"inactive_file": 1, "total_inactive_file": cache},
    }


PROC = {
    "proc/self/statm": "90000 262144 100 1 0 80000 0\n",
    "proc/meminfo": "MemTotal:       16 kB\nMemFree:  5 kB\nMemAvailable:    2097152 kB\n",
}


CASES: dict[str, tuple[dict[str, object], MemoryLimits, str]] = {
    # The container's own cgroup is the root of what is mounted.
    "version 2 in a container": (
        {
            **PROC,
            "proc/self/cgroup": "0::/\n",
            **group_2(BASE, 5 * GIB, 4 * GIB, kills=2, cache=GIB + GIB // 10),
        },
        MemoryLimits(RESIDENT, 5 * GIB - GIB - GIB // 10, 4 * GIB, 2 * GIB, 2),
        "this process has 1.0 GiB, cgroup memory 3.9 of 4.0 GiB, the machine 2.0 GiB available, "
        "2 OOM kills",
    ),
    # With the kills of the process's own level: those above have other processes, too.
    "the level nearest to its limit": (
        {
            "proc/self/cgroup": "0::/user.slice/job/step\n",
            **group_2(f"{BASE}/user.slice/job/step", 2 * GIB, "max", kills=1),
            **group_2(f"{BASE}/user.slice/job", 3 * GIB, 4 * GIB, kills=5),
            **group_2(f"{BASE}/user.slice", 6 * GIB, 64 * GIB, kills=9),
        },
        MemoryLimits(None, 3 * GIB, 4 * GIB, None, 1),
        "cgroup memory 3.0 of 4.0 GiB, 1 OOM kill",
    ),
    # In a container the path is the host's, and what is mounted is the container's part of it.
    "version 1 with the path of the host": (
        {
            **PROC,
            "proc/self/cgroup": "5:cpu,cpuacct:/docker/ab\n4:blkio,memory:/docker/ab\n1:name=x:/\n",
            **group_1(f"{BASE}/memory", 300 << 20, 512 << 20, kills=0, cache=50 << 20),
        },
        MemoryLimits(RESIDENT, 250 << 20, 512 << 20, 2 * GIB, 0),
        "this process has 1.0 GiB, cgroup memory 250.0 of 512.0 MiB, the machine 2.0 GiB available",
    ),
    "nothing": ({}, MemoryLimits(), "memory unknown"),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_read(name: str, tmp_path: Path) -> None:
    files, expected, said = CASES[name]
    found = memory_limits(root=tree(tmp_path, files))
    assert found == expected
    assert found.describe() == said
