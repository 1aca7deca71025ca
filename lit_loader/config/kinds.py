"""What is taken for a dataset."""

from __future__ import annotations

__all__ = ["is_dataset"]


def is_dataset(source: object) -> bool:
    """Whether this can be indexed or iterated; a list or dict of datasets can, too."""
    # A class has these methods for its instances, and is itself a factory.
    return not isinstance(source, type) and (
        hasattr(source, "__getitem__") or hasattr(source, "__iter__")
    )
