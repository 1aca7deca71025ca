"""A recipe's library: there, or named on one line with the command that installs it."""

from __future__ import annotations

import importlib.util


def needs(recipe: str, module: str, package: str | None = None) -> None:
    """Ends the program with one line if `module`, which the `recipe` uses, is not installed."""
    if importlib.util.find_spec(module) is None:
        package = package or module
        # SystemExit, because Hydra and Python show the traceback of any other exception.
        raise SystemExit(
            f"the recipe {recipe!r} needs {package}, which is not installed: pip install {package}"
        )
