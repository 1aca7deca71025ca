"""Tables of random numbers that a dataset makes in a process's first batch, where it should not.

Generators are seeded for each batch. So a table that is drawn in ``__getitem__`` and kept depends
on which batch a process made first: each worker has another one. What is seen of it: an attribute
that was not set before the batch and holds numbers after it and two more, beside a generator that
was drawn from in the first batch alone. One that samples draw from anyway says nothing: the
attribute may be read from a file.

One that is made in a later batch is seen where that batch is made again with a seed, for it has
drawn: if it draws no more then, the table has the numbers of the first time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np
import torch

from lit_loader.core.seeding.find_generators import instance_dict

__all__ = ["DrawnTables"]

_BATCHES: Final = 3


class DrawnTables:
    """Looks at the attributes of objects that make batches, before the first one and after."""

    def __init__(self, objects: Iterable[Any]) -> None:
        self._objects = [(each, self._set_in(each)) for each in objects]
        self._tables: list[tuple[Any, str, Any]] = []
        self._drawn: set[int] = set()
        self._batches = 0

    def after_batch(self, drawn: Callable[[], set[int]]) -> list[str] | None:
        """Give the tables as "class.attribute", once known; None: it is to be asked again.

        ``drawn`` says which generators the batch has drawn from, by their ids.
        """
        self._batches += 1
        if self._batches == 1:
            self._tables = self._made()
            self._drawn = drawn() if self._tables else set()
        else:
            self._tables = [
                (owner, name, value)
                for owner, name, value in self._tables
                if instance_dict(owner).get(name) is value
            ]
            self._drawn -= drawn()
        if not (self._tables and self._drawn):
            return []
        if self._batches < _BATCHES:
            return None
        return _names(self._tables)

    def made(self) -> list[str]:
        """Give the attributes that hold numbers and were not set before, as "class.attribute"."""
        return _names(self._made())

    def _made(self) -> list[tuple[Any, str, Any]]:
        return [
            (owner, name, value)
            for owner, before in self._objects
            for name, value in instance_dict(owner).items()
            if name not in before and _holds_numbers(value)
        ]

    @staticmethod
    def _set_in(owner: Any) -> set[str]:
        return {name for name, value in instance_dict(owner).items() if value is not None}


def _names(tables: list[tuple[Any, str, Any]]) -> list[str]:
    return [f"{type(owner).__name__}.{name}" for owner, name, _ in tables]


def _holds_numbers(value: Any) -> bool:
    kind = type(value)
    if kind in (list, tuple):
        return bool(value) and all(map(_holds_numbers, value[:16]))
    if kind is np.ndarray:
        return value.size > 0 and value.dtype.kind in "biufc"
    return kind in (int, float) or issubclass(kind, (torch.Tensor, np.number))
