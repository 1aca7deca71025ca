"""The machine and the versions that a run was measured with, for the report."""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lit_loader.bench.loaders.interface import LoaderAdapter
from lit_loader.system.processors import usable_processors

__all__ = ["describe"]

_OTHERS = ("torch", "numpy", "pillow", "pyarrow")


def describe(adapters: Mapping[str, LoaderAdapter]) -> dict[str, Any]:
    """Machine and versions, as primitives."""
    import psutil

    versions = {name: adapter.version for name, adapter in adapters.items()}
    for name in _OTHERS:
        try:
            versions.setdefault(name, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "processor": _processor(),
        "cores": usable_processors(),
        "memory_bytes": psutil.virtual_memory().total,
        "load": psutil.getloadavg()[0],
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": versions,
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
