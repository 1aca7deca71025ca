"""A recipe's libraries: there, or named on one line with the command that installs them."""

from __future__ import annotations

import importlib.util

PACKAGES = {  # of modules that are called something else than what is installed
    "PIL": "pillow",
    "hydra_plugins.hydra_optuna_sweeper": "hydra-optuna-sweeper",
    "sklearn": "scikit-learn",
}


def needs(recipe: str, *modules: str) -> None:
    """Ends the program with one line if any of `modules`, which the `recipe` uses, is missing."""
    missing = [PACKAGES.get(module, module) for module in modules if not _is_there(module)]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        # SystemExit, because Hydra and Python show the traceback of any other exception.
        raise SystemExit(
            f"the recipe {recipe!r} needs {', '.join(missing)}, which {verb} not installed: "
            f"pip install {' '.join(missing)}"
        )


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package that it would lie in
        return False
