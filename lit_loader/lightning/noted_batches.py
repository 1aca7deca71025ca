"""Whether Lightning may note which indices a batch was made of, for writers of predictions.

Its wrapper notes batches as they are drawn. Where the loader gives them out in another order, or
leaves samples out, number ``i`` would be another batch's: then the wrapper is hidden, and Lightning
says that it cannot infer the indices.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

__all__ = ["unnoted", "wrappable"]

# Known by its name, for there are two (``lightning``, ``pytorch_lightning``).
# reach: lightning: the class that Lightning looks for
_NOTING: Final = "_IndexBatchSamplerWrapper"


def unnoted(batch_sampler: object) -> object:
    """Hide Lightning's wrapper, if this is one."""
    kinds = type(batch_sampler).__mro__
    return _Unnoted(batch_sampler) if any(k.__name__ == _NOTING for k in kinds) else batch_sampler


def wrappable(batch_sampler: object) -> object:
    """Make of a list of batches what Lightning can wrap: it copies a batch sampler's attributes."""
    if batch_sampler is None or hasattr(batch_sampler, "__dict__"):
        return batch_sampler
    return _Unnoted(batch_sampler)


class _Unnoted:
    """A batch sampler that gives what another gives, and nothing else of it but its sampler."""

    def __init__(self, batch_sampler: Any) -> None:
        self.sampler = getattr(batch_sampler, "sampler", None)
        self._batch_sampler = batch_sampler

    def __iter__(self) -> Iterator[object]:
        return iter(self._batch_sampler)

    def __len__(self) -> int:
        return len(self._batch_sampler)
