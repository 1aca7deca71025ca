"""Whether Lightning may note which indices a batch was made of, for writers of predictions.

::

    Lightning ─ wraps loader.batch_sampler ─▶ notes each batch drawn ─ by number ─▶ writers

The wrapper notes batches in the order in which they are drawn. Where the loader gives them out in
another order, or leaves samples out, number ``i`` would be another batch's: then the wrapper is
hidden, and Lightning says that it cannot infer the indices.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

__all__ = ["hide_uncertain_indices", "wrappable_by_lightning"]


def hide_uncertain_indices(batch_sampler: Any, certain: bool) -> Any:
    """Hide what notes batches as they are drawn, if that is not how they are given out.

    Args:
        batch_sampler: Any, or None.
        certain: Whether batch number ``i`` given out is number ``i`` drawn, with all its samples.
    """
    if certain or not any(kind.__name__ == _NOTING for kind in type(batch_sampler).__mro__):
        return batch_sampler
    return _Unnoted(batch_sampler)


# Private reach: the class that Lightning looks for, of which there are two (``lightning`` and
# ``pytorch_lightning``). It is known by its name, for no loader needs Lightning.
_NOTING = "_IndexBatchSamplerWrapper"


def wrappable_by_lightning(batch_sampler: Any) -> Any:
    """Make of a list of batches what Lightning can wrap: it copies a batch sampler's attributes.

    Args:
        batch_sampler: Any, or None.
    """
    if batch_sampler is None or hasattr(batch_sampler, "__dict__"):
        return batch_sampler
    return _Unnoted(batch_sampler)


class _Unnoted:
    """A batch sampler that gives what another gives, and nothing else of it but its sampler."""

    def __init__(self, batch_sampler: Iterable[Any]) -> None:
        self.sampler = getattr(batch_sampler, "sampler", None)
        self._batch_sampler: Any = batch_sampler

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batch_sampler)

    def __len__(self) -> int:
        return len(self._batch_sampler)
