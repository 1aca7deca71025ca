"""Makes the dataset that a user named, or says in a line why that fails.

Used by `bench/grid.py`. A line says what is wrong, and which line of the user's own code it comes
from.
"""

from __future__ import annotations

import os
import sysconfig
import traceback
from pathlib import Path
from typing import Any, Final

from lit_loader.errors import LitLoaderError, OptionError

__all__ = ["in_users_words", "made"]

_OTHERS: Final = (
    *(sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib")),
    str(Path(__file__).parents[1]) + os.sep,
    "<frozen ",
)
"""How the names of files begin whose code is none of the user's."""


def made(title: str, node: Any) -> Any:
    """Make what a part of the configuration says; OptionError: it cannot be made."""
    from hydra.utils import instantiate

    try:
        return instantiate(node, _convert_="all")
    except Exception as error:  # the target's own, from Hydra 1.4 on
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        if isinstance(cause, OptionError):
            raise OptionError(f"{title}: {cause.text}") from error
        raise OptionError(f"{title} cannot be made: {in_users_words(cause)}") from error


def in_users_words(error: BaseException) -> str:
    """An error in one line, with the line of the user's own code that it comes from."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_OTHERS)]
    where = f" ({own[-1].filename}:{own[-1].lineno}, in {own[-1].name})" if own else ""
    text = error.text if isinstance(error, LitLoaderError) else str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}".removesuffix(": ") + where
