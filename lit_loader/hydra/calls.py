"""Arguments of Hydra's own calls, which 1.3 and 1.4 want to be others.

Used by the applications of ours. Up to 1.3, Hydra warns where ``version_base`` is missing; from 1.4
on it warns where it is given, and where targets are instantiated without a list of those that are
allowed: here whoever starts the program chooses them, so all are.
"""

from __future__ import annotations

from typing import Any, Final

import hydra.utils

__all__ = ["MAIN_OPTIONS"]

MAIN_OPTIONS: Final[dict[str, Any]] = {}
"""For ``@hydra.main``; holds for the calls of ``instantiate`` inside of it."""

if tuple(map(int, hydra.__version__.split(".")[:2])) < (1, 4):
    MAIN_OPTIONS["version_base"] = "1.3"
else:
    MAIN_OPTIONS["execution_whitelist"] = vars(hydra.utils)["UNSAFE_DISABLE_EXECUTION_CHECKS"]
