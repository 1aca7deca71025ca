"""Finds the folder with the package's configurations, ``conf``.

Used by the search-path plugin and by the benchmark's application. Imports nothing heavy: Hydra
loads its plugins in every application of an environment.
"""

from __future__ import annotations

from pathlib import Path

import lit_loader

__all__ = ["conf_folder"]


def conf_folder() -> Path:
    """Where the configurations lie: inside the package in a wheel, next to it in a checkout."""
    package = Path(lit_loader.__file__).parent
    return next(p for p in (package / "conf", package.parent / "conf") if p.is_dir())
