"""Makes the dataset that a user named, or says in a line why that fails, in the user's terms.

Used by `bench/grid.py`. A line names what was typed, what is wrong with it, and the line of the
user's own code that it comes from.
"""

from __future__ import annotations

import difflib
import os
import sys
import sysconfig
import traceback
from pathlib import Path
from typing import Any, Final

from lit_loader.errors import LitLoaderError, OptionError

__all__ = ["in_users_words", "made"]

_LENGTHLESS: Final = (
    "give the dataset __len__; or, if its samples come one after the other, derive it from "
    "torch.utils.data.IterableDataset and give it __iter__"
)
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
        why = _absent(str(node.get("_target_")), cause) or in_users_words(cause)
        raise OptionError(f"{title} cannot be made: {why}") from error


def _absent(target: str, cause: BaseException) -> str:
    """What a target names that is not there, and what to do; "": it is, and failed by itself."""
    module, _, name = target.rpartition(".")
    if not isinstance(cause, ImportError) or not target.startswith(cause.name or target):
        return ""  # something that the user's module imports
    if not module:
        return f"name its module, too, as in dataset=my_module.{name}"
    there = sys.modules.get(module)
    if there is None:
        return (
            f"there is no module {cause.name or module!r}, neither installed nor in {os.getcwd()}: "
            "run lit-loader-bench in the folder that has it"
        )
    near = difflib.get_close_matches(name, vars(there), n=1)
    return f"{module} has no {name!r}" + (f": did you mean {near[0]!r}?" if near else "")


def in_users_words(error: BaseException) -> str:
    """An error in one line, with the line of the user's own code that it comes from."""
    text = in_one_line(error)
    if isinstance(error, TypeError) and "has no len()" in text:
        return f"{text}: {_LENGTHLESS}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_OTHERS)]
    if not own:
        return text
    return f"{text} ({own[-1].filename}:{own[-1].lineno}, in {own[-1].name}{_of_sample(error)})"


def in_one_line(error: BaseException) -> str:
    """An error in one line: the last line of its text, which is the cause's own."""
    text = error.text if isinstance(error, LitLoaderError) else str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}".removesuffix(": ")


def _of_sample(error: BaseException) -> str:
    """Which sample was read, as the user's own ``__getitem__`` calls it; "": that is not known."""
    for frame, _ in traceback.walk_tb(error.__traceback__):  # reach: python: the user's own frame
        code = frame.f_code  # reach: python: the user's own frame
        if code.co_name == "__getitem__" and not code.co_filename.startswith(_OTHERS):
            names = code.co_varnames[1 : min(2, code.co_argcount)]  # what comes after self
            return "".join(f", {name}={frame.f_locals.get(name)!r:.60}" for name in names)
    return ""
