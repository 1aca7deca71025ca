"""`SharedLists`: the ``share`` option. A dataset's long lists, shared in memory by all workers.

::

    parent   dataset.files ── a list, stays as it is
                │  ╰─▶ SharedList ──╮
    fork        ╰─▶ launcher: put_in_place ─▶ workers     (its own copy of the object's attributes)
    otherwise       pickled: instead of the list ─▶ workers

A forked worker shares its parent's list only until it reads it: reading a Python object counts a
reference, which copies its page. So the list that is replaced is kept, untouched, in the launcher:
letting go of it would count down, and so copy, every record.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, Final

from lit_loader.seeding.find_generators import instance_dict, is_leaf
from lit_loader.transport.shared_list import SharedList, shared

__all__ = ["LONG", "SharedLists"]

LONG: Final = 10_000
"""Records of a list that is worth it."""

_DEPTH: Final = 8
_FEW: Final = 64
"""Items of a container that is looked into."""

_SCALARS: Final = frozenset({str, bytes, int, float, complex, bool, type(None)})
_NESTED: Final = 8  # records within each other

_log = logging.getLogger("lit_loader.share")


class SharedLists:
    """The long lists and tuples in the attributes of a dataset, and in those of its parts.

    Only plain records are shared: strings, bytes, numbers, and tuples, dicts and lists of them. A
    worker gets a new one each time, and would lose what it writes into it: so dicts and lists that
    it gets refuse to be changed. Long dicts and lists of other objects are left alone. Looks at
    attributes without running code of the user's.

    Args:
        dataset: The dataset. It is not changed.
    """

    def __init__(self, dataset: Any) -> None:
        self._places: list[tuple[dict[Any, Any] | list[Any], Any, Any]] = []
        self._instead: dict[int, tuple[Any, SharedList]] = {}
        self._seen: set[int] = set()
        self._look(dataset, type(dataset).__name__, _DEPTH)

    def _look(self, value: Any, path: str, depth: int) -> None:
        """Find lists among the parts of an object."""
        if depth == 0 or id(value) in self._seen or is_leaf(value):
            return
        self._seen.add(id(value))
        holder: dict[Any, Any] | list[Any] | None = None
        if type(value) in (dict, list):
            holder = value if len(value) <= _FEW else None
        elif not isinstance(value, type):
            holder = instance_dict(value)
        if holder is None:
            return
        for key, part in _items(holder):
            name = f"{path}[{key!r:.40}]" if holder is value else f"{path}.{key}"
            if type(part) in (list, tuple, dict) and len(part) >= LONG:
                if self._share(part, name):
                    self._places.append((holder, key, part))
            elif type(part) not in _SCALARS:
                self._look(part, name, depth - 1)

    def _share(self, records: Any, name: str) -> bool:
        if id(records) in self._instead:  # by another name
            return True
        if type(records) is dict or not _is_plain(records):
            why = "it is a dict" if type(records) is dict else "its records hold other objects"
            _log.info("share: %s is left alone: %s; SharedSequence takes any records", name, why)
            return False
        put = shared(records)
        self._instead[id(records)] = (records, put)
        size = put.nbytes / 1e6
        _log.info("share: %s, %d records, takes %.1f MB for all workers", name, len(records), size)
        return True

    def instead(self, value: object) -> SharedList | None:
        """Give what is pickled in an object's place; None: the object itself."""
        found = self._instead.get(id(value))
        return None if found is None else found[1]

    def put_in_place(self) -> None:
        """Put them into the dataset: in a process that is a fork of the one which made this."""
        for holder, key, records in self._places:
            if holder[key] is records:
                holder[key] = self._instead[id(records)][1]


def _items(holder: dict[Any, Any] | list[Any]) -> Iterator[tuple[Any, Any]]:
    return iter(list(holder.items() if isinstance(holder, dict) else enumerate(holder)))


def _is_plain(records: Any, depth: int = _NESTED) -> bool:
    """Whether all records are strings, numbers, or tuples, dicts and lists of them."""
    kinds = set(map(type, records))
    if kinds <= _SCALARS:
        return True
    if depth == 0 or not kinds <= _SCALARS | {tuple, dict, list}:
        return False
    return all(
        _is_plain(each, depth - 1)
        and (type(each) is not dict or _is_plain(each.values(), depth - 1))
        for each in records
        if type(each) not in _SCALARS
    )
