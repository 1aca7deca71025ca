"""NumPy's and torch's single values as Python's own: options and states hold no others.

NumPy's integers overflow where Python's go on, and ``torch.load(weights_only=True)`` refuses a
state with any of NumPy's types in it.
"""

from __future__ import annotations

from typing import Any

__all__ = ["plain"]


def plain(value: Any) -> Any:
    """Give a single value as Python's own bool, int, float or str; anything else as it is.

    Args:
        value: NumPy's scalars, and arrays and tensors without dimensions, are single values; so is
            a string of a subclass, as NumPy's and those of enumerations are.
    """
    if isinstance(value, str):
        return value if type(value) is str else str.__str__(value)
    if getattr(value, "ndim", None) == 0 and callable(getattr(value, "item", None)):
        try:
            return value.item()
        except Exception:  # a tensor without data, say: the caller refuses it as it is
            return value
    return value
