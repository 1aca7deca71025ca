"""`DatasetAttributes`: what a dataset's attributes were at one moment.

A worker that is forked in the place of another one has the dataset as the program has it by then.
Its plain attributes are restored; of the others it is known which were replaced.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

_MOST_PARTS: Final = 100
"""Datasets within datasets whose attributes are looked at."""


class DatasetAttributes:
    """The attributes of a dataset, and of what it wraps in ``dataset`` or ``datasets``.

    Plain ones are numbers, strings, booleans, None, and tuples of these.
    """

    def __init__(self, dataset: object) -> None:
        self._dataset = dataset
        self._plain: dict[str, dict[str, object]] = {}
        self._others: dict[str, int] = {}  # by their paths: their ids, which keep nothing alive
        for name, attributes in _parts(dataset):
            plain = {key: value for key, value in attributes.items() if _is_plain(value)}
            self._plain[name] = plain
            others = attributes.keys() - plain.keys()
            self._others |= {f"{name}.{key}": id(attributes[key]) for key in others}

    def restore(self) -> None:
        """Set the plain attributes as they were."""
        for name, attributes in _parts(self._dataset):
            for key, value in self._plain.get(name, {}).items():
                if attributes.get(key) is not value:
                    attributes[key] = value

    def replaced(self) -> list[str]:
        """Return the paths of the other attributes that were replaced since."""
        now = DatasetAttributes(self._dataset)._others
        return sorted(path for path, value in now.items() if self._others.get(path, value) != value)


def _parts(dataset: object) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield the path and the attributes of a dataset, and of each that it wraps."""
    found: list[tuple[str, object]] = [("dataset", dataset)]
    seen: set[int] = set()
    while found and len(seen) < _MOST_PARTS:
        name, part = found.pop()
        attributes = getattr(part, "__dict__", None)
        if type(attributes) is not dict or id(part) in seen:
            continue
        seen.add(id(part))
        yield name, attributes
        found.append((f"{name}.dataset", attributes.get("dataset")))
        several = attributes.get("datasets")
        if isinstance(several, list | tuple):
            found += ((f"{name}.datasets[{number}]", each) for number, each in enumerate(several))


def _is_plain(value: object) -> bool:
    if type(value) is tuple:
        return all(map(_is_plain, value))
    return value is None or type(value) in (bool, int, float, str)
