"""The start method of processes where none was chosen."""

from __future__ import annotations

import multiprocessing
from multiprocessing.context import BaseContext

__all__ = ["default_context"]


def default_context() -> BaseContext:
    """Python's default context, if it is one that can start workers.

    joblib's loky sets a start method of its own in its processes, under which even an explicit
    "spawn" fails in the child: there, workers are forked.
    """
    method = multiprocessing.get_start_method(allow_none=True)
    if method is not None and method not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("fork")
    return multiprocessing.get_context()
