"""What counts as a dataset: for the loader, the data modules and mixtures."""

from __future__ import annotations

from typing import Any

from lit_loader.describe import short_repr
from lit_loader.errors import OptionError

__all__ = ["check_dataset", "is_dataset"]


def is_dataset(source: object) -> bool:
    """Whether this can be indexed or iterated; a list or dict of datasets can, too."""
    # A class has these methods for its instances, and is itself a factory.
    return not isinstance(source, type) and (
        hasattr(source, "__getitem__") or hasattr(source, "__iter__")
    )


def check_dataset(dataset: Any) -> None:
    """Refuse what can be neither indexed nor iterated.

    Raises:
        OptionError: It has none of the methods that samples are read by.
    """
    # Python looks these two up in the class; a forgotten pair of brackets is found so, too.
    if any(hasattr(type(dataset), name) for name in ("__getitem__", "__iter__")):
        return
    if isinstance(dataset, type):
        raise OptionError(
            f"dataset must be an object, got the class {dataset.__name__} itself: call it, as in "
            f"{dataset.__name__}()"
        )
    if not hasattr(dataset, "__getitems__"):
        raise OptionError(
            "dataset must have __getitem__ (and __len__), __getitems__ or __iter__, got "
            f"{short_repr(dataset)} ({type(dataset).__name__}): pass a dataset"
        )
