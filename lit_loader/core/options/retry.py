"""`Retry`: when to retry a sample after an error that may pass.

Part of the check of options, and imports neither torch nor NumPy, as that.
"""

from __future__ import annotations

import builtins
import contextlib
import dataclasses
import pkgutil
from collections.abc import Mapping, Sequence
from typing import Any, Final

from lit_loader.core.options import checks
from lit_loader.core.options.checks import checked
from lit_loader.describe import public

_EXCEPTIONS: Final = (
    "a list of exception classes or of their names ('package.module.Class', or one of Python's own)"
)


def _exception_classes(name: str, value: Any) -> tuple[type[Exception], ...]:
    """Check a list of exception classes, or of their names; returns the classes."""
    if not checks.is_list(value):
        checks.refuse(name, _EXCEPTIONS, value)
    return tuple(_exception(name, item) for item in value)


def _exception(name: str, value: Any) -> type[Exception]:
    kind = value
    if isinstance(value, str):
        with contextlib.suppress(Exception):  # whatever importing a module of the user's raises
            kind = vars(builtins).get(value) or pkgutil.resolve_name(value)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        checks.refuse(name, _EXCEPTIONS, [value])
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

    def __bool__(self) -> bool:
        """Whether samples are retried at all."""
        return self.times > 0
