"""`SharedLists`: the ``share_lists`` option: a dataset's long lists, shared by all workers.

::

    parent   dataset.files ── a list, stays as it is
                │  ╰─▶ SharedList ──╮
    fork        ╰─▶ launcher: put_in_place ─▶ workers     (its own copy of the object's attributes)
    otherwise       pickled: instead of the list ─▶ workers

A forked worker shares its parent's list only until it reads it: reading a Python object counts a
reference, which copies its page. So the list that is replaced is kept, untouched, in the launcher:
letting go of it would count down, and so copy, every record.

A `SharedList` reads alike, and lies there once: numbers in an array, other records in a
`SharedSequence`. Each reading makes a new object, so what is written into a record would be gone
the next time, and no other worker would see it: dicts and lists among them refuse to be changed.
They are dicts and lists to whoever reads them; copies (``copy``, `dict`, ``copy.deepcopy``), and
what arrives in another process, are plain ones.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Final, NoReturn, SupportsIndex

import numpy as np

from lit_loader.core.seeding.find_generators import instance_dict, is_leaf
from lit_loader.data.shared_sequence import SharedSequence

__all__ = ["LONG", "SharedList", "SharedLists", "SharedTuple", "shared"]

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

    Only plain records are shared: strings, bytes, numbers, and tuples, dicts and lists of them.
    Long dicts and lists of other objects are left alone. Looks at attributes without running code
    of the user's, and does not change the dataset.
    """

    def __init__(self, dataset: Any) -> None:
        self._places: list[tuple[dict[Any, Any] | list[Any], Any, Any]] = []
        self._instead: dict[int, tuple[Any, SharedList]] = {}
        self._seen: set[int] = set()
        self._look(dataset, type(dataset).__name__, _DEPTH)

    def _look(self, value: Any, path: str, depth: int) -> None:
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
        items: Any = holder.items() if isinstance(holder, dict) else enumerate(holder)
        for key, part in list(items):
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
            _log.info(
                "share_lists: %s is left alone: %s; SharedSequence takes any records", name, why
            )
            return False
        put = shared(records)
        self._instead[id(records)] = (records, put)
        size = put.nbytes / 1e6
        _log.info(
            "share_lists: %s, %d records, takes %.1f MB for all workers", name, len(records), size
        )
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


def _is_plain(records: Any, depth: int = _NESTED) -> bool:
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


# --- what workers have instead ---


def _refuse(self: Any, *_: Any, **__: Any) -> NoReturn:
    """Take the place of the methods that write."""
    raise TypeError(
        "lit_loader: "
        f"this {self.KIND.__name__} belongs to what all workers share (share_lists=True), and what "
        "is written into it would be lost: change a copy of it, as in copy.deepcopy(record), or "
        "leave share_lists out"
        " [LL111]"
    )


class _ReadOnlyDict(dict[Any, Any]):
    KIND = dict
    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse

    def __reduce_ex__(self, protocol: Any) -> Any:
        return dict, (dict(self),)


class _ReadOnlyList(list[Any]):
    KIND = list
    __setitem__ = __delitem__ = __iadd__ = __imul__ = append = clear = extend = _refuse
    insert = pop = remove = reverse = sort = _refuse

    def __reduce_ex__(self, protocol: Any) -> Any:
        return list, (list(self),)


def _read_only(value: Any) -> Any:
    kind = type(value)
    if kind is dict:
        return _ReadOnlyDict({key: _read_only(part) for key, part in value.items()})
    if kind is list:
        return _ReadOnlyList(map(_read_only, value))
    return tuple(map(_read_only, value)) if kind is tuple else value


class SharedList(Sequence[Any]):
    """Reads as the list that it was made of; what would write to it raises.

    Raises:
        OSError: There is no memory.
        Exception: A record cannot be pickled.
    """

    KIND: ClassVar[Any] = list
    __setitem__ = __delitem__ = __iadd__ = __imul__ = append = clear = extend = _refuse
    insert = pop = remove = reverse = sort = _refuse

    def __init__(self, records: Sequence[Any]) -> None:
        kinds = set(map(type, records))
        self._numbers: np.ndarray[Any, Any] | None = None
        if kinds in ({int}, {float}):
            numbers = np.array(records)
            self._numbers = numbers if numbers.dtype in (np.int64, np.float64) else None
        if self._numbers is None:
            self._records: SharedSequence[Any] = SharedSequence(records)

    def __len__(self) -> int:
        return len(self._records if self._numbers is None else self._numbers)

    def __getitem__(self, index: Any) -> Any:
        if self._numbers is not None:
            found = self._numbers[index].tolist()
        else:
            found = _read_only(self._records[index])
        return self.KIND(found) if isinstance(index, slice) else found

    def __iter__(self) -> Iterator[Any]:
        if self._numbers is not None:
            return iter(self._numbers.data)
        return map(_read_only, self._records)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, SharedList):
            other = other.KIND(other)
        return bool(self.KIND(self) == other)

    __hash__ = None  # type: ignore[assignment]

    def __add__(self, other: Any) -> Any:
        return self.KIND(self) + (self.KIND(other) if isinstance(other, type(self)) else other)

    def __radd__(self, other: Any) -> Any:
        return other + self.KIND(self)

    def __mul__(self, times: SupportsIndex) -> Any:
        return self.KIND(self) * times

    __rmul__ = __mul__

    def copy(self) -> list[Any]:
        """Return a list of one's own."""
        return list(self)

    @property
    def nbytes(self) -> int:
        """Bytes of shared memory that it takes."""
        return self._records.nbytes if self._numbers is None else self._numbers.nbytes

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self):,} records)"


class SharedTuple(SharedList):
    """Reads as the tuple that it was made of."""

    KIND = tuple
    __iadd__ = SharedList.__add__  # another one, as of any tuple
    __imul__ = SharedList.__mul__

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self))


def shared(records: list[Any] | tuple[Any, ...]) -> SharedList:
    """Put a list or tuple into shared memory."""
    return SharedTuple(records) if isinstance(records, tuple) else SharedList(records)
