"""`versions`: what a batch may depend on besides seed and indices, as text."""

from __future__ import annotations

import importlib.metadata
import platform
from typing import Final

from lit_loader import __version__

__all__ = ["versions"]

_PACKAGES: Final = ("torch", "numpy", "pillow")


def versions() -> dict[str, str]:
    """Return Python's version and those of packages, by name; imports none of them."""
    # Of this package the code that runs counts, whatever an editable installation says of it.
    found = {"python": platform.python_version(), "lit_loader": __version__}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "none"
    return found
