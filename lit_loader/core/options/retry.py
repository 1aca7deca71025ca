"""`Retry`: when to retry a sample after an error that may pass.

Part of the check of options, and imports neither torch nor NumPy, as that.
"""

from __future__ import annotations

import builtins
import dataclasses
import pkgutil
from collections.abc import Mapping, Sequence
from typing import Any, cast

from lit_loader.core.options import checks
from lit_loader.core.options.checks import checked
from lit_loader.describe import public
from lit_loader.errors import OptionError

__all__ = ["Retry"]


def _exception_classes(name: str, value: Any) -> tuple[type[Exception], ...]:
    """Check a list of exception classes, or of their names; returns the classes."""
    if not checks.is_list(value):
        checks.refuse(name, "a list of exception classes or of their names", value)
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
                f"'package.module.Class', or one of Python's own as 'OSError', got {value!r:.100}"
            ) from error
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        checks.refuse(name, "a list of exception classes or of their names", [value])
    return kind


@public
@dataclasses.dataclass(frozen=True)
class Retry:
    """When to retry a sample: the value of ``sample_retries``.

    Args:
        times: How often to retry a sample before its error counts.
        backoff: Seconds before the first retry. They double with each further one, up to 10 s: 0.1
            and 3 retries wait 0.1 + 0.2 + 0.4 s.
        on: Exception classes, or their names ("OSError", "my.module.Error"), after which a sample
            is retried.

    Raises:
        OptionError: A value is refused.

    Examples:
        >>> from lit_loader import DataLoader, Retry
        >>> retry = Retry(5, backoff=0.5, on=["OSError", "http.client.HTTPException"])
        >>> loader = DataLoader(range(6), 2, sample_retries=retry)
    """

    times: int = checked(3, checks.count)
    backoff: float = checked(0.1, checks.seconds)
    on: Sequence[type[Exception] | str] = checked((OSError, TimeoutError), _exception_classes)

    def __post_init__(self) -> None:
        checks.check_fields(self, "sample_retries.")

    @classmethod
    def check(cls, name: str, value: Any) -> int | Retry:
        """Check the option ``sample_retries``: a number, one of this class, or its options."""
        if isinstance(value, Mapping):
            checks.known_options(value, [*cls.__dataclass_fields__], place=f"{name}.")
            return cls(**value)
        return value if isinstance(value, cls) else checks.count(name, value)

    @classmethod
    def of(cls, value: int | Retry) -> Retry:
        """Return a checked value of ``sample_retries`` as one of this class."""
        return value if isinstance(value, cls) else cls(cast(int, value))
