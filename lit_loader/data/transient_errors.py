"""The option ``transient_errors``: exception classes, or their names.

Asked by the check of options, and imports neither torch nor NumPy, as that.
"""

from __future__ import annotations

import builtins
import pkgutil
from typing import Any

from lit_loader.core.options.checks import is_list, refuse
from lit_loader.errors import OptionError

__all__ = ["exception_classes"]


def exception_classes(name: str, value: Any) -> tuple[type[Exception], ...]:
    """Check a list of exception classes, or of their names; gives the classes."""
    if not is_list(value):
        refuse(name, "a list of exception classes or of their names", value)
    return tuple(_exception(name, item) for item in value)


def _exception(name: str, value: Any) -> type[Exception]:
    kind = value
    if isinstance(value, str):
        try:
            kind = vars(builtins).get(value) or pkgutil.resolve_name(value)
        except Exception as error:  # whatever importing a module of the user's raises
            cause = " ".join(f"{type(error).__name__}: {error}".split())
            raise OptionError(
                f"{name} holds a name that cannot be imported ({cause:.100}): write it as "
                f"'package.module.Class', or one of Python's own as 'OSError', got {value!r:.100} "
                "[LL612]"
            ) from error
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        refuse(name, "a list of exception classes or of their names", [value])
    return kind
