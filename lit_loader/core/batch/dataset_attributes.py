"""`DatasetAttributes`: what the workers' copies of a dataset have for plain attributes.

A program may set ``dataset.difficulty = 0.5`` between two passes. Workers that live on have copies
of the dataset, so what has changed when a pass begins is sent to them (`changed`, `pickled`,
`apply`). A worker that replaces another one later is given what the others have: a fork has the
dataset as the program has it by then, and sets it back (`restore`); all others get every change so
far.

Plain are numbers, strings, booleans, None, and tuples of these. A change of anything else is only
reported.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

_MOST_PARTS: Final = 100
"""Datasets within datasets whose attributes are looked at."""

Changes = dict[str, dict[str, Any]]
"""Values of attributes by their names, for each dataset by its path."""


class DatasetAttributes:
    """The attributes of a dataset, and of what it wraps in ``dataset`` or ``datasets``."""

    def __init__(self, dataset: object) -> None:
        self._dataset = dataset
        self.changes: Changes = {}
        """All changes so far."""
        self._plain, self._others = _attributes(dataset)

    def changed(self) -> Changes:
        """Return the plain attributes that have changed since the last call."""
        plain, self._others = _attributes(self._dataset)
        found: Changes = {}
        for path, attributes in plain.items():
            known = self._plain.get(path, {})
            new = {
                name: value
                for name, value in attributes.items()
                if name not in known or not _is_same(value, known[name])
            }
            if new:
                found[path] = new
                self.changes.setdefault(path, {}).update(new)
        self._plain = plain
        return found

    def restore(self) -> None:
        """Set the plain attributes of this process's dataset to what the workers have."""
        apply(self._plain, self._dataset)

    def replaced(self) -> list[str]:
        """Return the paths of other attributes that were replaced since the last `changed`."""
        _, now = _attributes(self._dataset)
        return sorted(path for path, value in now.items() if self._others.get(path, value) != value)


def pickled(changes: Changes) -> bytes:
    """Write changes down, for `apply` in another process."""
    return pickle.dumps(changes, pickle.HIGHEST_PROTOCOL)


def apply(changes: Changes, dataset: object) -> None:
    """Set a dataset's attributes."""
    for path, attributes in _parts(dataset):
        attributes.update(changes.get(path, {}))


def _attributes(dataset: object) -> tuple[Changes, dict[str, int]]:
    """Return plain attributes, and the ids of the others by their paths; that keeps none alive."""
    plain: Changes = {}
    others: dict[str, int] = {}
    for path, attributes in _parts(dataset):
        plain[path] = {name: value for name, value in attributes.items() if _is_plain(value)}
        found = attributes.keys() - plain[path].keys()
        others |= {f"{path}.{name}": id(attributes[name]) for name in found}
    return plain, others


def _parts(dataset: object) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the path and the attributes of a dataset, and of each that it wraps."""
    found: list[tuple[str, object]] = [("dataset", dataset)]
    seen: set[int] = set()
    while found and len(seen) < _MOST_PARTS:
        path, part = found.pop()
        attributes = getattr(part, "__dict__", None)
        if type(attributes) is not dict or id(part) in seen:
            continue
        seen.add(id(part))
        found.append((f"{path}.dataset", attributes.get("dataset")))
        several = attributes.get("datasets")
        if isinstance(several, list | tuple):
            found += ((f"{path}.datasets[{number}]", each) for number, each in enumerate(several))
        yield path, attributes


def _is_plain(value: object) -> bool:
    if type(value) is tuple:
        return all(map(_is_plain, value))
    return value is None or type(value) in _PLAIN or isinstance(value, (np.number, np.bool_))


_PLAIN: Final = (bool, int, float, complex, str, bytes)


def _is_same(value: object, known: object) -> bool:
    return value is known or (type(value) is type(known) and bool(value == known))
